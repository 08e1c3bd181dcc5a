"""Models of an owner's own along a path of penalties, of all its rows and of them without each of five folds.

    v = argmin of the owner's loss + penalty/2 |v - centre|^2

with its own part, if it has one, fitted beside v. Where the model is linear in its inputs the six are found together
(`linear.py`), else one by one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise.data.shards import Shards
from equipoise.errors import not_none
from equipoise.experiment.personal import linear
from equipoise.experiment.personal.fits import least_loss
from equipoise.protocol import Vector
from equipoise.tasks.own import base_rate, ridge_of
from equipoise.tasks.task import Scalar, Task

FOLDS = 5


class Path(NamedTuple):
    """Along the penalties."""

    models: Float[Array, "l d"]  # of all rows
    losses: Float[Array, "folds l"]  # the sum over the rows of each fold, by the model without them


def path(task: Task, centre: Vector, shard: Shards, penalties: tuple[float, ...]) -> Path:
    """From the easiest fit on, each from where the one before has ended."""
    each = jnp.asarray(penalties, centre.dtype)
    parts = Parts(task, centre, shard)
    if linear.suits(task, shard):
        shuffled = shard._replace(inputs=shard.inputs[_order(shard)], labels=shard.labels[_order(shard)])
        return Path(*linear.path(task, centre, shuffled, each, folds=FOLDS))

    def of_fold(k: Array) -> tuple[Array, Array]:
        kept, left_out = fold(shard, k)

        def fitted(u: Vector, penalty: Array) -> tuple[Vector, tuple[Vector, Scalar]]:
            def penalised(u: Vector) -> Scalar:
                return parts.loss(u, kept) + penalty / 2 * jnp.sum((parts.shared(u) - centre) ** 2)

            u = least_loss(penalised, u)
            return u, (parts.shared(u), parts.of_rows(u, left_out) * left_out.sizes.astype(u.dtype))

        return jax.lax.scan(fitted, parts.start(centre, kept), each)[1]

    models, losses = jax.vmap(of_fold)(jnp.arange(FOLDS + 1, dtype=jnp.int32))  # the last leaves nothing out
    return Path(models[FOLDS], losses[:FOLDS])


class Parts:
    """A model's losses without l2 as functions of one vector: x, and behind it the owner's part where it has one."""

    def __init__(self, task: Task, x: Vector, shard: Shards):
        self.of = not_none(task.examples, f"{task.name} does not say what it is made of; set objective.of = 'losses'")
        self.task, self.own, self.x = task, task.own, x
        self.like = None if self.own is None else jax.eval_shape(self.own.fit, x, shard)

    def start(self, x: Vector, rows: Shards) -> Vector:
        """x, and the part that suits it."""
        return x if self.own is None else jnp.concatenate([x, self.own.fit(x, rows).ravel()])

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
        return self.of_rows(u, rows) + ridge_of(self.of.bend) * (part @ part) / (2 * rows.sizes.astype(u.dtype))

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
    folds = jnp.zeros(rows, jnp.int32).at[_order(shard)].set(jnp.arange(rows, dtype=jnp.int32) % FOLDS)
    mine = (jnp.arange(rows, dtype=size.dtype) < size) & (folds == k)
    order = jnp.argsort(jnp.where(jnp.arange(rows, dtype=size.dtype) < size, mine.astype(jnp.int32), 2))
    left_out = jnp.sum(mine, dtype=size.dtype)
    kept = size - left_out

    def part(order: Array, count: Array) -> Shards:
        return Shards(shard.inputs[order], shard.labels[order], count)

    return part(order, kept), part(jnp.roll(order, -kept), left_out)


def _order(shard: Shards) -> Array:
    """The rows shuffled, those that are not real last; the k-th of them, and every fifth from there, are fold k.

    In any precision the same way.
    """
    rows = shard.labels.shape[0]
    real = jnp.arange(rows, dtype=shard.sizes.dtype) < shard.sizes
    return jnp.argsort(jnp.where(real, jax.random.uniform(jax.random.key(0), (rows,), jnp.float32), 2))
