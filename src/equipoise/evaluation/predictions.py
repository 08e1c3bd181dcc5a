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
from equipoise.models.losses import cross_entropy
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
    loaded = extensions.load(name)
    up = loaded.higher_is_better if isinstance(loaded, ScoreRecord) else True
    return MainScore(name.partition(":")[2], up, loaded)


def suited(predict: Predict | None, x: Vector, shard: Data, loss: str | None = None) -> dict[str, Score]:
    """The scores that fit what is predicted. `loss`: what was trained; with the cross-entropy outputs are logits.

    Then "loss" is the log loss of the rows, without the l2 term that the task's own has.
    """
    if predict is None:
        return {}
    classes = jnp.issubdtype(shard.labels.dtype, jnp.integer)
    outputs = jax.eval_shape(predict, x, shard.inputs).shape
    if not classes or len(outputs) < 2 or outputs[1] < 2:
        return {"rmse": rmse, "r2": r2}
    scores: dict[str, Score] = {"accuracy": accuracy, "auroc": auroc} if outputs[1] == 2 else {"accuracy": accuracy}
    return scores | PROBABILITIES if loss == "cross_entropy" else scores


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


def balanced_accuracy(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """The mean over the classes that have rows of the share of their rows that is right."""
    own = (jnp.arange(outputs.shape[1], dtype=labels.dtype)[None] == labels[:, None]) & real[:, None]
    rows = jnp.sum(own, axis=0).astype(outputs.dtype)
    right = jnp.sum(jnp.where(own, hits(outputs, labels)[:, None], 0), axis=0)
    return _mean(right / jnp.maximum(rows, 1), rows > 0)


def log_loss(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """The mean of -log of the probability that each row's label was given; outputs are logits."""
    return _mean(cross_entropy(outputs, labels), real)


def brier(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """The mean squared distance of the probabilities from what came; of two classes that of the second alone."""
    came = (jnp.arange(outputs.shape[1], dtype=labels.dtype)[None] == labels[:, None]).astype(outputs.dtype)
    apart = jnp.sum((jax.nn.softmax(outputs, axis=1) - came) ** 2, axis=1)
    return _mean(apart / 2 if outputs.shape[1] == 2 else apart, real)


def predicted(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """How often the model expects what `observed` counts: its mean probability."""
    return _mean(expectations(outputs, labels)[0], real)


def observed(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    """Of two classes the share of rows of the second; of more, the share whose likeliest class is theirs."""
    return _mean(expectations(outputs, labels)[1], real)


def expectations(outputs: Array, labels: Array) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """Of each row a probability, and whether what it is of came: what calibration compares."""
    chances = jax.nn.softmax(outputs, axis=1)
    if outputs.shape[1] == 2:
        return chances[:, 1], (labels == 1).astype(outputs.dtype)
    return jnp.max(chances, axis=1), hits(outputs, labels)


PROBABILITIES: dict[str, Score] = {"loss": log_loss, "brier": brier, "balanced_accuracy": balanced_accuracy}
PROBABILITIES |= {"predicted": predicted, "observed": observed}


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


# Scores that are the mean of a number per row, or its root: such a mean is all that bounds need to know. Of the log
# losses a skill is made (`skill.py`).
OF_ROWS: dict[str, OfRows] = {
    "accuracy": hits,
    "rmse": squared_errors,
    "skill": cross_entropy,
    "predicted": lambda outputs, labels: expectations(outputs, labels)[0],
    "observed": lambda outputs, labels: expectations(outputs, labels)[1],
}
ROOTS = ("rmse",)
# Scores of which the mean square of the rows' numbers is told too; accuracies are their own squares.
SQUARED: dict[Score, OfRows] = {rmse: squared_errors, log_loss: cross_entropy}
