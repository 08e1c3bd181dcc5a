"""One exchange of sums: how many rows all clients have together, their sum and the sum of their squares.

Each client's own sums are in `Reply.total`: the server sees those over all clients, which secure aggregation can hide
the parts of. Sums are in double precision; run it under jax.enable_x64(True).
"""

import jax.numpy as jnp

from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import Nothing, send_nothing
from equipoise.cohorts import Sample, check_distinct
from equipoise.leaves import numbers_are_leaves
from equipoise.models.gradient_features import Moments
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector


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
