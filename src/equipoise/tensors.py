"""Trees of arrays as .safetensors files and back, with a text in the file's header. Nothing in them is executed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import PyTree

from equipoise.files import write_whole

# One key: safetensors writes several in any order, and files of equal runs are equal.
KEY = "equipoise"


class Unreadable(ValueError):
    """The file is damaged, or not a .safetensors."""


class Misfit(ValueError):
    """The arrays are not those of the tree that is asked for."""


class Tensors(NamedTuple):
    """What is in a file."""

    arrays: dict[str, np.ndarray]
    about: str  # "": somebody else wrote it


def write(path: Path, arrays: Mapping[str, object], about: str) -> None:
    """The file whole, or not at all."""
    ordered = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    write_whole(path, safetensors.numpy.save(ordered, metadata={KEY: about}))


def read(path: Path) -> Tensors:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = (file.metadata() or {}).get(KEY, "")
            return Tensors({name: file.get_tensor(name) for name in file.keys()}, about)  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, TypeError, ValueError) as error:
        raise Unreadable(str(error) or type(error).__name__) from error


def named(tree: PyTree) -> Iterator[tuple[str, jax.Array | np.ndarray]]:
    """The leaves of a tree with a name each."""
    for path, leaf in jax.tree.flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path) or ".", leaf


def tree_like(like: PyTree, arrays: Mapping[str, np.ndarray], prefix: str = "") -> PyTree:
    """The tree whose leaves stand in `arrays` under `prefix` and their names, of the shapes and types of `like`."""
    leaves = []
    for name, wanted in named(like):
        array = arrays.get(prefix + name)
        if array is None or (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise Misfit(f"{name} is {array if array is None else (array.dtype, array.shape)}")
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
