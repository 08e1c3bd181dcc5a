"""What an objective over the client weights is: a set Lam, a penalty psi, and their exact operators.

min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise.leaves import Recipe, tree_of_numbers
from equipoise.objectives.projections import SearchStart
from equipoise.protocol import Cohort

Weights = Float[Array, " n"]
Losses = Float[Array, " n"]
Scalar = Float[Array, ""]


@dataclass(frozen=True, eq=False)  # compared as objects: a dual must have a hash, and arrays have none
class Interior:
    """Lam and psi in the terms of an interior point method.

    lam_i is the sum of the parts w_j with owner_j = i; the parts are at least zero and sum to one, and

        psi = cost' w + quadratic/2 |w - p|^2 + entropy sum_j w_j log(w_j/p_j) + smooth(w),
        w <= cap,    |w - p|^2 <= radius.

    Most duals have one part per client: the weight itself. `smooth` is any convex function with two derivatives, which
    are taken by JAX.
    """

    owner: np.ndarray
    cost: Array | np.ndarray  # these may be traced: [m], and the three numbers below
    cap: np.ndarray  # infinity: none
    p: np.ndarray
    quadratic: Scalar | float | None = None
    entropy: Scalar | float | None = None
    radius: Scalar | float | None = None
    smooth: Callable[[Array], Array] | None = None

    @property
    def only(self) -> np.ndarray | None:
        """The single point of Lam, where it has one only."""
        total = np.sum(self.cap)
        return np.bincount(self.owner, self.cap) / total if total <= 1 + 1e-9 else None

    @staticmethod
    def weights(n: int, **parts: Any) -> "Interior":
        """One part per client, without a cost and a cap unless given."""
        given = {"owner": np.arange(n), "cost": np.zeros(n), "cap": np.full(n, np.inf), "p": np.full(n, 1 / n)}
        if n == 1:
            given["cap"] = np.ones(1)
        return Interior(**given | parts)

    def capped(self, cap: float) -> "Interior":
        """With no weight above `cap`. Of two parts of a client the second is the cheaper one, and full before the
        first is used."""
        n = self.owner.max() + 1
        below = np.zeros(n)
        below[self.owner[n:]] = self.cap[n:]
        return replace(self, cap=np.concatenate([np.minimum(self.cap[:n], cap - below), self.cap[n:]]))


@tree_of_numbers
class Dual(NamedTuple):
    """A set and a penalty for the weights of n clients."""

    name: str
    n: int
    penalty: Callable[[Weights], Scalar]  # psi(lam), for lam in Lam
    prox: Callable[[Weights, Scalar | float], Weights]  # argmin_{lam in Lam} psi(lam) + |lam - v|^2/(2 step)
    best_response: Callable[[Losses], Weights]  # argmax_{lam in Lam} <losses, lam> - psi(lam)
    value: Callable[[Losses], Scalar]  # that maximum: the robust objective of a loss vector
    modulus: float  # psi is modulus-strongly convex on Lam in the Euclidean norm; 0: merely convex
    simplex: bool = True  # Lam lies in the probability simplex, so lam can be sampled from
    interior: Interior | None = None  # both for `algorithms.scaffpd_model`; None: found from `penalty`, if it can be
    # The same as prox, where the search for it has a start; replace both or neither. None: a start is of no use.
    prox_given: Callable[[Weights, Scalar | float, SearchStart], Weights] | None = None
    recipe: Recipe | None = None  # set by `numbers_are_leaves`

    def ascend(self, lam: Weights, cohort: Cohort, change: Float[Array, " m"], step: Scalar | float) -> Weights:
        """prox(lam + change, step), from weights lam of which only those of the cohort change."""
        v = cohort.add(lam, change)
        if self.prox_given is None:
            return self.prox(v, step)
        total = 1 + jnp.sum(jnp.where(cohort.present, change, 0))
        return self.prox_given(v, step, SearchStart(v[jnp.asarray(cohort.ids)], total))
