"""The local loop that every algorithm shares."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from equipoise.errors import known
from equipoise.protocol import Vector


def descend(
    grad: Callable[[Vector, Any], Vector],
    x: Vector,
    draws: Any,
    *,
    steps: int,
    lr: ArrayLike,
    shift: Vector | None = None,
    pull: ArrayLike = 0.0,
    snapshot: ArrayLike | None = None,
) -> Any:
    """`steps` times u -= lr * (grad(u, draw) + shift + pull * (u - x)), from u = x.

    `draws` has a leading axis of length `steps` (or is None): what step j draws from. Returns u; with
    `snapshot` = t in 1..steps returns (u, u after t steps).
    """

    def direction(u: Vector, draw: Any) -> Vector:
        g = grad(u, draw)
        if shift is not None:
            g = g + shift
        return g if known(pull) and not pull else g + pull * (u - x)

    def step(u: Vector, draw: Any) -> tuple[Vector, None]:
        return u - lr * direction(u, draw), None

    def step_and_watch(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        (u, seen), (t, draw) = carry, inputs
        u, _ = step(u, draw)
        return (u, jnp.where(t == snapshot, u, seen)), None

    if snapshot is None:
        return jax.lax.scan(step, x, draws, length=steps)[0]
    return jax.lax.scan(step_and_watch, (x, x), (jnp.arange(1, steps + 1, dtype=jnp.int32), draws))[0]
