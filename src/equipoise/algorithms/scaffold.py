"""SCAFFOLD: local steps corrected by control variates, so that they do not drift to each client's own optimum.

    min_x  1/N sum_i f_i(x)

Algorithm 1 of Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for federated learning", in
its own letters:

    x, c         server.x, server.c      c is the mean of all N clients' c_i
    c_i          client state            zero until the client is first asked
    y_i          y
    eta_l, K     local_lr, steps
    eta_g        server_lr
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import all_positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, Weighted, mean
from equipoise.tasks import Task


class Server(NamedTuple):
    """The model and the mean control variate; also the message, line 4."""

    x: Vector
    c: Vector


class Change(NamedTuple):
    """What a client's work adds to its start: y_i - x and c_i^+ - c_i."""

    y: Vector
    c: Vector


@numbers_are_leaves
def scaffold(
    task: Task, sample: Sample, *, steps: int, local_lr: float, server_lr: float = 1.0, option: Literal[1, 2] = 2
) -> Algorithm[Server, Vector]:
    """SCAFFOLD; `option` 1 renews c_i by a gradient at x, 2 by what the local steps already computed."""
    n = check_distinct(sample, "SCAFFOLD keeps one control variate per client")
    all_positive(steps=steps, local_lr=local_lr, server_lr=server_lr)
    require(option in (1, 2), f"SCAFFOLD has options 1 and 2 for its control variates, not {option!r}")

    def send(server: Server, i: Int[Array, ""]) -> Server:
        return server  # line 4

    def train(message: Server, c_i: Vector, data: Data, key: RandomKey) -> tuple[Vector, Reply]:
        x, c = message
        for_steps, for_option = jax.random.split(key)
        y = task.descend(x, data, for_steps, steps=steps, lr=local_lr, shift=c - c_i)  # lines 7-10
        c_new = c_i - c + (x - y) / (steps * local_lr)  # line 12 (ii)
        if option == 1:
            c_new = task.grad(x, data, for_option)  # line 12 (i)
        return c_new, Reply(total=Weighted(jnp.ones((), x.dtype), Change(y - x, c_new - c_i)))  # lines 13-14

    def average(server: Server, replies: Replies) -> Server:
        change = mean(replies.total)
        heard = replies.total.weight
        return Server(server.x + server_lr * change.y, server.c + heard / n * change.c)  # lines 16-17

    def init(x: Vector) -> Server:
        return Server(x, jnp.zeros_like(x))

    exchange = Exchange("train", sample.open, send, train, average, writes=True, unit=True)  # sample.open: line 3
    return Algorithm("scaffold", n, task.size, task.prepare, init, jnp.zeros_like, (exchange,))


SCAFFOLD = Record.usual(scaffold, "1/n Σ f_i", "Karimireddy et al. 2020", average=True)
