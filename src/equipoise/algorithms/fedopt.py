"""FedAdam, FedYogi and FedAvgM: FedAvg whose server takes the clients' mean update as a gradient for its own optimizer.

    min_x  sum_i p_i f_i(x)          p_i = 1/N (uniform), or n_i / n (weighted by samples)

Algorithm 2 of Reddi et al. (2021), "Adaptive federated optimization", in its letters:

    Delta_t          the mean of y_i - x         as in fedavg.py
    m_t, v_t         Moments.m, Moments.v        m_{-1} = 0, v_{-1} = tau^2
    eta, tau         server_lr, tau
    beta_1, beta_2   b1, b2
    eta_l, K         local_lr, steps

    m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t
    v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)      FedYogi
    v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2                         FedAdam
    x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau)

As printed there is no bias correction; optax.adam has one: `with_server_optimizer(fedavg(...), optax.adam(eta))`.
FedAvgM is Hsu, Qi and Brown (2019), "Measuring the effects of non-identical data distribution for federated visual
classification": m = beta m + Delta, x += eta m.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import PyTree

from equipoise.algorithms.fedavg import Server, fedavg
from equipoise.algorithms.record import Record
from equipoise.algorithms.server_optimizer import with_server_optimizer
from equipoise.algorithms.wrapping import Beside
from equipoise.cohorts import Sample
from equipoise.errors import all_positive, positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Vector
from equipoise.tasks import Task


class Adaptive(NamedTuple):
    """A server step, in the form of an optax transformation."""

    init: Callable[[Vector], PyTree]
    update: Callable[..., tuple[Vector, PyTree]]


class Moments(NamedTuple):
    """Running means of the update and of its squares."""

    m: Vector
    v: Vector


def adaptive(server_lr: float, b1: float, b2: float, tau: float, *, yogi: bool) -> Adaptive:
    """Algorithm 2's server step on the pseudo-gradient -Delta_t."""
    all_positive(server_lr=server_lr, tau=tau)
    for name, value in (("b1", b1), ("b2", b2)):
        require((value >= 0) & (value < 1), f"{name} is {value}; give a number from 0 to below 1")

    def init(x: Vector) -> Moments:
        return Moments(jnp.zeros_like(x), jnp.full_like(x, tau**2))

    def update(g: Vector, state: Moments, x: object = None) -> tuple[Vector, Moments]:
        m = b1 * state.m + (1 - b1) * g
        square = g**2
        v = state.v - (1 - b2) * square * jnp.sign(state.v - square) if yogi else b2 * state.v + (1 - b2) * square
        return -server_lr * m / (jnp.sqrt(v) + tau), Moments(m, v)

    return Adaptive(init, update)


@numbers_are_leaves
def fedadam(
    task: Task,
    sample: Sample,
    *,
    steps: int,
    local_lr: float,
    server_lr: float,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Beside[Server, PyTree], None]:
    """FedAdam; `tau` is the degree of adaptivity, the smaller the more."""
    plain = fedavg(task, sample, steps=steps, local_lr=local_lr, weights=weights)
    return with_server_optimizer(plain, adaptive(server_lr, b1, b2, tau, yogi=False))._replace(name="fedadam")


@numbers_are_leaves
def fedyogi(
    task: Task,
    sample: Sample,
    *,
    steps: int,
    local_lr: float,
    server_lr: float,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Beside[Server, PyTree], None]:
    """FedYogi; where updates shrink, its step sizes grow more slowly than FedAdam's."""
    plain = fedavg(task, sample, steps=steps, local_lr=local_lr, weights=weights)
    return with_server_optimizer(plain, adaptive(server_lr, b1, b2, tau, yogi=True))._replace(name="fedyogi")


@numbers_are_leaves
def fedavgm(
    task: Task,
    sample: Sample,
    *,
    steps: int,
    local_lr: float,
    server_lr: float = 1.0,
    momentum: float = 0.9,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Beside[Server, PyTree], None]:
    """FedAvgM; `momentum` is beta, 0 is FedAvg."""
    import optax  # takes as long to import as all algorithms together

    positive("server_lr", server_lr)
    require((momentum >= 0) & (momentum < 1), f"momentum is {momentum}; give a number from 0 to below 1")
    plain = fedavg(task, sample, steps=steps, local_lr=local_lr, weights=weights)
    return with_server_optimizer(plain, optax.sgd(server_lr, momentum))._replace(name="fedavgm")


FEDADAM = Record.usual(
    fedadam,
    "Σ p_i f_i",
    "Reddi et al. 2021",
    example={"server_lr": 0.05},
    average=True,
    defaults={"server_lr": 0.01},
    descent={"server_lr": 1e9, "tau": 1e9, "b1": 0.0, "b2": 0.0},  # so much tau that nothing adapts
)
FEDYOGI = FEDADAM._replace(
    name="fedyogi",
    factory=fedyogi,
    descent={"server_lr": 2e9, "tau": 1e9, "b1": 0.0},  # its v stays at tau^2
)
FEDAVGM = Record.usual(fedavgm, "Σ p_i f_i", "Hsu et al. 2019", average=True, descent={"momentum": 0.0})
