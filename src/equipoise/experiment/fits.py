"""The least of a convex loss, by L-BFGS: nothing to choose."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from equipoise.protocol import Vector
from equipoise.tasks.task import Scalar

ITERATIONS = 100  # at most; most fits end earlier
SMALL = 1e-4  # of the gradient at the start: what is left is beyond what the scored rows can tell


def least_loss(loss: Callable[[Vector], Scalar], x: Vector) -> Vector:
    """argmin of `loss`, from x."""
    import optax

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)
    enough = SMALL * jnp.linalg.norm(jax.grad(loss)(x))

    def step(carry: tuple) -> tuple:
        u, state, t, _ = carry
        value, grad = value_and_grad(u, state=state)
        updates, state = solver.update(grad, state, u, value=value, grad=grad, value_fn=loss)
        return u + updates, state, t + 1, jnp.linalg.norm(grad)

    def goes_on(carry: tuple) -> Array:
        _, _, t, slope = carry
        return (t < ITERATIONS) & (slope > enough)

    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers of two sizes
        start = (x, solver.init(x), jnp.int32(0), jnp.asarray(jnp.inf, x.dtype))
        return jax.lax.while_loop(goes_on, step, start)[0]
