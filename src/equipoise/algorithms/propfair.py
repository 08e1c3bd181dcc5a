"""PropFair: proportional fairness, the largest product of the clients' utilities M - f_i.

    min_x  - sum_i p_i log(M - f_i(x))

Zhang, Malekmohammadi, Chen and Yu (2022), "Proportional fairness in federated learning": FedAvg on the loss

    phi(f_i),    phi(f) = -log(M - f)                            while M - f >= eps
                          -log(eps) + (f - (M - eps)) / eps      beyond: the tangent at M - eps

    M, eps       bound, margin
    phi'         slope          1 / (M - f), at most 1 / eps
    eta_l, J     local_lr, steps

Every local step is y -= eta_l phi'(f) grad f, with f the loss of the minibatch the step draws (all local data if the
task has no batch), as in the paper. phi' is about 1/M, so step sizes are M times those of FedAvg.

Avoided: the public code goes on with f/M beyond M - eps unless it is told otherwise (`--huber`), a slope of 1/M where
the logarithm has reached 1/eps: the worst clients would count least.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise import local
from equipoise.algorithms.fedavg import Server, fedavg
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample
from equipoise.errors import positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, RandomKey, Vector
from equipoise.tasks import Task


@numbers_are_leaves
def propfair(
    task: Task,
    sample: Sample,
    *,
    bound: float,
    steps: int,
    local_lr: float,
    margin: float | None = None,
    server_lr: float = 1.0,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Server, None]:
    """PropFair.

    Args:
        bound: M, above the losses that are to be told apart; beyond bound - margin the logarithm is a line.
        margin: eps; bound/100 unless given, as in `objectives.propfair`, whose value this minimises.
        weights: p, every client alike or every sample alike.
    """
    positive("bound", bound)
    eps = bound / 100 if margin is None else margin
    positive("margin", eps)
    require(eps <= bound, f"margin is {eps}, above the bound {bound}; give a small part of the bound")

    def slope(loss: Float[Array, ""]) -> Float[Array, ""]:
        return 1 / jnp.maximum(bound - loss, eps)  # phi'

    def descend(x: Vector, data: Data, key: RandomKey, *, steps: int, **options: Any) -> local.Descended:
        def gradient(u: Vector, k: RandomKey) -> Vector:
            return slope(task.loss(u, data, k)) * task.grad(u, data, k)  # the same k draws the same minibatch

        options = {**local.fixed(task.descend), **options}
        return local.descend(gradient, x, jax.random.split(key, steps), steps=steps, **options)

    algorithm = fedavg(
        task._replace(descend=descend), sample, steps=steps, local_lr=local_lr, server_lr=server_lr, weights=weights
    )
    return algorithm._replace(name="propfair")


PROPFAIR = Record.usual(
    propfair, "−Σ p_i log(M − f_i)", "Zhang et al. 2022", example={"bound": 8.0}, defaults={"bound": 5.0}
)
