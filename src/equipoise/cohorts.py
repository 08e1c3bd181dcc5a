"""Who takes part in an exchange."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from equipoise.errors import InputError, require
from equipoise.protocol import Cohort, RandomKey

Weights = Float[Array, " n"]


class Sample(NamedTuple):
    """A way to draw cohorts; call it with a key (and the client weights, where it draws by them)."""

    name: str
    n: int | None  # clients to draw from; None: as many as there are weights
    m: int  # slots of a cohort
    distinct: bool  # no client stands twice in a cohort
    draw: Callable[[RandomKey, Weights | None], Cohort]

    def __call__(self, key: RandomKey, weights: Weights | None = None) -> Cohort:
        return self.draw(key, weights)

    def weight(self, lam: Weights, i: Int[ArrayLike, ""]) -> Float[Array, ""]:
        """What client i's answer counts for so that the cohort's mean estimates the lam-weighted one."""
        return lam[i] if self.distinct else jnp.ones_like(lam[0])  # drawn by lam: counted already


def everyone(n: int) -> Sample:
    """All n clients, in order."""
    check_clients(n)
    # NumPy, not JAX: an engine that sees constants in the identity order need not gather rows.
    cohort = Cohort(np.arange(n, dtype=np.int32), np.ones(n, bool))
    return Sample(f"everyone({n})", n, n, True, lambda key, weights: cohort)


def uniform(n: int, m: int) -> Sample:
    """m distinct clients out of n, uniformly."""
    check_clients(n)
    require(1 <= m <= n, f"a cohort of {m} out of {n} clients cannot be drawn without repeats; give 1 <= m <= {n}")

    def draw(key: RandomKey, weights: Weights | None) -> Cohort:
        ids = jax.random.choice(key, n, (m,), replace=False).astype(jnp.int32)
        return Cohort(ids, jnp.ones(m, bool))

    return Sample(f"uniform({n}, {m})", n, m, True, draw)


def by_weight(m: int) -> Sample:
    """m independent draws from the client weights, with replacement: a client may stand in several slots."""
    require(m >= 1, f"a cohort of {m} is empty; give m >= 1")

    def draw(key: RandomKey, weights: Weights | None) -> Cohort:
        if weights is None:
            raise InputError("by_weight draws from client weights and this algorithm has none; use uniform(n, m)")
        ids = jax.random.choice(key, weights.size, (m,), p=weights).astype(jnp.int32)
        return Cohort(ids, jnp.ones(m, bool))

    return Sample(f"by_weight({m})", None, m, False, draw)


def coin(n: int, p: float) -> Sample:
    """Every client with probability p: the cohort's size varies, its shape does not."""
    check_clients(n)
    require(0 < p <= 1, f"the probability of taking part is {p}; give 0 < p <= 1")
    ids = np.arange(n, dtype=np.int32)
    return Sample(f"coin({n}, {p})", n, n, True, lambda key, weights: Cohort(ids, jax.random.bernoulli(key, p, (n,))))


def check_clients(n: int) -> None:
    require(n >= 1, f"{n} clients cannot make a federation; give at least one")


def check_distinct(sample: Sample, why: str) -> int:
    """The number of clients of a sample that an algorithm with client state may use."""
    if not sample.distinct or sample.n is None:
        raise InputError(
            f"{sample.name} may draw a client twice in one exchange, but {why}; "
            "use everyone(n), uniform(n, m) or coin(n, p)"
        )
    return sample.n
