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
        return _shards_alike(federations)
    if all(isinstance(data, Pool) for data in federations):
        return _pools_alike(federations)
    raise InputError("the trials' data differ in shape, and only Shards and Pools can be padded; give those")


def _shards_alike(federations: Sequence[Shards]) -> list[Shards]:
    rows = max(data.labels.shape[1] for data in federations)
    return [
        data._replace(inputs=_filled(data.inputs, 1, rows), labels=_filled(data.labels, 1, rows))
        for data in federations
    ]


def _pools_alike(federations: Sequence[Pool]) -> list[Pool]:
    capacity = max(data.capacity for data in federations)
    # From the start of every client `capacity` rows can be read.
    rows = max(max(len(data.labels), int(np.max(data.starts)) + capacity) for data in federations)
    return [
        replace(data, inputs=_filled(data.inputs, 0, rows), labels=_filled(data.labels, 0, rows), capacity=capacity)
        for data in federations
    ]


def _filled(a: ArrayLike, axis: int, length: int) -> Any:
    a = np.asarray(a)
    width = [(0, 0)] * a.ndim
    width[axis] = (0, length - a.shape[axis])
    return np.pad(a, width)
