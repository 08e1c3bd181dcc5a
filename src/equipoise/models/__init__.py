"""Models as (init, apply) pairs, and their losses."""

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.errors import unknown
from equipoise.models.cnn import cnn as cnn
from equipoise.models.gru import gru as gru
from equipoise.models.linear import linear as linear
from equipoise.models.losses import LOSSES as LOSSES
from equipoise.models.losses import cross_entropy as cross_entropy
from equipoise.models.losses import squared as squared
from equipoise.models.losses import squared_error as squared_error
from equipoise.models.mlp import mlp as mlp
from equipoise.models.model import Model as Model
from equipoise.models.resnet import resnet as resnet
from equipoise.models.torch_module import torch_module as torch_module

MODELS: dict[str, Callable[..., Model]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "gru": gru,
    "torch": torch_module,
}


def build(name: str, arguments: Mapping[str, Any]) -> Model:
    """The model that was saved as (name, arguments)."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name](**arguments)
