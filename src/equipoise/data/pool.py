"""The clients' examples stored once, row after row, instead of padded to the largest client."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Int

from equipoise.data import partition
from equipoise.data.dataset import Dataset
from equipoise.data.shards import Shards, aligned_zeros, stack
from equipoise.errors import InputError, require
from equipoise.protocol import RandomKey


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inputs", "labels", "starts", "sizes", "scale", "offset"],
    meta_fields=["capacity", "dtype"],
)
@dataclass(frozen=True)
class Pool:
    """n clients' examples in one array each, client i's in the rows from starts[i] on.

    `client(i)` is the padded shard that `Shards.client(i)` would be. Small integers (pixels, quantised
    features) stay as they are until then: with a scale the client sees inputs * scale + offset, as `dtype`.
    The largest client is stored last, so that `capacity` rows can be read from any start.
    """

    inputs: Array  # [total, ...]
    labels: Array  # [total] or [total, k]
    starts: Int[Array, " n"]
    sizes: Int[Array, " n"]
    scale: Array | None
    offset: Array | None
    capacity: int  # examples of the largest client
    dtype: DTypeLike  # of the floats that a client sees

    @property
    def n(self) -> int:
        return self.sizes.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def client(self, i: Int[ArrayLike, ""]) -> Shards:
        """Client i's own shard, zeros from its size on; i may be traced."""
        size = self.sizes[i]
        inputs, labels = (
            jax.lax.dynamic_slice_in_dim(a, self.starts[i], self.capacity) for a in (self.inputs, self.labels)
        )
        inputs = self.as_seen(inputs)
        real = jnp.arange(self.capacity, dtype=size.dtype) < size

        def masked(a: Array) -> Array:
            return jnp.where(real.reshape(-1, *[1] * (a.ndim - 1)), a, 0)

        return Shards(masked(inputs), masked(labels), size)

    def as_seen(self, inputs: Array) -> Array:
        """Rows of `inputs` as a client sees them."""
        if self.scale is not None and self.offset is not None:
            scale, offset = (jnp.broadcast_to(a, inputs.shape) for a in (self.scale, self.offset))
            return inputs.astype(self.dtype) * scale + offset
        return inputs.astype(self.dtype) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs

    @property
    def padding(self) -> float:
        """How many times the rows it would hold if every client had as many as the largest."""
        return self.n * self.capacity / self.labels.shape[0]

    def apart(self) -> "Pool":
        """Every client as a pool of its own, in arrays with a leading axis of clients, padded and otherwise as stored.

        What stands in the padding is somebody else's, which `client` hides.
        """
        rows = np.asarray(self.starts)[:, None] + np.arange(self.capacity)
        first, sizes = np.zeros((self.n, 1), np.int32), np.asarray(self.sizes)[:, None]
        inputs, labels = (np.asarray(a)[rows] for a in (self.inputs, self.labels))
        scale, offset = (a if a is None else np.broadcast_to(a, (self.n, *a.shape)) for a in (self.scale, self.offset))
        return Pool(inputs, labels, first, sizes, scale, offset, self.capacity, self.dtype)  # type: ignore[arg-type]

    def padded(self) -> Shards:
        """All clients side by side, each padded to the largest: n * capacity examples of memory."""
        return jax.lax.map(self.client, jnp.arange(self.n))


def federate(
    inputs: ArrayLike,
    labels: ArrayLike,
    parts: Sequence[ArrayLike],
    *,
    scale: ArrayLike | None = None,
    offset: ArrayLike = 0.0,
    dtype: DTypeLike | None = None,
) -> Pool:
    """A pool of the rows `parts[i]` for every client i; inputs may be memory-mapped.

    Without a scale, integer inputs are tokens and stay integers. `dtype` is jax's default float unless given.
    """
    inputs, labels = (a if isinstance(a, np.ndarray) else np.asarray(a) for a in (inputs, labels))
    rows_of = [np.asarray(rows, np.int64) for rows in parts]
    require(rows_of, "no clients were given; give at least one list of rows")
    require(
        len(inputs) == len(labels), f"there are {len(inputs)} inputs but {len(labels)} labels; give one label per input"
    )
    sizes = np.array([len(rows) for rows in rows_of])
    empty = np.flatnonzero(sizes == 0)
    require(
        not empty.size,
        f"client {empty[0] if empty.size else 0} has no samples, nor have {empty.size - 1} others; "
        "leave them out, or divide with a larger min_size",
    )
    order = np.argsort(sizes, kind="stable")  # the largest client last
    stored = np.concatenate([rows_of[i] for i in order])
    require(
        stored.min() >= 0 and stored.max() < len(inputs),
        f"a client has row {stored.max()} of {len(inputs)} (or a negative one); divide these labels",
    )
    starts = np.empty(len(sizes), np.int64)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    dtype = jnp.dtype(dtype or jnp.result_type(float))

    def column(what: str, a: np.ndarray) -> Array:
        rows = aligned_zeros((len(stored), *a.shape[1:]), a.dtype)
        np.take(a, stored, axis=0, out=rows, mode="clip")  # all are there; "raise" would take a copy
        require(
            rows.dtype.kind != "f" or np.isfinite(rows).all(),
            f"some {what} are NaN or infinite; clean them or leave those rows out",
        )
        return jax.device_put(rows)

    y = column("labels", labels)
    return Pool(
        inputs=column("inputs", inputs),
        labels=y.astype(dtype if jnp.issubdtype(y.dtype, jnp.floating) else jnp.int32),
        starts=jnp.asarray(starts, jnp.int32),
        sizes=jnp.asarray(sizes, jnp.int32),
        scale=None if scale is None else jnp.asarray(scale, dtype),
        offset=None if scale is None else jnp.asarray(offset, dtype),
        capacity=int(sizes.max()),
        dtype=dtype,
    )


def natural(dataset: Dataset, *, min_size: int = 10) -> tuple[partition.Partition, partition.Partition | None]:
    """The data set's own owners, in the training set and in the official test set if there is one.

    Owners with fewer than `min_size` training rows, or without a test row, are left out.
    """
    require(dataset.groups is not None, f"{dataset.name} names no owners; divide it by `equipoise.data.partition`")
    names = np.array(dataset.group_names)
    train = names[np.asarray(dataset.groups)]
    divided = partition.by_column(train, labels=dataset.labels, min_size=min_size)
    if dataset.test_groups is None:
        return divided, None
    test = names[dataset.test_groups]
    both = [name for name in divided.summary.clients if name in set(test)]
    return (
        partition.by_column(train, labels=dataset.labels, clients=both),
        partition.by_column(test, labels=dataset.test_labels, clients=both),
    )


def pools(
    dataset: Dataset,
    parts: Sequence[partition.Rows],
    *,
    key: RandomKey | int,
    test: float = 0.2,
    test_parts: Sequence[partition.Rows] | None = None,
    max_size: int | None = None,
    thin: tuple[float, float] | None = None,
) -> tuple[Pool, Pool]:
    """(train, test) pools of a data set divided into `parts`.

    The test set is the official one, divided by `test_parts` or else as the training labels are; without an
    official one each client gives up a share `test` of its own samples. `max_size` and `thin=(0.3, 0.7)` then
    cut the training parts as `partition.at_most` and `partition.thin` do.
    """
    train, tested = hold_out(dataset, parts, key=key, test=test, test_parts=test_parts, max_size=max_size, thin=thin)
    rows = tests = dataset.inputs, dataset.labels
    if dataset.test_inputs is not None and dataset.test_labels is not None:
        tests = dataset.test_inputs, dataset.test_labels
    made = partial(federate, scale=dataset.scale, offset=dataset.offset)
    return made(*rows, train), made(*tests, tested)


def set_aside(data: Pool | Shards, *, share: float, key: RandomKey | int) -> tuple[Pool | Shards, Pool | Shards]:
    """(the rest, a share of every client's rows), of examples that are divided already."""
    sizes, inputs, labels = (np.asarray(a) for a in (data.sizes, data.inputs, data.labels))
    require(sizes.min() >= 2, "some client has one row, of which none can be set aside; leave it out")
    if isinstance(data, Pool):
        starts = np.asarray(data.starts)
    else:
        starts = np.arange(data.n) * labels.shape[1]
        inputs, labels = np.concatenate(inputs), np.concatenate(labels)
    parts = [start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]
    strata = labels if labels.ndim == 1 else np.zeros(len(labels))
    rest, aside = partition.split(parts, strata, test=share, key=key)
    if isinstance(data, Pool):
        offset = 0.0 if data.offset is None else data.offset
        made = partial(federate, inputs, labels, scale=data.scale, offset=offset, dtype=data.dtype)
        return made(rest), made(aside)
    return stack([(inputs[rows], labels[rows]) for rows in rest]), stack([(inputs[r], labels[r]) for r in aside])


def hold_out(
    dataset: Dataset,
    parts: Sequence[partition.Rows],
    *,
    key: RandomKey | int,
    test: float = 0.2,
    test_parts: Sequence[partition.Rows] | None = None,
    max_size: int | None = None,
    thin: tuple[float, float] | None = None,
) -> tuple[Sequence[partition.Rows], Sequence[partition.Rows]]:
    """(train, test) rows of every client, as `pools` takes them; test rows are of the official set if there is one."""
    if dataset.test_inputs is None or dataset.test_labels is None:
        parts, test_parts = partition.split(parts, dataset.labels, test=test, key=key)
    elif test_parts is None:
        test_parts = partition.follow(parts, dataset.labels, dataset.test_labels, key=key)
    if max_size is not None:
        parts = partition.at_most(parts, key, max_size)
    if thin is not None:
        parts = partition.thin(parts, key, clients=thin[0], samples=thin[1])
    return parts, test_parts


def alike(federations: Sequence[Any]) -> list[Any]:
    """The same federations, filled up with rows of no client to one shape, so that one program serves them all.

    Shards and Pools can be filled up; data of other kinds has to have one shape already.
    """
    shapes = {str(jax.tree.map(lambda a: (a.shape, a.dtype), data)) for data in federations}
    if len(shapes) == 1:
        return list(federations)
    if all(isinstance(data, Shards) for data in federations):
        rows, axis, changes = max(data.labels.shape[1] for data in federations), 1, {}
    elif all(isinstance(data, Pool) for data in federations):
        capacity = max(data.capacity for data in federations)
        # From the start of every client `capacity` rows can be read.
        rows = max(max(len(data.labels), int(np.max(data.starts)) + capacity) for data in federations)
        axis, changes = 0, {"capacity": capacity}
    else:
        raise InputError("the trials' data differ in shape, and only Shards and Pools can be padded; give those")

    def filled(a: ArrayLike) -> Any:
        a = np.asarray(a)
        width = [(0, 0)] * a.ndim
        width[axis] = (0, rows - a.shape[axis])
        return np.pad(a, width)

    def padded(data: Any) -> Any:
        arrays = {name: filled(getattr(data, name)) for name in ("inputs", "labels")}
        return data._replace(**arrays) if isinstance(data, Shards) else replace(data, **arrays, **changes)

    return [padded(data) for data in federations]
