"""A task that another library computes, called back by JAX: its model and its examples are not JAX's.

What JAX sees of a set of examples (`Shards`) is which one it is, once for every row that can be scored, their labels,
and how many there are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from equipoise.data.shards import Shards
from equipoise.errors import EquipoiseError
from equipoise.evaluation.predictions import Score
from equipoise.protocol import RandomKey, Vector
from equipoise.tasks import Task

TRAIN, TEST = 0, 1  # the sets of examples


class Callbacks(NamedTuple):
    """NumPy in, NumPy out, of the type of x. A random key is given by its words."""

    loss: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of x, over a set of examples
    grad: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of x and a key, over the training examples
    curve: Callable[
        [np.ndarray, np.ndarray, np.ndarray], np.ndarray
    ]  # of x, a direction and a key: the derivative of `grad` along it
    descend: Callable[..., tuple[np.ndarray, np.ndarray]]  # steps, x, key, lr, shift, pull, snapshot -> end, snapshot
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray]  # outputs for every example of a set


def rows(which: int, labels: np.ndarray, examples: int) -> Shards:
    """A set of examples as JAX sees it; without labels it cannot be scored."""
    return Shards(jnp.full(len(labels), which, jnp.int32), jnp.asarray(labels), jnp.int32(examples))


def callback_task(name: str, x: Vector, callbacks: Callbacks, outputs: tuple[int, ...] | None) -> Task:
    """The task, with the start x; `outputs` is the shape of what the model makes of one example, None: no array."""

    def loss(x: Vector, shard: Shards, key: RandomKey | None = None) -> Array:
        return jax.pure_callback(callbacks.loss, jax.ShapeDtypeStruct((), x.dtype), x, shard.inputs[0])

    @jax.custom_jvp
    def slope(x: Vector, words: Array) -> Vector:
        return jax.pure_callback(callbacks.grad, jax.ShapeDtypeStruct(x.shape, x.dtype), x, words)

    @slope.defjvp
    def curve(given: tuple[Vector, Array], along: tuple[Vector, object]) -> tuple[Vector, Vector]:
        (x, words), (v, _) = given, along
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return slope(x, words), jax.pure_callback(callbacks.curve, like, x, v, words, vmap_method="sequential")

    def grad(x: Vector, shard: Shards, key: RandomKey | None = None) -> Vector:
        return slope(x, in_words(key))

    def descend(
        x: Vector,
        shard: Shards,
        key: RandomKey | None,
        *,
        steps: int,
        lr: ArrayLike,
        shift: Vector | None = None,
        pull: float = 0.0,
        snapshot: ArrayLike | None = None,
    ) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        shift, after = jnp.zeros_like(x) if shift is None else shift, -1 if snapshot is None else snapshot
        u, seen = jax.pure_callback(
            lambda *given: callbacks.descend(steps, *given), (like, like), x, in_words(key), lr, shift, pull, after
        )
        return u if snapshot is None else (u, seen)

    def predict(x: Vector, which: Array) -> Array:
        like = jax.ShapeDtypeStruct((*which.shape, *(outputs or ())), x.dtype)
        return jax.pure_callback(callbacks.predict, like, x, which[0])

    return Task(
        name, x.size, loss, grad, descend, lambda key: x, None if outputs is None else predict, lambda shard: shard
    )


def callback_score(called: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Score:
    """A score of (outputs, labels) that another library computes: a number of the outputs' type."""

    def score(outputs: Array, labels: Array, real: Array) -> Array:
        return jax.pure_callback(called, jax.ShapeDtypeStruct((), outputs.dtype), outputs, labels)

    return score


def in_words(key: RandomKey | None) -> Array:
    return jnp.zeros(2, jnp.uint32) if key is None else jax.random.key_data(key)


def _elsewhere(*_: Any) -> NoReturn:
    raise EquipoiseError("the model and the examples of this task are at the sites; only they can compute with it")


ELSEWHERE = Callbacks(_elsewhere, _elsewhere, _elsewhere, _elsewhere, _elsewhere)
