"""The clients' examples as arrays with a leading client axis."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Int

from equipoise.errors import require
from equipoise.protocol import Data


@runtime_checkable
class ClientData(Protocol):
    """What engines need of the clients' data: a pytree of arrays (JAX's or NumPy's) with these three.

    `Shards` and `Pool` are two of them. A class of your own becomes a pytree by
    `jax.tree_util.register_dataclass`; its arrays are then operands of the compiled program, not part of it.
    """

    @property
    def n(self) -> int:
        """How many clients."""

    @property
    def sizes(self) -> Any:
        """[n]: each client's number of examples."""

    def client(self, i: ArrayLike) -> Data:
        """Client i's own shard, a tree of arrays of the same shape for all; `i` may be traced."""


class Shards(NamedTuple):
    """The examples of n clients, padded to a common length m; rows from `sizes` on are padding.

    One client's shard is the same tuple without the leading axis: inputs [m, ...], labels [m, ...], sizes [].
    """

    inputs: Array  # [n, m, ...]
    labels: Array  # [n, m] or [n, m, k]
    sizes: Int[Array, " n"]

    @property
    def n(self) -> int:
        return self.sizes.shape[0]

    def client(self, i: Int[ArrayLike, ""]) -> "Shards":
        """Client i's own shard."""
        return jax.tree.map(lambda a: a[i], self)


class OwnerRows(NamedTuple):
    """The rows to train on, and those to score models on; of all owners, or of one."""

    train: Data
    test: Data  # the same where none were held out

    @property
    def n(self) -> int:
        return self.train.n

    @property
    def sizes(self) -> Array:
        return self.train.sizes

    def client(self, i: ArrayLike) -> "OwnerRows":
        return OwnerRows(self.train.client(i), self.test.client(i))


def client_shapes(data: ClientData) -> Data:
    """The shapes of one client's shard, as `data.client` gives it; traced once for data of one shape."""
    return jax.eval_shape(_first_client, data)


@jax.jit
def _first_client(data: ClientData) -> Data:
    return data.client(0)


def shard_like(row: tuple[int, ...], dtype: DTypeLike, label: tuple[int, ...], label_dtype: DTypeLike) -> Shards:
    """The shapes of one client's shard, of one row: what is traced where the rows are somewhere else."""
    shape: Any = jax.ShapeDtypeStruct
    return Shards(shape((1, *row), dtype), shape((1, *label), label_dtype), shape((), jnp.int32))


def stack(clients: Sequence[tuple[ArrayLike, ArrayLike]]) -> Shards:
    """Shards from one (inputs, labels) pair per client; clients may be of unequal size."""
    require(len(clients) > 0, "no clients were given; give at least one (inputs, labels) pair")
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in clients]
    first_inputs, first_labels = pairs[0]
    for i, (inputs, labels) in enumerate(pairs):
        require(
            inputs.ndim > 0 and len(inputs) > 0, f"client {i} has no examples; leave it out or give it at least one"
        )
        require(
            len(inputs) == len(labels),
            f"client {i} has {len(inputs)} inputs but {len(labels)} labels; give one label per input",
        )
        for what, a, like in (("inputs", inputs, first_inputs), ("labels", labels, first_labels)):
            require(
                a.shape[1:] == like.shape[1:],
                f"client {i} has {what} of shape {a.shape[1:]} per example, client 0 has {like.shape[1:]}; "
                "all clients need the same",
            )
            require(
                not np.issubdtype(a.dtype, np.floating) or np.isfinite(a).all(),
                f"client {i} has {what} that are NaN or infinite; clean them or leave those rows out",
            )
    m = max(len(inputs) for inputs, _ in pairs)

    def padded(column: int) -> Array:
        like = pairs[0][column]
        out = aligned_zeros((len(pairs), m, *like.shape[1:]), np.result_type(*(p[column] for p in pairs)))
        for row, pair in zip(out, pairs, strict=True):
            row[: len(pair[column])] = pair[column]
        return jax.device_put(out)

    return Shards(padded(0), padded(1), jnp.asarray([len(inputs) for inputs, _ in pairs], jnp.int32))


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array that `jax.device_put` need not copy on a CPU: XLA wants memory on a boundary of 64 bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)
