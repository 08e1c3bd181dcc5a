"""A residual network for small images (He et al. 2016, section 4.2), with GroupNorm (Wu and He 2018) for BatchNorm.

A 3x3 convolution, then three stages of `blocks` residual blocks of two 3x3 convolutions, with `width`, 2 `width` and
4 `width` channels and half the height and width from the second stage on; the mean over the image; a linear layer.
With width 16 and 3 blocks it is ResNet-20. GroupNorm sees one example at a time, so that training and evaluation are
the same function and nothing but parameters is averaged over clients. Where a stage begins, a 1x1 convolution takes
the place of the identity.
"""

from collections.abc import Sequence
from math import gcd

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from equipoise.errors import positive, require
from equipoise.models.convolution import convolve
from equipoise.models.linear import affine
from equipoise.models.model import Model, Params, as_floats

STAGES = 3


def resnet(shape: Sequence[int], outputs: int, width: int = 16, blocks: int = 3, groups: int = 8) -> Model:
    """For images of `shape` (height, width) or (height, width, channels), at least 8 by 8."""
    shape = tuple(shape)
    require(
        len(shape) in (2, 3) and min(shape[:2]) >= 8,
        f"shape is {shape}; give (height, width) or (height, width, channels), both sides at least 8",
    )
    for name, value in (("outputs", outputs), ("width", width), ("blocks", blocks), ("groups", groups)):
        positive(name, value)
    height, wide, channels = (*shape, 1)[:3]

    def norm(size: int) -> eqx.nn.GroupNorm:
        return eqx.nn.GroupNorm(gcd(groups, size), size)

    def conv(inside: int, outside: int, size: int, stride: int, key: Array) -> eqx.nn.Conv2d:
        return eqx.nn.Conv2d(inside, outside, size, stride=stride, padding=size // 2, use_bias=False, key=key)

    def block(inside: int, outside: int, stride: int, key: Array) -> Params:
        first, second, across = jax.random.split(key, 3)
        return {
            "convs": (conv(inside, outside, 3, stride, first), conv(outside, outside, 3, 1, second)),
            "norms": (norm(outside), norm(outside)),
            "shortcut": None if inside == outside else conv(inside, outside, 1, stride, across),
        }

    def init(key: Array) -> Params:
        first, last, *keys = jax.random.split(key, 2 + STAGES * blocks)
        body, inside = [], width
        for i, k in enumerate(keys):
            outside = width * 2 ** (i // blocks)
            body.append(block(inside, outside, 1 if inside == outside else 2, k))
            inside = outside
        return {
            "stem": (conv(channels, width, 3, 1, first), norm(width)),
            "body": body,
            "head": eqx.nn.Linear(inside, outputs, key=last),
        }

    def on_block(params: Params, x: Array) -> Array:
        (first, second), (one, two), shortcut = params["convs"], params["norms"], params["shortcut"]
        inside = jax.nn.relu(normalise(one, convolve(first, x)))
        past = x if shortcut is None else convolve(shortcut, x)
        return jax.nn.relu(normalise(two, convolve(second, inside)) + past)

    def apply(params: Params, inputs: Array) -> Array:
        require(
            inputs.shape[1:] in (shape, (height, wide, channels)),
            f"the images have shape {inputs.shape[1:]}; this model was made for {shape}",
        )
        (stem, around), head = params["stem"], params["head"]
        x = as_floats(inputs, head.weight.dtype).reshape(-1, height, wide, channels)
        x = jax.nn.relu(normalise(around, convolve(stem, x)))
        for layer in params["body"]:
            x = on_block(layer, x)
        return affine(head, jnp.mean(x, axis=(1, 2)))

    arguments = {"shape": list(shape), "outputs": outputs, "width": width, "blocks": blocks, "groups": groups}
    return Model(init, apply, "resnet", arguments, last=lambda params: params["head"])


def normalise(layer: eqx.nn.GroupNorm, x: Array) -> Array:
    """The layer on images [b, height, width, channels], in their precision."""
    grouped = x.reshape(x.shape[0], -1, layer.groups, x.shape[-1] // layer.groups)
    mean = jnp.mean(grouped, axis=(1, 3), keepdims=True)
    spread = jnp.var(grouped, axis=(1, 3), keepdims=True)
    scaled = ((grouped - mean) * jax.lax.rsqrt(spread + layer.eps)).reshape(x.shape)
    assert layer.weight is not None
    assert layer.bias is not None
    return scaled * layer.weight[None, None, None] + layer.bias[None, None, None]
