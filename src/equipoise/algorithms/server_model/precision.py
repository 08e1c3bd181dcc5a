"""Double precision at the server, whatever the run has.

Numbers that must keep it between exchanges are pairs of the run's precision that sum to them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from equipoise.algorithms.server_model.state import Server
from equipoise.protocol import Replies


def pairs(values: Array) -> Array:
    """Numbers as pairs that sum to them; what rounds them to another precision keeps the second for the remainder."""
    return jnp.stack([values, jnp.zeros_like(values)], axis=-1)


def joined(two: Array) -> Array:
    return jnp.sum(two, axis=-1)


def in_double(step: Callable[[Server, Replies, float], Server]) -> Callable[[Server, Replies], Server]:
    """`step(server, replies, eps)` in double precision, between states of the run's own, whose rounding is `eps`."""

    def wrapped(server: Server, replies: Replies) -> Server:
        dtype = server.centre.x.dtype

        def wide(a: Array | np.ndarray) -> Array | np.ndarray:
            return a.astype(jnp.float64) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a

        def narrow(a: Array) -> Array:
            return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

        def split(two: Array) -> Array:
            value = joined(two)
            high = value.astype(dtype)
            return jnp.stack([high, (value - high.astype(jnp.float64)).astype(dtype)], axis=-1)

        with jax.enable_x64(True):
            new = step(jax.tree.map(wide, server), jax.tree.map(wide, replies), float(jnp.finfo(dtype).eps))
            centre = jax.tree.map(narrow, new.centre)._replace(f=split(new.centre.f))
            trial = jax.tree.map(narrow, new.trial)._replace(predicted=split(new.trial.predicted))
            return jax.tree.map(narrow, new)._replace(centre=centre, trial=trial)

    return wrapped
