"""Totals as integers modulo 2^64: the sum of n of them is exact, whatever is added to each and taken off again.

    q(v) = rint(v 2^f),  f = 62 - ceil(log2(n B)),  for numbers up to B:  no sum of n overflows,  error <= n 2^(-f-1)

Integers stay as they are, up to 2^62 / n.
"""

import math

import jax
import numpy as np
from jaxtyping import PyTree, UInt64

from equipoise.errors import refuse_unless, require

Integers = UInt64[np.ndarray, " d"]


def fraction_bits(n: int, bound: float) -> int:
    """f: binary digits after the point, for n numbers of at most `bound`."""
    require(n >= 1 and 0 < bound < math.inf, f"a sum of {n} numbers up to {bound} has no fixed point")
    bits = 62 - math.ceil(math.log2(n * bound))
    require(
        0 <= bits <= 1000, f"numbers up to {bound:g} leave no digits for a sum of {n}; give a bound from 1e-200 to 1e15"
    )
    return bits


def largest_error(n: int, bound: float) -> float:
    """By how much a sum of n numbers may differ from the exact one."""
    return n * 2.0 ** (-fraction_bits(n, bound) - 1)


def length(like: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(like))


def encode(total: PyTree[np.ndarray], n: int, bound: float) -> Integers:
    """One vector of all numbers; a Refusal where one is not finite or beyond the bound."""
    bits = fraction_bits(n, bound)
    parts = [np.zeros(0, np.uint64)]
    for leaf in map(np.asarray, jax.tree.leaves(total)):
        if leaf.dtype.kind in "iub":
            whole = leaf.astype(object) if leaf.dtype == np.uint64 else leaf.astype(np.int64)
            within = leaf.size == 0 or (whole.min() >= -(2**62 // n) and whole.max() <= 2**62 // n)
            refuse_unless(within, f"a total holds integers beyond 2^62 / {n}, which no masked sum can hold")
        else:
            number = leaf.astype(np.float64)
            fits = bool((np.abs(number) <= bound).all())  # of NaN, no
            refuse_unless(
                fits,
                f"a total holds numbers that are not finite or beyond {bound:g}; raise federation.secure_bound if they "
                "are right",
            )
            whole = np.rint(np.ldexp(number, bits))
        parts.append(whole.astype(np.int64).ravel().view(np.uint64))
    return np.concatenate(parts)


def decode(integers: Integers, like: PyTree, n: int, bound: float) -> PyTree[np.ndarray]:
    """The numbers of a sum of at most n encoded totals, in the shapes and types of `like`."""
    bits, start, leaves = fraction_bits(n, bound), 0, []
    for leaf in jax.tree.leaves(like):
        whole = integers[start : start + leaf.size].view(np.int64).reshape(leaf.shape)
        start += leaf.size
        leaves.append((whole if np.dtype(leaf.dtype).kind in "iub" else np.ldexp(whole, -bits)).astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
