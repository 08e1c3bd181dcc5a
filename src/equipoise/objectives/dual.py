"""What an objective over the client weights is: a set Lam, a penalty psi, and their exact operators.

min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)
"""

from collections.abc import Callable
from typing import NamedTuple

from jax import Array
from jaxtyping import Float

Weights = Float[Array, " n"]
Losses = Float[Array, " n"]
Scalar = Float[Array, ""]


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
