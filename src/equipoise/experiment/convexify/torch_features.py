"""Gradient features of a PyTorch module as far as their sizes go; PyTorch makes them (`pytorch/features.py`)."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, NoReturn

from jax import Array
from jax.typing import ArrayLike

from equipoise.errors import InputError, one_of, positive, require
from equipoise.experiment.convexify.features import FEATURES, KINDS, Kind, feature_count, linear_head, random_layer
from equipoise.models.model import Model, Params
from equipoise.models.torch_module import torch_module


class ModuleFeatures(NamedTuple):
    """Their sizes."""

    size: int  # p
    parameters: int  # P
    fan_in: int  # of the last layer
    biased: bool
    last: str

    def with_random_layer(self, params: Params, seed: ArrayLike) -> Params:
        """As `GradientFeatures` has it."""
        weight, bias = _of_layer(self.last)
        drawn = random_layer(seed, self.fan_in, params[weight].dtype)
        new = {weight: drawn[None, : self.fan_in]} | ({bias: drawn[self.fan_in :]} if self.biased else {})
        return OrderedDict((name, new.get(name, value)) for name, value in params.items())


def module_features(
    parameters: Sequence[Sequence[Any]], last: str, *, kind: Kind = "sketch", features: int = FEATURES
) -> ModuleFeatures:
    """Of a module with these parameters, whose last layer is the torch.nn.Linear called `last`."""
    one_of("kind of features", kind, KINDS)
    positive("features", features)
    shapes = {str(name): tuple(map(int, shape)) for name, shape in parameters}
    weight, bias = _of_layer(last)
    require(
        len(shapes.get(weight, ())) == 2,
        f"the module has no trained matrix '{weight}', which its last layer would have; give the name of a "
        f"torch.nn.Linear; its parameters are {', '.join(shapes)}",
    )
    (outputs, fan_in), biased = shapes[weight], bias in shapes
    total = sum(prod(shape) for shape in shapes.values()) - (outputs - 1) * (fan_in + biased)
    return ModuleFeatures(feature_count(kind, features, total, fan_in), total, fan_in, biased, last)


def torch_convexified(
    parameters: Sequence[Sequence[object]], last: str, outputs: int, kind: Kind, features: int, seed: int
) -> Model:
    """As `convexified`, of a module of these parameters: what it is made of, for PyTorch to apply."""
    sizes = module_features(parameters, last, kind=kind, features=features)
    network = torch_module(parameters)

    def init(key: Array) -> Params:
        return linear_head(sizes.with_random_layer(network.init(key), seed), sizes.size, outputs)

    def apply(params: Params, inputs: Array) -> NoReturn:
        raise InputError(
            "this model is linear in features of a PyTorch module, which Equipoise cannot apply; make a function of "
            "it with equipoise.pytorch.features.load_convexified(module, path)"
        )

    arguments = {"parameters": network.arguments["parameters"], "last": last, "outputs": outputs, "kind": kind}
    return Model(init, apply, "torch_convexified", arguments | {"features": features, "seed": seed})


def _of_layer(name: str) -> tuple[str, str]:
    return f"{name}.weight", f"{name}.bias"
