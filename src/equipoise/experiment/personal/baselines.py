"""What each owner has without the others: its own model, and the loss of such a model on rows it has not seen.

Five folds of its own rows, an l2 of its own among a few, and its base rate among the choices. Never the loss of
training, which is lowest where rows are few. With too few rows for folds, and for networks, of which five would have to
be trained at every owner, it is the loss of predicting the base rate.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise._jax import compiled
from equipoise.data.shards import Shards
from equipoise.errors import not_none
from equipoise.experiment.personal.fits import least_loss
from equipoise.protocol import Vector
from equipoise.tasks import Task
from equipoise.tasks.own import base_rate
from equipoise.tasks.task import Scalar

FOLDS = 5
FEWEST = 2 * FOLDS  # rows, below which there are no folds
ROOM = 1024  # rows, up to which all owners are padded alike
L2 = (1.0, 1e-1, 1e-2, 1e-3)  # from the easiest fit on, each from where the one before has ended


class OwnFit(NamedTuple):
    """An owner's model of its own rows; or a row of each for every owner."""

    loss: Array  # on rows that it has not seen, by folds
    model: Vector  # of all of its rows
    folds: Float[Array, "*n folds"]  # the sum of its losses on each fold


def own_fits(task: Task, convex: bool, x: Vector, train: Any, tell: Callable[[int], None] = lambda _: None) -> OwnFit:
    """Of every owner, one after the other; `tell` hears how many there are."""
    fit, fits = _of_one(task, convex), []
    for i in range(train.n):
        fits.append(jax.block_until_ready(fit(x, rows_of(train, i))))
        tell(i + 1)
    return jax.tree.map(lambda *each: jnp.stack(each), *fits)


def rows_of(train: Any, i: int) -> Shards:
    """Owner i's, less padded where there are many more of others: each shape is a program, and there are a few."""
    shard = jax.tree.map(jnp.asarray, train.client(i))
    rows, room = shard.labels.shape[0], ROOM
    while room < int(shard.sizes):
        room *= 4
    return shard if rows <= room else Shards(shard.inputs[:room], shard.labels[:room], shard.sizes)


def own_loss(task: Task, convex: bool, x: Vector, shard: Shards) -> float:
    """One owner's, where its rows are."""
    return float(_of_one(task, convex)(x, shard).loss)


@lru_cache(maxsize=16)
def _of_one(task: Task, convex: bool) -> Callable[[Vector, Shards], OwnFit]:
    return compiled(lambda x, shard: own_fit(task, convex, x, shard))


def own_fit(task: Task, convex: bool, x: Vector, shard: Shards) -> OwnFit:
    """Where the base rate does best the model is zero, to which the owner's own part is fitted; that of networks is."""
    with_part = Parts(task, x, shard)
    simple, zero = with_part.of_base_rate(shard, shard), jnp.zeros_like(x)
    if not convex:
        return OwnFit(simple, zero, jnp.zeros(FOLDS, x.dtype))

    def of_fold(k: Array) -> tuple[Array, Array, Array]:
        """All candidates' losses on the rows left out, times how many these are; that number; and their models."""
        kept, left_out = fold(shard, k)

        def fitted(u: Vector, l2: Any) -> tuple[Vector, tuple[Scalar, Vector]]:
            u = least_loss(lambda u: with_part.loss(u, kept) + l2 / 2 * jnp.sum(with_part.shared(u) ** 2), u)
            return u, (with_part.of_rows(u, left_out), with_part.shared(u))

        _, (losses, models) = jax.lax.scan(fitted, with_part.start(zero), jnp.asarray(L2, x.dtype))
        rows = left_out.sizes.astype(x.dtype)
        losses = jnp.append(losses, with_part.of_base_rate(kept, left_out))
        return jnp.where(rows > 0, rows * losses, 0), rows, models

    losses, rows, models = jax.vmap(of_fold)(jnp.arange(FOLDS + 1, dtype=jnp.int32))  # the last leaves nothing out
    candidates = jnp.sum(losses, axis=0) / jnp.sum(rows)
    candidates = jnp.where(jnp.isfinite(candidates), candidates, jnp.inf)
    enough = (shard.sizes >= FEWEST) & jnp.isfinite(jnp.min(candidates))
    # Without own parts a model of zero has not even the base rate, and the most penalised one is next to it.
    instead = models[FOLDS, 0] if task.own is None else zero
    models = jnp.concatenate([models[FOLDS], instead[None]])
    best = jnp.argmin(candidates)
    model = models[jnp.where(enough, best, len(L2))]
    return OwnFit(jnp.where(enough, candidates[best], simple), model, losses[:FOLDS, best])


class Parts:
    """A model's losses without l2 as functions of one vector: x, and behind it the owner's part where it has one."""

    def __init__(self, task: Task, x: Vector, shard: Shards):
        self.of = not_none(task.examples, f"{task.name} does not say what it is made of; set objective.of = 'losses'")
        self.task, self.own, self.x = task, task.own, x
        self.like = None if self.own is None else jax.eval_shape(self.own.fit, x, shard)

    def start(self, x: Vector) -> Vector:
        return x if self.like is None else jnp.concatenate([x, jnp.zeros(self.like.size, x.dtype)])

    def shared(self, u: Vector) -> Vector:
        return u[: self.x.size]

    def of_rows(self, u: Vector, rows: Shards) -> Scalar:
        """The mean over rows."""
        x = self.shared(u)
        if self.own is None or self.like is None:
            return mean(self.of.losses(self.of.outputs(x, rows.inputs, None), rows.labels), rows)
        outputs = self.own.outputs(x, u[x.size :].reshape(self.like.shape), rows.inputs)
        return mean(self.of.losses(outputs, rows.labels), rows)

    def loss(self, u: Vector, rows: Shards) -> Scalar:
        """The same, and the ridge of the owner's part."""
        part = u[self.x.size :]
        return self.of_rows(u, rows) + part @ part / (2 * rows.sizes.astype(u.dtype))

    def of_base_rate(self, fitted_to: Shards, rows: Shards) -> Scalar:
        part = base_rate(self.task, self.x, fitted_to)
        like = jax.eval_shape(lambda: self.of.outputs(self.x, rows.inputs, None))
        outputs = jnp.broadcast_to(part.reshape((1, *like.shape[1:])), like.shape)
        return mean(self.of.losses(outputs, rows.labels), rows)


def mean(each: Array, rows: Shards) -> Scalar:
    """Over the real rows."""
    real = jnp.arange(each.shape[0], dtype=rows.sizes.dtype) < rows.sizes
    return jnp.sum(jnp.where(real, each, 0)) / rows.sizes.astype(each.dtype)


def fold(shard: Shards, k: Array) -> tuple[Shards, Shards]:
    """All folds but the k-th, and the k-th: by chance, the same every time."""
    rows, size = shard.labels.shape[0], shard.sizes
    real = jnp.arange(rows, dtype=size.dtype) < size
    shuffled = jnp.argsort(jnp.where(real, jax.random.uniform(jax.random.key(0), (rows,)), 2.0))
    folds = jnp.zeros(rows, jnp.int32).at[shuffled].set(jnp.arange(rows, dtype=jnp.int32) % FOLDS)
    mine = real & (folds == k)
    order = jnp.argsort(jnp.where(real, mine.astype(jnp.int32), 2))
    left_out = jnp.sum(mine, dtype=size.dtype)
    kept = size - left_out

    def part(order: Array, count: Array) -> Shards:
        return Shards(shard.inputs[order], shard.labels[order], count)

    return part(order, kept), part(jnp.roll(order, -kept), left_out)
