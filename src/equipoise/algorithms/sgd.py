"""Large-batch SGD: one gradient over all of a client's data per round, no local steps.

    x -= eta * mean_{i in S} grad f_i(x)

The baseline of Karimireddy et al. (2020), Section 7: what the same communication buys without local work.
"""

import jax.numpy as jnp

from equipoise.algorithms.fedavg import Server
from equipoise.algorithms.messages import ModelMessage, send_model
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import positive
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Weighted, mean
from equipoise.tasks import Task


@numbers_are_leaves
def sgd(task: Task, sample: Sample, *, lr: float) -> Algorithm[Server, None]:
    """Large-batch SGD on the clients' uniform average."""
    n = check_distinct(sample, "SGD would count it twice")
    positive("lr", lr)

    def gradient(message: ModelMessage, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        return None, Reply(total=Weighted(jnp.ones((), message.x.dtype), task.grad(message.x, data)))

    def step(server: Server, replies: Replies) -> Server:
        return Server(server.x - lr * mean(replies.total))

    exchange = Exchange("gradient", sample.open, send_model, gradient, step, unit=True)
    return Algorithm("sgd", n, task.size, task.prepare, Server, round=(exchange,))


SGD = Record.usual(sgd, "1/n Σ f_i", "Karimireddy et al. 2020", average=True)
