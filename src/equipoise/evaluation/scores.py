"""How good predictions are: pure functions of arrays, with a mask for rows that are padding.

All work under jit and vmap; a score that is not defined (AUROC with one class, R2 of a constant) is NaN.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

Score = Float[Array, ""]


def accuracy(predicted: ArrayLike, labels: ArrayLike, real: Bool[ArrayLike, " m"] | None = None) -> Score:
    """The share of rows whose predicted class is the label."""
    predicted, labels = jnp.asarray(predicted), jnp.asarray(labels)
    return _mean(_floats(predicted == labels), _mask(real, labels))


def auroc(scores: ArrayLike, labels: ArrayLike, real: Bool[ArrayLike, " m"] | None = None) -> Score:
    """How probably a row of class 1 scores above a row of class 0; a tie counts half."""
    scores = _floats(scores)
    mask = _mask(real, scores)
    positive = (jnp.asarray(labels) == 1) & mask
    negative = (jnp.asarray(labels) == 0) & mask
    below = jnp.sort(jnp.where(negative, scores, jnp.inf))  # the others stand behind every score
    count = jnp.sum(negative, dtype=jnp.int32)
    less, at_most = (jnp.minimum(jnp.searchsorted(below, scores, side=side), count) for side in ("left", "right"))
    wins = jnp.sum(jnp.where(positive, _floats(less + at_most) / 2, 0))
    pairs = _floats(jnp.sum(positive)) * _floats(count)
    return jnp.where(pairs > 0, wins / jnp.maximum(pairs, 1), jnp.nan)


def rmse(predicted: ArrayLike, labels: ArrayLike, real: Bool[ArrayLike, " m"] | None = None) -> Score:
    """The root of the mean squared error."""
    error = _floats(predicted) - _floats(labels)
    return jnp.sqrt(_mean(error**2, _mask(real, error)))


def r2(predicted: ArrayLike, labels: ArrayLike, real: Bool[ArrayLike, " m"] | None = None) -> Score:
    """1 - mean squared error / variance of the labels."""
    predicted, labels = _floats(predicted), _floats(labels)
    mask = _mask(real, labels)
    centre = _mean(labels, mask)
    variance = _mean((labels - jnp.broadcast_to(centre, labels.shape)) ** 2, mask)
    error = _mean((predicted - labels) ** 2, mask)
    return jnp.where(variance > 0, 1 - error / jnp.where(variance > 0, variance, 1), jnp.nan)


def _floats(a: ArrayLike) -> Array:
    a = jnp.asarray(a)
    return a if jnp.issubdtype(a.dtype, jnp.floating) else a.astype(jnp.result_type(float))


def _mask(real: ArrayLike | None, like: Array) -> Array:
    return jnp.ones(like.shape, bool) if real is None else jnp.asarray(real)


def _mean(a: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, a, 0)) / jnp.sum(mask).astype(a.dtype)
