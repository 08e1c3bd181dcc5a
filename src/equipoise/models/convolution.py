"""Convolutions of images [b, h, w, c], in the form that is fastest on this kind of device."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float


def convolve(layer: eqx.nn.Conv2d, x: Array) -> Array:
    """The layer on a batch, padded to keep the size: [b, h, w, c] -> [b, h / stride, w / stride, channels]."""
    form = CONVOLUTIONS[BY_BACKEND.get(jax.default_backend(), "rows")]
    out = form(x, layer.weight, layer.stride[0])
    return out if layer.bias is None else out + layer.bias.reshape(1, 1, 1, -1)


def by_rows(x: Array, weight: Float[Array, "k c i j"], stride: int = 1) -> Array:
    """One product with the image's patches, put together first along a row of pixels, then across rows.

    Whole runs of channels are copied: pixel by pixel takes a CPU several times as long, and so does XLA's own
    convolution, most of it in the gradient. With other weights for each client, or a gradient for each example, it
    stays a product of matrices.
    """
    size, (b, h, w, c) = weight.shape[2], x.shape
    around, high, wide = size // 2, -(-h // stride), -(-w // stride)
    padded = jnp.pad(x, ((0, 0), (around, around), (around, around), (0, 0)))

    def every(a: Array, axis: int, start: int, count: int) -> Array:
        return jax.lax.slice_in_dim(a, start, start + (count - 1) * stride + 1, stride, axis)

    row = jnp.concatenate([every(padded, 2, j, wide) for j in range(size)], axis=-1)  # [b, h + size - 1, wide, size c]
    patches = jnp.concatenate([every(row, 1, i, high) for i in range(size)], axis=-1)  # [b, high, wide, size^2 c]
    flat = weight.transpose(2, 3, 1, 0).reshape(c * size**2, -1)
    return (patches.reshape(b * high * wide, -1) @ flat).reshape(b, high, wide, -1)


def by_bands(x: Array, weight: Float[Array, "k c i j"], stride: int = 1) -> Array:
    """One product of a few rows of pixels with the kernel as a banded matrix, zeros and all.

    Several times the arithmetic of the patches for a fraction of the bytes: right where bytes are what takes the time.
    A matrix that is too large for that gives way to patches.
    """
    size, (b, h, w, c) = weight.shape[2], x.shape
    around, high, wide = size // 2, -(-h // stride), -(-w // stride)
    if size * w * c * wide * weight.shape[0] > LARGEST_BAND:
        return by_rows(x, weight, stride)
    # Of pixel j of the kernel: [j, in, out].
    place = np.stack([np.eye(w, w * stride, k=around - j)[:, : wide * stride : stride] for j in range(size)])
    band = jnp.einsum("jpo,kcij->ipcok", place.astype(x.dtype), weight).reshape(size * w * c, -1)
    padded = jnp.pad(x.reshape(b, h, w * c), ((0, 0), (around, around), (0, 0)))
    rows = jnp.concatenate(
        [jax.lax.slice_in_dim(padded, i, i + (high - 1) * stride + 1, stride, 1) for i in range(size)], axis=-1
    )  # [b, high, size w c]
    return (rows.reshape(b * high, -1) @ band).reshape(b, high, wide, -1)


def natively(x: Array, weight: Float[Array, "k c i j"], stride: int = 1) -> Array:
    """XLA's own convolution; with other weights for each client it becomes one of as many groups."""
    around = (weight.shape[2] // 2,) * 2
    return jax.lax.conv_general_dilated(
        x,
        weight.transpose(2, 3, 1, 0),
        (stride, stride),
        (around, around),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


LARGEST_BAND = 1 << 20  # numbers of a banded matrix
CONVOLUTIONS = {"rows": by_rows, "bands": by_bands, "native": natively}
BY_BACKEND = {"cpu": "rows", "gpu": "bands"}  # `python -m benchmarks.gpu` measures them
