"""What each owner has without the others: its own model, and the loss of such a model on rows it has not seen.

Five folds of its own rows, an l2 of its own among a few, and its base rate among the choices. Never the loss of
training, which is lowest where rows are few. With too few rows for folds, and for networks, of which five would have to
be trained at every owner, it is the loss of predicting the base rate.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise._jax import compiled
from equipoise.data.shards import ClientData, Shards, client_shapes
from equipoise.experiment.personal.paths import FOLDS, Parts, fold, path
from equipoise.protocol import Vector, tree_where
from equipoise.tasks.task import Scalar, Task

FEWEST = 2 * FOLDS  # rows, below which there are no folds
ROOM = 1024  # rows, up to which all owners are padded alike
L2 = (4.0, 0.6, 0.06, 0.006, 0.0006)
Tell = Callable[[int, int], None]
Made = TypeVar("Made")


class OwnFit(NamedTuple):
    """An owner's model of its own rows; or a row of each for every owner."""

    loss: Array  # on rows that it has not seen, by folds
    model: Vector  # of all of its rows
    folds: Float[Array, "*n folds"]  # the sum of its losses on each fold


_tell: ContextVar[Tell] = ContextVar("_tell", default=lambda done, total: None)


@contextmanager
def watched(tell: Tell) -> Iterator[None]:
    """In it, `tell` hears how many owners have their own models, of how many, wherever they are made."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def own_fits(task: Task, convex: bool, x: Vector, train: ClientData) -> OwnFit:
    """Of every owner, one after the other."""
    fit, tell = _of_one(task, convex), _tell.get()

    def of_one(i: int, shard: Shards) -> OwnFit:
        tell(i, train.n)
        return fit(x, shard)

    fits = of_each_owner(of_one, train)
    tell(train.n, train.n)
    return fits


def of_each_owner(make: Callable[[int, Shards], Made], train: ClientData) -> Made:
    """A row of each; less padded where others have many more rows: each shape is a program, and there are a few."""
    train, sizes = jax.tree.map(jnp.asarray, train), np.asarray(train.sizes)
    rows, made = client_shapes(train).labels.shape[0], []
    for i, size in enumerate(sizes):
        room = ROOM
        while room < size:
            room *= 16
        made.append(jax.tree.map(np.asarray, make(i, _cut(train, np.int32(i), min(rows, room)))))
    return jax.tree.map(lambda *each: jnp.asarray(np.stack(each)), *made)


@partial(jax.jit, static_argnums=2)
def _cut(train: ClientData, i: Array, rows: int) -> Shards:
    shard = train.client(i)
    return Shards(shard.inputs[:rows], shard.labels[:rows], shard.sizes)


def own_loss(task: Task, convex: bool, x: Vector, shard: Shards) -> float:
    return float(_of_one(task, convex)(x, shard).loss)


@lru_cache(maxsize=16)
def _of_one(task: Task, convex: bool) -> Callable[[Vector, Shards], OwnFit]:
    return compiled(lambda x, shard: own_fit(task, convex, x, shard))


def own_fit(task: Task, convex: bool, x: Vector, shard: Shards) -> OwnFit:
    """Where the base rate does best the model is zero, to which the owner's own part is fitted; that of networks is."""
    parts, zero = Parts(task, x, shard), jnp.zeros_like(x)
    if not convex:
        return OwnFit(parts.of_base_rate(shard, shard), zero, jnp.zeros(FOLDS, x.dtype))

    def of_base_rate(k: Array) -> Scalar:
        kept, left_out = fold(shard, k)
        rows = tree_where(k < FOLDS, left_out, shard)  # the last is of all rows
        return jnp.where(rows.sizes > 0, parts.of_base_rate(kept, rows) * rows.sizes.astype(x.dtype), 0)

    fits = path(task, zero, shard, L2)
    base_rates = jax.vmap(of_base_rate)(jnp.arange(FOLDS + 1, dtype=jnp.int32))
    simple = base_rates[FOLDS] / shard.sizes.astype(x.dtype)
    losses = jnp.concatenate([fits.losses, base_rates[:FOLDS, None]], axis=1)
    candidates = jnp.sum(losses, axis=0) / shard.sizes.astype(x.dtype)
    candidates = jnp.where(jnp.isfinite(candidates), candidates, jnp.inf)
    enough = (shard.sizes >= FEWEST) & jnp.isfinite(jnp.min(candidates))
    # Without own parts a model of zero has not even the base rate, and the most penalised one is next to it.
    instead = fits.models[0] if task.own is None else zero
    models = jnp.concatenate([fits.models, instead[None]])
    best = jnp.argmin(candidates)
    model = models[jnp.where(enough, best, len(L2))]
    return OwnFit(jnp.where(enough, candidates[best], simple), model, losses[:, best])
