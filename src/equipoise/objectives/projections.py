"""Euclidean projections onto the simplex and its relatives, exact at any scale.

Every one of them is lam_i = clip(b_i - nu, 0, cap_i) at the level nu where the weights sum to one. Three
habits keep that accurate from float32 to a million clients and from 1e-30 to 1e30: b is centred where nu must
lie before anything is summed, entries certainly at a bound are clipped there, and the last digits of nu,
which one number cannot hold, are held by a second one or settled on the weights themselves.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

LONG = 1 << 14  # entries from which all cores are worth their start
PARTS = 16


def moderate(x: Array | float, dtype: DTypeLike) -> Array:
    """x, moved to where products and quotients with it neither overflow nor vanish in `dtype`."""
    info = jnp.finfo(dtype)
    low, high = float(info.tiny / info.eps), float(info.max / 256)
    if isinstance(x, float):
        return jnp.asarray(min(max(x, low), high), dtype)
    return jnp.clip(jnp.asarray(x, dtype), low, high)


def level(b: Array, cap: ArrayLike, low: ArrayLike) -> Array:
    """The nu in [low, 0] at which sum_i clip(b_i - nu, 0, cap_i) = 1.

    Pegging (Bitran and Hax 1981; Michelot 1986 without caps): what the bracket shows to be at a bound stays
    there, the others share the rest. A midpoint every fourth time bounds the worst case by the bracket's
    bits; a handful of passes is usual, each O(n), and there is no sort.
    """

    def pegged(lo: Array, hi: Array) -> Array:
        full = b - cap >= hi
        free = (b > lo) & ~full
        count = jnp.sum(free, dtype=b.dtype)
        mass = jnp.sum(jnp.where(free, b, jnp.where(full, cap, 0)))
        return jnp.clip((mass - 1) / jnp.maximum(count, 1), lo, hi)

    def narrow(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        lo, hi, nu, i = state
        more = jnp.sum(jnp.clip(b - nu, 0, cap)) > 1
        lo, hi = jnp.where(more, nu, lo), jnp.where(more, hi, nu)
        return lo, hi, jnp.where(i % 4 == 3, lo + (hi - lo) / 2, pegged(lo, hi)), i + 1

    def inside(state: tuple[Array, Array, Array, Array]) -> Array:
        lo, hi, nu, _ = state
        return (lo < nu) & (nu < hi)

    lo, hi = jnp.asarray(low, b.dtype), jnp.zeros((), b.dtype)
    return lax.while_loop(inside, narrow, (lo, hi, pegged(lo, hi), jnp.int32(0)))[2]


def with_unit_sum(lam: Array, cap: ArrayLike) -> Array:
    """lam, whose sum is one up to rounding, corrected by its weights that are strictly inside their bounds."""
    for _ in range(2):
        free = (lam > 0) & (lam < cap)
        surplus = (jnp.sum(lam) - 1) / jnp.maximum(jnp.sum(free, dtype=lam.dtype), 1)
        lam = jnp.where(free, jnp.clip(lam - surplus, 0, cap), lam)
    return lam


class SearchStart(NamedTuple):
    """Where the search through a vector starts; the result does not depend on it."""

    candidates: Array  # entries of it that are likely to be the largest
    total: Array  # the sum of all


def simplex(v: Array, scale: Array | float = 1.0, start: SearchStart | None = None) -> Array:
    """argmin_{lam in Delta} scale |lam|^2 / 2 - <v, lam>, the projection of v / scale onto the simplex.

    lam_i = max(v_i - nu, 0) / scale. Newton's method rises to nu from where the sum is at least one, and does not pass
    it, since the sum is convex in nu. From step to step what the sum has beyond one and the count of weights above zero
    shrink by factors that add up to one at most, so that log2(n) + log4(1/eps) steps always do. The nu of a few entries
    is below that of all, and mostly not far: it starts from that of the largest of every sixteen, if there are many.
    """
    scale, info = moderate(scale, v.dtype), jnp.finfo(v.dtype)

    def weights(v: Array, nu: tuple[Array, Array]) -> Array:
        return ((v - nu[0]) - nu[1]) / scale

    def rise(v: Array, nu: tuple[Array, Array]) -> tuple[Array, Array]:
        def newton(state: tuple) -> tuple:
            nu, before, _, i = state
            total, count = sum_above_zero(lambda v: weights(v, nu), v)
            settled = (count == before) | (jnp.abs(total - 1) <= 32 * info.eps)
            # nu is the sum of two numbers: one does not hold the digits of weights far below the largest.
            base, rest = nu[0], nu[1] + scale * ((total - 1) / jnp.maximum(count, 1))
            up = base + rest
            return (up, (base - up) + rest), count, settled, i + 1

        state = nu, jnp.zeros_like(scale), jnp.array(False), jnp.int32(0)
        return lax.while_loop(lambda state: ~state[2] & (state[3] < 64), newton, state)[0]

    few = start.candidates if start else folded(lambda v: v, lambda a, b: jnp.where(a > b, a, b), v)
    top = jnp.max(few)
    base = jnp.maximum(top - scale, info.min)
    nu = base, (top - base) - scale
    if few.size < v.size:
        nu = rise(few, nu)
    if start:  # and what all would have to give up, if all were above zero, is below it too
        mean = (start.total - scale) / v.size
        nu = jnp.maximum(nu[0], mean), jnp.where(mean > nu[0], 0, nu[1])
    lam = weights(v, rise(v, nu))
    return jnp.where(lam < 0, 0, jnp.where(lam > 1, 1, lam))


def sum_above_zero(f: Callable[[Array], Array], v: Array) -> tuple[Array, Array]:
    """The sum of those f(v_i) that are above zero, and how many they are: as one complex number, in one pass."""

    def sum_and_count(v: Array) -> Array:
        a = f(v)
        return lax.complex(jnp.where(a > 0, a, 0), jnp.where(a > 0, jnp.ones_like(a), 0))

    both = jnp.sum(folded(lambda v: v, jnp.add, folded(sum_and_count, jnp.add, v)))
    return both.real, both.imag


def folded(f: Callable[[Array], Array], operator: Callable[[Array, Array], Array], v: Array) -> Array:
    """f(v) or, of a long vector, what its parts become when they are combined with each other: a sixteenth of it.

    On a CPU XLA reduces a vector to a number on one core, but uses all of them for what is elementwise.
    """
    if v.size < LONG:
        return f(v)
    width = v.size // PARTS
    parts = [f(v[k * width : (k + 1) * width]) for k in range(PARTS)]
    return jnp.concatenate([reduce(operator, parts), f(v[PARTS * width :])])
