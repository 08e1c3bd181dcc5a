"""One exchange, in which the first client sends the model that it starts from."""

import jax.numpy as jnp

from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import Nothing, send_nothing
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, RandomKey, Replies, Reply, Vector


def first_model(n: int, x: Vector) -> Algorithm[Vector, None]:
    """The server ends with the x of client 0; every client calls this with an x of its own."""

    def choose(server: Vector, key: RandomKey) -> tuple[Vector, Cohort]:
        return server, Cohort(jnp.zeros(1, jnp.int32), jnp.ones(1, bool))

    def work(message: Nothing, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        return None, Reply(each=x)

    def close(server: Vector, replies: Replies) -> Vector:
        return jnp.where(replies.cohort.present[0], replies.each[0], server)

    start = Exchange("start", choose, send_nothing, work, close)
    return measurement("first_model", n, x.size, start, init=lambda x: x, model=lambda x: x)
