"""How evenly a model serves its clients: pure functions of one number per client.

The worst 20% are as in SCAFF-PD (section 6.2): sort the clients, take the lower fifth, average it. A fifth
that is no whole number is rounded down, but it is never less than one client.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise.data.partition import generator
from equipoise.errors import require

Number = Float[Array, ""]
AT_ONCE = 1 << 20  # examples drawn together


def summary(per_client: ArrayLike, k: float = 0.2, *, higher_is_better: bool = True) -> dict[str, Number]:
    """Mean, worst20, best20, min, max, std, gini, jain, gap; for another k the names say so (worst10).

    The gap is between the best and the worst client. Give higher_is_better=False for losses: then the worst
    are the highest. Works under jit.
    """
    x = _checked(per_client)
    name = f"{100 * k:g}"
    return {
        "mean": jnp.mean(x),
        f"worst{name}": worst(x, k, higher_is_better=higher_is_better),
        f"best{name}": best(x, k, higher_is_better=higher_is_better),
        "min": jnp.min(x),
        "max": jnp.max(x),
        "std": jnp.std(x),
        "gini": gini(x),
        "jain": jain(x),
        "gap": jnp.max(x) - jnp.min(x),
    }


def worst(per_client: ArrayLike, k: float = 0.2, *, higher_is_better: bool = True) -> Number:
    """The mean over the worst share k of the clients."""
    x = jnp.sort(_checked(per_client), descending=not higher_is_better)
    return jnp.mean(x[: _count(k, x.shape[0])])


def best(per_client: ArrayLike, k: float = 0.2, *, higher_is_better: bool = True) -> Number:
    """The mean over the best share k of the clients."""
    return worst(per_client, k, higher_is_better=not higher_is_better)


def gini(per_client: ArrayLike) -> Number:
    """sum_ij |x_i - x_j| / (2 n^2 mean): 0 when all are equal, near 1 when one client has everything."""
    x = jnp.sort(_checked(per_client))
    n = x.shape[0]
    ranks = (2 * jnp.arange(n) - (n - 1)).astype(x.dtype)
    total = jnp.sum(x)
    return jnp.where(total == 0, 0, ranks @ x / (n * jnp.where(total == 0, 1, total)))


def jain(per_client: ArrayLike) -> Number:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one client has everything."""
    x = _checked(per_client)
    squares = jnp.sum(x**2)
    return jnp.where(squares == 0, 1, jnp.sum(x) ** 2 / (x.shape[0] * jnp.where(squares == 0, 1, squares)))


def effective_clients(lam: ArrayLike) -> Number:
    """1 / sum lam_i^2 for weights lam that sum to one: n when they are equal, 1 when one client has all."""
    x = _checked(lam)
    return jnp.sum(x) ** 2 / jnp.sum(x**2)


class Intervals(NamedTuple):
    """What finite test sets leave open: bounds for every client, and for the worst share k of them."""

    low: np.ndarray  # [n]
    high: np.ndarray  # [n]
    worst: tuple[float, float]


def accuracy_intervals(
    accuracy: ArrayLike, sizes: ArrayLike, *, key: Any, k: float = 0.2, level: float = 0.95, draws: int = 2000
) -> Intervals:
    """From each client's accuracy and number of test samples.

    A client's bounds are Jeffreys' (the quantiles of Beta(right + 1/2, wrong + 1/2)): resampling would claim
    that five right answers of five are certain. The worst share is resampled; see `_basic`.
    """
    from scipy.stats import beta

    a, m = np.asarray(accuracy, np.float64), np.asarray(sizes, np.int64)
    require(a.ndim == 1 and a.shape == m.shape, f"accuracy has shape {a.shape}, sizes {m.shape}; give one each")
    require(a.size and m.min() >= 1, "a client has no test samples; leave it out")
    require((a >= 0).all() and (a <= 1).all(), "an accuracy is not between 0 and 1; give shares, not percentages")
    tail = _tail(level)
    right = np.rint(a * m)
    low, high = (beta.ppf(q, right + 0.5, m - right + 0.5) for q in (tail, 1 - tail))
    low, high = np.where(right == 0, 0.0, low), np.where(right == m, 1.0, high)
    resampled = generator(key, "intervals").binomial(m, right / m, (draws, len(m))) / m
    bounds = _basic(_worst_of(right / m, k, True), _worst_of(resampled, k, True), tail)
    return Intervals(low, high, (max(0.0, bounds[0]), min(1.0, bounds[1])))


def intervals(
    values: ArrayLike,
    sizes: ArrayLike,
    *,
    key: Any,
    k: float = 0.2,
    level: float = 0.95,
    draws: int = 2000,
    higher_is_better: bool = False,
) -> Intervals:
    """From one number per example [n, m], such as a loss; client i's first sizes[i] are real."""
    x, m = np.asarray(values, np.float64), np.asarray(sizes, np.int64)
    require(
        x.ndim == 2 and m.shape == x.shape[:1],
        f"values have shape {x.shape}, sizes {m.shape}; give [n, m] and [n]",
    )
    require(m.size and m.min() >= 1 and m.max() <= x.shape[1], "a size is below 1 or beyond the values' columns")
    rng, tail = generator(key, "intervals"), _tail(level)
    at_once = max(1, AT_ONCE // int(m.max()))
    draw = [min(at_once, draws - i) for i in range(0, draws, at_once)]
    resampled = np.stack(
        [np.concatenate([row[rng.integers(0, s, (d, s))].mean(1) for d in draw]) for row, s in zip(x, m, strict=True)],
        axis=1,
    )
    means = np.array([row[:s].mean() for row, s in zip(x, m, strict=True)])
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    found, drawn = (_worst_of(a, k, higher_is_better) for a in (means, resampled))
    return Intervals(low, high, _basic(found, drawn, tail))


def _basic(found: np.ndarray, drawn: np.ndarray, tail: float) -> tuple[float, float]:
    """The basic bootstrap: [2 found - upper quantile, 2 found - lower quantile].

    Choosing the worst of noisy clients makes them look worse than they are, and resampling adds that error
    again. The quantiles as they stand carry it twice, and miss the truth more often than not where clients
    are small and alike; reflected at what was found, it cancels.
    """
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(2 * found - high), float(2 * found - low)


def _worst_of(a: np.ndarray, k: float, higher_is_better: bool) -> np.ndarray:
    count = _count(k, a.shape[-1])
    ordered = np.sort(a, axis=-1)
    return (ordered[..., :count] if higher_is_better else ordered[..., -count:]).mean(-1)


def _count(k: float, n: int) -> int:
    require(0 < k <= 1, f"k is {k}; give a share of the clients above 0 and up to 1, such as 0.2")
    return max(1, math.floor(k * n + 1e-9))  # 0.29 * 100 is below 29


def _tail(level: float) -> float:
    require(0 < level < 1, f"the level is {level}; give one between 0 and 1, such as 0.95")
    return (1 - level) / 2


def _checked(per_client: ArrayLike) -> Array:
    x = jnp.asarray(per_client)
    require(x.ndim == 1 and x.shape[0] > 0, f"the numbers have shape {x.shape}; give one per client")
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
