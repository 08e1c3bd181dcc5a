"""Losses per example: outputs [b, k] and labels [b] give [b]. A task averages them over the real examples."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.errors import require

Losses = Float[Array, " b"]


def cross_entropy(outputs: Float[Array, "b k"], labels: Int[Array, " b"]) -> Losses:
    """-log softmax(outputs)[label], which stays finite for outputs of any size."""
    _classes(outputs, labels)
    right = jnp.arange(outputs.shape[1], dtype=labels.dtype)[None] == labels[:, None]
    chosen = jnp.sum(jnp.where(right, outputs, 0), axis=1)  # a mask, as gathers are slow under vmap
    return jax.nn.logsumexp(outputs, axis=1) - chosen


def squared(outputs: Float[Array, "b k"], labels: Int[Array, " b"], *, centred: bool = True) -> Losses:
    """1/2 |outputs - target|^2, summed over the k classes; the target is onehot - 1/k, as in TCT, or onehot.

    The factor 1/2 and the sum over classes are TCT's (Yu et al. 2022); they set what a value of rho means.
    """
    _classes(outputs, labels)
    k = outputs.shape[1]
    target = jax.nn.one_hot(labels, k, dtype=outputs.dtype) - (1 / k if centred else 0)
    return jnp.sum((outputs - target) ** 2, axis=1) / 2


def squared_error(outputs: Float[Array, "b 1"], labels: Float[Array, " b"]) -> Losses:
    """(output - label)^2 of a regression, without a factor: its mean is the mean squared error."""
    require(
        outputs.shape in ((*labels.shape, 1), labels.shape),
        f"a regression needs one output per example; the outputs have shape {outputs.shape}, the labels {labels.shape}",
    )
    return (outputs.reshape(labels.shape) - labels.astype(outputs.dtype)) ** 2


def _classes(outputs: Array, labels: Array) -> None:
    require(
        outputs.ndim == 2 and labels.shape == outputs.shape[:1] and jnp.issubdtype(labels.dtype, jnp.integer),
        f"outputs have shape {outputs.shape} and labels are {labels.dtype} of shape {labels.shape}; "
        "give outputs [b, classes] and the index of its class for each example",
    )


LOSSES = {"cross_entropy": cross_entropy, "squared": squared, "squared_error": squared_error}
# How each is curved in the outputs, as tasks take it.
BENDS: dict[str, Literal["softmax"] | float] = {"cross_entropy": "softmax", "squared": 1.0, "squared_error": 2.0}
