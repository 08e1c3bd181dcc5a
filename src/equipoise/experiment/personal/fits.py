"""The least of a convex loss, by Newton's method: nothing to choose."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from equipoise.protocol import Vector
from equipoise.tasks.task import Scalar

ITERATIONS = 50  # at most; most fits end after five to ten
PRODUCTS = 100  # with the Hessian, of a step
SMALL = 1e-4  # of the gradient at the start: what is left is beyond what the scored rows can tell
DECREASE = 1e-4  # of what the slope promises, that a step has to bring
SHORTEST = 2.0**-20  # of a step


def least_loss(loss: Callable[[Vector], Scalar], x: Vector) -> Vector:
    """argmin of `loss`, from x. Steps are solved for by conjugate gradients and halved until the loss falls."""
    enough = SMALL * jnp.linalg.norm(jax.grad(loss)(x))

    def direction(u: Vector) -> tuple[Vector, Vector, Scalar]:
        """Of the step, and the gradient; the closer to the end, the more exactly it is solved for."""
        g, along = jax.linearize(jax.grad(loss), u)
        size = jnp.linalg.norm(g)
        wanted = jnp.minimum(0.1, jnp.sqrt(size / (1 + size))) * size

        def product(state: tuple) -> tuple:
            d, r, p, t = state
            bent = along(p)
            curved = p @ bent
            good = curved > 0  # else rounding has taken over
            a = jnp.where(good, (r @ r) / jnp.where(good, curved, 1), 0)
            left = r - a * bent
            turn = (left @ left) / jnp.maximum(r @ r, jnp.finfo(u.dtype).tiny)
            return d + a * p, left, left + turn * p, jnp.where(good, t + 1, PRODUCTS)

        start = (jnp.zeros_like(u), -g, -g, jnp.int32(0))
        d = jax.lax.while_loop(lambda s: (s[3] < PRODUCTS) & (jnp.linalg.norm(s[1]) > wanted), product, start)[0]
        return jnp.where(jnp.any(d != 0), d, -g), g, size

    def step(carry: tuple) -> tuple:
        u, t, _ = carry
        d, g, size = direction(u)
        now, slope = loss(u), g @ d

        def too_long(length: Array) -> Array:
            return ~(loss(u + length * d) <= now + DECREASE * length * slope) & (length > SHORTEST)

        length = jax.lax.while_loop(too_long, lambda length: length / 2, jnp.ones((), u.dtype))
        moved = length > SHORTEST  # else the loss cannot fall any more that rounding would show
        return jnp.where(moved, u + length * d, u), jnp.where(moved, t + 1, ITERATIONS), size

    def goes_on(carry: tuple) -> Array:
        _, t, slope = carry
        return (t < ITERATIONS) & (slope > enough)

    return jax.lax.while_loop(goes_on, step, (x, jnp.int32(0), jnp.asarray(jnp.inf, x.dtype)))[0]
