"""Which score a run is summed up by, which way it is better, and who the worst-served share of the clients are."""

import math
from collections.abc import Iterable

import numpy as np

from equipoise.errors import require

LOWER = ("loss", "rmse", "brier")  # scores of which less is better
MAIN = ("accuracy", "rmse", "loss")  # the first of these that a model has says most
TASK_SCORES = {"classification": "accuracy", "regression": "rmse"}  # what says most before anything was scored
FRACTIONS = ("accuracy", "balanced_accuracy", "skill")  # scores that are written in per cent
COMMON = 0.6  # of an owner's rows: of a class that is more common, an accuracy says little, and the skill leads
DESCRIBED = ("predicted", "observed")  # calibration: neither is better for being more or less
SHARE = 0.2  # of the clients: the worst-served and the best-served fifth


def higher_is_better(score: str) -> bool:
    """Of every score but errors and losses."""
    return score not in LOWER


def is_fraction(score: str) -> bool:
    return score in FRACTIONS


def main_score(names: Iterable[str]) -> str | None:
    """The first of MAIN that is among the names, else the first name; None without names."""
    scores = list(names)
    return next((name for name in (*MAIN, *scores) if name in scores), None)


def worst_count(n: int, k: float = SHARE) -> int:
    """How many of n clients a share k of them is: rounded down, but never less than one."""
    require(0 < k <= 1, f"k is {k}; give a share of the clients above 0 and up to 1, such as 0.2")
    return max(1, math.floor(k * n + 1e-9))  # 0.29 * 100 is below 29


def worst_mean(values: np.ndarray, up: bool, k: float = SHARE) -> np.ndarray:
    """The mean over the worst share k of the last axis, all of whose entries are known."""
    n = values.shape[-1]
    count = worst_count(n, k)
    ordered = np.partition(values, count - 1 if up else n - count, axis=-1)
    return (ordered[..., :count] if up else ordered[..., n - count :]).mean(-1)


def worst_clients(values: np.ndarray, up: bool, k: float = SHARE) -> np.ndarray:
    """The indices of the worst share k of the clients that have a value, the worst first."""
    finite = np.flatnonzero(np.isfinite(values))
    order = np.argsort(values[finite] if up else -values[finite], kind="stable")
    return finite[order[: worst_count(finite.size, k)]]
