"""A PyTorch module, as far as Equipoise knows it: the names and shapes of its parameters, in their order."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
from jax import Array

from equipoise.errors import InputError
from equipoise.models.model import Model, Params


def torch_module(parameters: Sequence[Sequence[Any]]) -> Model:
    """`parameters` are pairs of a name and a shape; only PyTorch can apply the module."""
    shapes = OrderedDict((str(name), tuple(map(int, shape))) for name, shape in parameters)  # not sorted by JAX

    def init(key: Array) -> Params:
        return OrderedDict((name, jnp.zeros(shape)) for name, shape in shapes.items())

    def apply(params: Params, inputs: Array) -> NoReturn:
        raise InputError(
            "this is the model of a PyTorch module, which Equipoise cannot apply; load it into the module with "
            "equipoise.pytorch.site.load_weights(module, path)"
        )

    return Model(init, apply, "torch", {"parameters": [[name, list(shape)] for name, shape in shapes.items()]})
