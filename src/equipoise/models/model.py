"""What a model is here: two pure functions. Any pair of the same shape will do."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float

Params = Any  # a pytree whose leaves are all arrays


class Model(NamedTuple):
    """A batch in, a batch out. `name` and `arguments` are what a saved model is rebuilt from."""

    init: Callable[[Array], Params]  # key -> params
    apply: Callable[[Params, Array], Float[Array, "b outputs"]]  # params, inputs [b, ...]
    name: str = ""
    arguments: Mapping[str, Any] = {}
    last: Callable[[Params], Any] | None = None  # where the last layer is, for `gradient_features`; it is linear

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as a saved model is kept: by its name and arguments."""
        from equipoise import models

        return (models.build, (self.name, dict(self.arguments))) if self.name in models.MODELS else (Model, (*self,))

    @property
    def shapes(self) -> Params:
        """Those of its parameters."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def unravel(self, flat: ArrayLike) -> Params:
        """A vector as the parameters, in NumPy: leaves in order, each by rows."""
        leaves, structure = jax.tree.flatten(self.shapes)
        pieces = np.split(np.asarray(flat), np.cumsum([leaf.size for leaf in leaves])[:-1])
        return jax.tree.unflatten(structure, [a.reshape(b.shape) for a, b in zip(pieces, leaves, strict=True)])


def as_floats(inputs: Array, dtype: DTypeLike) -> Array:
    """Inputs in the weights' dtype. uint8 means an image: 0..255 becomes 0..1; nothing else is scaled."""
    floats = inputs.astype(dtype)
    return floats / 255 if inputs.dtype == jnp.uint8 else floats


def flat(inputs: Array, dtype: DTypeLike) -> Float[Array, "b features"]:
    return as_floats(inputs, dtype).reshape(inputs.shape[0], prod(inputs.shape[1:]))


def saved(model: Model) -> dict:
    """What `models.build` makes the model of again."""
    return {"name": model.name, "arguments": dict(model.arguments)}
