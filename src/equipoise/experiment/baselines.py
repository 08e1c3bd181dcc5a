"""What each owner has without the others, as one number: the loss that its own model has on rows it has not seen.

Five folds of its own rows, an l2 of its own among a few, and its base rate among the choices. Never the loss of
training, which is lowest where rows are few. With too few rows for folds, and for networks, of which five would have to
be trained at every owner, it is the loss of predicting the base rate.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from equipoise._jax import compiled
from equipoise.data.shards import Shards
from equipoise.errors import not_none
from equipoise.experiment.fits import least_loss
from equipoise.protocol import Vector
from equipoise.tasks import Task, own_part
from equipoise.tasks.own import base_rate
from equipoise.tasks.task import Scalar

FOLDS = 5
FEWEST = 2 * FOLDS  # rows, below which there are no folds
L2 = (1.0, 1e-1, 1e-2, 1e-3)  # from the easiest fit on, each from where the one before has ended


def own_losses(task: Task, convex: bool, x: Vector, train: Any) -> np.ndarray:
    """[n]: every owner's, from all of their rows."""
    found = _of_every_client(task, convex)(x, jax.tree.map(jnp.asarray, train))
    return np.asarray(found, np.float64)


def own_loss(task: Task, convex: bool, x: Vector, shard: Shards) -> float:
    """One owner's, where its rows are."""
    return float(_of_one(task, convex)(x, shard))


@lru_cache(maxsize=16)
def _of_every_client(task: Task, convex: bool) -> Callable:
    def all_of_them(x: Vector, train: Any) -> Array:
        return jax.lax.map(lambda i: _cross_validated(task, convex, x, train.client(i)), jnp.arange(train.n))

    return compiled(all_of_them)


@lru_cache(maxsize=16)
def _of_one(task: Task, convex: bool) -> Callable:
    return compiled(lambda x, shard: _cross_validated(task, convex, x, shard))


def _cross_validated(task: Task, convex: bool, x: Vector, shard: Shards) -> Scalar:
    of = not_none(task.examples, f"{task.name} does not say what it is made of; set objective.of = 'losses'")
    dtype = x.dtype

    def mean(each: Array, rows: Shards) -> Scalar:
        real = jnp.arange(each.shape[0], dtype=rows.sizes.dtype) < rows.sizes
        return jnp.sum(jnp.where(real, each, 0)) / rows.sizes.astype(each.dtype)

    def of_base_rate(fitted_to: Shards, rows: Shards) -> Scalar:
        part = base_rate(task, x, fitted_to)
        like = jax.eval_shape(lambda: of.outputs(x, rows.inputs, None))
        return mean(of.losses(jnp.broadcast_to(part.reshape((1, *like.shape[1:])), like.shape), rows.labels), rows)

    simple = of_base_rate(shard, shard)
    if not convex:
        return simple

    def of_fold(k: Array) -> tuple[Array, Array]:
        """The loss of every candidate on the rows that it has not seen, times how many these are, and that number."""
        kept, left_out = _split(shard, k)

        def fitted(u: Vector, l2: Any) -> tuple[Vector, Scalar]:
            plain = of._replace(l2=l2, batch=None, random=False, linear=False)
            if task.own is None:
                u = least_loss(lambda v: mean(of.losses(of.outputs(v, kept.inputs, None), kept.labels), kept)
                               + l2 / 2 * (v @ v), u)  # fmt: skip
                return u, mean(of.losses(of.outputs(u, left_out.inputs, None), left_out.labels), left_out)
            mine = own_part(task._replace(examples=plain), task.own.inputs)
            own = not_none(mine.own)
            u = least_loss(lambda v: mine.loss(v, kept), u)
            outputs = own.outputs(u, own.fit(u, kept), left_out.inputs)
            return u, mean(of.losses(outputs, left_out.labels), left_out)

        _, losses = jax.lax.scan(fitted, jnp.zeros_like(x), jnp.asarray(L2, dtype))
        rows = left_out.sizes.astype(dtype)
        return rows * jnp.append(losses, of_base_rate(kept, left_out)), rows

    losses, rows = jax.vmap(of_fold)(jnp.arange(FOLDS, dtype=jnp.int32))
    candidates = jnp.sum(losses, axis=0) / jnp.sum(rows)
    best = jnp.min(jnp.where(jnp.isfinite(candidates), candidates, jnp.inf))
    return jnp.where((shard.sizes >= FEWEST) & jnp.isfinite(best), best, simple)


def _split(shard: Shards, k: Array) -> tuple[Shards, Shards]:
    """All folds but the k-th, and the k-th: by chance, the same every time."""
    rows, size = shard.labels.shape[0], shard.sizes
    real = jnp.arange(rows, dtype=size.dtype) < size
    shuffled = jnp.argsort(jnp.where(real, jax.random.uniform(jax.random.key(0), (rows,)), 2.0))
    fold = jnp.zeros(rows, jnp.int32).at[shuffled].set(jnp.arange(rows, dtype=jnp.int32) % FOLDS)
    mine = real & (fold == k)
    order = jnp.argsort(jnp.where(real, mine.astype(jnp.int32), 2))
    left_out = jnp.sum(mine, dtype=size.dtype)
    kept = size - left_out

    def part(order: Array, count: Array) -> Shards:
        return Shards(shard.inputs[order], shard.labels[order], count)

    return part(order, kept), part(jnp.roll(order, -kept), left_out)
