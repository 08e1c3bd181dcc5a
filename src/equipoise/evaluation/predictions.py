"""Scores of a model's outputs, which of them fit a task, and what each row adds to them.

All are pure functions of arrays with a mask for rows that are padding; a score that is not defined is NaN.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from equipoise import extensions
from equipoise.evaluation.rules import higher_is_better
from equipoise.protocol import Data, Vector

Predict = Callable[[Vector, Array], Array]  # model, inputs [m, ...] -> outputs [m, ...]
Score = Callable[[Array, Array, Array], Array]  # outputs, labels, which rows are real -> a number; NaN: not defined
OfRows = Callable[[Array, Array], Float[Array, " m"]]  # outputs, labels -> a number for each row


class ScoreRecord(NamedTuple):
    """A score of the user's own, and which way it is better."""

    score: Score
    higher_is_better: bool = True

    def __call__(self, outputs: Array, labels: Array, real: Array) -> Array:
        return self.score(outputs, labels, real)


class MainScore(NamedTuple):
    """The score that a run is summed up by."""

    name: str
    higher_is_better: bool
    own: Score | None = None  # None: it is evaluated anyway


def main_score_named(name: str) -> MainScore:
    """Of a name in the table of scores, or of a function or ScoreRecord of the user's own, "module:name"."""
    if not extensions.is_reference(name):
        return MainScore(name, higher_is_better(name))
    found = extensions.load(name)
    up = found.higher_is_better if isinstance(found, ScoreRecord) else True
    return MainScore(name.partition(":")[2], up, found)


def suited(predict: Predict | None, x: Vector, shard: Data) -> dict[str, Score]:
    """The scores that fit what is predicted."""
    if predict is None:
        return {}
    classes = jnp.issubdtype(shard.labels.dtype, jnp.integer)
    outputs = jax.eval_shape(predict, x, shard.inputs).shape
    if not classes or len(outputs) < 2 or outputs[1] < 2:
        return {"rmse": rmse, "r2": r2}
    return {"accuracy": accuracy, "auroc": auroc} if outputs[1] == 2 else {"accuracy": accuracy}


def accuracy(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """The share of the rows whose largest output is that of their label."""
    return _mean(hits(outputs, labels), real)


def auroc(outputs: Float[Array, "m 2"], labels: Array, real: Bool[Array, " m"]) -> Array:
    """The chance that a row of class 1 ranks above one of class 0, a tie counting half; NaN where one has no rows."""
    scores = outputs[:, 1] - outputs[:, 0]
    positive, negative = ((labels == k) & real for k in (1, 0))
    below = jnp.sort(jnp.where(negative, scores, jnp.inf))  # the others stand behind every score
    count = jnp.sum(negative, dtype=jnp.int32)
    less, at_most = (jnp.minimum(jnp.searchsorted(below, scores, side=side), count) for side in ("left", "right"))
    wins = jnp.sum(jnp.where(positive, (less + at_most).astype(scores.dtype) / 2, 0))
    pairs = jnp.sum(positive, dtype=scores.dtype) * count.astype(scores.dtype)
    return jnp.where(pairs > 0, wins / jnp.maximum(pairs, 1), jnp.nan)


def rmse(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """The root of the mean squared error."""
    predicted, labels, mask = _numbers(outputs, labels, real)
    return jnp.sqrt(_mean((predicted - labels) ** 2, mask))


def r2(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """The share of the labels' variance that is explained; NaN where they do not vary."""
    predicted, labels, mask = _numbers(outputs, labels, real)
    centre = jnp.broadcast_to(_mean(labels, mask), labels.shape)
    variance, error = (_mean((a - labels) ** 2, mask) for a in (centre, predicted))
    return jnp.where(variance > 0, 1 - error / jnp.where(variance > 0, variance, 1), jnp.nan)


def _numbers(outputs: Array, labels: Array, real: Array) -> tuple[Array, Array, Array]:
    mask = real.reshape(-1, *[1] * (labels.ndim - 1))
    return outputs.reshape(labels.shape), labels.astype(outputs.dtype), jnp.broadcast_to(mask, labels.shape)


def _mean(a: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, a, 0)) / jnp.sum(mask).astype(a.dtype)


def hits(outputs: Array, labels: Array) -> Float[Array, " m"]:
    return (jnp.argmax(outputs, axis=-1).astype(labels.dtype) == labels).astype(outputs.dtype)


def squared_errors(outputs: Array, labels: Array) -> Float[Array, " m"]:
    errors = outputs.reshape(labels.shape) - labels.astype(outputs.dtype)
    return jnp.mean(errors.reshape(errors.shape[0], -1) ** 2, axis=1)


# Scores that are the mean of a number per row, or its root: such a mean is all that bounds need to know.
OF_ROWS: dict[str, OfRows] = {"accuracy": hits, "rmse": squared_errors}
ROOTS = ("rmse",)
