"""FedProx: FedAvg whose local steps are pulled back to where they started.

    min_x  sum_i p_i f_i(x),   a client's part of a round being   min_y  f_i(y) + mu/2 |y - x|^2   approximately

Algorithm 2 of Li et al. (2020), "Federated optimization in heterogeneous networks":

    w^t, w_k^{t+1}   x, y      J steps y -= eta_l (g_i(y) + mu (y - x)) from y = x
    mu               mu        0 is FedAvg
    eta_l, J         local_lr, steps

The paper draws devices by p_k and takes the plain mean, its code draws them uniformly and weighs by n_k. Here `weights`
says which average is meant, as in `fedavg`.

Avoided: the public code's path for sparse gradients, which overwrites the anchor x with mu (y - x), so that embeddings
are pulled to the wrong place. Every client takes the same J steps: the paper's stragglers, who do less, are not here.
"""

from functools import partial
from typing import Literal

from equipoise.algorithms.fedavg import Server, fedavg
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm
from equipoise.tasks import Task


@numbers_are_leaves
def fedprox(
    task: Task,
    sample: Sample,
    *,
    mu: float,
    steps: int,
    local_lr: float,
    server_lr: float = 1.0,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Server, None]:
    """FedProx; `mu` is the strength of the pull, the rest as in `fedavg`."""
    require(mu >= 0, f"mu is {mu}; give zero (FedAvg) or more")
    pulled = task._replace(descend=partial(task.descend, pull=mu))
    algorithm = fedavg(pulled, sample, steps=steps, local_lr=local_lr, server_lr=server_lr, weights=weights)
    return algorithm._replace(name="fedprox")


FEDPROX = Record.usual(
    fedprox, "Σ p_i f_i", "Li et al. 2020", example={"mu": 0.5}, average=True, defaults={"mu": 0.1}, descent={"mu": 0.0}
)
