"""Weights that no client can have more of than a cap: what a hostile or broken one can do to the model is bounded.

A weaker promise to the worst-off where honest clients would get more, so it is off unless asked for.
"""

import jax
import jax.numpy as jnp
from jax import Array

from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import make_dual, value_of
from equipoise.objectives.dual import Dual
from equipoise.objectives.projections import with_unit_sum


@numbers_are_leaves(static=("cap",))
def cap_weights(dual: Dual, cap: float) -> Dual:
    """`dual` over weights of at most `cap` per client: Lam becomes {lam in Lam : lam_i <= cap}.

    prox(v, step) = argmin_{lam in that set} psi(lam) + |lam - v|^2/(2 step). A site can then move the objective by
    `cap` times its loss at most. For duals that treat all clients alike, as all those on the simplex do.
    """
    require(dual.simplex, f"weights of {dual.name} are not shares; cap those of an objective on the simplex")
    require(
        1 / dual.n < cap <= 1,
        f"no weights of {dual.n} clients are below {cap} and add up to 1; give one above {1 / dual.n:.3g}, up to 1",
    )

    def prox(v: Array, step: Array | float) -> Array:
        """The dual's own prox at min(v, t), for the largest t at which no weight exceeds the cap.

        Clients above t are treated alike, so all of them get the largest weight, the cap; what v lost there is their
        multiplier. These are the optimality conditions.
        """

        def weights(t: Array) -> Array:
            return dual.prox(jnp.minimum(v, t), step)

        def narrow(state: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = state
            t = low + (high - low) / 2
            fits = jnp.max(weights(t)) <= cap
            return jnp.where(fits, t, low), jnp.where(fits, high, t)

        def inside(state: tuple[Array, Array]) -> Array:
            low, high = state
            t = low + (high - low) / 2
            return (low < t) & (t < high)

        bounds = jnp.min(v), jnp.where(jnp.max(weights(jnp.max(v))) <= cap, jnp.min(v), jnp.max(v))
        t, _ = jax.lax.while_loop(inside, narrow, bounds)
        t = jnp.where(bounds[1] > bounds[0], t, jnp.max(v))
        return with_unit_sum(jnp.minimum(weights(t), cap), cap)

    def best_response(losses: Array) -> Array:
        spread = jnp.max(losses) - jnp.min(losses)
        step = jnp.finfo(losses.dtype).eps ** -0.25 / jnp.where(spread > 0, spread, 1)
        equal = jnp.full_like(losses, 1 / dual.n)
        # The proximal point method, whose fixed points are the maximisers.
        return jax.lax.fori_loop(0, 30, lambda _, lam: prox(lam + step * losses, step), equal)

    interior = None if dual.interior is None else dual.interior.capped(cap)
    named = dual._replace(name=f"{dual.name} capped at {cap:g}", interior=interior, prox_given=None)
    value = value_of(best_response, dual.penalty)
    return make_dual(named._replace(prox=prox, best_response=best_response, value=value))
