"""A local step size that changes from round to round, for any algorithm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Client, Cohort, Data, Exchange, Message, RandomKey, Replies, Reply, Server


class Scheduled(NamedTuple):
    """The algorithm's own server, and the rounds done."""

    server: Server
    round: Int[Array, ""]


class Timed(NamedTuple):
    """The algorithm's own message, and this round's step size."""

    local_lr: Float[Array, ""]
    message: Message


@numbers_are_leaves
def with_local_schedule(build: Callable[[Any], Algorithm], schedule: Callable[[Any], Any]) -> Algorithm:
    """The algorithm build(local_lr), with local_lr = schedule(rounds done so far) in every round.

    `build` is called with a traced number: with_local_schedule(lambda lr: fedavg(task, sample, steps=5, local_lr=lr),
    optax.cosine_decay_schedule(0.1, 200)). One more number goes down in every exchange. Exact for every algorithm,
    corrected ones included: the whole round is that of the algorithm with this step size.
    """
    first = build(float(schedule(0)))  # numbers, which can be checked

    def rate(server: Scheduled) -> Float[Array, ""]:
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its counts with floats
            return jnp.asarray(schedule(server.round), first.model(server.server).dtype)

    def wrapped(k: int, exchange: Exchange) -> Exchange:
        def now(local_lr: Float[Array, ""]) -> Exchange:
            return build(local_lr).round[k]

        def open(server: Scheduled, key: RandomKey) -> tuple[Scheduled, Cohort]:
            inner, cohort = now(rate(server)).open(server.server, key)
            return server._replace(server=inner), cohort

        def send(server: Scheduled, i: Int[Array, ""]) -> Timed:
            return Timed(rate(server), now(rate(server)).send(server.server, i))

        def work(message: Timed, client: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
            return now(message.local_lr).work(message.message, client, data, key)

        def close(server: Scheduled, replies: Replies) -> Scheduled:
            inner = now(rate(server)).close(server.server, replies)
            return Scheduled(inner, server.round + (1 if k + 1 == len(first.round) else 0))

        return exchange._replace(open=open, send=send, work=work, close=close)

    return first._replace(
        init=lambda x: Scheduled(first.init(x), jnp.int32(0)),
        round=tuple(wrapped(k, e) for k, e in enumerate(first.round)),
        model=lambda server: first.model(server.server),
        weights=lambda server: first.weights(server.server),
    )
