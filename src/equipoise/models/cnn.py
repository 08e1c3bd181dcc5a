"""A convolutional network of LeNet-5's size (LeCun et al. 1998), with rectifiers and max pooling.

Two 5x5 convolutions (6 and 16 channels, same padding), each with 2x2 pooling, then layers of 120 and 84.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
from jax import Array

from equipoise.errors import positive, require
from equipoise.models.convolution import convolve
from equipoise.models.linear import affine
from equipoise.models.model import Model, Params, as_floats

KERNEL = 5


def cnn(shape: Sequence[int], outputs: int) -> Model:
    """For images of `shape` (height, width) or (height, width, channels), at least 4 by 4."""
    shape = tuple(shape)
    require(
        len(shape) in (2, 3) and min(shape[:2]) >= 4,
        f"shape is {shape}; give (height, width) or (height, width, channels), both sides at least 4",
    )
    positive("outputs", outputs)
    height, width, channels = (*shape, 1)[:3]

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 5)
        return (
            eqx.nn.Conv2d(channels, 6, KERNEL, padding="SAME", key=keys[0]),
            eqx.nn.Conv2d(6, 16, KERNEL, padding="SAME", key=keys[1]),
            eqx.nn.Linear(16 * (height // 4) * (width // 4), 120, key=keys[2]),
            eqx.nn.Linear(120, 84, key=keys[3]),
            eqx.nn.Linear(84, outputs, key=keys[4]),
        )

    def apply(params: Params, inputs: Array) -> Array:
        first, second, *layers, last = params
        require(
            inputs.shape[1:] in (shape, (height, width, channels)),
            f"the images have shape {inputs.shape[1:]}; this model was made for {shape}",
        )
        x = as_floats(inputs, last.weight.dtype).reshape(-1, height, width, channels)
        # Rectified after the pooling, which is the same on a quarter of the pixels.
        x = jax.nn.relu(convolve(first, x, pool=True))
        x = jax.nn.relu(convolve(second, x, pool=True))
        x = x.reshape(x.shape[0], -1)
        for layer in layers:
            x = jax.nn.relu(affine(layer, x))
        return affine(last, x)

    return Model(init, apply, "cnn", {"shape": list(shape), "outputs": outputs}, last=lambda params: params[-1])
