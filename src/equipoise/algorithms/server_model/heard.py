"""What the clients said of their losses at the last points, as they said it: tangents, on which certificates rest.

The model at the server needs none of it. Where there are so many clients or parameters that it would be large, nothing
is kept.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from equipoise.protocol import Cuts, Vector

MOST_POINTS, FEWEST_POINTS = 32, 8  # a run that ends by its certificate seldom takes more; fewer prove little
MOST_TANGENTS = 96  # of all clients: beyond it OpenBLAS starts threads for their mixture, and takes fifty times as long
MOST_KEPT = 1 << 20  # numbers
ROUNDING = 8  # units of rounding in a gradient, relative to its length


class Heard(NamedTuple):
    """A ring of points, the oldest of which gives way to the next."""

    x: Float[Array, "k d"]
    losses: Float[Array, "n k"]
    gradients: Float[Array, "n k d"]
    present: Bool[Array, "n k"]
    points: Int[Array, ""]  # so far


def room(n: int, d: int) -> int:
    """How many points are kept."""
    points = min(MOST_POINTS, MOST_TANGENTS // n)
    return points if points >= FEWEST_POINTS and points * n * d <= MOST_KEPT else 0


def nothing(n: int, d: int, dtype: DTypeLike) -> Heard | None:
    k = room(n, d)
    if not k:
        return None
    losses = jnp.zeros((n, k), dtype)
    return Heard(jnp.zeros((k, d), dtype), losses, jnp.zeros((n, k, d), dtype), losses > 0, jnp.int32(0))


def noted(
    heard: Heard | None, x: Vector, here: Bool[Array, " n"], losses: Float[Array, " n"], gradients: Float[Array, "n d"]
) -> Heard | None:
    """With what clients `here` say of x."""
    if heard is None:
        return None
    place = heard.points % len(heard.x)
    return Heard(
        heard.x.at[place].set(x),
        heard.losses.at[:, place].set(losses),
        heard.gradients.at[:, place].set(gradients),
        heard.present.at[:, place].set(here),
        heard.points + 1,
    )


def cuts(heard: Heard | None, *weights: Float[Array, " n"]) -> Cuts | None:
    """The tangents in NumPy, in double precision; None: none are kept."""
    if heard is None:
        return None
    present = np.asarray(heard.present).T
    some = present.any(axis=1)
    eps = float(np.finfo(np.asarray(heard.gradients).dtype).eps)
    x, losses, gradients = (
        np.asarray(a, np.float64) for a in (heard.x, heard.losses.T, heard.gradients.swapaxes(0, 1))
    )
    off = ROUNDING * eps * np.linalg.norm(gradients, axis=2)
    lam = np.stack([np.asarray(w, np.float64) for w in weights])
    return Cuts(x[some], losses[some], gradients[some], present[some], off[some], lam)
