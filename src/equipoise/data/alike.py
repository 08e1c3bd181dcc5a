"""Several federations in arrays of one shape, so that one compiled program serves them all."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from equipoise.data.pool import Pool
from equipoise.data.shards import Shards
from equipoise.errors import InputError


def alike(federations: Sequence[Any]) -> list[Any]:
    """The same federations, filled up with rows that belong to no client.

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

    def padded(data: Any) -> Any:
        arrays = {name: _filled(getattr(data, name), axis, rows) for name in ("inputs", "labels")}
        return data._replace(**arrays) if isinstance(data, Shards) else replace(data, **arrays, **changes)

    return [padded(data) for data in federations]


def _filled(a: ArrayLike, axis: int, length: int) -> Any:
    a = np.asarray(a)
    width = [(0, 0)] * a.ndim
    width[axis] = (0, length - a.shape[axis])
    return np.pad(a, width)
