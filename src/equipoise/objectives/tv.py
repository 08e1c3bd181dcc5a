"""Total variation: weights may leave the reference p at a price of rho per unit moved, in and out."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, make_dual, number, reference
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.projections import level, moderate, with_unit_sum
from equipoise.objectives.record import Record


@numbers_are_leaves(static=("p",))
def tv(n: int, rho: float, *, p: ArrayLike | None = None) -> Dual:
    """psi(lam) = rho sum_i |lam_i - p_i| on the simplex Delta; p is 1/n unless given, and may have zeros.

    prox(v, step) = argmin_{lam in Delta} rho sum_i |lam_i - p_i| + |lam - v|^2/(2 step). The best
    response moves the weight of every client more than 2 rho below the worst loss to the worst clients.
    """
    n, rho, weights = clients(n), number("rho", rho), reference(p, n, zeros=True)

    def penalty(lam: Array) -> Array:
        return moderate(rho, lam.dtype) * jnp.sum(jnp.abs(lam - jnp.asarray(weights, lam.dtype)))

    def prox(v: Array, step: Array | float) -> Array:
        # With a = step rho, w = v - p - max(v - p), lam_i = p_i + (w_i - nu)_+ - clip(nu - 2a - w_i, 0, p_i):
        # what is called for above p, less what is let go below it. The level, counted from max(v - p) - a,
        # is in [-1, 0] for every a, and the parts are 2n shares under caps: 1, which nobody reaches, and p.
        p = jnp.asarray(weights, v.dtype)
        a = step * moderate(rho, v.dtype)
        w = (v - jnp.max(v)) - p
        w = jnp.maximum(w - jnp.max(w), -jnp.finfo(v.dtype).max)
        b = jnp.maximum(jnp.concatenate([w, p + jnp.minimum(w + 2 * a, 0)]), -1)
        cap = jnp.concatenate([jnp.ones_like(p), p])
        weights_of_parts = with_unit_sum(jnp.clip(b - level(b, cap, -1.0), 0, cap), cap)
        return weights_of_parts[:n] + weights_of_parts[n:]

    def best_response(losses: Array) -> Array:
        p = jnp.asarray(weights, losses.dtype)
        below = losses - jnp.max(losses)
        stay = jnp.where(below >= -2 * moderate(rho, losses.dtype), p, 0)
        worst = (below == 0).astype(p.dtype)
        return stay + worst * (jnp.sum(p - stay) / jnp.sum(worst))

    def value(losses: Array) -> Array:
        worst = jnp.max(losses)
        saved = jnp.minimum(worst - losses, 2 * moderate(rho, losses.dtype))
        return worst - jnp.sum(jnp.asarray(weights, losses.dtype) * saved)

    # What a client holds above p, at a price of rho, and what it keeps of p, which saves rho.
    kept = np.flatnonzero(weights > 0)
    interior = Interior(
        owner=np.concatenate([np.arange(n), kept]),
        cost=rho * np.concatenate([np.ones(n), -np.ones(len(kept))]),
        cap=np.concatenate([np.full(n, np.inf), weights[kept]]),
        p=np.concatenate([weights, weights[kept]]),
    )
    return make_dual(Dual("tv", n, penalty, prox, best_response, value, modulus=0.0, interior=interior))


TV = Record("tv", tv, example={"rho": 0.3}, defaults={"rho": 0.1}, not_settings=("p",))
