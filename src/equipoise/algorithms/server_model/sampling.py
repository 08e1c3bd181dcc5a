"""Whom `scaffpd_model` hears in a round of few clients."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.server_model import constants, directions, judge
from equipoise.algorithms.server_model.directions import TINY
from equipoise.algorithms.server_model.precision import joined
from equipoise.algorithms.server_model.state import Server
from equipoise.objectives.dual import Dual
from equipoise.protocol import RandomKey

SIDE_BY_SIDE = 256  # robust values at a time: with more clients their table would be large


def clients_to_hear(server: Server, key: RandomKey, m: int) -> Bool[Array, " n"]:
    """The m clients of the next `collect`."""
    n = server.age.size
    again = jnp.ceil(constants.AGAIN * m).astype(jnp.int32)
    by_chance = jnp.round(constants.BY_CHANCE * m).astype(jnp.int32)
    old = server.age + 1
    picked = first(jnp.where(server.centre.heard_here, server.lam, -1), again) & server.centre.heard_here
    weight = (jnp.maximum(server.lam, server.trial.lam) + constants.WEIGHT_OF_NONE / n) * old
    count = jnp.sum(picked, dtype=jnp.int32)
    picked = picked | first(jnp.where(picked, -1, weight), m - by_chance - count)
    with jax.enable_x64(True):  # the same draws in any precision
        luck = jax.random.gumbel(key, (n,), jnp.float64) + constants.CHANCE_OF_AGE * jnp.log(old.astype(jnp.float64))
        return picked | first(jnp.where(picked, -jnp.inf, luck), m - jnp.sum(picked))


def first(score: Float[Array, " n"], count: ArrayLike) -> Bool[Array, " n"]:
    """Which `count` entries are the largest."""
    rank = (
        jnp.zeros(score.size, jnp.int32)
        .at[jnp.argsort(-jnp.round(score, 6))]
        .set(jnp.arange(score.size, dtype=jnp.int32))
    )
    return rank < jnp.asarray(count, jnp.int32)


def to_correct(server: Server, dual: Dual, m: int) -> Int[Array, " m"]:
    """The m clients of the next `improve`: the largest weights, and those whose estimates could be most wrong.

    The latter are those for whom the robust value would rise most if their loss at the centre were as large as it may
    be. By weights alone, a client of little weight that has gone astray would long not be heard.
    """
    n = server.age.size
    by_risk = jnp.round(constants.BY_RISK * m).astype(jnp.int32)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, server)
        f, width = joined(wide.centre.f), could_be_off(wide)
        base, floor = dual.value(f), constants.RISK_ROUNDING * jnp.max(jnp.abs(f)) + TINY
        risk = jax.lax.map(lambda i: dual.value(f.at[i].add(width[i])) - base, jnp.arange(n), batch_size=SIDE_BY_SIDE)
        # In steps of a thousandth, so that rounding does not tell clients apart.
        risk = jnp.round(jnp.log(jnp.maximum(risk, floor) / floor), 3)
        risk = jnp.where(wide.centre.heard, risk, jnp.inf)
        lam = jnp.round(wide.lam, 6)
        risk = jnp.where(first(lam, m - by_risk), jnp.inf, risk)
        return jnp.lexsort((-lam, -risk))[:m].astype(jnp.int32)  # weights of nothing tie


def could_be_off(server: Server) -> Float[Array, " n"]:
    """How much larger the clients' losses at the centre may be than estimated: 0 for those who were heard there.

    Since it was last heard a client's loss went as its images say, but for the part of the way of which they know
    nothing; there its curvature is at most L_i.
    """
    centre = server.centre
    reach, across = directions.span(server.memory.D, judge.since(centre))
    unknown = jnp.einsum("ni,nij,nj->n", reach, server.memory.U, reach) + across
    return jnp.where(centre.heard_here | ~centre.heard, 0, server.L * jnp.maximum(unknown, 0) / 2)
