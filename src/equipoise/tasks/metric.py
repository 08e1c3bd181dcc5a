"""The metric: a model that is linear in its inputs, trained in coordinates in which its losses are well conditioned.

    x = W z,  W'HW = I,     H = curvature * mean_i X_i'X_i/m_i + l2

How many rounds a good method needs depends on conditioning, and the Hessians of all f_i are, up to the factor p(1-p) of
a softmax, the second moments of the inputs. Their mean over the clients is one exchange of sums
(`algorithms/second_moments.py`). In z the same losses are minimised, l2 |x|^2 included, so the saddle point is the same
one; no algorithm knows of it. Weights of an intercept: x = W z, b = z_b - c'x with c the mean input, so that

    inputs' x + b = ((inputs - c) W)' z + z_b

and a client moves its inputs once. Two factors: `Triangular`, of all of H; `LowRank`, for many inputs, which brings the
k leading directions V down to the next value and leaves the rest alone, W = gain (I - V (1 - s) V').

A wrapper whose loss is no longer a function of the outputs alone (an envelope, own parts) is computed at x = W z.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float

from equipoise import local
from equipoise.data.shards import ClientData, Shards
from equipoise.errors import InputError, require
from equipoise.protocol import Data, RandomKey, Vector
from equipoise.tasks.squares import Gram, Kernel
from equipoise.tasks.task import Convexity, Linear, Scalar, Task, least, penalty

ROUNDING = 64 * float(np.finfo(np.float64).eps)  # of a correlation, times the number of inputs
RIDGE = 1e-6  # of a correlation where l2 is zero


class Triangular(NamedTuple):
    """W."""

    W: Float[Array, "d d"]


class LowRank(NamedTuple):
    """W = gain (I - V (1 - s) V'), V'V = I."""

    V: Float[Array, "d k"]
    s: Float[Array, " k"]
    gain: Float[Array, ""]


class Metric(NamedTuple):
    """From z to x: the factor W, and the mean input where the model has an intercept."""

    factor: Triangular | LowRank
    centre: Float[Array, " d"] | None


class ShardInMetric(NamedTuple):
    """A client's shard, and the metric that all clients were told."""

    shard: Data
    metric: Metric

    @property
    def sizes(self) -> Array:
        return self.shard.sizes


class WithMetric(NamedTuple):
    """The clients' data for a task in a metric."""

    data: ClientData
    metric: Metric

    @property
    def n(self) -> int:
        return self.data.n

    @property
    def sizes(self) -> Array:
        return self.data.sizes

    def client(self, i: ArrayLike) -> ShardInMetric:
        return ShardInMetric(self.data.client(i), self.metric)


class Moved(NamedTuple):
    """A client's prepared data, with inputs in z or as they were, and the metric."""

    data: Data
    metric: Metric

    @property
    def sizes(self) -> Array:
        return self.data.sizes


def linear_of(task: Task) -> Linear:
    if task.linear is None:
        raise InputError(
            f"the metric is of a model that is linear in its inputs, which {task.name} does not say it is; train it as "
            "it is, or give task._replace(linear=tasks.Linear(...))"
        )
    return task.linear


def to_model(linear: Linear, metric: Metric, z: Vector) -> Vector:
    """x, in double precision, rounded once."""
    with jax.enable_x64(True):
        return model_of(linear, jax.tree.map(_wide, metric), _wide(z)).astype(z.dtype)


def from_model(linear: Linear, metric: Metric, x: Vector) -> Vector:
    """z, as exactly."""
    with jax.enable_x64(True):
        wide: Metric = jax.tree.map(_wide, metric)
        weights, intercept = _parts(linear, _wide(x))
        if intercept is not None and wide.centre is not None:
            intercept = intercept + jax.lax.dot(weights, wide.centre)
        return _whole(_solved(wide.factor, weights), intercept).astype(x.dtype)


def gradients_of_model(linear: Linear, metric: Metric, in_z: np.ndarray) -> np.ndarray:
    """Gradients [..., d] in x of what has these in z, in NumPy and double precision."""
    k, d = linear.outputs, linear.features
    rows = in_z[..., : k * d].reshape(*in_z.shape[:-1], k, d)
    if isinstance(metric.factor, Triangular):
        W = np.asarray(metric.factor.W, np.float64)
        rows = np.linalg.solve(W.T, rows.reshape(-1, d).T).T.reshape(rows.shape)
    else:
        V, s, gain = (np.asarray(a, np.float64) for a in metric.factor)
        rows = (rows + (rows @ V * (1 / s - 1)) @ V.T) / gain
    intercept = in_z[..., k * d :]
    if linear.intercept and metric.centre is not None:
        rows = rows + intercept[..., None] * np.asarray(metric.centre, np.float64)
    return np.concatenate([rows.reshape(*in_z.shape[:-1], k * d), intercept], axis=-1)


def model_of(linear: Linear, metric: Metric, z: Vector) -> Vector:
    """x, in the precision of z: linear in it, with a gradient."""
    weights, intercept = _parts(linear, z)
    weights = _times(metric.factor, weights)
    if intercept is not None and metric.centre is not None:
        intercept = intercept - jax.lax.dot(weights, metric.centre)
    return _whole(weights, intercept)


def input_rows(inputs: Array, dtype: DTypeLike) -> Float[Array, "m d"]:
    """Inputs of any shape as a linear model sees them: bytes of images are 0..1."""
    rows = inputs.reshape(inputs.shape[0], -1).astype(dtype)
    return rows / 255 if inputs.dtype == jnp.uint8 else rows


def moved_inputs(linear: Linear, metric: Metric, inputs: Array) -> Float[Array, "m d"]:
    """(inputs - c) W, in double precision, rounded once."""
    dtype = jax.tree.leaves(metric)[0].dtype
    rows = input_rows(inputs, dtype)
    with jax.enable_x64(True):
        wide: Metric = jax.tree.map(_wide, metric)
        rows = _wide(rows)
        if wide.centre is not None:
            rows = rows - jnp.broadcast_to(wide.centre, rows.shape)
        return _transposed(wide.factor, rows).astype(dtype)


def _parts(linear: Linear, x: Vector) -> tuple[Float[Array, "k d"], Float[Array, " k"] | None]:
    k, d = linear.outputs, linear.features
    require(
        x.shape == (k * (d + linear.intercept),),
        f"the vector has shape {x.shape} and a model of {d} inputs and {k} outputs has {k * (d + linear.intercept)} "
        "parameters; give that many",
    )
    return jax.lax.slice(x, (0,), (k * d,)).reshape(k, d), x[k * d :] if linear.intercept else None


def _whole(weights: Array, intercept: Array | None) -> Vector:
    return weights.ravel() if intercept is None else jnp.concatenate([weights.ravel(), intercept])


def _times(factor: Triangular | LowRank, rows: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """W z of every row z. `lax.dot`, because `@` under vmap would ask for its type again, outside of `enable_x64`."""
    if isinstance(factor, Triangular):
        return jax.lax.dot(rows, factor.W.T)
    inside = jax.lax.dot(rows, factor.V) * (1 - factor.s)[None]
    return factor.gain * (rows - jax.lax.dot(inside, factor.V.T))


def _transposed(factor: Triangular | LowRank, rows: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """W'a of every row a."""
    return jax.lax.dot(rows, factor.W) if isinstance(factor, Triangular) else _times(factor, rows)


def _solved(factor: Triangular | LowRank, rows: Float[Array, "k d"]) -> Float[Array, "k d"]:
    if isinstance(factor, Triangular):
        return jax.scipy.linalg.solve_triangular(factor.W, rows.T).T
    inside = jax.lax.dot(rows, factor.V) * (1 / factor.s - 1)[None]
    return (rows + jax.lax.dot(inside, factor.V.T)) / factor.gain


def _squared(factor: Triangular | LowRank) -> Float[Array, "d d"]:
    """W'W."""
    if isinstance(factor, Triangular):
        return jax.lax.dot(factor.W.T, factor.W)
    eye = jnp.eye(factor.V.shape[0], dtype=factor.V.dtype)
    return factor.gain**2 * (eye - jax.lax.dot(factor.V * (1 - factor.s**2)[None], factor.V.T))


def _wide(a: Array) -> Array:
    return jnp.asarray(a).astype(jnp.float64)


def in_metric(task: Task) -> Task:
    """`task` over z, on data `WithMetric(data, metric)`: the same losses, l2 of x included.

    Squared losses keep their Gram matrices and their local steps in sample space. `to_model` makes x of z;
    `algorithms.told_in_x` does it for a whole algorithm.
    """
    linear = linear_of(task)
    if linear.loss is not task.loss or task.own is not None:
        return _at_the_model(task, linear)
    l2 = linear.l2

    def extra(z: Vector, metric: Metric) -> Scalar:
        """The penalty of x instead of that of z."""
        return penalty(l2, model_of(linear, metric, z)) - penalty(l2, z)

    def prepare(located: ShardInMetric) -> Data:
        shard, metric = _located(located)
        data = task.prepare(shard._replace(inputs=moved_inputs(linear, metric, shard.inputs)))
        if isinstance(data, Gram | Kernel):
            return _penalised(data, metric.factor, least(l2))
        return Moved(data, metric)

    def loss(z: Vector, data: Data, key: RandomKey | None = None) -> Scalar:
        data = prepare(data) if isinstance(data, ShardInMetric) else data
        match data:
            case Gram():
                big_z = z.reshape(linear.outputs, linear.features)
                return jnp.maximum(jnp.sum(big_z * (big_z @ data.gram / 2 - data.cross)) + data.energy, 0)
            case Kernel():
                return task.loss(z, data)
        mean_loss = task.loss(z, data.data, key)
        return mean_loss + extra(z, data.metric) if penalised else mean_loss

    def grad(z: Vector, data: Data, key: RandomKey | None = None) -> Vector:
        data = prepare(data) if isinstance(data, ShardInMetric) else data
        match data:
            case Gram():
                big_z = z.reshape(linear.outputs, linear.features)
                return (big_z @ data.gram - data.cross).ravel()
            case Kernel():
                return task.grad(z, data)
        mean_grad = task.grad(z, data.data, key)
        return mean_grad + jax.grad(extra)(z, data.metric) if penalised else mean_grad

    def descend(z: Vector, data: Data, key: RandomKey, *, steps: int, **options: Any) -> Any:
        data = prepare(data) if isinstance(data, ShardInMetric) else data
        if isinstance(data, Kernel):
            return task.descend(z, data, key, steps=steps, **options)
        if isinstance(data, Moved) and not penalised:
            return task.descend(z, data.data, key, steps=steps, **options)
        draws = local.a_key_each if isinstance(data, Moved) else local.nothing_drawn
        return local.descent(grad, draws)(z, data, key, steps=steps, **options)

    penalised = isinstance(l2, tuple) or l2 != 0
    return _over_z(task, loss, grad, descend, prepare)


def _penalised(data: Gram | Kernel, factor: Triangular | LowRank, l2: float) -> Gram | Kernel:
    """Squared losses with the penalty of x = W z, in place of that of z.

    A Gram matrix takes it in. In sample space, where the task adds l2 z, a direction of V is one more row: of target
    zero and with a weight below zero, for W'W = I - V (1 - s^2) V'.
    """
    if isinstance(data, Kernel) and isinstance(factor, LowRank):
        inputs = jnp.concatenate([data.inputs, factor.V.T])
        targets = jnp.pad(data.targets, [(0, factor.V.shape[1]), (0, 0)])
        rates = jnp.concatenate([data.rates, -l2 * (1 - factor.s**2)])
        return Kernel(inputs, targets, inputs @ inputs.T, rates, data.sizes)
    dtype = jax.tree.leaves(factor)[0].dtype
    with jax.enable_x64(True):
        ridge = l2 * _squared(jax.tree.map(_wide, factor))
        if isinstance(data, Gram):
            return data._replace(gram=(_wide(data.gram) + ridge).astype(dtype))
        a, y, w = _wide(data.inputs), _wide(data.targets), _wide(data.rates)[:, None]
        gram, cross = jax.lax.dot((a * w).T, a) + ridge, jax.lax.dot((y * w).T, a)
        energy = jnp.sum(w * y**2) / 2
        return Gram(gram.astype(dtype), cross.astype(dtype), energy.astype(dtype), data.sizes)


def _at_the_model(task: Task, linear: Linear) -> Task:
    """Any function of x, computed at x = W z."""

    def prepare(located: ShardInMetric) -> Moved:
        shard, metric = _located(located)
        return Moved(task.prepare(shard), metric)

    def opened(z: Vector, data: Data) -> tuple[Vector, Callable[[Vector], tuple[Vector]], Data]:
        data, metric = prepare(data) if isinstance(data, ShardInMetric) else data
        x, back = jax.vjp(lambda z: model_of(linear, metric, z), z)
        return x, back, data

    def loss(z: Vector, data: Data, key: RandomKey | None = None) -> Scalar:
        x, _, data = opened(z, data)
        return task.loss(x, data, key)

    def grad(z: Vector, data: Data, key: RandomKey | None = None) -> Vector:
        x, back, data = opened(z, data)
        return back(task.grad(x, data, key))[0]

    return _over_z(task, loss, grad, local.descent(grad, local.a_key_each), prepare)


def _over_z(
    task: Task,
    loss: Callable[..., Scalar],
    grad: Callable[..., Vector],
    descend: local.Descend,
    prepare: Callable[[Data], Data],
) -> Task:
    l2 = _ridges(linear_of(task))[0].mean()
    curves = float(l2) if l2 > 0 else None  # in the directions of x that are as curved as a unit of z
    name, init = f"{task.name}_in_metric", lambda key: jnp.zeros(task.size)
    return Task(name, task.size, loss, grad, descend, init, None, prepare, curves=curves)


def _located(data: Data) -> ShardInMetric:
    require(
        isinstance(data, ShardInMetric) and isinstance(data.shard, Shards),
        f"a task in a metric needs to know which, and was given a {type(data).__name__}; give the data as "
        "tasks.WithMetric(data, metric), of examples with inputs",
    )
    return data


# What the server makes of the sums, in NumPy and double precision.


def full_metric(linear: Linear, moments: ArrayLike, mean: ArrayLike, dtype: DTypeLike) -> Metric:
    """Of the second moments [d, d] of the inputs, and their mean where the model has an intercept.

    The triangular factor of H, by its correlations, so that the units of the inputs do not matter. Where l2 is zero
    the correlations have a ridge: directions that no input has stay as they are.
    """
    weights, intercept = _ridges(linear)
    H = linear.curvature * np.asarray(moments, np.float64)
    raw, gain = np.diag(H).copy(), 1.0
    centre = None
    if linear.intercept:
        total = linear.curvature + intercept
        centre = linear.curvature / total * np.asarray(mean, np.float64)
        H, gain = H - total * np.outer(centre, centre), np.sqrt(total)  # so that an intercept is as curved as the rest
    H = H + np.diag(weights)
    size = np.maximum(np.diag(H), np.maximum(weights, ROUNDING * raw))
    scale = 1 / np.sqrt(np.where(size > 0, size, 1.0))
    C = H * np.outer(scale, scale)
    np.fill_diagonal(C, 1 + len(C) * ROUNDING + (0.0 if weights.min() > 0 else RIDGE))
    W = scale[:, None] * np.linalg.inv(_cholesky(C)).T * gain
    return _as(Metric(Triangular(W), centre), dtype)  # type: ignore[arg-type]


def _cholesky(C: np.ndarray) -> np.ndarray:
    """Of correlations, with as little more on the diagonal as it takes."""
    more = len(C) * ROUNDING
    for _ in range(60):
        try:
            return np.linalg.cholesky(C)
        except np.linalg.LinAlgError:
            C, more = C + more * np.eye(len(C)), 4 * more
    raise InputError("the second moments of the inputs are not finite; clean them or leave those rows out")


def low_rank_metric(
    linear: Linear, basis: ArrayLike, images: ArrayLike, mean: ArrayLike, rank: int, dtype: DTypeLike
) -> Metric:
    """Of the images S Q [d, k] of an orthonormal Q under the second moments S, about their mean with an intercept.

    S is estimated by S Q (Q'S Q)^-1 Q'S (Nystroem).
    """
    weights, intercept = _ridges(linear)
    Q, B = np.asarray(basis, np.float64), np.asarray(images, np.float64)
    T = Q.T @ B
    shift = ROUNDING * max(np.trace(T), np.finfo(float).tiny)
    root = np.linalg.cholesky((T + T.T) / 2 + (len(T) * shift) * np.eye(len(T)))
    V, sigma, _ = np.linalg.svd(np.linalg.solve(root, (B + len(T) * shift * Q).T).T, full_matrices=False)
    total = linear.curvature + intercept
    centre = linear.curvature / total * np.asarray(mean, np.float64) if linear.intercept else None
    curved = linear.curvature * sigma**2 + weights.mean()
    last = curved[min(rank, len(curved) - 1)]
    last = last if last > 0 else RIDGE * max(curved[0], np.finfo(float).tiny)
    s = np.sqrt(np.minimum(last / np.maximum(curved[:rank], last), 1.0))
    gain = np.asarray(np.sqrt(total / last) if linear.intercept else 1.0)
    return _as(Metric(LowRank(V[:, :rank], s, gain), centre), dtype)  # type: ignore[arg-type]


def _ridges(linear: Linear) -> tuple[np.ndarray, float]:
    """l2 of every input, a mean over the outputs, and of the intercept."""
    l2: Convexity = linear.l2
    k, d = linear.outputs, linear.features
    each = np.full(k * (d + linear.intercept), l2) if not isinstance(l2, tuple) else np.array(l2)
    weights = each[: k * d].reshape(k, d).mean(0)
    return weights, float(each[k * d :].mean()) if linear.intercept else 0.0


def _as(metric: Metric, dtype: DTypeLike) -> Metric:
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), metric)


class Spectrum(NamedTuple):
    """In z: W'W = rest (I - QQ') + Q diag(e) Q' of the weights of one output, and the Hessian of the losses."""

    Q: Float[Array, "d k"]
    e: Float[Array, " k"]
    rest: Float[Array, ""]
    shape: Float[Array, " k"]  # of that Hessian along Q, up to a factor; 1 elsewhere and for an intercept
    l2: Float[Array, ""]  # of the weights, that the metric was made with

    def of_losses(self, linear: Linear, mean_curvature: Array) -> Array:
        """The factor, of a mean curvature over all directions of z, the penalty included."""
        d, k = self.Q.shape
        penalty = self.l2 * (jnp.sum(self.e) + (d - k) * self.rest)
        both = d + linear.intercept
        return jnp.maximum(both * mean_curvature - penalty, 0) / (jnp.sum(self.shape) + both - k)

    def solved(self, linear: Linear, factor: Array, extra: Array, z: Vector) -> Vector:
        """H^-1 z, where weights have `extra` more l2."""
        weights, intercept = _parts(linear, z)
        elsewhere = factor + (self.l2 + extra) * self.rest
        more = 1 / (factor * self.shape + (self.l2 + extra) * self.e) - 1 / elsewhere
        inside = jax.lax.dot(weights, self.Q) * more[None]
        weights = weights / elsewhere + jax.lax.dot(inside, self.Q.T)
        return _whole(weights, None if intercept is None else intercept / elsewhere)


def spectrum(linear: Linear, metric: Metric) -> Spectrum:
    """Of a triangular factor, H = unit I less the penalty; of leading directions only, the losses count as round."""
    weights, intercept = _ridges(linear)
    l2, unit = weights.mean(), linear.curvature + intercept if linear.intercept else 1.0
    factor: Any = jax.tree.map(lambda a: np.asarray(a, np.float64), metric.factor)
    if isinstance(metric.factor, LowRank):
        Q, e, rest = factor.V, (factor.gain * factor.s) ** 2, factor.gain**2
        shape = np.ones_like(e)
    else:
        e, Q = np.linalg.eigh(factor.W.T @ factor.W)
        shape, rest = np.maximum(1 - l2 * e / unit, 0), np.asarray(e.mean())
    dtype = jax.tree.leaves(metric)[0].dtype
    return Spectrum(*(jnp.asarray(a, dtype) for a in (Q, e, rest, shape, l2)))


def stretch(linear: Linear, metric: Metric) -> float:
    """The least of |x|^2 / |z|^2: what of a strong convexity in x is certain in z."""
    factor = jax.tree.map(lambda a: np.asarray(a, np.float64), metric.factor)
    if isinstance(factor, LowRank):
        W = float(factor.gain) * min(1.0, float(factor.s.min(initial=1.0)))
    else:
        W = float(np.linalg.svd(factor.W, compute_uv=False).min())
    if metric.centre is None:
        return W**2
    # b = z_b - c'x: the inverse is bounded by its parts.
    return 1 / (1 / W**2 + (1 + float(np.linalg.norm(np.asarray(metric.centre, np.float64)))) ** 2)
