"""Folds at the owners: runs on all folds but one, scored on the one left out, along a path of settings.

Each owner divides its own rows, whole units where `data.unit` says what belongs together. A point of a path is a
penalty l2 and an objective; its models, one for each fold, are trained by SCAFF-PD with a model in the metric, from
those of the point before, in a few rounds. Rounds and bytes are counted as if a message had a model of each fold; here
the folds run one after the other.

l2 is an operand here, as are the objective's number and the metric: one program serves the whole path.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise import algorithms, local, metric
from equipoise._jax import compiled
from equipoise.cohorts import everyone
from equipoise.data.shards import Shards, client_shapes
from equipoise.engines.simulator import simulate
from equipoise.errors import not_none
from equipoise.experiment.config import Config
from equipoise.experiment.methods import build_dual
from equipoise.experiment.personal.baselines import Parts, mean
from equipoise.experiment.problems import Problem
from equipoise.protocol import Algorithm, RandomKey, Vector, wire
from equipoise.tasks import Task
from equipoise.tasks.metric import Metric, model_of
from equipoise.tasks.task import Scalar

FOLDS = 5
STEPS = 10  # local ones of a round
FIRST, MORE = 4, 2  # rounds of the first point of a path, and of the others


class Folds(NamedTuple):
    """Every owner's rows, divided FOLDS times."""

    kept: tuple[Any, ...]
    left: tuple[Any, ...]
    base: Float[np.ndarray, " n"]  # the loss of predicting the base rate of the rows kept


class Point(NamedTuple):
    """What a point of a path came to."""

    losses: Float[np.ndarray, " n"]  # of every owner's rows, each by the model that has not seen it
    models: Float[np.ndarray, "folds d"]  # to begin the next point with


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

    def __init__(self, problem: Problem, seed: int, folds: Folds | None = None):
        self.problem, self.seed = problem, seed
        task = problem.plain_task
        self.folds = divided(problem) if folds is None else folds
        rank = metric.chosen_rank(not_none(task.linear))
        agreed = metric.agree(task, problem.train, rank=rank, dtype=problem.x.dtype, key=seed)
        self.metric = not_none(agreed, "no owner told its second moments")
        self.models = np.tile(np.asarray(problem.x), (len(self.folds.kept), 1))
        self.rounds = 1  # the metric
        shard = client_shapes(problem.train)
        self.down, self.up = metric.bytes_of_agreement(not_none(task.linear), problem.n, rank, shard, problem.x.dtype)
        self.begun = False

    def to(self, config: Config, extra: Any, rounds: int | None = None) -> Point:
        """The point of `config`'s objective, with the penalty `extra` on top of the problem's."""
        problem = self.problem
        rounds = rounds or (MORE if self.begun else FIRST)
        on_path = _on_path(problem.plain_task)
        made = algorithms.scaffpd_model(on_path, build_dual(config, problem), everyone(problem.n), steps=STEPS)
        made = algorithms.told_in_x(made, problem.plain_task, self.metric)
        extra = jnp.asarray(np.broadcast_to(extra, problem.x.shape), problem.x.dtype)
        losses, sizes, models = np.zeros(problem.n), np.zeros(problem.n), []
        score = _scorer(problem.plain_task)
        for kept, left, x in zip(self.folds.kept, self.folds.left, self.models, strict=True):
            rows = OnPath(kept, self.metric, extra)
            end = simulate(made, jnp.asarray(x, problem.x.dtype), rows, self.seed, rounds=rounds)
            models.append(np.asarray(end.model))
            count = np.asarray(left.sizes, np.float64)
            losses += np.where(count > 0, count * np.asarray(score(end.model, kept, left), np.float64), 0)
            sizes += count
        self.models, self.begun = np.stack(models), True
        self._count(made, rows, rounds)
        return Point(losses / np.maximum(sizes, 1), self.models)

    def _count(self, algorithm: Algorithm, rows: OnPath, rounds: int) -> None:
        """The rounds, a model to be scored after them, and its loss."""
        n, real = self.problem.n, self.problem.x.dtype.itemsize
        shard = jax.eval_shape(lambda: algorithm.prepare(rows.client(0)))
        wires = wire(algorithm, self.problem.x, shard)
        self.rounds += rounds
        self.down += len(self.models) * n * (rounds * sum(w.down for w in wires) + real * self.problem.x.size)
        self.up += len(self.models) * n * (rounds * sum(w.up for w in wires) + real)


def divided(problem: Problem) -> Folds:
    """Drawn at random, the same in every run."""
    train, numbers = jax.tree.map(jnp.asarray, problem.train), jnp.asarray(_numbers(problem))
    return _judged(problem, [_split(train, numbers, jnp.int32(k)) for k in range(FOLDS)])


def held_out(problem: Problem) -> Folds:
    """One fold: all training rows, and those of the test."""
    train, numbers = jax.tree.map(jnp.asarray, problem.train), jnp.asarray(_numbers(problem))
    whole, _ = _split(train, numbers, jnp.int32(-1))
    return _judged(problem, [(whole, jax.tree.map(jnp.asarray, problem.test))])


def _judged(problem: Problem, parts: list[tuple[Any, Any]]) -> Folds:
    base, sizes = np.zeros(problem.n), np.zeros(problem.n)
    for kept, left in parts:
        losses, count = _base(problem.plain_task)(problem.x, kept, left), np.asarray(left.sizes, np.float64)
        base += np.where(count > 0, count * np.asarray(losses, np.float64), 0)
        sizes += count
    kept, left = zip(*parts, strict=True)
    return Folds(kept, left, base / np.maximum(sizes, 1))


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


@jax.jit
def _split(train: Any, numbers: Array, k: Array) -> tuple[Shards, Shards]:
    def one(i: Array) -> tuple[Shards, Shards]:
        shard, fold = train.client(i), numbers[i]
        real, mine = fold < FOLDS, fold == k
        order = jnp.argsort(jnp.where(real, mine.astype(jnp.int32), 2))
        left = jnp.sum(mine, dtype=shard.sizes.dtype)
        kept = shard.sizes - left
        last = jnp.roll(order, -kept)
        return (
            Shards(shard.inputs[order], shard.labels[order], kept),
            Shards(shard.inputs[last], shard.labels[last], left),
        )

    return jax.lax.map(one, jnp.arange(numbers.shape[0]))


@lru_cache(maxsize=8)
def _base(task: Task) -> Callable:
    def one(x: Vector, kept: Shards, left: Shards) -> Scalar:
        return Parts(task, x, kept).of_base_rate(kept, left)

    return compiled(lambda x, kept, left: _of_each(lambda a, b: one(x, a, b), kept, left))


@lru_cache(maxsize=8)
def _scorer(task: Task) -> Callable:
    """Every owner's mean loss on the rows left out, without a penalty."""
    examples = not_none(task.examples, f"{task.name} does not say what it is made of")

    def one(x: Vector, kept: Shards, left: Shards) -> Scalar:
        own = task.own
        outputs = (
            examples.outputs(x, left.inputs, None) if own is None else own.outputs(x, own.fit(x, kept), left.inputs)
        )
        return mean(examples.losses(outputs, left.labels), left)

    return compiled(lambda x, kept, left: _of_each(lambda a, b: one(x, a, b), kept, left))


def _of_each(of_one: Callable, kept: Shards, left: Shards) -> Array:
    return jax.lax.map(lambda i: of_one(kept.client(i), left.client(i)), jnp.arange(kept.n))


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
