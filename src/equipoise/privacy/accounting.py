"""Epsilon and delta of Gaussian noise, exactly.

A release of a sum to which a record adds at most 1 in length, with noise of standard deviation z, is as hard to tell
apart as two normal distributions at distance mu = 1/z (Dong, Roth and Su 2022, "Gaussian differential privacy"), and
releases compose as squares: mu^2 = sum 1/z_k^2, whatever was asked in between. For every epsilon

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

which no bound improves (Balle and Wang 2018). No subsampling: every record takes part in every release.
"""

import math
from collections.abc import Callable

import scipy  # its parts load when they are used

from equipoise.errors import require


def delta_of(epsilon: float, mu: float) -> float:
    """The least delta with which mu is (epsilon, delta)-differentially private."""
    if mu == 0:
        return 0.0
    second = epsilon + float(scipy.special.log_ndtr(-mu / 2 - epsilon / mu))
    return max(float(scipy.special.ndtr(mu / 2 - epsilon / mu)) - math.exp(second), 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon, from above."""
    require(0 < delta < 1, f"delta is {delta}; give a number above 0 and below 1")
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return _turn(lambda epsilon: delta_of(epsilon, mu) <= delta)[1]


def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-differentially private, from below."""
    require(epsilon > 0 and 0 < delta < 1, f"epsilon {epsilon} and delta {delta} allow nothing")
    return _turn(lambda mu: delta_of(epsilon, mu) > delta)[0]


def _turn(holds: Callable[[float], bool]) -> tuple[float, float]:
    """The numbers on either side of where `holds` becomes true, which it is not at 0."""
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
