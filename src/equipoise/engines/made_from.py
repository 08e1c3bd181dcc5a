"""What a result came from: enough of the numbers of an algorithm and of its data to tell when others would resume it.

An algorithm is functions, whose numbers (a penalty rho, step sizes, local steps) are in their closures; those are
looked up, nothing is traced. Of data it is the clients' sizes, a few of their rows, and sums over all rows where that
takes no time: not where they are many, or on a disk or a device. Numbers are compared up to what another device may
round or measure differently.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from equipoise.protocol import Data

CLIENTS, NUMBERS = 16, 64  # that are looked at: clients, and numbers of an array
MOST = 5000  # things in an algorithm
SUMMED, BLOCKS = 1 << 25, 1024  # bytes of an array that is summed up, and how many sums at most
CLOSE = 1e-3  # numbers of settings, relative: step sizes may have been measured, by another device too
SAME = 1e-6  # numbers of data
TRACED = "a number that is not known yet"


class MadeFrom(NamedTuple):
    """Words that have to be the same, and numbers that have to be close."""

    settings: tuple[str | float, ...] = ()  # of the algorithm
    sizes: tuple[float, ...] = ()  # of clients
    kind: str = ""  # of data
    rows: tuple[float, ...] = ()  # of some clients
    sums: tuple[float, ...] = ()  # over the rows of all of them


def made_from(algorithm: object, data: Data | None = None) -> MadeFrom:
    """Of an algorithm, and of the data that it is given."""
    parts: list[str | float] = []
    _add_parts(algorithm, parts, {})
    settings = tuple(parts[:MOST])
    if data is None:
        return MadeFrom(settings)
    sums = tuple(s for name in ("inputs", "labels") for s in _sums(getattr(data, name, None)))
    return MadeFrom(settings, tuple(_some(data.sizes)), type(data).__name__, tuple(_rows(data)), sums)


def differs(before: MadeFrom, now: MadeFrom) -> str | None:
    """What is not the same, in words; None: nothing, or nothing is known of it."""
    if before.settings and not _alike(before.settings, now.settings, CLOSE):
        return "settings (a penalty, a step size, another task or dual)"
    if before.sizes and not _alike(before.sizes, now.sizes, SAME):
        return "data: the clients have other numbers of rows"
    same_rows = not before.rows or _alike(before.rows, now.rows, SAME)
    same_sums = len(before.sums) != len(now.sums) or _alike(before.sums, now.sums, SAME)
    if before.kind == now.kind and not (same_rows and same_sums):
        return "data: rows of some clients are not the same"
    return None


def _alike(one: tuple, other: tuple, relative: float) -> bool:
    if len(one) != len(other) or [type(a) for a in one] != [type(b) for b in other]:
        return False
    pairs = list(zip(one, other, strict=True))
    numbers = np.array([(a, b) for a, b in pairs if not isinstance(a, str)], np.float64).reshape(-1, 2)
    close = np.isclose(numbers[:, 0], numbers[:, 1], rtol=relative, atol=0, equal_nan=True)
    return bool(close.all()) and all(a == b for a, b in pairs if isinstance(a, str))


def _add_parts(value: object, parts: list[str | float], seen: dict[int, object]) -> None:
    """Words and numbers in `value`, in an order that is the same whenever it is made in the same way."""
    if value is None or isinstance(value, str):
        parts.append(str(value))
    elif isinstance(value, bool | int | float | np.number):
        parts.append(float(value))
    elif id(value) not in seen and len(parts) < MOST:
        if isinstance(value, np.ndarray | jax.Array):
            parts += (TRACED,) if isinstance(value, jax.core.Tracer) else _some(value)
            return
        seen[id(value)] = value  # kept, so that no other gets its id
        for inner in _inside(value):
            _add_parts(inner, parts, seen)


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple | list):
        yield from value[:-1] if hasattr(value, "recipe") else value
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name) for field in dataclasses.fields(value))
    elif callable(value):
        function = _function(value)
        yield getattr(function, "__qualname__", type(value).__name__)
        yield from getattr(function, "__defaults__", None) or ()
        yield from (getattr(function, "__kwdefaults__", None) or {}).values()
        for cell in getattr(function, "__closure__", None) or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not set yet
                continue
    else:
        yield type(value).__name__


def _function(value: Callable) -> Callable:
    """What jit, custom derivatives, caches and methods are wrapped around."""
    for name in ("__wrapped__", "__func__", "fun"):
        if callable(inner := getattr(value, name, None)):
            return _function(inner)
    return value


def _rows(data: Data) -> Iterator[float]:
    """Numbers in the first and last rows of some clients; of data of other kinds, numbers of every array."""
    if not all(hasattr(data, name) for name in ("inputs", "labels")):
        for leaf in jax.tree.leaves(data):
            yield from _some(leaf)
        return
    sizes = _host(data.sizes)
    if sizes is None:
        return
    starts = _host(data.starts) if hasattr(data, "starts") else None  # of a Pool
    for i in _spaced(len(sizes), CLIENTS):
        for row in (0, int(sizes[i]) - 1):
            for table in (data.inputs, data.labels):
                yield from _some(table, (i, row) if starts is None else (int(starts[i]) + row,))


def _sums(array: object) -> Iterator[float]:
    """Sums over blocks of all rows, weighted so that no two rows or columns can change places."""
    if not isinstance(array, np.ndarray | jax.Array) or isinstance(array, np.memmap) or array.nbytes > SUMMED:
        return
    if isinstance(array, jax.Array) and any(device.platform != "cpu" for device in array.devices()):
        return
    values = _host(array)
    if values is None or values.dtype.kind not in "fiub" or not values.size:
        return
    for block in np.array_split(values.reshape(-1), min(BLOCKS, len(values))):
        numbers = block.astype(np.float64)
        weighted = numbers * (0.5 + np.modf(np.arange(1, numbers.size + 1) * 0.6180339887498949)[0])
        yield float(np.sum(weighted) + 4 * np.sum(np.abs(weighted)))  # positive: relative differences mean something


def _some(array: Array | np.ndarray, place: tuple = ()) -> Iterator[float]:
    """Shape and some numbers of an array, or of what is at a place in it."""
    values = _host(array, place)
    if values is None or values.dtype.kind not in "fiub":
        return
    yield from map(float, values.shape)
    numbers = values.reshape(-1)
    if numbers.size > NUMBERS:
        numbers = numbers[_spaced(numbers.size, NUMBERS)]
    yield from numbers.astype(np.float64).tolist()


def _spaced(count: int, most: int) -> np.ndarray:
    """At most so many places, from the first to the last."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def _host(array: Array | np.ndarray, place: tuple = ()) -> np.ndarray | None:
    """An array or a part of it in NumPy, without a copy of all that a device holds; None: it is in other processes."""
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable or jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            return None
        if all(device.platform == "cpu" for device in array.devices()):
            array = np.asarray(array)  # takes no copy
    return np.asarray(array[place] if place else array)
