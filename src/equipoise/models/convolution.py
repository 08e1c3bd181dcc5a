"""Convolutions of images [b, h, w, c], in the form that is fastest on this kind of device."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

Weight = Float[Array, "k c i j"]
Bias = Float[Array, " k"] | None


def convolve(layer: eqx.nn.Conv2d, x: Array, pool: bool = False) -> Array:
    """The layer on a batch, padded to keep the size: [b, h, w, c] -> [b, h / stride, w / stride, channels].

    pool: of every 2 by 2 pixels of that the largest, which is half as high and wide. The bias comes after it: it moves
    all pixels of a channel alike.
    """
    form = CONVOLUTIONS[BY_BACKEND.get(jax.default_backend(), "rows")]
    bias = None if layer.bias is None else layer.bias.ravel()
    return form(x, layer.weight, bias, layer.stride[0], pool)


def by_rows(x: Array, weight: Weight, bias: Bias, stride: int, pool: bool) -> Array:
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
    out = (patches.reshape(b * high * wide, -1) @ flat).reshape(b, high, wide, -1)
    return plus(pooled(out) if pool else out, bias)


def by_tiles(x: Array, weight: Weight, bias: Bias, stride: int, pool: bool) -> Array:
    """One product of squares of pixels with all that they give of a tile of the result, zeros and all.

    Two or three times the arithmetic of the patches for less than half of their bytes: right where bytes are what takes
    the time. A tile is a pixel smaller than the kernel, so that a square reaches into the next ones and no further.
    Pixels that will be pooled stand a quarter of the product apart, not side by side.
    """
    size, (b, h, w, c) = weight.shape[2], x.shape
    around, high, wide, tile = size // 2, -(-h // stride), -(-w // stride), max(size - 1, 1 + pool)
    square, apart = (tile - 1) * stride + size, tile * stride  # pixels on a side, and from one to the next
    down, across = -(-high // tile), -(-wide // tile)

    def squares(a: Array, axis: int, pixel: int, count: int) -> Array:
        """[..., pixels of so many numbers, ...] -> [..., count, square of them, ...]"""
        parts = -(-square // apart)
        after = ((count + parts - 1) * apart - around) * pixel - a.shape[axis]
        pads = [(0, 0, 0)] * a.ndim
        pads[axis] = (around * pixel, after, 0)  # what is not needed of the last pixels is cut off
        padded = jax.lax.pad(a, jnp.zeros((), a.dtype), pads)
        blocks = padded.reshape(*a.shape[:axis], count + parts - 1, apart * pixel, *a.shape[axis + 1 :])
        following = [jax.lax.slice_in_dim(blocks, i, i + count, axis=axis) for i in range(parts)]
        return jax.lax.slice_in_dim(jnp.concatenate(following, axis + 1), 0, square * pixel, axis=axis + 1)

    # Channels stay with their pixels in one axis: what a GPU does here is mostly to compute where numbers are.
    seen = squares(squares(x.reshape(b, h, w * c), 2, c, across), 1, 1, down)  # [b, down, square, across, square c]
    seen = seen.transpose(0, 1, 3, 2, 4).reshape(b * down * across, -1)
    step = 1 + pool
    kernel, places = weight.transpose(2, 3, 1, 0), [(start, square - size - start) for start in range(0, apart, stride)]
    corners = [(places[i::step], places[j::step]) for i in range(step) for j in range(step)]
    moved = [jnp.pad(kernel, (i, j, (0, 0), (0, 0))) for rows, columns in corners for i in rows for j in columns]
    matrix = jnp.stack(moved, axis=3).reshape(seen.shape[1], -1)  # [square square c, tile tile k]
    tiles = jnp.split(seen @ matrix, step**2, axis=1)
    flat, side = largest(*tiles) if pool else tiles[0], tile // step
    # The bias is added to whole tiles: a sum to a handful of channels, its gradient, is slow.
    flat = plus(flat, None if bias is None else jnp.tile(bias, side**2))
    out = flat.reshape(b, down, across, side, side, -1).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(b, down * side, across * side, -1)[:, : high // step, : wide // step]


def pooled(x: Array) -> Array:
    """Images of half the height and width: the largest of every 2 by 2 pixels."""
    b, h, w, c = x.shape
    squares = x[:, : h // 2 * 2, : w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, c)
    return largest(*(squares[:, :, i, :, j] for i in range(2) for j in range(2)))


def largest(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Pairwise: the gradient of a maximum over axes takes several passes."""
    return jnp.maximum(jnp.maximum(a, c), jnp.maximum(b, d))


def plus(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + jnp.broadcast_to(bias, x.shape)


CONVOLUTIONS = {"rows": by_rows, "tiles": by_tiles}
BY_BACKEND = {"cpu": "rows", "gpu": "tiles"}  # `python -m benchmarks.gpu` measures them
