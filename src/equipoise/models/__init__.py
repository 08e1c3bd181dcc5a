"""Models as (init, apply) pairs, and their losses."""

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.errors import one_of
from equipoise.models.cnn import cnn as cnn
from equipoise.models.convexified import convexified as convexified
from equipoise.models.convexified import linearised as linearised
from equipoise.models.gradient_features import gradient_features as gradient_features
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
from equipoise.models.torch_module import module_features as module_features
from equipoise.models.torch_module import torch_convexified as torch_convexified
from equipoise.models.torch_module import torch_module as torch_module

MODELS: dict[str, Callable[..., Model]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "gru": gru,
    "torch": torch_module,
    "convexified": convexified,
    "linearised": linearised,
    "torch_convexified": torch_convexified,
}


def build(name: str, arguments: Mapping[str, Any]) -> Model:
    """The model that was saved as (name, arguments)."""
    one_of("model", name, MODELS)
    inside = {key: build(**value) if key == "network" else value for key, value in arguments.items()}
    return MODELS[name](**inside)
