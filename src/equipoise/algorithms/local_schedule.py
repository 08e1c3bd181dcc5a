"""Step sizes that change from round to round, for any algorithm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.algorithms.guarded_steps import STEP_SIZES
from equipoise.algorithms.wrapping import Beside, beside_server, wrap_server
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves, scaled
from equipoise.protocol import Algorithm, Client, Cohort, Data, Exchange, Message, RandomKey, Replies, Reply, Server


class Timed(NamedTuple):
    """The algorithm's own message, and this round's step size, or its share of what it was."""

    number: Float[Array, ""]
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

    return _timed(first, rate, build)


@numbers_are_leaves
def with_late_decay(
    algorithm: Algorithm[Server, Client], *, start: float, end: float
) -> Algorithm[Beside[Server, Int[Array, ""]], Client]:
    """`algorithm`, whose step sizes fall from `start` rounds on, by equal parts, to zero after `end` rounds.

    Round r of 0, 1, .. takes (end - r)/(end - start) of each of STEP_SIZES, of it and of what it was made from. Long
    steps that learn fast end with the noise of short ones. Beyond the end they stay as small as in the last round.
    """
    falls = (jnp.asarray(start) >= 0) & (jnp.asarray(end) > start)
    require(falls, f"steps are to fall from round {start} to {end}; give one of 0 or more, and a later one for the end")

    def share(server: Beside) -> Float[Array, ""]:
        dtype = algorithm.model(server.inner).dtype
        r, first, last = (jnp.asarray(number, dtype) for number in (server.own, start, end))
        return jnp.clip((last - r) / (last - first), 1 / (last - first), 1)

    return _timed(algorithm, share, lambda factor: scaled(algorithm, STEP_SIZES, factor))


def _timed(
    first: Algorithm[Server, Client],
    rate: Callable[[Beside], Float[Array, ""]],
    build: Callable[[Any], Algorithm[Server, Client]],
) -> Algorithm[Beside[Server, Int[Array, ""]], Client]:
    """`first`, every round of which is that of build(rate(server)), where the server counts rounds."""

    def scheduled(k: int, exchange: Exchange) -> Exchange:
        def now(number: Float[Array, ""]) -> Exchange:
            return beside_server(build(number).round[k])

        def open(server: Beside, key: RandomKey) -> tuple[Beside, Cohort]:
            return now(rate(server)).open(server, key)

        def send(server: Beside, i: Int[Array, ""]) -> Timed:
            return Timed(rate(server), now(rate(server)).send(server, i))

        def work(message: Timed, client: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
            return now(message.number).work(message.message, client, data, key)

        def close(server: Beside, replies: Replies) -> Beside:
            after = now(rate(server)).close(server, replies)
            return after._replace(own=server.own + (1 if k + 1 == len(first.round) else 0))

        changed = exchange._replace(open=open, send=send, work=work, close=close)
        counted = exchange.weights
        return changed if counted is None else changed._replace(weights=lambda message: counted(message.message))

    return wrap_server(first, lambda x: jnp.int32(0), scheduled)
