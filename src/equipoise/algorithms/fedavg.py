"""FedAvg: every client of the cohort trains from the server's model, the server averages what they learned.

    min_x  sum_i p_i f_i(x)          p_i = 1/N (uniform), or n_i / n (weighted by samples)

McMahan et al. (2017), "Communication-efficient learning of deep networks from decentralized data"; written as in
Karimireddy et al. (2020), Section 3:

    y_i          y          J steps y -= eta_l g_i(y) from y = x
    eta_l, J     local_lr, steps
    eta_g        server_lr
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp

from equipoise.algorithms.messages import ModelMessage, send_model
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import all_positive, one_of
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, weighted
from equipoise.tasks import Task


class Server(NamedTuple):
    """The model."""

    x: Vector


@numbers_are_leaves
def fedavg(
    task: Task,
    sample: Sample,
    *,
    steps: int,
    local_lr: float,
    server_lr: float = 1.0,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Server, None]:
    """FedAvg; `weights` says which average it minimises: every client alike, or every sample alike.

    The two are different objectives: per-client fairness is measured against the uniform one.
    """
    n = check_distinct(sample, "FedAvg would count it twice")
    all_positive(steps=steps, local_lr=local_lr, server_lr=server_lr)
    one_of("weighting", weights, ("uniform", "samples"))

    def train(message: ModelMessage, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        x = message.x
        y = task.descend(x, data, key, steps=steps, lr=local_lr)
        w = data.sizes.astype(x.dtype) if weights == "samples" else jnp.ones((), x.dtype)
        return None, Reply(total=weighted(w, y - x))

    def average(server: Server, replies: Replies) -> Server:
        return Server(server.x + server_lr * mean(replies.total))

    exchange = Exchange("train", sample.open, send_model, train, average, unit=weights == "uniform")
    return Algorithm("fedavg", n, task.size, task.prepare, Server, round=(exchange,))


FEDAVG = Record.usual(
    fedavg, "Σ p_i f_i", "McMahan et al. 2017", average=True, releases=lambda steps: {"train": (steps, 0)}
)
