"""A local step size that changes from round to round, for any algorithm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.algorithms.wrapping import Beside, beside_server, wrap_server
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Client, Cohort, Data, Exchange, Message, RandomKey, Replies, Reply, Server


class Timed(NamedTuple):
    """The algorithm's own message, and this round's step size."""

    local_lr: Float[Array, ""]
    message: Message


@numbers_are_leaves
def with_local_schedule(
    build: Callable[[Any], Algorithm[Server, Client]], schedule: Callable[[Any], Any]
) -> Algorithm[Beside[Server, Int[Array, ""]], Client]:
    """The algorithm build(local_lr), with local_lr = schedule(rounds done so far) in every round.

    `build` is called with a traced number: with_local_schedule(lambda lr: fedavg(task, sample, steps=5, local_lr=lr),
    optax.cosine_decay_schedule(0.1, 200)). One more number goes down in every exchange. Exact for every algorithm,
    corrected ones included: the whole round is that of the algorithm with this step size. The rounds done stand beside
    the server's state.
    """
    first = build(float(schedule(0)))  # numbers, which can be checked

    def rate(server: Beside) -> Float[Array, ""]:
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its counts with floats
            return jnp.asarray(schedule(server.own), first.model(server.inner).dtype)

    def scheduled(k: int, exchange: Exchange) -> Exchange:
        def now(local_lr: Float[Array, ""]) -> Exchange:
            return beside_server(build(local_lr).round[k])

        def open(server: Beside, key: RandomKey) -> tuple[Beside, Cohort]:
            return now(rate(server)).open(server, key)

        def send(server: Beside, i: Int[Array, ""]) -> Timed:
            return Timed(rate(server), now(rate(server)).send(server, i))

        def work(message: Timed, client: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
            return now(message.local_lr).work(message.message, client, data, key)

        def close(server: Beside, replies: Replies) -> Beside:
            after = now(rate(server)).close(server, replies)
            return after._replace(own=server.own + (1 if k + 1 == len(first.round) else 0))

        changed = exchange._replace(open=open, send=send, work=work, close=close)
        counted = exchange.weights
        return changed if counted is None else changed._replace(weights=lambda message: counted(message.message))

    return wrap_server(first, lambda x: jnp.int32(0), scheduled)
