"""The local loop that every algorithm shares."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise.errors import is_concrete, require
from equipoise.protocol import Data, RandomKey, Vector


@runtime_checkable
class Optimizer(Protocol):
    """What optax calls a GradientTransformation. optax itself is imported only by those who use one of its own."""

    @property
    def init(self) -> Callable[..., PyTree]: ...

    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]: ...


Descended = Vector | tuple[Vector, Vector]  # where the steps end, and the snapshot, where one is asked for
# A client's local steps: descend(x, data, key, *, steps, lr, ...) gives what `descend` below does, u or (u, snapshot).
Descend = Callable[..., Any]


def nothing_drawn(data: Data, key: RandomKey, steps: int) -> None:
    """Of local steps that leave nothing to chance."""


def a_key_each(data: Data, key: RandomKey, steps: int) -> RandomKey:
    return jax.random.split(key, steps)


def descent(
    gradient: Callable[[Vector, Data, PyTree], Vector], draws: Callable[[Data, RandomKey, int], PyTree] = nothing_drawn
) -> Descend:
    """`descend` of a task: along gradient(u, data, draw), the draws of all steps being draws(data, key, steps)."""

    def descend_along(x: Vector, data: Data, key: RandomKey, *, steps: int, **options: Any) -> Descended:
        return descend(lambda u, d: gradient(u, data, d), x, draws(data, key, steps), steps=steps, **options)

    return descend_along


def descend(
    grad: Callable[..., Any],
    x: Vector,
    draws: PyTree,
    *,
    steps: int,
    lr: ArrayLike,
    shift: Vector | None = None,
    pull: ArrayLike = 0.0,
    snapshot: ArrayLike | None = None,
    optimizer: Optimizer | None = None,
    memory: PyTree = None,
) -> Any:
    """`steps` times u -= lr * (grad(u, draw) + shift + pull * (u - x)), from u = x.

    `draws` has a leading axis of length `steps` (or is None): what step j draws from. Returns u; with
    `snapshot` = t in 1..steps returns (u, u after t steps). An `optimizer` takes the place of the plain step:
    u += lr * its update of that gradient, from a fresh state; optax.sgd(1.0) is the plain step. A `memory` is handed
    from step to step: grad(u, draw, memory) then gives the gradient and the next step's memory.
    """
    require(
        optimizer is None or shift is None,
        "these local steps are corrected, and the correction is read off plain gradient descent (SCAFFOLD, SCAFF-PD); "
        "give the task without an optimizer, or train with FedAvg, FedProx, AFL, DRFA, q-FedAvg, TERM, PropFair or "
        "Delta-FL",
    )

    def step(carry: tuple[Vector, PyTree, PyTree], draw: PyTree) -> tuple[tuple[Vector, PyTree, PyTree], None]:
        u, state, memory = carry
        g, memory = (grad(u, draw), None) if memory is None else grad(u, draw, memory)
        if shift is not None:
            g = g + shift
        direction = g if is_concrete(pull) and not pull else g + pull * (u - x)
        if optimizer is None:
            return (u - lr * direction, None, memory), None
        updates, state = optimizer_step(optimizer, direction, state, u)
        return (u + lr * updates, state, memory), None

    def step_and_watch(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        (carried, seen), (t, draw) = carry, inputs
        carried, _ = step(carried, draw)
        return (carried, jnp.where(t == snapshot, carried[0], seen)), None

    start = (x, None if optimizer is None else optimizer.init(x), memory)
    if snapshot is None:
        return jax.lax.scan(step, start, draws, length=steps)[0][0]
    (carried, seen), _ = jax.lax.scan(step_and_watch, (start, x), (jnp.arange(1, steps + 1, dtype=jnp.int32), draws))
    return carried[0], seen


def optimizer_step(optimizer: Optimizer, gradient: Vector, state: PyTree, u: Vector) -> tuple[Vector, PyTree]:
    """The optimizer's update of u, in the precision of u; optax mixes its counts with floats."""
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimizer.update(gradient, state, u)
    return updates.astype(u.dtype), state


def fixed(descend: Callable) -> Mapping[str, object]:
    """What a task has fixed of its `descend` (a pull, an optimizer), for a loop that takes its place."""
    return descend.keywords if isinstance(descend, partial) else {}
