"""Conditional value at risk: the mean over the worst alpha fraction of clients (SCAFF-PD section 3)."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array

from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, make_dual, no_penalty, number, value_of
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.projections import level, with_unit_sum
from equipoise.objectives.record import Record


@numbers_are_leaves(static=("alpha",))
def cvar(n: int, alpha: float) -> Dual:
    """psi = 0 on {lam in Delta : lam_i <= 1/(alpha n)}; also known as the superquantile.

    prox(v, step) = argmin_{lam in that set} |lam - v|^2, whatever the step. alpha = 1 is the average,
    alpha <= 1/n is `agnostic`. In the best response clients that tie at the quantile share what the worse
    ones leave.
    """
    n, alpha = clients(n), number("alpha", alpha, traced=False)
    require(alpha <= 1, f"alpha is {alpha}; give the fraction of clients to care for, above 0 and at most 1")
    cap = min(1.0, 1 / (alpha * n))
    fill = math.ceil(alpha * n)  # this many clients at the cap are enough, one fewer is not

    def quantile(v: Array) -> Array:
        return jnp.sort(v)[n - fill]

    def prox(v: Array, step: Array | float) -> Array:
        # The level lies within one cap below the quantile, which makes that the place to measure from.
        b = jnp.clip(v - quantile(v), -cap, cap)
        return with_unit_sum(jnp.clip(b - level(b, cap, -cap), 0, cap), cap)

    def best_response(losses: Array) -> Array:
        q = quantile(losses)
        worse, ties = losses > q, losses == q
        left = 1 - cap * jnp.sum(worse, dtype=losses.dtype)
        each = jnp.clip(left / jnp.sum(ties, dtype=losses.dtype), 0, cap)
        return jnp.where(worse, jnp.asarray(cap, losses.dtype), jnp.where(ties, each, 0))

    operators = no_penalty, prox, best_response, value_of(best_response)
    interior = Interior.weights(n, cap=np.full(n, cap)) if cap < 1 else Interior.weights(n)
    return make_dual(Dual("cvar", n, *operators, modulus=0.0, interior=interior))


CVAR = Record("cvar", cvar, example={"alpha": 0.3}, defaults={"alpha": 0.2})
# Equal weights are the only ones of CVaR at 1: what methods for the average minimise, as one objective among others.
AVERAGE = Record("average", partial(cvar, alpha=1.0), not_settings=("alpha",), average=True)
