"""Fully connected layers with rectifiers between them."""

from collections.abc import Sequence
from itertools import pairwise

import equinox as eqx
import jax
from jax import Array

from equipoise.errors import positive
from equipoise.models.linear import affine
from equipoise.models.model import Model, Params, flat


def mlp(features: int, hidden: int | Sequence[int], outputs: int) -> Model:
    """`hidden` is the width of the hidden layer, or a list of them. Inputs are flattened to `features`."""
    widths = [features, *([hidden] if isinstance(hidden, int) else hidden), outputs]
    for width in widths:
        positive("the width of a layer", width)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(widths) - 1)
        return tuple(eqx.nn.Linear(a, b, key=k) for (a, b), k in zip(pairwise(widths), keys, strict=True))

    def apply(params: Params, inputs: Array) -> Array:
        *first, last = params
        x = flat(inputs, last.weight.dtype)
        for layer in first:
            x = jax.nn.relu(affine(layer, x))
        return affine(last, x)

    return Model(
        init,
        apply,
        "mlp",
        {"features": features, "hidden": widths[1:-1], "outputs": outputs},
        last=lambda params: params[-1],
    )
