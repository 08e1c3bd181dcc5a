"""How evenly a model serves its clients: pure functions of one number per client.

The worst 20% are as in SCAFF-PD (section 6.2): sort the clients, take the lower fifth, average it. A fifth
that is not a whole number is rounded down, but it is never less than one client.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise.errors import require
from equipoise.evaluation.intervals import accuracy_intervals as accuracy_intervals
from equipoise.evaluation.intervals import intervals as intervals
from equipoise.evaluation.rules import SHARE, worst_count

Number = Float[Array | np.ndarray, ""]


def summary(per_client: ArrayLike, k: float = SHARE, *, higher_is_better: bool = True) -> dict[str, Number]:
    """Mean, worst20, best20, min, max, std, gini, jain, gap; for another k the names say so (worst10).

    The gap is between the best and the worst client. Give higher_is_better=False for losses: then the worst
    are the highest. Works under jit, where a NaN makes every number NaN; elsewhere it is refused.
    """
    x, xp = _checked(per_client)
    name = f"{100 * k:g}"
    return {
        "mean": xp.mean(x),
        f"worst{name}": worst(x, k, higher_is_better=higher_is_better),
        f"best{name}": best(x, k, higher_is_better=higher_is_better),
        "min": xp.min(x),
        "max": xp.max(x),
        "std": xp.std(x),
        "gini": gini(x),
        "jain": jain(x),
        "gap": xp.max(x) - xp.min(x),
    }


def worst(per_client: ArrayLike, k: float = SHARE, *, higher_is_better: bool = True) -> Number:
    """The mean over the worst share k of the clients."""
    x, xp = _checked(per_client)
    ordered = xp.sort(x)[:: 1 if higher_is_better else -1]
    mean = xp.mean(ordered[: worst_count(x.shape[0], k)])
    return xp.where(xp.isnan(x).any(), np.nan, mean).astype(x.dtype)  # sorting would leave it out at one end


def best(per_client: ArrayLike, k: float = SHARE, *, higher_is_better: bool = True) -> Number:
    """The mean over the best share k of the clients."""
    return worst(per_client, k, higher_is_better=not higher_is_better)


def gini(per_client: ArrayLike) -> Number:
    """sum_ij |x_i - x_j| / (2 n^2 mean): 0 when all are equal, near 1 when one client has everything."""
    x, xp = _checked(per_client)
    n = x.shape[0]
    ranks = (2 * np.arange(n) - (n - 1)).astype(x.dtype)
    total = xp.sum(x)
    return xp.where(total == 0, 0, ranks @ xp.sort(x) / (n * xp.where(total == 0, 1, total))).astype(x.dtype)


def jain(per_client: ArrayLike) -> Number:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one client has everything."""
    x, xp = _checked(per_client)
    squares = xp.sum(x**2)
    some = xp.where(squares == 0, 1, squares)
    return xp.where(squares == 0, 1, xp.sum(x) ** 2 / (x.shape[0] * some)).astype(x.dtype)


def effective_clients(lam: ArrayLike) -> Number:
    """1 / sum lam_i^2 for weights lam that sum to one: n when they are equal, 1 when one client has all."""
    x, xp = _checked(lam)
    return xp.sum(x) ** 2 / xp.sum(x**2)


def _checked(per_client: ArrayLike) -> tuple[Any, Any]:
    """The numbers, and what to compute with: NumPy has nothing to compile, JAX is for numbers that are traced."""
    traced = isinstance(per_client, jax.core.Tracer)
    x: Any = per_client if traced else np.asarray(per_client)
    require(x.ndim == 1 and x.shape[0] > 0, f"the numbers have shape {x.shape}; give one per client")
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
    if traced:
        return x, jnp
    missing = int(np.isnan(x).sum())
    require(missing == 0, f"{missing} of {x.shape[0]} numbers are NaN; leave out the clients that have none")
    return x, np
