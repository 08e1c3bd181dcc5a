"""Proportional fairness: the Nash product of the utilities bound - f_i (Zhang et al. 2022).

lam is not a probability vector here.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, finite, make_dual, number, reference
from equipoise.objectives.dual import Dual
from equipoise.objectives.projections import moderate
from equipoise.objectives.record import Record


@numbers_are_leaves(static=("margin", "p"))
def propfair(n: int, bound: float, *, p: ArrayLike | None = None, margin: float | None = None) -> Dual:
    """psi(lam) = sum_i (bound lam_i - p_i - p_i log(lam_i/p_i)) on 0 < lam_i <= p_i/margin.

    prox(v, step) = argmin_{lam in that set} psi(lam) + |lam - v|^2/(2 step). The best response is
    p_i/(bound - f_i) and the value -sum_i p_i log(bound - f_i) while every loss is at most bound - margin;
    beyond, the logarithm goes on as its tangent (PropFair's Huberised form) and the weight stays at
    p_i/margin. Without that cap on lam a loss at the bound would be worth infinity. p is 1/n and margin is
    bound/100 unless given.
    """
    n, bound, weights = clients(n), number("bound", bound), reference(p, n)
    margin = bound / 100 if margin is None else number("margin", margin)
    require(margin <= bound, f"margin is {margin}, above the bound {bound}; give a small part of the bound")

    def cap(p: Array) -> Array:
        return finite(p / moderate(margin, p.dtype))

    def penalty(lam: Array) -> Array:
        p = jnp.asarray(weights, lam.dtype)
        lam = jnp.maximum(lam, jnp.finfo(lam.dtype).tiny)
        return finite(jnp.sum(moderate(bound, lam.dtype) * lam - p - p * jnp.log(lam / p)))

    def prox(v: Array, step: Array | float) -> Array:
        # The positive root of lam - step p/lam = v - step bound, in whichever form has no subtraction.
        p, info = jnp.asarray(weights, v.dtype), jnp.finfo(v.dtype)
        beta = jnp.maximum(v - finite(step * moderate(bound, v.dtype)), -info.max / 4)
        root = jnp.sqrt(step) * jnp.sqrt(p)
        wide = jnp.hypot(beta, 2 * root)
        below = root * (2 * root / jnp.maximum(wide - beta, info.tiny))
        return jnp.clip(jnp.where(beta > 0, beta / 2 + wide / 2, below), info.tiny, cap(p))

    def best_response(losses: Array) -> Array:
        p = jnp.asarray(weights, losses.dtype)
        utility = jnp.maximum(moderate(bound, p.dtype) - losses, moderate(margin, p.dtype))
        return jnp.maximum(p / utility, jnp.finfo(p.dtype).tiny)

    def value(losses: Array) -> Array:
        p, least = jnp.asarray(weights, losses.dtype), moderate(margin, losses.dtype)
        utility = moderate(bound, p.dtype) - losses
        beyond = jnp.maximum(least - utility, 0) / least
        return finite(jnp.sum(p * (beyond - jnp.log(jnp.maximum(utility, least)))))

    modulus = margin**2 / float(weights.max())  # psi'' = p/lam^2
    return make_dual(Dual("propfair", n, penalty, prox, best_response, value, modulus, simplex=False))


PROPFAIR = Record("propfair", propfair, example={"bound": 50.0}, defaults={"bound": 5.0}, not_settings=("p",))
