"""The log loss as skill: how much better than predicting an owner's base rate, in per cent of the base rate's loss.

    skill_i = 1 - loss_i / base_i        1: certain and right; 0: no better than the base rate; below: worse

base_i is the log loss, on the rows that are scored, of the shares that the classes have among the owner's own training
rows, as if one more row, spread evenly over the classes, had been seen. It is known before any model, and the same for
all of them. Bounds of a skill are those of the loss, with base_i held fixed: they are of the skill at the mixture of
classes that the scored rows have. An owner whose training rows are all of one class has nothing to be better than: its
skill is not defined.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise._jax import compiled
from equipoise.data import ClientData
from equipoise.evaluation.exchange import PerClient
from equipoise.protocol import Data

Numbers = TypeVar("Numbers", Array, np.ndarray)


class Base(NamedTuple):
    """What is known of the owners' labels before any model."""

    loss: Float[Array, " n"]  # base_i; NaN: not defined
    common: Float[Array, " n"]  # the share of the most common class among the training rows


def base_of(train: Data, rows: Data, classes: int) -> Base:
    """Of one owner: of its training rows, on the rows that are scored."""
    names = jnp.arange(classes, dtype=train.labels.dtype)

    def counts(shard: Data) -> Array:
        real = jnp.arange(shard.labels.shape[0], dtype=shard.sizes.dtype) < shard.sizes
        return jnp.sum((shard.labels[:, None] == names[None]) & real[:, None], axis=0)

    seen, scored = counts(train).astype(jnp.float32), counts(rows).astype(jnp.float32)
    size = jnp.sum(seen)
    loss = -(scored @ jnp.log((seen + 1 / classes) / (size + 1))) / jnp.sum(scored)
    defined = (jnp.sum(seen > 0) > 1) & (jnp.sum(scored) > 0)
    return Base(jnp.where(defined, loss, jnp.nan), jnp.max(seen) / jnp.maximum(size, 1))


def bases(train: Data, rows: ClientData, classes: int) -> Base:
    """Of every owner, where the rows are at hand."""
    return jax.tree.map(np.asarray, _of_all(classes)(train, rows))


@lru_cache(maxsize=16)
def _of_all(classes: int) -> Callable[[Data, ClientData], Base]:
    def every(train: Data, rows: ClientData) -> Base:
        return jax.lax.map(lambda i: base_of(train.client(i), rows.client(i), classes), jnp.arange(rows.n))

    return compiled(every)


def skill_of(loss: Numbers, base: Numbers) -> Numbers:
    return 1 - loss / base


def with_skill(table: PerClient, base: ArrayLike) -> PerClient:
    """The table with the skill beside the log loss, and with what its bounds need."""
    skill = skill_of(np.asarray(table.scores["loss"], np.float64), np.asarray(base, np.float64))
    squares = dict(table.squares)
    if "loss" in squares:
        squares["skill"] = np.asarray(squares["loss"], np.float64) / np.asarray(base, np.float64) ** 2
    return table._replace(scores=table.scores | {"skill": skill}, squares=squares)


def common_in_all(train: Data, classes: int) -> float:
    """The share of the most common class among the training rows of all owners together."""
    labels, sizes = np.asarray(train.labels), np.asarray(train.sizes)
    if labels.ndim > 1:
        labels = labels[np.arange(labels.shape[1]) < sizes[:, None]]
    return float(np.bincount(labels, minlength=classes).max() / max(labels.size, 1))
