"""Small federations and each algorithm as its record builds it, for the tests that run over all of them."""

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
    inputs, labels, sizes = map(np.asarray, shards)
    return [(a[:m], y[:m]) for a, y, m in zip(inputs, labels, sizes, strict=True)]


def start(dim: int = DIM, dtype: type = np.float64) -> jax.Array:
    return jnp.asarray(np.linspace(-1, 1, dim).astype(dtype))


RULE = ALGORITHMS["scaffpd"].example["rule"]
LOCAL = dict(ALGORITHMS["fedavg"].example)
BOUND = ALGORITHMS["propfair"].example["bound"]  # PropFair's M
KEY = jax.random.key(3)
EVERY = sorted(ALGORITHMS)
# One of each kind of round: a mean; state at the clients; the largest losses; two exchanges and few clients; weights
# of a dual. What engines promise of these they promise of all others, which `make test-all` looks at.
KINDS = ("fedavg", "scaffold", "delta_fl", "drfa", "scaffpd")


def few(fast: Any, values: Any, witness: str) -> list[Any]:
    """Values of a parameter: those of `fast` in `make test`, the others in `make test-all` only."""
    later = pytest.mark.thorough(witness=witness)
    return [pytest.param(value, marks=[] if value in fast else [later]) for value in values]


def first(kept: int, rows: Any, witness: str) -> list[Any]:
    """Rows of several parameters: the first `kept` in `make test`, the others in `make test-all` only."""
    later = pytest.mark.thorough(witness=witness)
    return [pytest.param(*row, marks=[] if place < kept else [later]) for place, row in enumerate(rows)]


def each_kind(law: Any, kinds: tuple[str, ...] = KINDS) -> Any:
    """A law of engines: of one algorithm of each kind in `make test`, of all of them in `make test-all`."""
    later = pytest.mark.thorough(witness=f"::{law.__name__}[scaffpd]")
    marks = {name: [pytest.mark.xdist_group(name), *([] if name in kinds else [later])] for name in EVERY}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in EVERY])(law)


each_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in EVERY]
)


@cache  # the same object for the same settings: its programs are compiled once for all tests
def build(name: str, *, n: int = N, dim: int = DIM, batch: int | None = None, m: int | None = None) -> Algorithm:
    task = eq.tasks.ridge(dim, 0.1, batch)
    sample = eq.cohorts.everyone(n) if m is None else eq.cohorts.uniform(n, m)
    return ALGORITHMS[name].build_example(task, eq.objectives.chi2(n, 0.1), sample)


def in_programs(task: Any) -> Any:
    """The task, whose functions are a program each: called as they are, every operation in them would be one."""
    named = ("loss", "grad", "predict")
    return task._replace(**{name: jax.jit(of) for name in named if (of := getattr(task, name)) is not None})


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
