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

A server that keeps what every client said at several points (`Algorithm.cuts`) knows more than its last gradients say:
every loss lies above its tangents, and `bound_of_cuts` is what their best mixture proves.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from equipoise.data import ClientData
from equipoise.linear_algebra import eigh
from equipoise.objectives.dual import Dual
from equipoise.protocol import Cuts, Data, Vector
from equipoise.tasks import Convexity, Task, losses
from equipoise.tasks.metric import input_rows

Scalar = Float[Array, ""]
Curvatures = Float[Array, "n p p"]  # of every f_i, for one output
MOST = 1 << 24, 512  # numbers of all curvatures; parameters of one output
CUT_WEIGHT = 1e-9  # of a client: below it any of its bounds will do
CUT_STEPS, CUT_SOLVED = 40, 1e-9  # relative to the values of the bounds


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


def bound_of_cuts(dual: Dual, cuts: Cuts, mu: Convexity, x: np.ndarray) -> float:
    """A robust objective below which no model's is, from what every client has said of its loss at several points.

    With all f_i mu-strongly convex, client i's words at x_k say f_i(y) >= f_ik + g_ik'(y - x_k) + |y - x_k|^2_mu / 2.
    Any mixture of these with weights w_ik >= 0, sum_k w_ik = lam_i, is a parabola below F(., lam). Its least value is

        sum_ik w_ik f_ik(x) - |sum_ik w_ik g_ik(x)|^2 / (2 mu) - psi(lam),     f_ik(x), g_ik(x): of those bounds at x,

    for lam on the simplex. The mixture is the best there is for each of `cuts.weights`; any other is a bound as well.
    -infinity: some client that counts was never heard.
    """
    if not dual.simplex or not len(cuts.points):
        return -np.inf
    each_mu = np.broadcast_to(np.asarray(mu, np.float64), x.shape)
    step = np.asarray(x, np.float64) - cuts.points
    here = np.einsum("knd,kd->kn", cuts.gradients, step)
    values = (cuts.losses + here + (step**2 @ each_mu / 2)[:, None])[cuts.present]
    slopes = (cuts.gradients + (each_mu * step)[:, None])[cuts.present]
    # Of sums of rounded numbers, and of gradients that were rounded where they were made.
    eps = float(np.finfo(x.dtype).eps)
    length = np.linalg.norm(step, axis=1)[:, None]
    unsure = (4 * eps * (np.abs(cuts.losses) + np.abs(here)) + cuts.off * length)[cuts.present]
    values, off, owner = values - unsure, cuts.off[cuts.present], np.nonzero(cuts.present)[1]
    scaled = slopes / np.sqrt(each_mu)
    best = -np.inf
    for weights in cuts.weights:
        lam = np.asarray(feasible(dual, jnp.asarray(weights, x.dtype)), np.float64)
        lam = np.maximum(lam, 0)
        if not np.isfinite(lam).all() or not set(np.flatnonzero(lam > 0)) <= set(owner):
            continue
        lam = lam / lam.sum()
        w = best_mixture(values, scaled, owner, lam)
        least = np.linalg.norm(w @ scaled) + (w @ off) / np.sqrt(each_mu.min())
        best = max(best, w @ values - least**2 / 2 - float(dual.penalty(jnp.asarray(lam, x.dtype))))
    return float(best)


def best_mixture(
    values: Float[np.ndarray, " m"],
    slopes: Float[np.ndarray, "m d"],
    owner: Int[np.ndarray, " m"],
    lam: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " m"]:
    """argmax w'values - |w'slopes|^2 / 2, w >= 0, the sum over the entries of owner i being lam_i.

    A primal-dual interior point method with Mehrotra's corrector. What it gives is feasible wherever it stops.
    """
    counts = lam[owner] > CUT_WEIGHT
    w = _first_mixture(values, owner, lam)
    v, own = values[counts], owner[counts]
    if len(v):
        names, place = np.unique(own, return_inverse=True)
        w[counts] = _interior(v, slopes[counts] @ slopes[counts].T, np.eye(len(names))[place], lam[names])
    sums = np.bincount(owner, w, len(lam))
    return w * np.where(sums > 0, lam / np.where(sums > 0, sums, 1), 0)[owner]


def _first_mixture(values: np.ndarray, owner: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """Each owner's largest value only."""
    w = np.zeros(len(values))
    for i in np.unique(owner):
        mine = np.flatnonzero(owner == i)
        w[mine[np.argmax(values[mine])]] = lam[i]
    return w


def _interior(values: np.ndarray, H: np.ndarray, E: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """argmin w'Hw/2 - values'w, w >= 0, E'w = lam."""
    m = len(values)
    scale = max(np.ptp(values), 1e-9 * np.abs(values).max(), 1e-300)
    v, H = (values - values.max()) / scale, H / scale
    w, price, sums = E @ (lam / E.sum(axis=0)), np.ones(m), np.zeros(len(lam))
    best, least = w, np.inf
    for _ in range(CUT_STEPS):
        slope, lacking = H @ w - v - price + E @ sums, E.T @ w - lam
        mean = w @ price / m
        left = max(np.abs(slope).max(), np.abs(lacking).max(), m * mean)
        if not np.isfinite(left):
            break
        if left < least:
            best, least = w, left
        if left < CUT_SOLVED:
            break
        root = np.diag(price / w)
        root = root + H + 1e-14 * np.trace(H) / m * np.eye(m)

        def newton(products: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            solved = np.linalg.solve(root, np.concatenate([(-slope - products / w)[:, None], E], axis=1))  # noqa: B023
            dual = np.linalg.solve(E.T @ solved[:, 1:], E.T @ solved[:, 0] + lacking)  # noqa: B023
            dw = solved[:, 0] - solved[:, 1:] @ dual
            return dw, dual, (-products - price * dw) / w  # noqa: B023

        try:
            dw, _, dp = newton(w * price)
            length = min(_longest(w, dw), _longest(price, dp))
            centring = ((w + length * dw) @ (price + length * dp) / m / mean) ** 3
            dw, dual, dp = newton(w * price + dw * dp - centring * mean)
        except np.linalg.LinAlgError:
            break
        length = 0.99 * min(_longest(w, dw), _longest(price, dp))
        w, price, sums = w + length * dw, price + length * dp, sums + length * dual
    return np.maximum(best, 0)


def _longest(values: np.ndarray, step: np.ndarray) -> float:
    falls = step < 0
    return min(1.0, float(np.min(-values[falls] / step[falls]))) if falls.any() else 1.0


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
    gap = gap_bound(dual, each, lam, gradient, mu=mu, curvatures=curvatures)
    return Certificate(each, dual.value(each), each @ lam - dual.penalty(lam), gap)
