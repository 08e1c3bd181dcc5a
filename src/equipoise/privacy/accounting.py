"""Epsilon and delta of Gaussian noise, exactly, and what a site has spent of its privacy.

A release of a sum to which a record adds at most 1 in length, with noise of standard deviation z, is as hard to tell
apart as two normal distributions at distance mu = 1/z (Dong, Roth and Su 2022, "Gaussian differential privacy"), and
releases compose as squares: mu^2 = sum 1/z_k^2, whatever was asked in between. For every epsilon

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

which no bound improves (Balle and Wang 2018). No subsampling: every record takes part in every release.

A site counts every reply when it is about to leave, also one that is sent again: mu^2 adds up, in each run and in all
runs together.
"""

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import scipy  # its parts load when they are used

from equipoise.errors import InputError, Refusal, refuse_unless, require
from equipoise.files import locked, make_folder, read_text, write_whole

FILE = "privacy.json"
ROUNDING = 1 + 1e-9  # a budget that is made for so many replies holds them
_spending = threading.RLock()


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


class Budget(NamedTuple):
    """How much may be given away."""

    epsilon: float
    delta: float

    @property
    def most(self) -> float:
        """mu^2."""
        return mu_for(self.epsilon, self.delta) ** 2 * ROUNDING


def spent(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not path.is_file():
        return {"mu2": 0.0, "replies": 0, "runs": {}}
    try:
        saved = json.loads(read_text(path))
        runs = {str(run): float(mu2) for run, mu2 in saved["runs"].items()}
        total, replies = float(saved["mu2"]), int(saved["replies"])
        sound = all(0 <= mu2 < math.inf for mu2 in (total, *runs.values()))
        refuse_unless(sound and sum(runs.values()) <= total * ROUNDING, "it is damaged")
        return {"mu2": total, "replies": replies, "runs": runs}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, InputError, Refusal):
        raise Refusal("what this site has spent of its privacy cannot be read") from None


def spend(folder: Path, run: str, mu2: float, of_run: Budget, of_site: Budget | None) -> None:
    """Counts one reply; a Refusal, and nothing is spent, where a budget would be exceeded."""
    with _spending:
        make_folder(folder)
        with locked(folder / "privacy.lock", f"the budget of {folder.name}", wait=30.0):
            before = spent(folder)
            in_run = float(before["runs"].get(run, 0.0)) + mu2
            total = before["mu2"] + mu2
            for budget, new, whose in ((of_run, in_run, "this run"), (of_site, total, "this site, over all runs,")):
                refuse_unless(
                    budget is None or new <= budget.most,
                    f"with this reply {whose} would have given away more than epsilon "
                    f"{budget.epsilon if budget else 0:g} at delta {budget.delta if budget else 0:g}",
                )
            now = {"mu2": total, "replies": before["replies"] + 1, "runs": {**before["runs"], run: in_run}}
            write_whole(folder / FILE, json.dumps(now, indent=1))
