"""What every engine checks before the first round, in sentences."""

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from equipoise.data.shards import ClientData, client_shapes
from equipoise.engines.made_from import TRACED
from equipoise.errors import is_concrete, require
from equipoise.protocol import Algorithm, Data, Vector, nbytes


def check_outside(engine: str, *operands: object) -> None:
    """An engine compiles and runs programs of its own, which it cannot do inside of another one."""
    leaves = jax.tree.leaves(operands)
    require(
        is_concrete(*leaves) and not any(leaf is TRACED for leaf in leaves),
        f"{engine} runs programs of its own and was called inside jit, vmap, grad or scan; there, use eq.kernel: "
        "`prepare`, `init` and `step` are pure functions",
    )


def as_vector(x: object) -> tuple[Vector, Callable[[Vector], PyTree]]:
    """A start as the flat vector that algorithms know, and the way back to what was given: an array, or any tree with
    floating-point arrays in it, such as an equinox module."""
    numbers = isinstance(x, list | tuple) and all(map(np.isscalar, jax.tree.leaves(x)))
    if numbers or np.isscalar(x) or hasattr(x, "dtype"):
        return jnp.asarray(x), lambda vector: vector
    import equinox as eqx

    learned, rest = eqx.partition(x, eqx.is_inexact_array)
    require(
        jax.tree.leaves(learned),
        f"the start is a {type(x).__name__} without floating-point arrays; give a flat vector, or a tree of parameters",
    )
    vector, unravel = ravel_pytree(learned)
    return vector, lambda vector: eqx.combine(unravel(vector), rest)


def check_memory(state: PyTree, algorithm: Algorithm) -> None:
    """A state larger than the device's memory comes from a mistake in a setting."""
    needed, there = nbytes(state), total_memory()
    require(
        needed <= there,
        f"the state of {algorithm.name} takes {needed / 2**30:,.0f} GiB for {algorithm.n} clients and {algorithm.size} "
        f"parameters, and this device has {there / 2**30:,.0f} GiB; give a smaller setting, such as its memory",
    )


def total_memory() -> float:
    """Bytes that the device has, in use or not: the same for a sweep that is begun again."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return float(1 << 32)


def check_start(algorithm: Algorithm, x: Vector, rounds: int) -> None:
    require(isinstance(rounds, int | np.integer), f"rounds is {rounds!r}; give an integer")
    require(rounds >= 0, f"{rounds} rounds cannot be run; give zero or more")
    require(
        jnp.shape(x) == (algorithm.size,),
        f"the start has shape {jnp.shape(x)} but the task has {algorithm.size} parameters; "
        f"give a flat vector of {algorithm.size}",
    )
    require(
        jnp.issubdtype(jnp.result_type(x), jnp.floating),
        f"the start is of type {jnp.result_type(x)}; give float32 or float64",
    )
    if is_concrete(x):
        require(np.isfinite(np.asarray(x)).all(), "the start has NaN or infinite entries; give finite ones")


def check_every(every: int) -> None:
    require(every >= 1, f"every is {every}; give how many rounds lie between two calls of the callback, at least 1")


def check_data(algorithm: Algorithm, x: Vector, data: Data) -> None:
    """All but the numbers in `data`, which `all_finite` looks at."""
    require(
        isinstance(data, ClientData),
        f"the data is a {type(data).__name__} without .n, .sizes or .client(i); give what eq.data.stack makes, "
        "or see eq.data.ClientData",
    )
    require(
        all(hasattr(a, "dtype") for a in jax.tree.leaves(data)),
        f"the data is a {type(data).__name__}, which is not a pytree of arrays; register the class with "
        "jax.tree_util.register_dataclass",
    )
    require(
        data.n == algorithm.n,
        f"the data has {data.n} clients but {algorithm.name} was built for {algorithm.n}; "
        "build the dual and the cohorts for the data's number of clients",
    )
    if is_concrete(data.sizes):
        sizes = np.asarray(data.sizes)
        require(
            (sizes > 0).all(), f"client {int(np.argmin(sizes))} has no examples; leave it out or give it at least one"
        )
    shard = client_shapes(data)  # a pool may store another type than its clients see
    for name, a in named(shard).items():
        require(
            not jnp.issubdtype(a.dtype, jnp.floating) or a.dtype == x.dtype,
            f"the {name} are {a.dtype} and the start is {x.dtype}; give both the same precision",
        )


def named(tree: PyTree) -> dict[str, Array]:
    """The arrays of a tree by their names, such as "inputs"."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def all_finite(tree: PyTree) -> dict[str, Array]:
    """Of every array by its name, whether all its numbers are finite."""
    floats = {name: a for name, a in named(tree).items() if jnp.issubdtype(a.dtype, jnp.floating)}
    # One sum tells for nearly all data, and reads it once; one that overflows is looked at again.
    return {name: jnp.isfinite(jnp.sum(jnp.abs(a))) | jnp.all(jnp.isfinite(a)) for name, a in floats.items()}


def require_finite(sums: dict[str, Array]) -> None:
    for name, finite in sums.items():
        require(bool(finite), f"the {name} have NaN or infinite entries; clean them or leave those rows out")
