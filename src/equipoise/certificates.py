"""How good a pair (x, lam) is for min_x max_{lam in Lam} F(x, lam), F = sum_i lam_i f_i(x) - psi(lam).

A certificate says: no model has a robust objective below `robust - gap`. It needs two things: every
f_i is strongly convex, which a task declares (`Task.strong_convexity`; a network's loss is not convex), and lam lies in
the set of this dual. It never claims more than is known: the objective is a sum of rounded numbers, and what rounding
leaves open is part of the gap (`resolution`).

The server of SCAFF-PD can certify itself without asking anybody: after a round, `server.losses` are the f_i(x^r) and
`server.c` is sum_i lam_i^{r+1} grad f_i(x^r), so this bounds the gap of the pair (x^r, lam^{r+1}):

    record=lambda server: gap_bound(dual, server.losses, server.lam, server.c, mu=task.strong_convexity)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from equipoise.objectives.dual import Dual
from equipoise.protocol import Vector
from equipoise.tasks import Convexity, Task, losses

Scalar = Float[Array, ""]


class Certificate(NamedTuple):
    """What is known of a pair (x, lam)."""

    losses: Float[Array, " n"]  # f_i(x)
    robust: Scalar  # max over lam of F(x, .), by the exact best response: the objective of x
    value: Scalar  # F(x, lam)
    gap: Scalar  # at least max_lam' F(x, lam') - min_x' F(x', lam), at the saddle point rounding; NaN: no certificate


def resolution(dtype: DTypeLike) -> float:
    """The smallest relative gap that numbers of this precision can show."""
    return 4 * float(jnp.finfo(dtype).eps)


def gap_bound(
    dual: Dual, losses: Float[Array, " n"], lam: Float[Array, " n"], gradient: Vector, *, mu: Convexity
) -> Scalar:
    """A bound on the duality gap of (x, lam) when every f_i is mu-strongly convex and lam is in the dual's set.

    max_lam' F(x, lam') is exact; min_x' F(x', lam) >= F(x, lam) - sum_j gradient_j^2 / (2 mu_j sum(lam)), with
    gradient = sum_i lam_i grad f_i(x), and mu_j = mu unless each parameter has its own. To this comes what rounding
    leaves open. What is below zero by more than rounding is no bound (lam was outside of the set), and NaN.
    """
    robust, penalty = dual.value(losses), dual.penalty(lam)
    total = jnp.sum(lam)  # zero where all weights are: then F does not depend on x
    bent = jnp.sum(gradient**2 / jnp.asarray(mu, gradient.dtype))
    room = jnp.where(total > 0, bent / (2 * jnp.where(total > 0, total, 1)), 0)
    gap = robust - (losses @ lam - penalty) + room
    size = jnp.abs(robust) + jnp.abs(losses) @ jnp.abs(lam) + jnp.abs(penalty)
    eps = jnp.finfo(gap.dtype).eps
    unknown = resolution(gap.dtype) / 2 * size  # of two numbers that are as large as the objective
    return jnp.where(gap >= -(8 + dual.n**0.5) * eps * size, jnp.maximum(gap, 0) + unknown, jnp.nan)


def feasible(dual: Dual, lam: Float[Array, " n"]) -> Float[Array, " n"]:
    """lam where it lies in the dual's set, up to rounding; the nearest weights of the set where it does not."""
    step = float(jnp.finfo(lam.dtype).eps) ** 0.75 / (1 + dual.modulus)
    nearest = dual.prox(lam, step)  # so short a step hardly moves weights that are allowed
    inside = jnp.max(jnp.abs(nearest - lam)) <= 100 * step * (1 + dual.modulus) * (1 + jnp.max(jnp.abs(lam)))
    return jnp.where(inside, lam, nearest)


def certify(
    task: Task, dual: Dual, data: Any, x: Vector, lam: Float[Array, " n"] | None = None, *, mu: Convexity | None = None
) -> Certificate:
    """The certificate of (x, lam) from all clients' exact losses and gradients; works inside a `record` function.

    lam is the best response to the losses unless given; weights outside the dual's set are replaced by the nearest of
    the set. mu is what the task declares unless given; where it declares nothing there is no certificate.
    """
    mu = task.strong_convexity if mu is None else mu
    if lam is None or mu is None:
        each = losses(task, x, data)
        lam = dual.best_response(each) if lam is None else lam
    lam = feasible(dual, lam)
    if mu is None:
        return Certificate(each, dual.value(each), each @ lam - dual.penalty(lam), jnp.full((), jnp.nan, x.dtype))

    def ask(total: Vector, i: Array) -> tuple[Vector, Scalar]:
        shard = data.client(i)
        return total + lam[i] * task.grad(x, shard), task.loss(x, shard)

    gradient, each = jax.lax.scan(ask, jnp.zeros_like(x), jnp.arange(data.n))
    value = each @ lam - dual.penalty(lam)
    return Certificate(each, dual.value(each), value, gap_bound(dual, each, lam, gradient, mu=mu))
