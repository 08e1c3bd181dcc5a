"""Small federations and one way to build each algorithm, for the tests that run over all of them."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

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


KEY = jax.random.key(3)
LOCAL = {"steps": 5, "local_lr": 0.02}
BOUND = 8.0  # PropFair's M


def settings(scale: Any = 1.0) -> dict[str, dict[str, Any]]:
    """Each algorithm's numbers, all step sizes times `scale`, which may be traced."""
    local = {"steps": 5, "local_lr": 0.02 * scale}
    rule = {"rule": eq.steps.constant(tau=0.1 * scale, sigma=0.5 * scale, theta=0.7)}
    return {
        "fedavg": local,
        "sgd": {"lr": 0.1 * scale},
        "fedprox": {"mu": 0.5 * scale, **local},
        "scaffold": local,
        "qfedsgd": {"q": 1.5 * scale, "lr": 0.1 * scale},
        "qfedavg": {"q": 1.5 * scale, **local},
        "term": {"t": 0.5 * scale, **local},
        "propfair": {"bound": BOUND * scale, **local},
        "delta_fl": {"theta": 0.5 * scale, **local},
        "afl": {**local, "dual_lr": 0.05 * scale},
        "agnostic_fedavg": {**local, "dual_lr": 0.1 * scale},
        "drfa": {**local, "dual_lr": 0.01 * scale},
        "drfa_alternative": {**local, "dual_lr": 0.05 * scale},
        "scaffpd": {**rule, **local},
        "scaffpd_secure": {**rule, **local},
        "scaffpd_ls": {**local, "mu": 0.1 * scale, "tau": 0.01 * scale},
        "scaffpd_partial": {**rule, **local},
    }


assert settings().keys() == ALGORITHMS.keys(), "every algorithm is built here, so that the laws run over it"
EVERY = sorted(ALGORITHMS)
each_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in EVERY]
)
ALL_CLIENTS = ("scaffpd", "scaffpd_secure", "scaffpd_ls")
DRAWN_BY_WEIGHT = ("drfa", "drfa_alternative")
WITH_A_DUAL = (*ALL_CLIENTS, *DRAWN_BY_WEIGHT, "afl", "scaffpd_partial")


def assemble(name: str, task: Any, dual: Any, sample: Any, scale: Any = 1.0) -> Algorithm:
    """The algorithm for a task, a dual and (where it may choose) a sample."""
    if name in ALL_CLIENTS:
        sample = eq.cohorts.everyone(dual.n)
    elif name in DRAWN_BY_WEIGHT and sample.m < dual.n:
        sample = eq.cohorts.by_weight(sample.m)
    parts = (dual, sample) if name in WITH_A_DUAL else (sample,)
    return ALGORITHMS[name](task, *parts, **settings(scale)[name])


@cache  # the same object for the same settings: its programs are compiled once for all tests
def build(name: str, *, n: int = N, dim: int = DIM, batch: int | None = None, m: int | None = None) -> Algorithm:
    task = eq.tasks.ridge(dim, 0.1, batch)
    sample = eq.cohorts.everyone(n) if m is None else eq.cohorts.uniform(n, m)
    return assemble(name, task, eq.objectives.chi2(n, 0.1), sample)


def everything(server: Any) -> Any:
    return server


def is_gone(gone: jax.Array, round: Any, exchange: int, ids: Any) -> jax.Array:
    return gone[jnp.asarray(ids)]


def lose(*gone: int) -> Partial:
    """Client ids that never answer: an operand, so that all choices share one program."""
    return Partial(is_gone, jnp.asarray(np.isin(np.arange(N), gone)))


def play(name: str, data: Any = None, *, rounds: int = 3, gone: tuple[int, ...] = (), **how: Any) -> eq.Result:
    """A run with everybody asked and everything recorded, of which `gone` never answer: one program per algorithm."""
    data = unequal() if data is None else data
    how = {"record": everything, "lost": lose(*gone), **how}
    return eq.simulate(build(name), start(), data, KEY, rounds=rounds, **how)


def sometimes(round: Any, exchange: int, ids: Any) -> jax.Array:
    """A different client is lost in every round and exchange."""
    return jnp.asarray(ids) == (round + exchange) % N


def play_sampled(name: str, engine: Any = eq.simulate, dtype: type = np.float64, m: int | None = 3, **how: Any) -> Any:
    """A run with cohorts of three, minibatches of three and lost replies: one program per algorithm and precision."""
    how = {"rounds": 3, "record": everything, "lost": sometimes, **how}
    return engine(build(name, batch=3, m=m), start(dtype=dtype), unequal(dtype=dtype), KEY, **how)


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
