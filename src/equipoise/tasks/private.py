"""Gradients and losses with noise, so that no single record shows: what differential privacy at record level needs.

    g = 1/n_i (sum_j clip(grad l_j, C) + z_g C N(0, I)) + l2 x
    L = 1/n_i (sum_j clip(l_j, 0, B) + z_l B N(0, 1)) + l2/2 |x|^2

Records are neighbours if one of them is replaced by a record that adds nothing; n_i is public. A record moves the
first sum by at most C, the second by at most B, so these are Gaussian mechanisms with mu = 1/z_g and 1/z_l.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from equipoise import local
from equipoise.data.shards import Shards
from equipoise.errors import InputError, all_positive, require
from equipoise.protocol import RandomKey, Vector
from equipoise.tasks.task import Convexity, Scalar, Task, least, penalty, shrink

AT_ONCE, NUMBERS = 256, 1 << 24  # rows whose gradients are in memory at a time, or fewer with so many numbers
Draw = Callable[[RandomKey, tuple[int, ...], DTypeLike], Array]  # normal numbers, as jax.random.normal


class Noise(NamedTuple):
    """What is clipped, and how much noise there is for it."""

    clip: float  # C
    gradient: float  # z_g
    loss_bound: float  # B
    loss: float  # z_l


def normal(key: RandomKey, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return jax.random.normal(key, shape, dtype)


def clipped_sums(
    task: Task, x: Vector, shard: Shards, *, l2: Convexity, clip: float, bound: float
) -> tuple[Scalar, Vector]:
    """The sums over the shard's rows of their clipped losses and gradients, a few rows at a time."""

    def of_row(inputs: Array, label: Array) -> tuple[Scalar, Vector]:
        row = Shards(inputs[None], label[None], jnp.ones((), shard.sizes.dtype))
        loss = task.loss(x, row) - penalty(l2, x)
        gradient = task.grad(x, row) - shrink(l2, x)
        length = jnp.linalg.norm(gradient)
        scale = jnp.minimum(1, clip / jnp.where(length > 0, length, 1))
        # A row that overflows adds nothing: its sensitivity is bounded too.
        gradient = jnp.where(jnp.isfinite(length), gradient * scale, 0)
        return jnp.where(jnp.isnan(loss), 0, jnp.clip(loss, 0, bound)).astype(x.dtype), gradient

    rows, few = shard.labels.shape[0], max(1, min(AT_ONCE, NUMBERS // x.size))
    places = jnp.arange(-(-rows // few) * few, dtype=jnp.int32).reshape(-1, few)

    def add(sums: tuple[Scalar, Vector], some: Array) -> tuple[tuple[Scalar, Vector], None]:
        kept = jnp.minimum(some, rows - 1)
        losses, gradients = jax.vmap(of_row)(shard.inputs[kept], shard.labels[kept])
        real = some < shard.sizes.astype(some.dtype)
        more = jnp.sum(jnp.where(real, losses, 0)), jnp.sum(jnp.where(real[:, None], gradients, 0), axis=0)
        return (sums[0] + more[0], sums[1] + more[1]), None

    return jax.lax.scan(add, (jnp.zeros((), x.dtype), jnp.zeros_like(x)), places)[0]


def noisy_releases(
    task: Task, noise: Noise, *, l2: Convexity, draw: Draw = normal
) -> Callable[[Vector, Shards, RandomKey | None], tuple[Scalar, Vector]]:
    """A loss and a gradient of `task` at once, each with noise; both need a key, each time another one.

    `l2` is the task's own, which says nothing about records. `draw` is where noise comes from.
    """
    all_positive(**noise._asdict())
    require(least(l2) >= 0, f"l2 is {least(l2)}; give the task's own, zero or more")

    def released(x: Vector, shard: Shards, key: RandomKey | None) -> tuple[Scalar, Vector]:
        if key is None:
            raise InputError("without a key there is no noise; a private task tells nothing exactly")
        loss, gradient = clipped_sums(task, x, shard, l2=l2, clip=noise.clip, bound=noise.loss_bound)
        one, other = jax.random.split(key)
        gradient = gradient + noise.gradient * noise.clip * draw(one, x.shape, x.dtype)
        loss = loss + noise.loss * noise.loss_bound * draw(other, (), x.dtype)
        count = shard.sizes.astype(x.dtype)
        return loss / count + penalty(l2, x), gradient / count + shrink(l2, x)

    return released


def private_task(task: Task, noise: Noise, *, l2: Convexity, draw: Draw = normal) -> Task:
    """`task`, whose every gradient and loss is a release, see `noisy_releases`."""
    released = noisy_releases(task, noise, l2=l2, draw=draw)

    def loss(x: Vector, shard: Shards, key: RandomKey | None = None) -> Scalar:
        return released(x, shard, key)[0]

    def grad(x: Vector, shard: Shards, key: RandomKey | None = None) -> Vector:
        return released(x, shard, key)[1]

    descend = local.descent(grad, local.a_key_each)
    return task._replace(
        name=f"private_{task.name}", loss=loss, grad=grad, descend=descend, prepare=lambda shard: shard
    )
