"""How good a pair (x, lam) is for min_x max_{lam in Lam} F(x, lam), F = sum_i lam_i f_i(x) - psi(lam).

A certificate says: no model has a robust objective below `robust - gap`. It needs two things: every
f_i is strongly convex, which a task declares (`Task.strong_convexity`; a network's loss is not convex), and lam lies in
the set of this dual. It never claims more than is known: the objective is a sum of rounded numbers, and what rounding
leaves open is part of the gap (`resolution`).

The server of SCAFF-PD can certify itself without asking anybody: after a round, `server.losses` are the f_i(x^r) and
`server.c` is sum_i lam_i^{r+1} grad f_i(x^r), so this bounds the gap of the pair (x^r, lam^{r+1}):

    record=lambda server: gap_bound(dual, server.losses, server.lam, server.c, mu=task.strong_convexity)

The declared curvature is a penalty, often a small one, and data are more curved than that. Of squared losses of a model
that is linear in its inputs the second moments of the clients' inputs say by how much: `curvatures(task, data)`, made
once, and given to `certify`, makes the bound exact up to rounding.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from equipoise.data import ClientData
from equipoise.linear_algebra import eigh
from equipoise.objectives.dual import Dual
from equipoise.protocol import Data, Vector
from equipoise.tasks import Convexity, Task, losses
from equipoise.tasks.metric import input_rows

Scalar = Float[Array, ""]
Curvatures = Float[Array, "n p p"]  # of every f_i, for one output
MOST = 1 << 24, 512  # numbers of all curvatures; parameters of one output


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
    dual: Dual,
    losses: Float[Array, " n"],
    lam: Float[Array, " n"],
    gradient: Vector,
    *,
    mu: Convexity,
    curvatures: Curvatures | None = None,
) -> Scalar:
    """A bound on the duality gap of (x, lam) when every f_i is mu-strongly convex and lam is in the dual's set.

    max_lam' F(x, lam') is exact; min_x' F(x', lam) >= F(x, lam) - sum_j gradient_j^2 / (2 mu_j sum(lam)), with
    gradient = sum_i lam_i grad f_i(x), and mu_j = mu unless each parameter has its own. With `curvatures` M_i, by which
    the Hessian of f_i is at least M_i + mu for every output, the sum over j is gradient' (sum_i lam_i (M_i + mu))^-1
    gradient / 2 instead. To this comes what rounding leaves open. What is below zero by more than rounding is no bound
    (lam was outside of the set), and NaN.
    """
    robust, penalty = dual.value(losses), dual.penalty(lam)
    total = jnp.sum(lam)  # zero where all weights are: then F does not depend on x
    each_mu = jnp.broadcast_to(jnp.asarray(mu, gradient.dtype), gradient.shape)
    some = jnp.where(total > 0, total, 1)
    bent = jnp.sum(gradient**2 / each_mu) / some
    if curvatures is not None:
        with jax.default_matmul_precision("highest"):
            bent = jnp.minimum(bent, _bent(gradient, lam, curvatures, each_mu * some))
    room = jnp.where(total > 0, bent / 2, 0)
    gap = robust - (losses @ lam - penalty) + room
    size = jnp.abs(robust) + jnp.abs(losses) @ jnp.abs(lam) + jnp.abs(penalty)
    eps = jnp.finfo(gap.dtype).eps
    unknown = resolution(gap.dtype) / 2 * size  # of two numbers that are as large as the objective
    return jnp.where(gap >= -(8 + dual.n**0.5) * eps * size, jnp.maximum(gap, 0) + unknown, jnp.nan)


def _bent(gradient: Vector, lam: Float[Array, " n"], curvatures: Curvatures, penalties: Vector) -> Scalar:
    """gradient' H^-1 gradient over all outputs, H = sum_i lam_i M_i + penalties; somewhat more, as sums are rounded."""
    n, p, _ = curvatures.shape
    moments, least = jnp.tensordot(lam, curvatures, 1), jnp.min(penalties.reshape(-1, p), axis=0)
    H = (moments + moments.T) / 2 + jnp.diag(least)
    scale = 1 / jnp.sqrt(jnp.diag(H))  # of correlations, whose rounding is small whatever the units of the inputs
    w, V = eigh(H * jnp.outer(scale, scale))
    wrong = p * (n + 8) * jnp.finfo(H.dtype).eps  # of V w V', at most
    floor = jnp.min(least * scale**2)  # what the penalties alone prove
    # Correlations are at least V (w - wrong) V' and at least the floor, and so at least any mean of the two.
    share = jnp.where(w[0] > 2 * wrong, 1, jnp.minimum(1, floor / (4 * wrong)))
    proven = share * (jnp.maximum(w, floor) - wrong) + (1 - share) * floor
    return jnp.sum(jnp.sum((gradient.reshape(-1, p) @ (scale[:, None] * V)) ** 2, axis=0) / proven)


def curvatures(task: Task, data: ClientData) -> Curvatures | None:
    """What the second moments of every client's inputs prove of the curvature of its loss, l2 aside.

    None: nothing is known (losses that are not squared, parts of the owners' own), or they are too many numbers.
    """
    linear, examples = task.linear, task.examples
    if linear is None or examples is None or linear.loss is not task.loss or not isinstance(examples.bend, float):
        return None
    p = linear.features + linear.intercept
    if data.n * p * p > MOST[0] or p > MOST[1] or (linear.intercept and linear.outputs > 1):
        return None
    dtype = task.init(0).dtype
    with jax.enable_x64(True):
        return _moments(data, examples.bend, linear.intercept, dtype)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _moments(data: ClientData, bend: float, intercept: bool, dtype: DTypeLike) -> Curvatures:
    """In double precision, rounded once."""

    def moments(shard: Data) -> Float[Array, "p p"]:
        a = jnp.pad(input_rows(shard.inputs, jnp.float64), [(0, 0), (0, int(intercept))], constant_values=1)
        a = jnp.where((jnp.arange(len(a), dtype=shard.sizes.dtype) < shard.sizes)[:, None], a, 0)
        return (bend / shard.sizes.astype(jnp.float64) * (a.T @ a)).astype(dtype)

    return jax.lax.map(lambda i: moments(data.client(i)), jnp.arange(data.n, dtype=jnp.int32))


def feasible(dual: Dual, lam: Float[Array, " n"]) -> Float[Array, " n"]:
    """lam where it lies in the dual's set, up to rounding; the nearest weights of the set where it does not."""
    step = float(jnp.finfo(lam.dtype).eps) ** 0.75 / (1 + dual.modulus)
    nearest = dual.prox(lam, step)  # so short a step hardly moves weights that are allowed
    inside = jnp.max(jnp.abs(nearest - lam)) <= 100 * step * (1 + dual.modulus) * (1 + jnp.max(jnp.abs(lam)))
    return jnp.where(inside, lam, nearest)


def certify(
    task: Task,
    dual: Dual,
    data: ClientData,
    x: Vector,
    lam: Float[Array, " n"] | None = None,
    *,
    mu: Convexity | None = None,
    curvatures: Curvatures | None = None,
) -> Certificate:
    """The certificate of (x, lam) from all clients' exact losses and gradients; works inside a `record` function.

    lam is the best response to the losses unless given; weights outside the dual's set are replaced by the nearest of
    the set. mu is what the task declares unless given; where it declares nothing there is no certificate. `curvatures`
    are those of `task` and `data`, where they are known.
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
    return Certificate(
        each, dual.value(each), value, gap_bound(dual, each, lam, gradient, mu=mu, curvatures=curvatures)
    )
