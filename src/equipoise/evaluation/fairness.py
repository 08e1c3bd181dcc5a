"""How evenly a model serves its clients: pure functions of one number per client.

The worst 20% are as in SCAFF-PD (section 6.2): sort the clients, take the lower fifth, average it. A fifth
that is not a whole number is rounded down, but it is never less than one client.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise.errors import require
from equipoise.evaluation.intervals import accuracy_intervals as accuracy_intervals
from equipoise.evaluation.intervals import intervals as intervals
from equipoise.evaluation.rules import SHARE, worst_count

Number = Float[Array, ""]


def summary(per_client: ArrayLike, k: float = SHARE, *, higher_is_better: bool = True) -> dict[str, Number]:
    """Mean, worst20, best20, min, max, std, gini, jain, gap; for another k the names say so (worst10).

    The gap is between the best and the worst client. Give higher_is_better=False for losses: then the worst
    are the highest. Works under jit, where a NaN makes every number NaN; elsewhere it is refused.
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


def worst(per_client: ArrayLike, k: float = SHARE, *, higher_is_better: bool = True) -> Number:
    """The mean over the worst share k of the clients."""
    x = jnp.sort(_checked(per_client), descending=not higher_is_better)
    mean = jnp.mean(x[: worst_count(x.shape[0], k)])
    return jnp.where(jnp.isnan(x).any(), jnp.nan, mean)  # sorting would leave it out at one end


def best(per_client: ArrayLike, k: float = SHARE, *, higher_is_better: bool = True) -> Number:
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


def _checked(per_client: ArrayLike) -> Array:
    x = jnp.asarray(per_client)
    require(x.ndim == 1 and x.shape[0] > 0, f"the numbers have shape {x.shape}; give one per client")
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
    if not isinstance(x, jax.core.Tracer):
        missing = int(jnp.isnan(x).sum())
        require(missing == 0, f"{missing} of {x.shape[0]} numbers are NaN; leave out the clients that have none")
    return x
