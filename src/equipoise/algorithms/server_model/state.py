"""What the server of `scaffpd_model` keeps from one exchange to the next."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.server_model import directions
from equipoise.algorithms.server_model.directions import Memory
from equipoise.algorithms.server_model.heard import Heard, nothing
from equipoise.protocol import Vector


class Point(NamedTuple):
    """The centre: the best model heard of, and what is known of every client there."""

    x: Vector
    label: Int[Array, ""]  # points are numbered, so that a client knows which one is meant
    f: Float[Array, "n 2"]  # pairs that sum to the loss
    C: Float[Array, "n d"]
    heard_here: Bool[Array, " n"]  # heard here; else an estimate
    heard: Bool[Array, " n"]  # heard anywhere
    anchor: Float[Array, "n d"]  # where last heard


class Shape(NamedTuple):
    """What the model has learned about itself."""

    kappa: Float[Array, " n"]
    q: Float[Array, ""]
    nu: Float[Array, ""]
    taken_back: Int[Array, ""]  # trials since the last one that was as good as predicted
    in_a_row: Int[Array, ""]  # trials taken back since the last that was kept


class Trial(NamedTuple):
    """The point under trial and what the model says of it."""

    x: Vector
    label: Int[Array, ""]
    coordinates: Float[Array, " k"]  # a + b
    slope: Float[Array, ""]  # n = -c'd
    predicted: Float[Array, " 2"]  # P there, as a pair
    lam: Float[Array, " n"]


class Server(NamedTuple):
    """Where it stands, what it tries, and what it knows of the clients."""

    centre: Point
    trial: Trial
    memory: Memory
    shape: Shape
    L: Float[Array, " n"]
    points: Int[Array, ""]  # labels given so far
    age: Float[Array, " n"]  # rounds since last heard
    same: Float[Array, " n"]  # losses in a row that agreed with the trapezoid rule
    lam: Float[Array, " n"]
    a: Float[Array, " k"]  # holds, with c, from `collect` to `improve`
    c: Vector
    heard: Heard | None  # at the last points, for certificates; None: too much to keep


def initial(x: Vector, n: int, k: int) -> Server:
    """Before the first round from x: n clients of whom nothing is known, and room for k directions."""
    zero, nobody, each = jnp.zeros((), x.dtype), jnp.zeros(n, bool), jnp.zeros(n, x.dtype)
    lam, none, label = jnp.full(n, 1 / n, x.dtype), jnp.zeros(k, x.dtype), jnp.int32(0)
    table = jnp.zeros((n, x.size), x.dtype)
    return Server(
        centre=Point(x, label, jnp.zeros((n, 2), x.dtype), table, nobody, nobody, table),
        trial=Trial(x, label, none, zero, jnp.zeros(2, x.dtype), lam),
        memory=directions.empty(n, k, x.size, x.dtype),
        shape=Shape(each + 1, zero, zero, jnp.int32(0), jnp.int32(0)),
        L=each + 1,
        points=label,
        age=each,
        same=each + 1,
        lam=lam,
        a=none,
        c=jnp.zeros_like(x),
        heard=nothing(n, x.size, x.dtype),
    )
