"""How an engine hands each client its own data, prepared once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise.data.pool import Pool
from equipoise.data.shards import ClientData, Shards
from equipoise.protocol import Algorithm, Data


class StackedData(NamedTuple):
    """One row per client in every array: of shards, or of pools with one client each."""

    tree: PyTree[Array]

    @property
    def n(self) -> int:
        return jax.tree.leaves(self.tree)[0].shape[0]

    def client(self, i: ArrayLike) -> Data:
        return shard_of(jax.tree.map(lambda a: a[i], self.tree))


def shard_of(row: Data) -> Data:
    """A client's shard, from its row of every array."""
    return row.client(0) if isinstance(row, Pool) else row


class SpreadData(NamedTuple):
    """As `StackedData`, over devices that hold a share each, with rows at the end that belong to nobody."""

    tree: PyTree[Array]

    def in_order(self, ids: np.ndarray, rows: int) -> bool:
        """Whether the data of the clients `ids`, in that order and filled up to `rows`, is all there is."""
        return np.array_equal(ids, np.arange(len(ids))) and jax.tree.leaves(self.tree)[0].shape[0] == rows


class PreparedData(NamedTuple):
    """The clients' prepared data: `StackedData`, `SpreadData`, or what the user gave, if its tasks take it as it is."""

    source: Any

    @property
    def n(self) -> int:
        return self.source.n

    def rows(self, ids: ArrayLike) -> Data:
        """The data of the clients `ids`, one row each."""
        if (
            isinstance(self.source, StackedData)
            and isinstance(ids, np.ndarray)
            and np.array_equal(ids, np.arange(self.n))
        ):
            return jax.vmap(shard_of)(self.source.tree)  # everyone, in order: nothing to gather
        return jax.vmap(self.source.client)(jnp.asarray(ids))


def prepare_data(algorithm: Algorithm, data: ClientData) -> PreparedData:
    """Every client's shard through `algorithm.prepare`."""
    data = jax.tree.map(jnp.asarray, data)
    prepared = prepare(algorithm.prepare, data)
    return as_given(data) if prepared is None else prepared


def padding(data: ClientData) -> float | None:
    """How much more memory the data takes with a row per client in every array; None: it cannot lie so."""
    return data.padding if isinstance(data, Pool) else 1.0 if isinstance(data, Shards) else None


def by_client(data: ClientData) -> PyTree[Array]:
    """The data with a row per client in every array."""
    return data.apart() if isinstance(data, Pool) else data


def as_given(data: ClientData) -> PreparedData:
    """For an algorithm that takes the shards as they are."""
    return PreparedData(StackedData(data) if isinstance(data, Shards) else data)


def prepare(on_client: Callable[[Data], Data], data: ClientData | StackedData) -> PreparedData | None:
    """What `on_client` makes of every shard, one client at a time; None: it leaves them as they are."""
    untouched = False

    def look(data: ClientData | StackedData) -> Data:
        nonlocal untouched
        shard = data.client(0)
        prepared = on_client(shard)
        untouched = prepared is shard
        return prepared

    jax.eval_shape(look, data)
    if untouched:
        return None
    return PreparedData(StackedData(jax.lax.map(lambda i: on_client(data.client(i)), jnp.arange(data.n))))
