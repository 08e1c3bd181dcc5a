"""Personal models on top of a shared one: the Moreau envelope of every client's loss.

    F_i(x) = min_v  f_i(v) + mu/2 |v - x|^2,        grad F_i(x) = mu (x - v_i(x))

the objective of pFedMe (Dinh, Tran and Nguyen 2020, "Personalized federated learning with Moreau envelopes"). Any
algorithm trains x on the F_i, a robust one for the worst of them; client i then ships v_i(x), a newcomer gets x.
mu -> infinity is the shared model alone, mu -> 0 every client by itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.sparse.linalg import cg
from jaxtyping import Float, Int

from equipoise import local
from equipoise.errors import all_positive, positive, require
from equipoise.linear_algebra import inverse
from equipoise.protocol import Data, RandomKey, Vector
from equipoise.tasks.squares import Gram, Kernel
from equipoise.tasks.task import Scalar, Task, least


class Personal(NamedTuple):
    """The task that algorithms train, and the model that a client keeps."""

    task: Task  # of the F_i
    model: Callable[..., Vector]  # model(x, data, key=None) = v_i(x)


class Solved(NamedTuple):
    """A client's data, and (H + mu I)^-1 of its quadratic loss; None where it is found by conjugate gradients."""

    data: Data
    inverse: Float[Array, "p p"] | None
    sizes: Int[Array, ""]


def moreau_envelope(task: Task, mu: float, *, steps: int | None = None, lr: float | None = None) -> Personal:
    """The Moreau envelope of `task`, of strength `mu`.

    Exact for squared losses (`ridge`, `least_squares` without minibatches). For other losses v_i is approximate: give
    `steps` and `lr` of the descent on f_i(v) + mu/2 |v - x|^2. It starts at x and, along local steps, where it ended in
    the step before. No strong convexity is promised then.
    """
    positive("mu", mu)
    require((steps is None) == (lr is None), "the envelope of a general loss needs both `steps` and `lr`")
    if steps is None or lr is None:
        return _exact(task, mu)
    all_positive(steps=steps, lr=lr)
    return _inexact(task, mu, steps, lr)


def _exact(task: Task, mu: float) -> Personal:
    l2 = least(task.strong_convexity)  # of squared losses, whose parameters have the same

    def prepare(shard: Data) -> Solved:
        data = task.prepare(shard)
        require(
            isinstance(data, Gram | Kernel),
            f"the envelope of {task.name} has no closed form; give `steps` and `lr` of an inner descent, or a squared "
            "loss without minibatches",
        )
        if isinstance(data, Kernel):
            return Solved(data, None, data.sizes)
        eye = jnp.eye(data.gram.shape[0], dtype=data.gram.dtype)
        return Solved(data, inverse(data.gram + (l2 + mu) * eye), data.sizes)

    def model(x: Vector, solved: Solved, key: RandomKey | None = None) -> Vector:
        solved = solved if isinstance(solved, Solved) else prepare(solved)
        origin = task.grad(jnp.zeros_like(x), solved.data)  # -b
        right = mu * x - origin
        if solved.inverse is not None:
            return (right.reshape(-1, solved.inverse.shape[0]) @ solved.inverse).ravel()
        # (H + mu I) v = b + mu x, in at most as many steps as there are examples.
        return cg(lambda z: task.grad(z, solved.data) - origin + mu * z, right, x0=x, tol=1e-15, maxiter=1000)[0]

    def loss(x: Vector, solved: Data, key: RandomKey | None = None) -> Scalar:
        solved = solved if isinstance(solved, Solved) else prepare(solved)
        v = model(x, solved)
        return task.loss(v, solved.data) + mu / 2 * jnp.sum((v - x) ** 2)

    def grad(x: Vector, solved: Data, key: RandomKey | None = None) -> Vector:
        return mu * (x - model(x, solved))

    envelope = task._replace(
        name=f"{task.name}_envelope",
        loss=loss,
        grad=grad,
        descend=local.descent(lambda u, data, _: grad(u, data)),
        prepare=prepare,
        strong_convexity=mu * l2 / (mu + l2) if l2 else None,
    )
    return Personal(envelope, model)


def _inexact(task: Task, mu: float, inner_steps: int, inner_lr: float) -> Personal:
    def improved(v: Vector, x: Vector, data: Data, key: RandomKey | None) -> Vector:
        """v after the inner steps on f_i(v) + mu/2 |v - x|^2."""
        draws = None if key is None else jax.random.split(key, inner_steps)
        return local.descend(
            lambda u, k: task.grad(u, data, k) + mu * (u - x), v, draws, steps=inner_steps, lr=inner_lr
        )

    def model(x: Vector, data: Data, key: RandomKey | None = None) -> Vector:
        return improved(x, x, data, key)

    def loss(x: Vector, data: Data, key: RandomKey | None = None) -> Scalar:
        v = model(x, data, key)
        return task.loss(v, data, key) + mu / 2 * jnp.sum((v - x) ** 2)

    def grad(x: Vector, data: Data, key: RandomKey | None = None) -> Vector:
        return mu * (x - model(x, data, key))

    def descend(x: Vector, data: Data, key: RandomKey, *, steps: int, **options: Any) -> local.Descended:
        def along(u: Vector, k: RandomKey, v: Vector) -> tuple[Vector, Vector]:
            v = improved(v, u, data, k)
            return mu * (u - v), v

        return local.descend(along, x, jax.random.split(key, steps), steps=steps, memory=x, **options)

    envelope = task._replace(name=f"{task.name}_envelope", loss=loss, grad=grad, descend=descend, strong_convexity=None)
    return Personal(envelope, model)
