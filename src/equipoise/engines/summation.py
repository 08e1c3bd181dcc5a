"""Totals become a sum as replies arrive, in memory for one reply however many there are.

The only place where a reply's `total` is touched: a masked sum would take its place.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree


class Summation(NamedTuple):
    """How the totals of the clients that answered become one."""

    start: Callable[[PyTree], PyTree]  # from shapes like a total's
    add: Callable[[PyTree, PyTree], PyTree]  # one more total
    finish: Callable[[PyTree], PyTree]


class Sum(NamedTuple):
    """A sum and what rounding has taken from it so far."""

    value: np.ndarray
    rest: np.ndarray


def plain_sum() -> Summation:
    """Compensated, so that the sum does not depend on who answers first, save for cancellations beyond all digits."""

    def start(like: PyTree) -> PyTree:
        return jax.tree.map(lambda s: Sum(*(np.zeros(s.shape, s.dtype) for _ in range(2))), like)

    def add(sums: PyTree, total: PyTree) -> PyTree:
        return jax.tree.map(_two_sum, sums, total, is_leaf=lambda leaf: isinstance(leaf, Sum))

    def finish(sums: PyTree) -> PyTree:
        return jax.tree.map(
            lambda s: np.add(s.value, s.rest, dtype=s.value.dtype), sums, is_leaf=lambda leaf: isinstance(leaf, Sum)
        )

    return Summation(start, add, finish)


def _two_sum(before: Sum, more: np.ndarray) -> Sum:
    """Knuth, The Art of Computer Programming 2, 4.2.2: value + rest is exact."""
    a, b = before.value, np.asarray(more)
    value = np.add(a, b, dtype=a.dtype)
    if not np.issubdtype(a.dtype, np.inexact):
        return before._replace(value=value)
    of_b = value - a
    return Sum(value, before.rest + ((a - (value - of_b)) + (b - of_b)))
