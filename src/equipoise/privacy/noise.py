"""Noise of the site's own entropy: nobody else can compute it, least of all from a key that the server has chosen.

Normal numbers by the inverse of their distribution, of 53 random bits of the operating system each. They are floating
point numbers, not the real ones of the theory: attacks on their last bits (Mironov 2012) are not defended against.
"""

import os

import jax
import numpy as np
import scipy  # its parts load when they are used
from jax.experimental import io_callback
from jax.typing import DTypeLike

from equipoise.protocol import RandomKey


def normal(shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
    return scipy.special.ndtri((bits.astype(np.float64) + 0.5) / 2.0**53).reshape(shape)


def own_noise(key: RandomKey, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """As `jax.random.normal`, without its key: drawn anew whenever the program runs."""
    return io_callback(lambda: normal(shape).astype(dtype), jax.ShapeDtypeStruct(shape, dtype))
