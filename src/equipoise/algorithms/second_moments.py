"""One exchange of sums, or two: the pooled second moments of all clients' inputs, of which a metric is made.

    full      up  X_i'X_i/m_i, its upper half: d(d+1)/2 numbers
    rank k    up  S_i Omega;  down Q = orth(sum_i S_i Omega), up  S_i Q:  d (k + 8) numbers each, S_i = X_i'X_i/m_i

Every client counts the same, and whoever answers is in the mean. Sums are in `Reply.total`, so masks can hide each
client's own; they are in double precision: run it under jax.enable_x64(True). Omega is drawn by everybody from the same
key. With an intercept the moments are about the pooled mean, which the server takes out.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import Nothing, send_nothing
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, weighted
from equipoise.tasks.metric import Metric, full_metric, input_rows, low_rank_metric
from equipoise.tasks.task import Linear

MORE = 8  # directions of the sketch beyond the rank, without which it would miss some


class Moments(NamedTuple):
    """Of the inputs, over the clients that answered."""

    answered: Float[Array, ""]
    mean: Float[Array, " d"]
    upper: Float[Array, " half"]  # of the second moments, by rows


class Sketch(NamedTuple):
    """Of the second moments, about the mean where there is an intercept."""

    answered: Float[Array, ""]
    mean: Float[Array, " d"]
    basis: Float[Array, "d k"]
    images: Float[Array, "d k"]


class Basis(NamedTuple):
    """Orthonormal directions."""

    basis: Float[Array, "d k"]


class InputMoments(NamedTuple):
    """A client's own."""

    mean: Float[Array, " d"]
    moments: Float[Array, "..."]


class Images(NamedTuple):
    """Of given directions, under a client's own second moments."""

    images: Float[Array, "d k"]


@numbers_are_leaves
def second_moments(linear: Linear, sample: Sample, *, rank: int | None = None) -> Algorithm[Moments | Sketch, None]:
    """Of inputs with `linear.features`; the server's state after a round is `Moments`, or a `Sketch` with a rank."""
    n, d = check_distinct(sample, "its rows would be counted twice"), linear.features
    if rank is not None:
        positive("rank", rank)
        require(rank < d, f"the rank is {rank} of {d} inputs; give less than {d}, or none for all of them")
    upper = np.triu_indices(d)
    k = d if rank is None else min(rank + MORE, d)

    def rows(data: Data) -> tuple[Float[Array, "m d"], Float[Array, ""]]:
        a = input_rows(data.inputs, jnp.float64)
        real = (jnp.arange(a.shape[0], dtype=data.sizes.dtype) < data.sizes)[:, None]
        return jnp.where(real, a, 0), data.sizes.astype(jnp.float64)

    def moments_of(data: Data, products: Callable[[Array], Array]) -> Reply:
        a, m = rows(data)
        return Reply(total=weighted(jnp.ones(()), InputMoments(jnp.sum(a, axis=0) / m, products(a) / m)))

    def about_mean(
        images: Float[Array, "d k"], centre: Float[Array, " d"], directions: Float[Array, "d k"]
    ) -> Float[Array, "d k"]:
        return images - jnp.outer(centre, centre @ directions) if linear.intercept else images

    def tell_moments(message: Nothing, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        return None, moments_of(data, lambda a: (a.T @ a)[upper])

    def keep_moments(server: Moments, replies: Replies) -> Moments:
        return Moments(replies.total.weight, *mean(replies.total))

    def omega() -> Float[Array, "d k"]:
        return jax.random.normal(jax.random.key(0), (d, k), jnp.float64)

    def tell_sketch(message: Nothing, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        return None, moments_of(data, lambda a: a.T @ (a @ omega()))

    def keep_basis(server: Sketch, replies: Replies) -> Sketch:
        centre, images = mean(replies.total)
        basis = jnp.linalg.qr(about_mean(images, centre, omega()))[0]
        return server._replace(mean=centre, basis=basis)

    def send_basis(server: Sketch, i: Int[Array, ""]) -> Basis:
        return Basis(server.basis)

    def tell_images(message: Basis, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        a, m = rows(data)
        return None, Reply(total=weighted(jnp.ones(()), Images(a.T @ (a @ message.basis) / m)))

    def keep_images(server: Sketch, replies: Replies) -> Sketch:
        images = mean(replies.total).images
        return server._replace(answered=replies.total.weight, images=about_mean(images, server.mean, server.basis))

    def init(x: Vector) -> Moments | Sketch:
        nobody, centre = jnp.zeros((), jnp.float64), jnp.zeros(d, jnp.float64)
        if rank is None:
            return Moments(nobody, centre, jnp.zeros(len(upper[0]), jnp.float64))
        return Sketch(nobody, centre, *(jnp.zeros((d, k), jnp.float64) for _ in range(2)))

    ask = Exchange("moments", sample.open, send_nothing, tell_moments, keep_moments, unit=True)
    sketched = (
        Exchange("sketch", sample.open, send_nothing, tell_sketch, keep_basis, unit=True),
        Exchange("images", sample.open, send_basis, tell_images, keep_images, unit=True),
    )
    exchanges = (ask,) if rank is None else sketched
    return measurement("second_moments", n, d, *exchanges, init=init, model=lambda server: server.mean)


def metric_from(linear: Linear, server: Moments | Sketch, rank: int | None, dtype: DTypeLike) -> Metric | None:
    """The metric of what the clients told; None: nobody did."""
    if not float(server.answered) > 0:
        return None
    if isinstance(server, Sketch):
        return low_rank_metric(linear, server.basis, server.images, server.mean, rank or 1, dtype)
    d = linear.features
    moments = np.zeros((d, d))
    moments[np.triu_indices(d)] = np.asarray(server.upper)
    return full_metric(linear, moments + np.triu(moments, 1).T, server.mean, dtype)
