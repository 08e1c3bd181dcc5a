"""The parts of a trained model that owners keep for themselves: one exchange after training.

down    the shared model
up      the sum over the owners of their parts, and their number: the mean of them is what a new owner gets

The part stays with its owner, as the client's state. Where nothing hides the parts of a sum nothing goes up, and a new
owner begins with a part of zero.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise import tensors
from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import ModelMessage, send_model
from equipoise.cohorts import everyone
from equipoise.engines.simulator import simulate
from equipoise.errors import InputError, not_none
from equipoise.experiment import records
from equipoise.experiment.problems import Problem
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, weighted

Parts = Float[Array, "n k q"]


class Server(NamedTuple):
    """The shared model, and the mean of the owners' parts."""

    x: Vector
    part: Float[Array, "k q"]


def mean_part(problem: Problem, *, tell: bool = True) -> Algorithm:
    """An algorithm of one round, for any engine: clients end with their parts, the server with the mean of them.

    `tell`: the server is told sums; otherwise nothing.
    """
    task, n = problem.plain_task, problem.n
    own, sample = not_none(task.own), everyone(problem.n)
    shape = jax.eval_shape(own.fit, problem.x, problem.train.client(0))

    def init_client(x: Vector) -> Array:
        return jnp.zeros(shape.shape, x.dtype)

    def init(x: Vector) -> Server:
        return Server(x, init_client(x))

    def fit(message: ModelMessage, _: Array, data: Data, key: RandomKey) -> tuple[Array, Reply]:
        part = own.fit(message.x, data)
        return part, Reply(total=weighted(jnp.ones((), part.dtype), part)) if tell else Reply()

    def note(server: Server, replies: Replies) -> Server:
        return server._replace(part=mean(replies.total)) if tell else server

    exchange = Exchange("own part", sample.open, send_model, fit, note, writes=True, unit=True)
    return measurement("own_parts", n, task.size, exchange, init=init, init_client=init_client)


def made(problem: Problem, x: Vector, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Where all rows are at hand: every owner's part [n, k, q], and the mean of them."""
    end = simulate(mean_part(problem), x, problem.compiled_for, seed, rounds=1)
    return np.asarray(end.clients), np.asarray(end.server.part)


def of_models(problem: Problem, models: Array) -> np.ndarray:
    """[n, k, q]: those of models that owners have for themselves, [n, d]."""
    own, train = not_none(problem.plain_task.own), problem.compiled_for
    fit = jax.jit(lambda models, train: jax.lax.map(lambda i: own.fit(models[i], train.client(i)), jnp.arange(train.n)))
    return np.asarray(fit(jnp.asarray(models), jax.tree.map(jnp.asarray, train)))


def write(folder: Path, problem: Problem, parts: np.ndarray) -> None:
    write_of_owners(folder / records.OWN_PARTS, "parts", problem.names, parts)


def read(folder: Path) -> dict[str, np.ndarray] | None:
    return read_of_owners(folder / records.OWN_PARTS, "parts")


def write_of_owners(path: Path, what: str, owners: Sequence[str], rows: np.ndarray) -> None:
    """An array with a row for each owner."""
    tensors.write(path, {what: rows}, json.dumps({"owners": list(owners)}))


def read_of_owners(path: Path, what: str) -> dict[str, np.ndarray] | None:
    """By owner; None: owners have none."""
    if not path.is_file():
        return None
    try:
        arrays, about = tensors.read(path)
        return dict(zip(json.loads(about)["owners"], arrays[what], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); it is damaged") from None
