"""Where the clients of a cohort run: over which devices, and how many side by side on each."""

import sys
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from equipoise.errors import require
from equipoise.protocol import Data, nbytes

Tree = TypeVar("Tree")
SMALL = 1 << 16  # bytes of a client's data up to which a CPU does better with all clients in one vectorised loop


class Layout(NamedTuple):
    """A mesh with one axis, "clients"; None: one device."""

    mesh: Mesh | None
    clients_per_batch: int  # of a device's clients, how many run side by side at most
    spread: bool = False  # whether every device holds its share of the clients' data and states, and no other's

    @property
    def whole(self) -> NamedSharding | None:
        """A copy on every device: for everything but the clients' own data and states."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @property
    def by_client(self) -> NamedSharding | None:
        """How the clients' own data and states are spread over the devices."""
        return (
            NamedSharding(self.mesh, PartitionSpec("clients")) if self.mesh is not None and self.spread else self.whole
        )

    def place(self, tree: Tree) -> Tree:
        """`tree` on every device of the mesh."""
        return on_device(tree) if self.mesh is None else put(tree, self.whole)

    def place_shared(self, tree: Tree) -> Tree:
        """As `place`, for what is only read: the devices of a CPU, its cores, share one copy in memory."""
        if self.mesh is not None and jax.default_backend() == "cpu":
            tree = jax.tree.map(np.asarray, tree)  # views, which JAX does not copy
        return self.place(tree)

    def rows(self, n: int) -> int:
        """Of a table with a row per client: as many for every device."""
        return n + -n % self.mesh.size if self.mesh is not None and self.spread else n

    def filled(self, table: Array | np.ndarray) -> Array | np.ndarray:
        """A table with a row per client, filled up with copies of the last; nobody asks for those."""
        more = self.rows(table.shape[0]) - table.shape[0]
        fill = np.pad if isinstance(table, np.ndarray) else jnp.pad
        return fill(table, [(0, more), *[(0, 0)] * (table.ndim - 1)], mode="edge") if more else table

    def of_clients(self, tree: Tree) -> Tree:
        """Tables with a row per client, each device's share on the device."""
        return put(jax.tree.map(self.filled, tree), self.by_client) if self.spread else self.place(tree)

    def gathered(self, tree: Tree, n: int) -> Tree:
        """The rows of the n clients, from wherever they lie."""
        if self.spread and jax.process_count() > 1:
            tree = multihost_utils.process_allgather(tree, tiled=True)
        return jax.tree.map(lambda table: table[:n], tree) if self.spread else tree


SIDE_BY_SIDE = Layout(None, sys.maxsize)  # all clients of a cohort at once, on one device


def on_device(tree: Tree) -> Tree:
    """`jax.device_put` of what is not there yet: to ask it for arrays that are takes as long as some small rounds."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, Array) else jax.device_put(leaf), tree)


def put(tree: Tree, sharding: NamedSharding | None) -> Tree:
    """`jax.device_put`, also over the devices of several processes that all have the same `tree`."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def from_here(
        leaf: Array | np.ndarray,
    ) -> Array:  # what lies on a device of this process cannot be sent to another's
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        if isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = jax.device_put(np.asarray(jax.random.key_data(leaf)), sharding)
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        return jax.device_put(np.asarray(leaf), sharding)

    return jax.tree.map(from_here, tree)


def one_memory() -> bool:
    """Whether all devices read the same memory, as the cores of a CPU do."""
    return jax.default_backend() == "cpu" and jax.process_count() == 1


def lay_out(
    shard: Data, m: int, devices: int | None, clients_per_batch: int | None, *, padding: float | None = None
) -> Layout:
    """The layout for cohorts of m clients with data like `shard`; None means the better choice for the device.

    An accelerator wants all clients side by side. On a CPU that holds for small clients only: larger ones run one by
    one on every core, each with the caches to itself. `padding`: how many times its memory the data takes with a row
    per client, None if it cannot have that. Devices with memories of their own hold such rows of their clients, unless
    a copy of all the data takes less.
    """
    available = jax.devices()
    require(
        devices is None or 1 <= devices <= len(available),
        f"{devices} devices were asked for and JAX sees {len(available)}; give 1 to {len(available)}, or None",
    )
    require(
        clients_per_batch is None or clients_per_batch >= 1,
        f"clients_per_batch is {clients_per_batch}; give at least 1, or None to let the engine choose",
    )
    together = jax.default_backend() != "cpu" or nbytes(shard) <= SMALL
    if devices is None:
        devices = 1 if together and one_memory() else min(len(available), m)
    if jax.process_count() > 1:
        devices = len(available)  # all processes run the same program
    if clients_per_batch is None:
        clients_per_batch = m if together else 1
    clients_per_batch = min(clients_per_batch, m)
    if devices == 1:
        return Layout(None, clients_per_batch)
    mesh = jax.make_mesh((devices,), ("clients",), (AxisType.Auto,), devices=available[:devices])
    return Layout(mesh, clients_per_batch, padding is not None and padding < devices and not one_memory())
