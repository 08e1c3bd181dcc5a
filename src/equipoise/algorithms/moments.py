"""One exchange of sums: how many rows all clients have together, their sum and the sum of their squares.

Each client's own sums are in `Reply.total`: the server sees those over all clients, which secure aggregation can hide
the parts of. Sums are in double precision; run it under jax.enable_x64(True).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import Nothing, send_nothing
from equipoise.cohorts import Sample, check_distinct
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector


class Moments(NamedTuple):
    """Sums over examples, in double precision: all that the clients have to tell about their features."""

    count: Any
    total: Float[Array, " p"]
    squares: Float[Array, " p"]


@numbers_are_leaves
def moments(features: int, sample: Sample) -> Algorithm[Moments, None]:
    """Of inputs [m, features]; the server's state after a round are their `Moments`."""
    n = check_distinct(sample, "its rows would be counted twice")

    def work(message: Nothing, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        real = (jnp.arange(data.inputs.shape[0], dtype=data.sizes.dtype) < data.sizes)[:, None]
        rows = jnp.where(real, data.inputs, 0).astype(jnp.float64)
        sums = Moments(data.sizes.astype(jnp.float64), jnp.sum(rows, axis=0), jnp.sum(rows**2, axis=0))
        return None, Reply(total=sums)

    def close(server: Moments, replies: Replies) -> Moments:
        return replies.total

    def init(x: Vector) -> Moments:
        nothing = jnp.zeros(features, jnp.float64)
        return Moments(jnp.zeros((), jnp.float64), nothing, nothing)

    sums = Exchange("sums", sample.open, send_nothing, work, close)
    return measurement("moments", n, features, sums, init=init, model=lambda server: server.total)


def scaling(sums: Moments) -> tuple[np.ndarray, np.ndarray]:
    """(mean, scale), with which (phi - mean) * scale has entries of variance 1/p: |phi|^2 is 1 on average.

    A feature that hardly varies, beside others or beside its own mean, is left out: its scale is zero.
    """
    count, total, squares = (np.asarray(part, np.float64) for part in sums)
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
    usual = np.median(spread[spread > 0]) if np.any(spread > 0) else 1.0
    rounding = np.sqrt(count * np.finfo(np.float64).eps) * np.abs(mean)  # that sums of so many terms can have
    kept = spread > np.maximum(1e-6 * usual, rounding)
    return mean, np.where(kept, 1 / np.where(kept, spread, 1) / np.sqrt(len(mean)), 0.0)
