"""A convolutional network of LeNet-5's size (LeCun et al. 1998), with rectifiers and max pooling.

Two 5x5 convolutions (6 and 16 channels, same padding), each with 2x2 pooling, then layers of 120 and 84.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise.errors import positive, require
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
        x = _pool(jax.nn.relu(_convolve(first, x)))
        x = _pool(jax.nn.relu(_convolve(second, x)))
        x = x.reshape(x.shape[0], -1)
        for layer in layers:
            x = jax.nn.relu(affine(layer, x))
        return affine(last, x)

    return Model(init, apply, "cnn", {"shape": list(shape), "outputs": outputs})


def _convolve(layer: eqx.nn.Conv2d, x: Array) -> Array:
    """[b, h, w, c] -> [b, h, w, channels], in the form that is fastest on this kind of device."""
    assert layer.bias is not None
    form = CONVOLUTIONS[BY_BACKEND.get(jax.default_backend(), "rows")]
    return form(x, layer.weight) + layer.bias.reshape(1, 1, 1, -1)


def by_rows(x: Array, weight: Float[Array, "k c i j"]) -> Array:
    """One product with the image's patches, put together first along a row of pixels, then across rows.

    Whole runs of channels are copied: pixel by pixel takes a CPU several times as long, and so does XLA's own
    convolution, most of it in the gradient.
    """
    b, h, w, c = x.shape
    around = KERNEL // 2
    padded = jnp.pad(x, ((0, 0), (around, around), (around, around), (0, 0)))
    row = jnp.concatenate([padded[:, :, j : j + w] for j in range(KERNEL)], axis=-1)  # [b, h + 4, w, 5 c]
    patches = jnp.concatenate([row[:, i : i + h] for i in range(KERNEL)], axis=-1)  # [b, h, w, 25 c]
    flat = weight.transpose(2, 3, 1, 0).reshape(c * KERNEL**2, -1)
    return (patches.reshape(b * h * w, -1) @ flat).reshape(b, h, w, -1)


def by_bands(x: Array, weight: Float[Array, "k c i j"]) -> Array:
    """One product of five rows of pixels with the kernel as a banded matrix, zeros and all.

    Six times the arithmetic of the patches for a fifth of the bytes: right where bytes are what takes the time.
    """
    b, h, w, c = x.shape
    around = KERNEL // 2
    place = np.stack([np.eye(w, k=around - j) for j in range(KERNEL)])  # of pixel j of the kernel: [j, in, out]
    band = jnp.einsum("jpo,kcij->ipcok", place.astype(x.dtype), weight).reshape(KERNEL * w * c, -1)
    padded = jnp.pad(x.reshape(b, h, w * c), ((0, 0), (around, around), (0, 0)))
    rows = jnp.concatenate([padded[:, i : i + h] for i in range(KERNEL)], axis=-1)  # [b, h, 5 w c]
    return (rows.reshape(b * h, -1) @ band).reshape(b, h, w, -1)


def natively(x: Array, weight: Float[Array, "k c i j"]) -> Array:
    """XLA's own convolution; with other weights for each client it becomes one of as many groups."""
    return jax.lax.conv_general_dilated(
        x, weight.transpose(2, 3, 1, 0), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


CONVOLUTIONS = {"rows": by_rows, "bands": by_bands, "native": natively}
BY_BACKEND = {"cpu": "rows", "gpu": "bands"}  # `python -m benchmarks.gpu` measures both


def _pool(x: Array) -> Array:
    b, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))
