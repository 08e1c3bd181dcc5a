"""Gains instead of losses: what a model is to each client beyond what it has without it.

    min_x  max_{lam in Lam}  sum_i lam_i (f_i(x) - b_i) - psi(lam)

with a constant b_i of each client, such as the loss of a model of its own. Losses differ between clients because their
labels are noisier or rarer, which no model can change; weights by losses go there. Known as minimax regret (Agarwal and
Zhang 2022, "Minimax regret optimization for robust machine learning under distribution shift").
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from equipoise.errors import is_concrete, require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual


@numbers_are_leaves
def of_gains(dual: Dual, base: ArrayLike) -> Dual:
    """`dual` of losses less `base` [n]: its penalty is psi(lam) + base' lam, so that all that is told stays a loss.

    prox(v, step) = argmin_{lam in Lam} psi(lam) + base' lam + |lam - v|^2/(2 step) = the dual's own at v - step base.
    """
    require(
        jnp.shape(base) == (dual.n,),
        f"there are baselines of shape {jnp.shape(base)} for {dual.n} clients; give one for each",
    )
    require(
        not is_concrete(base) or bool(np.isfinite(np.asarray(base)).all()),
        "a baseline is not finite; give a number for each",
    )
    if is_concrete(base) and not np.any(np.asarray(base)):
        return dual

    def baselines_as(like: Array) -> Array:
        return jnp.asarray(base).astype(like.dtype) if isinstance(base, Array) else jnp.asarray(base, like.dtype)

    def prox(v: Array, step: Array | float) -> Array:
        v = jnp.asarray(v)
        return dual.prox(v - jnp.asarray(step, v.dtype) * baselines_as(v), step)

    def penalty(lam: Array) -> Array:
        lam = jnp.asarray(lam)
        return dual.penalty(lam) + jnp.sum(baselines_as(lam) * lam)

    def gains(losses: ArrayLike) -> Array:
        losses = jnp.asarray(losses)
        return losses - baselines_as(losses)

    interior = dual.interior
    if interior is not None:
        interior = replace(interior, cost=interior.cost + base[interior.owner])  # type: ignore[index]
    return dual._replace(
        penalty=penalty,
        prox=prox,
        best_response=lambda losses: dual.best_response(gains(losses)),
        value=lambda losses: dual.value(gains(losses)),
        interior=interior,
        prox_given=None,
    )
