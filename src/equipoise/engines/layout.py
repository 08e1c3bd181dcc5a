"""Where the clients of a cohort run: over which devices, and how many side by side on each."""

import sys
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from equipoise.errors import require
from equipoise.protocol import Data, nbytes

SMALL = 1 << 16  # bytes of a client's data up to which a CPU does better with all clients in one vectorised loop


class Layout(NamedTuple):
    """A mesh with one axis, "clients"; None: one device."""

    mesh: Mesh | None
    clients_per_batch: int

    @property
    def whole(self) -> NamedSharding | None:
        """A copy on every device: how all arrays lie between rounds."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def lanes(self, size: int) -> int:
        """How many of a device's `size` clients run side by side."""
        return min(self.clients_per_batch, size)

    def place(self, tree: Any) -> Any:
        """`tree` on every device of the mesh."""
        return jax.device_put(tree) if self.mesh is None else jax.device_put(tree, self.whole)

    def share(self, tree: Any) -> Any:
        """As `place`, for what is only read: the devices of a CPU, its cores, share one copy in memory."""
        if self.mesh is not None and jax.default_backend() == "cpu":
            tree = jax.tree.map(np.asarray, tree)  # views, which JAX does not copy
        return self.place(tree)


SIDE_BY_SIDE = Layout(None, sys.maxsize)  # all clients of a cohort at once, on one device


def lay_out(shard: Data, m: int, devices: int | None, clients_per_batch: int | None) -> Layout:
    """The layout for cohorts of m clients with data like `shard`; None means the better choice for the device.

    An accelerator wants all clients side by side. On a CPU that holds for small clients only: larger ones run one by
    one on every core, each with the caches to itself.
    """
    available = jax.local_devices()
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
        devices = 1 if together and jax.default_backend() == "cpu" else min(len(available), m)
    if clients_per_batch is None:
        clients_per_batch = m if together else 1
    clients_per_batch = min(clients_per_batch, m)
    if devices == 1:
        return Layout(None, clients_per_batch)
    mesh = jax.make_mesh((devices,), ("clients",), (AxisType.Auto,), devices=available[:devices])
    return Layout(mesh, clients_per_batch)
