"""Small federations and each algorithm as its record builds it, for the tests that run over all of them."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.protocol import Algorithm

N, DIM = 5, 4
SIZES = (7, 3, 12, 5, 1)


def unequal(n: int = N, dim: int = DIM, seed: int = 0, dtype: type = np.float64) -> eq.data.Shards:
    """A regression federation with clients of unequal size."""
    rng = np.random.default_rng(seed)
    sizes = [SIZES[i % len(SIZES)] for i in range(n)]
    truth = rng.normal(size=dim)
    clients = []
    for m in sizes:
        inputs = rng.normal(size=(m, dim))
        clients.append((inputs.astype(dtype), (inputs @ (truth + 0.5 * rng.normal(size=dim))).astype(dtype)))
    return eq.data.stack(clients)


def rows(shards: eq.data.Shards) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's real rows, as NumPy."""
    return [
        (np.asarray(shards.inputs[i, :m]), np.asarray(shards.labels[i, :m]))
        for i, m in enumerate(np.asarray(shards.sizes))
    ]


def start(dim: int = DIM, dtype: type = np.float64) -> jax.Array:
    return jnp.asarray(np.linspace(-1, 1, dim).astype(dtype))


RULE = ALGORITHMS["scaffpd"].example["rule"]
LOCAL = dict(ALGORITHMS["fedavg"].example)
BOUND = ALGORITHMS["propfair"].example["bound"]  # PropFair's M
EVERY = sorted(ALGORITHMS)


@cache  # the same object for the same settings: its programs are compiled once for all tests
def build(name: str, *, n: int = N, dim: int = DIM, batch: int | None = None, m: int | None = None) -> Algorithm:
    task = eq.tasks.ridge(dim, 0.1, batch)
    sample = eq.cohorts.everyone(n) if m is None else eq.cohorts.uniform(n, m)
    return ALGORITHMS[name].build_example(task, eq.objectives.chi2(n, 0.1), sample)


def assert_same(a: object, b: object, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Two trees of arrays, equal to rounding."""
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(left) == len(right) > 0
    for x, y in zip(left, right, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=atol)


def assert_identical(a: object, b: object) -> None:
    """Two trees of arrays, equal bit for bit."""
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(left) == len(right) > 0
    for x, y in zip(left, right, strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
