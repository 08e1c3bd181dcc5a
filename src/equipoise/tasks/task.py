"""What every client minimises: f_i, its (stochastic) gradient and its local descent, over flat vectors."""

import json
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise import tensors
from equipoise.data import ClientData
from equipoise.errors import InputError, require
from equipoise.local import Descend, Optimizer
from equipoise.protocol import Data, RandomKey, Vector

Scalar = Float[Array, ""]
Params = TypeVar("Params")  # a model as it was given: a tree of arrays, or the flat vector itself
Convexity = float | tuple[float, ...]  # a tuple has a number for every parameter


class Linear(NamedTuple):
    """A model that is linear in its inputs: x = (weights [outputs, features], intercepts [outputs] if it has any)."""

    features: int
    outputs: int
    intercept: bool
    curvature: float  # what the second moments of the inputs are multiplied by in a Hessian, about
    l2: Convexity
    loss: Callable[..., Scalar]  # a task with another loss, such as an envelope, only has the layout of x from here


class Examples(NamedTuple):
    """What a loss over examples is made of: the mean of `losses(outputs(x, inputs), labels)`, and l2/2 |x|^2."""

    outputs: Callable[[Vector, Array, RandomKey | None], Array]  # [m, k] or [m]; a key for what is left to chance
    losses: Callable[[Array, Array], Array]  # of outputs and labels, one number each
    l2: Convexity
    batch: int | None = None
    random: bool = False
    # The curvature of `losses` in the outputs: that of softmax, a number in every direction, or found by JAX.
    bend: Literal["softmax"] | float | None = None
    linear: bool = False  # outputs are X a, of weights X and inputs a, without an intercept


class Own(NamedTuple):
    """What owners keep of a model for themselves: numbers B [k, q], by which B phi(a) is added to its outputs.

    Models are then scored on pairs of rows (`data.OwnerRows`): B is fitted to those that the owner trains on.
    """

    inputs: tuple[int, ...]  # phi(a) = (1, a[inputs])
    fit: Callable[[Vector, Data], Array]  # fit(x, shard) = B, of an owner's rows as they are
    outputs: Callable[[Vector, Array, Array], Array]  # outputs(x, B, inputs)
    loss: Callable[[Vector, Array, Data], Scalar]  # loss(x, B, shard), of any rows, l2 included


class Task(NamedTuple, Generic[Params]):
    """A loss over flat vectors of length `size`.

    With a key, `loss` and `grad` use a minibatch drawn with it (if the task has one); without, the whole shard.
    All three take a client's raw shard or what `prepare` made of it.
    """

    name: str
    size: int
    loss: Callable[..., Scalar]  # loss(x, shard, key=None) = f_i(x)
    grad: Callable[..., Vector]  # grad(x, shard, key=None) = g_i(x)
    descend: Descend  # descend(x, shard, key, *, steps, lr, shift, pull, snapshot), see local.py
    init: Callable[[RandomKey | int], Vector]  # a start
    predict: Callable[[Vector, Array], Array] | None  # model outputs [b, ...] of inputs [b, ...]
    prepare: Callable[[Data], Data]  # run once per client, on its own data
    strong_convexity: Convexity | None = None  # of every f_i, whatever the data; None: no such promise
    ravel: Callable[[Params], Vector] = lambda params: params  # type: ignore[assignment,return-value]  # -> the flat vector
    unravel: Callable[[Vector], Params] = lambda x: x  # type: ignore[assignment,return-value]  # and back
    curves: float | None = None  # at least so much, about: weights may be chosen by it, and no bound rests on it
    linear: Linear | None = None  # None: the model is not linear in its inputs, or nobody has said so
    examples: Examples | None = None  # what it is made of; None: it is not of examples, or nobody has said it
    own: Own | None = None  # where owners have parts of their own (`own_part`)

    def save(self, params: Params | Vector, path: str | PathLike[str]) -> None:
        """A model as a .safetensors file: a flat vector, such as `algorithm.model(server)`, or parameters as given."""
        flat = isinstance(params, jax.Array | np.ndarray) and params.shape == (self.size,)
        x = np.asarray(params if flat else self.ravel(params))  # type: ignore[arg-type]
        require(
            x.shape == (self.size,),
            f"the model has shape {x.shape}, and '{self.name}' is over {self.size} numbers; give a model of this task",
        )
        require(bool(np.isfinite(x).all()), "the model holds NaN or infinity; it is not worth saving")
        tensors.write(Path(path), {"x": x}, json.dumps({"task": self.name, "size": self.size}))

    def load(self, path: str | PathLike[str]) -> Params:
        """What `save` of the same task wrote, in the form of its parameters; `ravel` of it is the flat vector."""
        path = Path(path)
        require(path.is_file(), f"there is no file {path}")
        try:
            arrays, text = tensors.read(path)
            about = json.loads(text or "{}")
        except (tensors.Unreadable, ValueError) as error:
            raise InputError(f"{path.name} cannot be read as a saved model: {error}") from None
        x = arrays.get("x")
        same = isinstance(about, dict) and (about.get("task"), x is not None and x.shape) == (self.name, (self.size,))
        require(
            same,
            f"{path.name} is no model of the task '{self.name}' over {self.size} numbers; load it with the task that "
            "saved it (a model of a run folder: eq.artifact.load)",
        )
        return self.unravel(jnp.asarray(x))


def with_local_optimizer(task: Task, optimizer: Optimizer) -> Task:
    """`task`, whose local steps are u += local_lr * (the optimizer's update of the gradient).

    Its state is fresh in every round, and its schedules count local steps. Give local_lr = 1 where the optimizer has
    the learning rate: with_local_optimizer(task, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))).
    For FedAvg, FedProx, AFL, DRFA, q-FedAvg, TERM, PropFair and Delta-FL; SCAFFOLD and SCAFF-PD, whose corrections are
    read off plain descent, decline it.
    """
    return task._replace(descend=partial(task.descend, optimizer=optimizer))


def least(numbers: Convexity | None) -> float:
    """What holds in every direction; nothing promised is zero."""
    return 0.0 if numbers is None else min(numbers) if isinstance(numbers, tuple) else numbers


def penalty(l2: Convexity, x: Vector) -> Scalar:
    """sum_j l2_j/2 x_j^2."""
    return jnp.sum(shrink(l2, x) * x) / 2 if isinstance(l2, tuple) else l2 / 2 * (x @ x)


def shrink(l2: Convexity, x: Vector) -> Vector:
    """Its gradient."""
    return (jnp.asarray(np.array(l2), x.dtype) if isinstance(l2, tuple) else l2) * x


def losses(task: Task, x: Vector, data: ClientData) -> Float[Array, " n"]:
    """(f_1(x), ..., f_n(x)) over a whole federation at once."""
    return _of_every_client(task.loss, x, data)


@partial(jax.jit, static_argnums=0)
def _of_every_client(loss: Callable[..., Scalar], x: Vector, data: ClientData) -> Float[Array, " n"]:
    """Compiled, because a loop outside of a program is compiled again in every call."""
    return jax.lax.map(lambda i: loss(x, data.client(i)), jnp.arange(data.n))
