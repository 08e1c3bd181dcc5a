"""Euclidean projections onto the simplex and its relatives, exact at any scale.

Every one of them is lam_i = clip(b_i - nu, 0, cap_i) at the level nu where the weights sum to one. Three
habits keep that accurate from float32 to 100,000 clients and from 1e-30 to 1e30: b is centred where nu must
lie before anything is summed, entries certainly at a bound are clipped there, and the last digits of nu,
which one number cannot hold, are settled on the weights themselves.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike


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
    """lam with what its sum lacks of one, a matter of rounding, spread over weights inside the bounds."""
    for _ in range(2):
        free = (lam > 0) & (lam < cap)
        surplus = (jnp.sum(lam) - 1) / jnp.maximum(jnp.sum(free, dtype=lam.dtype), 1)
        lam = jnp.where(free, jnp.clip(lam - surplus, 0, cap), lam)
    return lam


def simplex(v: Array, scale: Array | float = 1.0) -> Array:
    """argmin_{lam in Delta} scale |lam|^2 / 2 - <v, lam>, the projection of v / scale onto the simplex."""
    scale = moderate(scale, v.dtype)
    top = jnp.max(v)
    nu = level(jnp.maximum((v - top) / scale, -1), 1.0, -1.0)
    # v - top has lost the digits of weights far below the top one; v - (top + nu) has not.
    drop = nu * scale
    base = top + drop
    rest = (top - base) + drop
    return with_unit_sum(jnp.clip(((v - base) - rest) / scale, 0, 1), 1.0)
