"""A network as its own first-order expansion: convex in its parameters, without any features stored.

    outputs(delta) = f(theta_0) + J(theta_0) delta

With a loss that is convex in the outputs this is the model of the neural tangent kernel at theta_0, the alternative to
storing the features of Train-Convexify-Train (Yu et al. 2022). A gradient costs about three forward and backward passes
of the network.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from equipoise.protocol import RandomKey, Vector
from equipoise.tasks.examples import task_of
from equipoise.tasks.task import Task


def linearised(
    params: PyTree[Array],
    apply: Callable[[PyTree[Array], Array], Array],
    loss: Callable[[Array, Array], Float[Array, " b"]],
    *,
    l2: float = 0.0,
    batch: int | None = None,
    convex: bool = True,
    name: str = "linearised",
    bend: Literal["softmax"] | float | None = None,
) -> Task:
    """The model `apply` linearised at `params`; x = delta, from zero, and l2 pulls it back there.

    `loss(outputs, labels)` gives one number per example. It has to be convex in the outputs, as all of `models.LOSSES`
    are, for what the task promises; otherwise say convex=False. `bend` is as for `task_of`.
    """
    theta, unravel = ravel_pytree(params)

    def predict(x: Vector, inputs: Array) -> Array:
        def outputs(flat: Vector) -> Array:
            return apply(unravel(flat), inputs)

        value, change = jax.jvp(outputs, (theta.astype(x.dtype),), (x,))
        return value + change

    def from_zero(key: RandomKey) -> Vector:
        return jnp.zeros(theta.size)

    return task_of(from_zero, predict, loss, l2=l2, batch=batch, name=name, convex=convex, bend=bend)
