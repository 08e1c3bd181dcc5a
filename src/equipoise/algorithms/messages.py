"""Messages and replies that several algorithms have in common."""

from typing import Any, NamedTuple

from jax import Array
from jaxtyping import Float, Int

from equipoise.protocol import Vector


class ModelMessage(NamedTuple):
    """The server's model."""

    x: Vector


def send_model(server: Any, i: Int[Array, ""]) -> ModelMessage:
    """`send` of an exchange whose clients need the model and nothing else."""
    return ModelMessage(server.x)


def its_lam(server: Any) -> Float[Array, " n"]:
    """`weights` of a server whose state has them by that name."""
    return server.lam


class WeightedStart(NamedTuple):
    """The model to train from, and what the client counts."""

    x: Vector
    weight: Float[Array, ""]


class Nothing(NamedTuple):
    """What is sent to clients that need no word."""


def send_nothing(server: object, i: Int[Array, ""]) -> Nothing:
    return Nothing()


class Loss(NamedTuple):
    """A client's own loss."""

    loss: Float[Array, ""]


class LossAndGradient(NamedTuple):
    """A client's own loss and gradient at the same model."""

    loss: Float[Array, ""]
    gradient: Vector
