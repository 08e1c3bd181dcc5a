"""A linear map with a bias: linear regression, softmax regression with the cross-entropy."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from equipoise.errors import all_positive
from equipoise.models.model import Model, Params, flat


def affine(layer: eqx.nn.Linear, x: Array) -> Array:
    """The layer on a batch. Its weights are [outputs, features], which costs a CPU half of the transpose."""
    assert layer.bias is not None
    return x @ layer.weight.T + layer.bias[None]


def linear(features: int, outputs: int) -> Model:
    """Starts at zero, the problem being convex. Inputs of any shape are flattened to `features`."""
    all_positive(features=features, outputs=outputs)

    def init(key: Array) -> Params:
        return jax.tree.map(jnp.zeros_like, eqx.nn.Linear(features, outputs, key=key))

    def apply(params: Params, inputs: Array) -> Array:
        return affine(params, flat(inputs, params.weight.dtype))

    return Model(init, apply, "linear", {"features": features, "outputs": outputs}, last=lambda params: params)
