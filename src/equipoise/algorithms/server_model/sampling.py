"""Whom `scaffpd_model` hears in a round of few clients."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.server_model import constants
from equipoise.algorithms.server_model.state import Server
from equipoise.protocol import RandomKey


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
    luck = jax.random.gumbel(key, (n,), old.dtype) + constants.CHANCE_OF_AGE * jnp.log(old)
    return picked | first(jnp.where(picked, -jnp.inf, luck), m - jnp.sum(picked))


def first(score: Float[Array, " n"], count: ArrayLike) -> Bool[Array, " n"]:
    """Which `count` entries are the largest."""
    rank = (
        jnp.zeros(score.size, jnp.int32)
        .at[jnp.argsort(-jnp.round(score, 6))]
        .set(jnp.arange(score.size, dtype=jnp.int32))
    )
    return rank < jnp.asarray(count, jnp.int32)


def heaviest(server: Server, m: int) -> Int[Array, " m"]:
    """The m clients of the next `improve`."""
    return jnp.argsort(-jnp.round(server.lam, 6))[:m].astype(jnp.int32)  # weights of nothing tie
