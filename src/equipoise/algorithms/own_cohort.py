"""Who takes part, by a function of the key and the round: for algorithms that ask everyone."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from equipoise.algorithms.wrapping import Beside, wrap_server
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Client, Cohort, Exchange, RandomKey, Replies, Server, Vector


class Turn(NamedTuple):
    """The rounds done, and who takes part in this one."""

    round: Int[Array, ""]
    cohort: Cohort


@numbers_are_leaves
def with_cohort(
    algorithm: Algorithm[Server, Client], draw: Callable[[RandomKey, Int[Array, ""]], Cohort]
) -> Algorithm[Beside[Server, Turn], Client]:
    """`algorithm`, built for everyone, that asks the clients of draw(key, rounds done) in all exchanges of a round.

    `draw` may name any number of slots, the same in every round, and no client twice. Who is not asked is to the
    algorithm as who does not answer: SCAFF-PD, say, keeps the last loss that it heard.
    """
    n = algorithm.n

    def drawn(round: Int[Array, ""], key: RandomKey) -> Cohort:
        ids, present = draw(key, round)
        return Cohort(jnp.asarray(ids, jnp.int32), jnp.asarray(present))

    def asks_everyone(exchange: Exchange, server: Server) -> bool:
        ids = jax.eval_shape(lambda: exchange.open(server, jax.random.key(0))[1].ids)
        return ids.shape == (n,)

    def chosen(k: int, exchange: Exchange) -> Exchange:
        def open(server: Beside, key: RandomKey) -> tuple[Beside, Cohort]:
            server, asked = exchange.open(server, key)
            if k == 0:
                server = server._replace(own=server.own._replace(cohort=drawn(server.own.round, key)))
            cohort = server.own.cohort
            return server, cohort._replace(present=cohort.present & asked.mark(n)[cohort.ids])

        def close(server: Beside, replies: Replies) -> Beside:
            after = exchange.close(server, replies)
            ended = k + 1 == len(algorithm.round)
            return after._replace(own=after.own._replace(round=after.own.round + 1)) if ended else after

        return exchange._replace(open=open, close=close)

    def init(x: Vector) -> Turn:
        shapes = jax.eval_shape(drawn, jnp.int32(0), jax.random.key(0))
        return Turn(jnp.int32(0), jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))

    server = algorithm.init(jnp.zeros(algorithm.size))
    require(
        all(asks_everyone(exchange, server) for exchange in algorithm.round),
        f"{algorithm.name} draws cohorts of its own; build it with everyone({n})",
    )
    return wrap_server(algorithm, init, chosen)
