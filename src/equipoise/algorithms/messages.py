"""Messages and replies that several algorithms have in common."""

from typing import NamedTuple

from jax import Array
from jaxtyping import Float

from equipoise.protocol import Vector


class ModelMessage(NamedTuple):
    """The server's model."""

    x: Vector


class Loss(NamedTuple):
    """A client's own loss."""

    loss: Float[Array, ""]


class LossAndGradient(NamedTuple):
    """A client's own loss and gradient at the same model."""

    loss: Float[Array, ""]
    gradient: Vector
