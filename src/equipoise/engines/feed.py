"""How an engine hands each client its own data, prepared once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from equipoise.data.shards import Shards
from equipoise.protocol import Data


class Stacked(NamedTuple):
    """One row per client in every array."""

    tree: PyTree[Array]

    @property
    def n(self) -> int:
        return jax.tree.leaves(self.tree)[0].shape[0]

    def client(self, i: Any) -> Data:
        return jax.tree.map(lambda a: a[i], self.tree)


class Feed(NamedTuple):
    """The clients' prepared data: `Stacked`, or a layout of the user's with `.n` and `.client(i)`."""

    source: Any

    @property
    def n(self) -> int:
        return self.source.n

    def rows(self, ids: Any) -> Data:
        """The data of the clients `ids`, one row each."""
        if isinstance(self.source, Stacked) and isinstance(ids, np.ndarray) and np.array_equal(ids, np.arange(self.n)):
            return self.source.tree  # everyone, in order: nothing to gather
        return jax.vmap(self.source.client)(jnp.asarray(ids))


def feed(prepare: Callable[[Data], Data], data: Any) -> Feed:
    """Every client's shard through `prepare`, one client at a time."""
    untouched = False

    def prepared(i: Any) -> Data:
        nonlocal untouched
        shard = data.client(i)
        out = prepare(shard)
        untouched = out is shard
        return out

    jax.eval_shape(prepared, 0)
    if untouched:
        return Feed(Stacked(data) if isinstance(data, Shards) else data)
    return Feed(Stacked(jax.jit(lambda ids: jax.lax.map(prepared, ids))(jnp.arange(data.n))))
