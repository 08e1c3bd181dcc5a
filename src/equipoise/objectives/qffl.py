"""q-fair federated learning: losses to the power q + 1 (Li et al. 2020; SCAFF-PD section 3).

SCAFF-PD writes psi = ||lam||^{1 + 1/q}; read as the sum of the powers, with the factor that makes the value
sum_i p_i f_i^{q+1}/(q+1) as q-FFL has it. lam is not a probability vector here.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, finite, make_dual, number, reference
from equipoise.objectives.dual import Dual
from equipoise.objectives.record import Record


@numbers_are_leaves(static=("q", "p"))
def qffl(n: int, q: float, *, p: ArrayLike | None = None) -> Dual:
    """psi(lam) = q/(q+1) sum_i p_i^{-1/q} lam_i^{1 + 1/q} on lam >= 0; p is 1/n unless given.

    prox(v, step) = argmin_{lam >= 0} psi(lam) + |lam - v|^2/(2 step). The best response is p_i f_i^q,
    and 0 for a loss below zero. What exceeds the largest float is answered by the largest float.
    """
    n, q, weights = clients(n), number("q", q, traced=False), reference(p, n)
    logs = np.log(weights)

    def penalty(lam: Array) -> Array:
        lam = jnp.maximum(lam, 0)
        power = (lam / jnp.asarray(weights, lam.dtype)) ** (1 / q)
        return finite(q / (q + 1) * jnp.sum(lam * power))

    def prox(v: Array, step: Array | float) -> Array:
        # lam + step (lam/p)^{1/q} = v, which with lam = v e^{-x} is log(e^{-x} + e^{k - x/q}) = 0: convex and
        # falling in x, and at least 0 where one term alone makes it 0, so that Newton's steps from there rise
        # to the root.
        info = jnp.finfo(v.dtype)
        if q == 1:
            p = jnp.asarray(weights, v.dtype)
            return jnp.maximum(v, 0) * (p / (p + step))
        some = jnp.maximum(v, info.tiny)
        logv, ratio = jnp.log(some), step / some
        # q multiplies k's rounding, so the logarithm of the ratio is taken wherever the ratio exists.
        exists = (ratio > info.tiny) & (ratio < info.max)
        k = jnp.where(exists, jnp.log(ratio), jnp.log(step) - logv) + (logv - jnp.asarray(logs, v.dtype)) / q

        def newton(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            x, _, i = state
            both = jnp.logaddexp(-x, k - x / q)
            move = both / (jnp.exp(-x - both) + jnp.exp(k - x / q - both) / q)
            return x + move, move, i + 1

        def moving(state: tuple[Array, Array, Array]) -> Array:
            x, move, i = state
            return jnp.any(jnp.abs(move) > 4 * info.eps * (1 + jnp.abs(x))) & (i < 60)

        x0 = jnp.maximum(q * k, 0)
        x, _, _ = lax.while_loop(moving, newton, (x0, jnp.ones_like(x0), jnp.int32(0)))
        return jnp.where(v > 0, jnp.minimum(jnp.exp(logv - x), v), 0)

    def best_response(losses: Array) -> Array:
        return finite(jnp.asarray(weights, losses.dtype) * jnp.maximum(losses, 0) ** q)

    def value(losses: Array) -> Array:
        power = jnp.maximum(losses, 0) ** (q + 1)
        return finite(jnp.sum(jnp.asarray(weights / (q + 1), losses.dtype) * power))

    modulus = 1 / float(weights.max()) if q == 1 else 0.0  # psi'' = (lam/p)^{1/q} / (q lam)
    return make_dual(Dual("qffl", n, penalty, prox, best_response, value, modulus, simplex=False))


QFFL = Record("qffl", qffl, example={"q": 1.0}, defaults={"q": 1.0}, not_settings=("p",))
