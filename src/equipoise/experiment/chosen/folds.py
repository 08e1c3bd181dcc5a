"""Folds at the owners: what a model would lose on rows that it had not seen.

Each owner divides its own rows, whole units where `data.unit` says what belongs together. A model x is trained on all
rows in a metric; what it would be without an owner's fold is a Newton step from it,

    x_k = x + H^-1 lam_i (grad f_i(x) - grad f_ik(x))        f_ik: of the rows of owner i that are not in fold k

(approximate cross-validation: Beirami et al. 2017, Rad and Maleki 2020), which the owner takes by itself, and says what
the rows of the fold lose there, with its own part fitted to the others. H is what the metric was made of, H_0 in z,
times the mean curvature of the owners' losses there in random directions, a sum that everybody is told:

    H = s (H_0 - l2_0 W'W) + l2 W'W

One step leaves the fold's own curvature in H: too short where rows are fewer than inputs, so that losses look lower
than they are.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from equipoise._jax import compiled
from equipoise.data.shards import Shards, client_shapes
from equipoise.errors import not_none
from equipoise.experiment.personal.paths import Parts, mean
from equipoise.experiment.problems import Problem
from equipoise.protocol import Vector
from equipoise.tasks import Task
from equipoise.tasks.metric import Metric, Spectrum, linear_of, model_of, spectrum
from equipoise.tasks.task import Linear, Scalar

FOLDS = 5
PROBES = 4  # random directions in which curvature is measured


class Row(NamedTuple):
    """An owner's shard, the fold of each of its rows, and what all owners know: the metric, and what is penalised."""

    shard: Any
    fold: Int[Array, " m"]
    metric: Metric
    spectrum: Spectrum
    penalty: Vector  # the problem's l2, of what one number scales

    @property
    def sizes(self) -> Any:
        return self.shard.sizes


class OfOwners(NamedTuple):
    """The same of all owners."""

    data: Any
    folds: Int[Array, "n m"]
    metric: Metric
    spectrum: Spectrum
    penalty: Vector

    @property
    def n(self) -> int:
        return self.data.n

    @property
    def sizes(self) -> Any:
        return self.data.sizes

    def client(self, i: Any) -> Row:
        return Row(self.data.client(i), self.folds[i], *self[2:])


def rows_of(problem: Problem, metric: Metric, penalty: Vector) -> OfOwners:
    """Of a problem whose rows are at hand."""
    train = jax.tree.map(jnp.asarray, problem.train)
    rows = client_shapes(problem.train).labels.shape[0]
    sizes = np.asarray(problem.train.sizes).tolist()
    units: Sequence = [None] * problem.n if problem.units is None else problem.units
    folds = np.stack([folds_of(i, size, units[i], rows) for i, size in enumerate(sizes)])
    return OfOwners(train, jnp.asarray(folds), metric, spectrum(linear_of(problem.plain_task), metric), penalty)


def row_of(problem: Problem, shard: Any, i: int, unit: np.ndarray | None, metric: Metric, penalty: Vector) -> Row:
    """Of the i-th owner, whose rows nobody else has."""
    fold = folds_of(i, int(shard.sizes), unit, shard.labels.shape[0])
    return Row(shard, jnp.asarray(fold), metric, spectrum(linear_of(problem.plain_task), metric), penalty)


def folds_of(i: int, size: int, unit: np.ndarray | None, rows: int) -> Int[np.ndarray, " rows"]:
    """The fold of each of the i-th owner's rows; padding has the number FOLDS, which is no fold."""
    of_row = np.arange(size) if unit is None else np.unique(unit, return_inverse=True)[1]
    fold = np.random.default_rng([i, 1]).permutation(of_row.max(initial=-1) + 1) % FOLDS
    return np.concatenate([fold[of_row], np.full(rows - size, FOLDS)]).astype(np.int32)


def held_out_losses(problem: Problem, x: Vector) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Of every owner's test rows: what a model loses, and what the owner's base rate does."""
    pair = tuple(jax.tree.map(jnp.asarray, rows) for rows in (problem.train, problem.test))
    losses, base = _held_out(problem.plain_task)(x, *pair)
    return np.asarray(losses, np.float64), np.asarray(base, np.float64)


def _parted(shard: Any, fold: Int[Array, " m"], k: Array) -> tuple[Shards, Shards]:
    """An owner's rows that are not in fold k, and those that are."""
    real, mine = fold < FOLDS, fold == k
    order = jnp.argsort(jnp.where(real, mine.astype(jnp.int32), 2))
    left = jnp.sum(mine, dtype=shard.sizes.dtype)
    kept = shard.sizes - left
    last = jnp.roll(order, -kept)
    return (
        Shards(shard.inputs[order], shard.labels[order], kept),
        Shards(shard.inputs[last], shard.labels[last], left),
    )


def _over_folds(of_fold: Callable[[Shards, Shards], Scalar], shard: Any, fold: Array) -> Scalar:
    """The mean over an owner's rows, each judged in the fold that it is in."""

    def one(k: Array) -> tuple[Scalar, Scalar]:
        kept, left = _parted(shard, fold, k)
        loss = of_fold(kept, left)
        rows = jnp.where(kept.sizes > 0, left.sizes, 0).astype(loss.dtype)
        return jnp.where(rows > 0, rows * loss, 0), rows

    sums, rows = jax.lax.map(one, jnp.arange(FOLDS, dtype=jnp.int32))
    return jnp.sum(sums) / jnp.maximum(jnp.sum(rows), 1)  # nothing of an owner of a single row, whatever is tried


@lru_cache(maxsize=8)
def _held_out(task: Task) -> Callable:
    def of_all(x: Vector, train: Any, test: Any) -> tuple[Array, Array]:
        def one(i: Array) -> tuple[Scalar, Scalar]:
            shard, left = train.client(i), test.client(i)
            return _loss_of(task, x, shard, left), Parts(task, x, shard).of_base_rate(shard, left)

        return jax.lax.map(one, jnp.arange(train.n))

    return compiled(of_all)


def _loss_of(task: Task, x: Vector, kept: Shards, left: Shards) -> Scalar:
    """The mean loss of rows, without a penalty, by x and an own part of the rows that are kept."""
    examples, own = not_none(task.examples, f"{task.name} does not say what it is made of"), task.own
    outputs = examples.outputs(x, left.inputs, None) if own is None else own.outputs(x, own.fit(x, kept), left.inputs)
    return mean(examples.losses(outputs, left.labels), left)


def _probes(task: Task, linear: Linear, x: Vector) -> Float[Array, "probes d"]:
    """Directions of z; of softmax those that move its outputs against each other, as every gradient does."""
    probes = jax.random.normal(jax.random.key(0), (PROBES, x.size), x.dtype)
    if not_none(task.examples).bend != "softmax":
        return probes
    split = linear.outputs * linear.features
    parts = [part.reshape(PROBES, linear.outputs, -1) for part in (probes[:, :split], probes[:, split:]) if part.size]
    return jnp.concatenate([(a - jnp.mean(a, axis=1, keepdims=True)).reshape(PROBES, -1) for a in parts], axis=1)


def mean_curvature(task: Task, row: Row, x: Vector) -> Scalar:
    """Of an owner's loss at x, along the probes in z."""
    linear = linear_of(task)
    zero, probes, slope = jnp.zeros_like(x), _probes(task, linear, x), _slope(task, row, x)
    curved = [v @ jax.jvp(lambda z: slope(z, row.shard), (zero,), (v,))[1] for v in probes]
    return sum(curved, jnp.zeros((), x.dtype)) / jnp.sum(probes**2)


def loss_left_out(task: Task, row: Row, x: Vector, lam_i: Array, curvature: Array, extra: Vector) -> Scalar:
    """The mean over an owner's rows, each by the model without its fold; `curvature` is the mean over the owners."""
    linear, slope = linear_of(task), _slope(task, row, x)
    factor, whole = row.spectrum.of_losses(linear, curvature), slope(jnp.zeros_like(x), row.shard)

    def of_fold(kept: Shards, left: Shards) -> Scalar:
        without = row.spectrum.solved(linear, factor, extra[0], lam_i * (whole - slope(jnp.zeros_like(x), kept)))
        return _loss_of(task, x + model_of(linear, row.metric, without), kept, left)

    return _over_folds(of_fold, row.shard, row.fold)


def loss_of_base_rate(task: Task, row: Row, x: Vector) -> Scalar:
    """The same, by the base rate of the other rows."""
    parts = Parts(task, x, row.shard)
    return _over_folds(parts.of_base_rate, row.shard, row.fold)


def _slope(task: Task, row: Row, x: Vector) -> Callable[[Vector, Any], Vector]:
    """In z, at x + W z, of rows."""
    linear = linear_of(task)

    def moved(z: Vector) -> Vector:
        return model_of(linear, row.metric, z)

    return lambda z, shard: jax.vjp(moved, jnp.zeros_like(x))[1](task.grad(x + moved(z), shard))[0]
