"""How good a pair (x, lam) is for min_x max_{lam in Lam} F(x, lam), F = sum_i lam_i f_i(x) - psi(lam).

The server of SCAFF-PD can certify itself without asking anybody: after a round, `server.losses` are the f_i(x^r) and
`server.c` is sum_i lam_i^{r+1} grad f_i(x^r), so this bounds the gap of the pair (x^r, lam^{r+1}):

    record=lambda server: gap_bound(dual, server.losses, server.lam, server.c, mu=mu_x)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise.objectives.dual import Dual
from equipoise.protocol import Vector
from equipoise.tasks import Task

Scalar = Float[Array, ""]


class Certificate(NamedTuple):
    """What is known of a pair (x, lam)."""

    losses: Float[Array, " n"]  # f_i(x)
    robust: Scalar  # max over lam of F(x, .), by the exact best response: the objective of x
    value: Scalar  # F(x, lam)
    gap: Scalar  # at least max_lam' F(x, lam') - min_x' F(x', lam), and zero at the saddle point


def gap_bound(
    dual: Dual, losses: Float[Array, " n"], lam: Float[Array, " n"], gradient: Vector, *, mu: float
) -> Scalar:
    """A bound on the duality gap of (x, lam) when every f_i is mu-strongly convex.

    max_lam' F(x, lam') is exact; min_x' F(x', lam) >= F(x, lam) - |gradient|^2 / (2 mu sum(lam)), with
    gradient = sum_i lam_i grad f_i(x).
    """
    value = losses @ lam - dual.penalty(lam)
    return dual.value(losses) - value + gradient @ gradient / (2 * mu * jnp.sum(lam))


def certify(task: Task, dual: Dual, data: Any, x: Vector, lam: Float[Array, " n"], *, mu: float) -> Certificate:
    """The certificate of (x, lam) from all clients' exact losses and gradients; works inside a `record` function."""

    def ask(total: Vector, i: Array) -> tuple[Vector, Scalar]:
        shard = data.client(i)
        return total + lam[i] * task.grad(x, shard), task.loss(x, shard)

    gradient, losses = jax.lax.scan(ask, jnp.zeros_like(x), jnp.arange(data.n))
    value = losses @ lam - dual.penalty(lam)
    return Certificate(losses, dual.value(losses), value, gap_bound(dual, losses, lam, gradient, mu=mu))
