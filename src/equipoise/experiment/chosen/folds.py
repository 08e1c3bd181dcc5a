"""Folds at the owners along one path of runs: what a model would lose on rows that it had not seen.

Each owner divides its own rows, whole units where `data.unit` says what belongs together. A point of a path is a
penalty l2 and an objective; its one model is trained on all rows by SCAFF-PD with a model in the metric, from that of
the point before, in a few rounds. What it would be without an owner's fold is a Newton step from it,

    x_k = x + H^-1 lam_i (grad f_i(x) - grad f_ik(x))        f_ik: of the rows of owner i that are not in fold k

(approximate cross-validation: Beirami et al. 2017, Rad and Maleki 2020), which the owner takes by itself, and says what
the rows of the fold lose there, with its own part fitted to the others. H is what the metric was made of, H_0 in z,
times the mean curvature of the owners' losses there in random directions, a sum that everybody is told:

    H = s (H_0 - l2_0 W'W) + l2 W'W

One step leaves the fold's own curvature in H: too short where rows are fewer than inputs, so that losses look lower
than they are. A path costs the bytes of one model. The judgement rides with the first round of the next point, which
begins at the model that is judged. l2 is an operand here, as are the objective's number and the metric: one program
serves the path.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from equipoise import algorithms, local, metric
from equipoise._jax import compiled
from equipoise.cohorts import everyone
from equipoise.data.shards import Shards, client_shapes
from equipoise.engines.simulator import simulate
from equipoise.errors import not_none
from equipoise.experiment.config import Config
from equipoise.experiment.methods import build_dual
from equipoise.experiment.personal.paths import Parts, mean
from equipoise.experiment.problems import Problem
from equipoise.experiment.writer import weights_of
from equipoise.protocol import Algorithm, RandomKey, Vector, wire_of_rows
from equipoise.tasks import Task
from equipoise.tasks.metric import Metric, Spectrum, model_of, spectrum
from equipoise.tasks.task import Linear, Scalar

FOLDS = 5
STEPS = 10  # local ones of a round
FIRST, MORE = 4, 2  # rounds of the first point of a path, and of the others
LOST = 1e9  # what a model that is not finite is taken to lose
PROBES = 4  # random directions in which curvature is measured


class Point(NamedTuple):
    """What a point of a path came to."""

    losses: Float[np.ndarray, " n"]  # of every owner's rows, each by a model that has not seen it
    model: Vector


class Row(NamedTuple):
    """An owner's shard, the metric, and how far the penalty is from the task's own."""

    shard: Any
    metric: Metric
    extra: Vector

    @property
    def sizes(self) -> Any:
        return self.shard.sizes


class OnPath(NamedTuple):
    """The same of all owners."""

    data: Any
    metric: Metric
    extra: Vector

    @property
    def n(self) -> int:
        return self.data.n

    @property
    def sizes(self) -> Any:
        return self.data.sizes

    def client(self, i: Any) -> Row:
        return Row(self.data.client(i), self.metric, self.extra)


class Walk:
    """A path over the folds of one problem, whose l2 is `problem.l2` plus what a point says."""

    def __init__(self, problem: Problem, seed: int):
        self.problem, self.seed = problem, seed
        task = problem.plain_task
        linear = not_none(task.linear)
        self.train, self.folds = jax.tree.map(jnp.asarray, problem.train), jnp.asarray(_numbers(problem))
        self.base = np.asarray(_base(task)(problem.x, self.train, self.folds), np.float64)  # of the base rate
        rank = metric.chosen_rank(linear)
        agreed = metric.agree(task, problem.train, rank=rank, dtype=problem.x.dtype, key=seed)
        self.metric = not_none(agreed, "no owner told its second moments")
        self.spectrum = spectrum(linear, self.metric)
        self.model = problem.x
        self.rounds = 1  # the metric
        shard = client_shapes(problem.train)
        self.down, self.up = metric.bytes_of_agreement(linear, problem.n, rank, shard, problem.x.dtype)
        self.begun = False

    def to(self, config: Config, extra: Any, rounds: int | None = None) -> Point:
        """The point of `config`'s objective, with the penalty `extra` on top of the problem's."""
        problem, task = self.problem, self.problem.plain_task
        rounds = rounds or (MORE if self.begun else FIRST)
        made = algorithms.scaffpd_model(_on_path(task), build_dual(config, problem), everyone(problem.n), steps=STEPS)
        made = algorithms.told_in_x(made, task, self.metric)
        extra = jnp.asarray(np.broadcast_to(extra, problem.x.shape), problem.x.dtype)
        rows = OnPath(self.train, self.metric, extra)
        end = simulate(made, self.model, rows, self.seed, rounds=rounds)
        self.model, self.begun = end.model, True
        weights = weights_of(made, problem.x.dtype)(end.server)
        judged = _judge(task)(end.model, weights, self.train, self.folds, self.metric, self.spectrum, extra)
        self._count(made, rows, rounds)
        losses = np.asarray(judged, np.float64)
        return Point(np.where(np.isfinite(losses), losses, LOST), end.model)

    def _count(self, algorithm: Algorithm, rows: OnPath, rounds: int) -> None:
        """The rounds, and for the judgement a curvature and a loss up and the mean of the curvatures down."""
        n, real = self.problem.n, self.problem.x.dtype.itemsize
        wires = wire_of_rows(algorithm, self.problem.x, jax.eval_shape(lambda: rows.client(0)))
        self.rounds += rounds
        self.down += n * (rounds * sum(w.down for w in wires) + real)
        self.up += n * (rounds * sum(w.up for w in wires) + 2 * real)


def held_out_losses(problem: Problem, x: Vector) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Of every owner's test rows: what a model loses, and what the owner's base rate does."""
    pair = tuple(jax.tree.map(jnp.asarray, rows) for rows in (problem.train, problem.test))
    losses, base = _held_out(problem.plain_task)(x, *pair)
    return np.asarray(losses, np.float64), np.asarray(base, np.float64)


def _numbers(problem: Problem) -> np.ndarray:
    """[n, m]: the fold of every row; FOLDS where there is none."""
    sizes = np.asarray(problem.train.sizes)
    rows = client_shapes(problem.train).labels.shape[0]
    out = np.full((problem.n, rows), FOLDS, np.int32)
    for i, size in enumerate(sizes):
        rng = np.random.default_rng([i, 1])
        unit = np.arange(size) if problem.units is None else np.unique(problem.units[i], return_inverse=True)[1]
        fold = rng.permutation(unit.max(initial=-1) + 1) % FOLDS
        out[i, :size] = fold[unit]
    return out


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
def _base(task: Task) -> Callable:
    def of_all(x: Vector, train: Any, folds: Array) -> Array:
        def one(i: Array) -> Scalar:
            shard = train.client(i)
            return _over_folds(lambda kept, left: Parts(task, x, shard).of_base_rate(kept, left), shard, folds[i])

        return jax.lax.map(one, jnp.arange(train.n))

    return compiled(of_all)


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


@lru_cache(maxsize=8)
def _judge(task: Task) -> Callable:
    """Every owner's loss of rows left out, by the model without them."""
    linear = not_none(task.linear)

    def of_all(
        x: Vector, lam: Array, train: Any, folds: Array, metric: Metric, spectrum: Spectrum, extra: Vector
    ) -> Array:
        zero = jnp.zeros_like(x)
        probes = _probes(task, linear, x)

        def moved(z: Vector) -> Vector:
            return model_of(linear, metric, z)

        def slope(z: Vector, shard: Any) -> Vector:
            return jax.vjp(moved, zero)[1](task.grad(x + moved(z), shard))[0]

        def curvature(i: Array) -> Scalar:
            """Of an owner's loss along the probes."""
            shard = train.client(i)
            curved = [v @ jax.jvp(lambda z: slope(z, shard), (zero,), (v,))[1] for v in probes]
            return sum(curved, jnp.zeros((), x.dtype)) / jnp.sum(probes**2)

        owners = jnp.arange(train.n)
        factor = spectrum.of_losses(linear, jnp.mean(jax.lax.map(curvature, owners)))

        def one(i: Array) -> Scalar:
            shard = train.client(i)
            whole = slope(zero, shard)

            def of_fold(kept: Shards, left: Shards) -> Scalar:
                without = spectrum.solved(linear, factor, extra[0], lam[i] * (whole - slope(zero, kept)))
                return _loss_of(task, x + moved(without), kept, left)

            return _over_folds(of_fold, shard, folds[i])

        return jax.lax.map(one, owners)

    return compiled(of_all)


@lru_cache(maxsize=8)
def _on_path(task: Task) -> Task:
    """The same for the same task: one program for all points of a path."""
    return task_on_path(task)


def task_on_path(task: Task) -> Task:
    """`task` over z, x = W z, with sum_j extra_j x_j^2 / 2 beside its own penalty; data is `OnPath`."""
    linear = not_none(task.linear)

    def prepare(row: Row) -> Row:
        return row._replace(shard=task.prepare(row.shard))

    def value(z: Vector, row: Row, slope: bool) -> Any:
        x, back = jax.vjp(lambda z: model_of(linear, row.metric, z), z)
        if slope:
            return back(task.grad(x, row.shard) + row.extra * x)[0]
        return task.loss(x, row.shard) + jnp.sum(row.extra * x * x) / 2

    def loss(z: Vector, row: Row, key: RandomKey | None = None) -> Scalar:
        return value(z, row, slope=False)

    def grad(z: Vector, row: Row, key: RandomKey | None = None) -> Vector:
        return value(z, row, slope=True)

    def descend(z: Vector, row: Row, key: RandomKey, *, steps: int, **options: Any) -> Any:
        return local.descend(lambda u, _: grad(u, row), z, None, steps=steps, **options)

    def init(key: RandomKey | int) -> Vector:
        return jnp.zeros(task.size)

    return Task(f"{task.name}_on_path", task.size, loss, grad, descend, init, None, prepare, curves=1e-3)
