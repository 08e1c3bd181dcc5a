"""Losses and gradients that cannot be made up beyond bounds: what keeps a hostile or broken client from moving all.

Both change what is optimised where honest clients are beyond the bound, so they are off unless asked for.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from equipoise.algorithms.wrapping import wrap
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Client, Exchange, Replies, Server


@numbers_are_leaves
def clip_losses(
    algorithm: Algorithm[Server, Client], *, factor: float = 10.0, quantile: float = 0.5
) -> Algorithm[Server, Client]:
    """`algorithm`, to which no loss of a cohort counts for more than `factor` times the quantile of the cohort's.

    As long as fewer than a share 1 - quantile of a cohort lie, the bound lies within what honest sites report. It holds
    for losses that the server sees (`Reply.each`), and not in a cohort of one.
    """
    require(factor >= 1, f"factor is {factor}; give at least 1, how many times the typical loss one may be")
    require((quantile > 0) & (quantile < 1), f"quantile is {quantile}; give a share of the cohort, above 0 and below 1")

    def clipped(losses: Float[Array, " m"], present: Bool[Array, " m"]) -> Float[Array, " m"]:
        heard = jnp.sum(present, dtype=jnp.int32)
        ordered = jnp.sort(jnp.where(present, losses, jnp.inf))
        # Rounded down, so that of two sites the lower loss is the typical one.
        place = jnp.floor(quantile * jnp.maximum(heard - 1, 0).astype(losses.dtype)).astype(jnp.int32)
        typical = jnp.where(heard > 0, ordered[place], 0)
        return jnp.minimum(losses, typical + (factor - 1) * jnp.abs(typical))

    return _with_clipped(algorithm, "loss", clipped)


@numbers_are_leaves
def clip_gradients(algorithm: Algorithm[Server, Client], *, factor: float = 3.0) -> Algorithm[Server, Client]:
    """`algorithm`, to which no client's gradient counts for more than `factor` times the median length of its cohort's.

    It holds for gradients that the server sees (`Reply.each`), as long as fewer than half of a cohort lie. Medians of
    the gradients themselves, or trimmed means, would throw away the minority that a robust objective is there for.
    """
    require(factor >= 1, f"factor is {factor}; give at least 1, how many times the median a gradient may be long")

    def clipped(rows: Float[Array, "m d"], present: Bool[Array, " m"]) -> Float[Array, "m d"]:
        length = jnp.linalg.norm(rows, axis=1)
        most = factor * jnp.nanmedian(jnp.where(present, length, jnp.nan))
        scale = jnp.where(length > most, most / jnp.where(length > 0, length, 1), 1)
        return rows * scale[:, None]

    return _with_clipped(algorithm, "gradient", clipped)


def _with_clipped(
    algorithm: Algorithm[Server, Client], field: str, clipped: Callable[[Array, Array], Array]
) -> Algorithm[Server, Client]:
    """Where clients report such a field by itself, the server hears it clipped."""

    def guarded(k: int, exchange: Exchange[Server, Client]) -> Exchange[Server, Client]:
        def close(server: Server, replies: Replies) -> Server:
            if has_field(replies.each, field):
                value = clipped(getattr(replies.each, field), jnp.asarray(replies.cohort.present))
                replies = replies._replace(each=replies.each._replace(**{field: value}))
            return exchange.close(server, replies)

        return exchange._replace(close=close)

    return wrap(algorithm, guarded)


def has_field(each: object, field: str) -> bool:
    """Whether clients report such a thing by itself, as they do their `loss` and `gradient`."""
    return field in getattr(each, "_fields", ())
