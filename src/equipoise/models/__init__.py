"""Models as (init, apply) pairs, and their losses."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from equipoise.errors import one_of
from equipoise.models.cnn import cnn as cnn
from equipoise.models.gru import gru as gru
from equipoise.models.linear import linear as linear
from equipoise.models.losses import BENDS as BENDS
from equipoise.models.losses import LOSSES as LOSSES
from equipoise.models.losses import cross_entropy as cross_entropy
from equipoise.models.losses import squared as squared
from equipoise.models.losses import squared_error as squared_error
from equipoise.models.mlp import mlp as mlp
from equipoise.models.model import Model as Model
from equipoise.models.resnet import resnet as resnet
from equipoise.models.torch_module import torch_module as torch_module

# Made of a network, by `equipoise.experiment.convexify.features`, which stands above this package.
MADE_OF_NETWORKS = ("convexified", "linearised", "gradient_features", "module_features", "torch_convexified")


def _made_of_network(name: str) -> Callable[..., Model]:
    return getattr(importlib.import_module("equipoise.experiment.convexify.features"), name)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in MADE_OF_NETWORKS:
            raise AttributeError(f"module 'equipoise.models' has no attribute '{name}'")
        return _made_of_network(name)


def _later(name: str) -> Callable[..., Model]:
    return lambda *arguments, **settings: _made_of_network(name)(*arguments, **settings)


MODELS: dict[str, Callable[..., Model]]
MODELS = {"linear": linear, "mlp": mlp, "cnn": cnn, "resnet": resnet, "gru": gru, "torch": torch_module}
MODELS |= {name: _later(name) for name in ("convexified", "linearised", "torch_convexified")}


def build(name: str, arguments: Mapping[str, Any]) -> Model:
    """The model that was saved as (name, arguments)."""
    one_of("model", name, MODELS)
    inside = {key: build(**value) if key == "network" else value for key, value in arguments.items()}
    return MODELS[name](**inside)
