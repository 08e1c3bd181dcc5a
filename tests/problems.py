"""Small federations and one way to build each algorithm, for the tests that run over all of them."""

from collections.abc import Callable
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


RULE = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.7)
LOCAL = {"steps": 5, "local_lr": 0.02}
BOUND = 8.0  # PropFair's M

# name -> how to build it for a task, a dual and (where it may choose) a sample.
BUILDS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": lambda task, dual, sample: eq.algorithms.fedavg(task, sample, **LOCAL),
    "sgd": lambda task, dual, sample: eq.algorithms.sgd(task, sample, lr=0.1),
    "fedprox": lambda task, dual, sample: eq.algorithms.fedprox(task, sample, mu=0.5, **LOCAL),
    "scaffold": lambda task, dual, sample: eq.algorithms.scaffold(task, sample, **LOCAL),
    "qfedsgd": lambda task, dual, sample: eq.algorithms.qfedsgd(task, sample, q=1.5, lr=0.1),
    "qfedavg": lambda task, dual, sample: eq.algorithms.qfedavg(task, sample, q=1.5, **LOCAL),
    "term": lambda task, dual, sample: eq.algorithms.term(task, sample, t=0.5, **LOCAL),
    "propfair": lambda task, dual, sample: eq.algorithms.propfair(task, sample, bound=BOUND, **LOCAL),
    "delta_fl": lambda task, dual, sample: eq.algorithms.delta_fl(task, sample, theta=0.5, **LOCAL),
    "afl": lambda task, dual, sample: eq.algorithms.afl(task, dual, sample, **LOCAL, dual_lr=0.05),
    "agnostic_fedavg": lambda task, dual, sample: eq.algorithms.agnostic_fedavg(task, sample, **LOCAL, dual_lr=0.1),
    "drfa": lambda task, dual, sample: eq.algorithms.drfa(
        task, dual, sample if sample.m == dual.n else eq.cohorts.by_weight(sample.m), **LOCAL, dual_lr=0.01
    ),
    "drfa_alternative": lambda task, dual, sample: eq.algorithms.drfa_alternative(
        task, dual, sample if sample.m == dual.n else eq.cohorts.by_weight(sample.m), **LOCAL, dual_lr=0.05
    ),
    "scaffpd": lambda task, dual, sample: eq.algorithms.scaffpd(task, dual, eq.cohorts.everyone(dual.n), RULE, **LOCAL),
    "scaffpd_secure": lambda task, dual, sample: eq.algorithms.scaffpd(
        task, dual, eq.cohorts.everyone(dual.n), RULE, **LOCAL, secure=True
    ),
    "scaffpd_ls": lambda task, dual, sample: eq.algorithms.scaffpd_ls(
        task, dual, eq.cohorts.everyone(dual.n), **LOCAL, mu=0.1, tau=0.01
    ),
    "scaffpd_partial": lambda task, dual, sample: eq.algorithms.scaffpd_partial(task, dual, sample, RULE, **LOCAL),
}
assert BUILDS.keys() == ALGORITHMS.keys(), "every algorithm is built here, so that the laws run over it"
EVERY = sorted(ALGORITHMS)


@cache  # the same object for the same settings: its programs are compiled once for all tests
def build(name: str, *, n: int = N, dim: int = DIM, batch: int | None = None, m: int | None = None) -> Algorithm:
    task = eq.tasks.ridge(dim, 0.1, batch)
    sample = eq.cohorts.everyone(n) if m is None else eq.cohorts.uniform(n, m)
    return BUILDS[name](task, eq.objectives.chi2(n, 0.1), sample)


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
