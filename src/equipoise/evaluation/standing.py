"""How evenly a model serves its clients by one score, and what their finite test sets leave open."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from equipoise.errors import require, unknown
from equipoise.evaluation import evidence, fairness, intervals
from equipoise.evaluation.evidence import Evidence
from equipoise.evaluation.exchange import PerClient
from equipoise.evaluation.intervals import UNKNOWN, Bounds
from equipoise.evaluation.predictions import ROOTS
from equipoise.evaluation.rules import SHARE, higher_is_better, main_score
from equipoise.protocol import RandomKey

RESAMPLED = 20  # rows: fewer, drawn again, may all be alike where further ones are not
UNDEFINED = 0.005  # share of draws without the score: from there on it hangs on a few rows
BEYOND = 10  # times a loss or an error: a bound so far off says nothing
BETWEEN_ZERO_AND_ONE = ("auroc",)  # resampled scores that lie between zero and one
SHORTFALLS = ("skill",)  # one less a mean of numbers from zero up, by which they are bounded


class Standing(NamedTuple):
    """How evenly a model serves its clients by one score."""

    score: str
    summary: dict[str, float]  # as `fairness.summary`, of the scores as measured
    low: np.ndarray  # [n], bounds of each client's score, which hold for all clients together; NaN: not known
    high: np.ndarray
    mean: Bounds  # of the mean over the clients
    worst: Bounds  # of the mean over the worst share, whose estimate is corrected for chance; NaN: not known
    left_out: tuple[int, ...]  # clients without the score


def standing(
    table: PerClient,
    score: str | None = None,
    *,
    up: bool | None = None,
    k: float = SHARE,
    level: float = 0.95,
    key: RandomKey | int = 0,
    counted: np.ndarray | None = None,
) -> Standing:
    """The summary of one score over the clients that have it, and what their finite test sets leave open.

    Accuracy, RMSE and skill bring their bounds with them; other scores need `draws` when they are evaluated. `score` is
    accuracy, else RMSE, else the loss, unless given. `up`: higher is better, of a score that the library does not know.
    `counted` [n]: as how many independent rows each client's count, where several are of one person (`data.unit`);
    then scores that have to be resampled have no bounds.
    """
    score = chosen(table, score)
    values, sizes = np.asarray(table.scores[score], np.float64), np.asarray(table.sizes)
    require(values.ndim == 1, "this table is of a path of models; take one: jax.tree.map(lambda a: a[-1], table)")
    finite = np.flatnonzero(np.isfinite(values))
    require(finite.size, f"no client has a score '{score}'; evaluate again, or choose another")
    up = higher_is_better(score) if up is None else up
    numbers = fairness.summary(values[finite], k, higher_is_better=up)
    summary = {name: float(value) for name, value in numbers.items()}
    low, high = np.full((2, len(values)), np.nan)
    mean = worst = UNKNOWN
    rows = np.asarray(sizes if counted is None else counted, np.float64)
    short = score in SHORTFALLS
    telling = finite[_telling(table, score, finite, by_row=counted is None)]
    if telling.size:
        evidence_of = _evidence(table, score, telling, rows[telling])
        better = up != short
        bounds = intervals.bounds_of(evidence_of, rows[telling], higher_is_better=better, key=key, k=k, level=level)
        low[telling], high[telling] = bounds.low, bounds.high
        if telling.size == finite.size:
            mean, worst = bounds.mean, bounds.worst
        if score in table.squares:
            silent = (rows < evidence.LEAST_ROWS) | (high > BEYOND * np.abs(1 - values if short else values))
            low[silent], high[silent] = np.nan, np.nan
            mean, worst = (UNKNOWN if b.high > BEYOND * b.estimate else b for b in (mean, worst))
        if short:
            low, high, mean, worst = 1 - high, 1 - low, _from_one(mean), _from_one(worst)
    left_out = tuple(int(i) for i in np.flatnonzero(~np.isfinite(values)))
    return Standing(score, summary, low, high, mean, worst, left_out)


def _from_one(bounds: Bounds) -> Bounds:
    return Bounds(1 - bounds.high, 1 - bounds.estimate, 1 - bounds.low)


def _telling(table: PerClient, score: str, finite: np.ndarray, *, by_row: bool) -> np.ndarray:
    """Which of the known clients' rows say how certain the score is, or leave open no more than zero to one."""
    if score == "accuracy" or score in table.squares:
        return np.full(finite.size, True)
    if score not in table.resampled or not by_row:  # rows are drawn one by one, not by units
        return np.full(finite.size, False)
    return np.full(finite.size, True) if score in BETWEEN_ZERO_AND_ONE else ~_spread(table, score, finite)[1]


def _spread(table: PerClient, score: str, finite: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The standard deviation over the draws, and where drawing the rows again tells nothing."""
    values, drawn = (np.asarray(values[score], np.float64)[finite] for values in (table.scores, table.resampled))
    spread = np.where(np.isnan(drawn), values[:, None], drawn).std(1)
    few = np.asarray(table.sizes)[finite] < RESAMPLED
    return spread, few | (np.isnan(drawn).mean(1) > UNDEFINED) | (spread == 0)


def _evidence(table: PerClient, score: str, finite: np.ndarray, rows: np.ndarray) -> Callable[[np.ndarray], Evidence]:
    """Of some of the known clients, by their indices."""
    values = np.asarray(table.scores[score], np.float64)[finite]
    if score == "accuracy":
        right = np.rint(values * np.asarray(table.sizes)[finite]) * (rows / np.asarray(table.sizes)[finite])
        return lambda i: evidence.of_shares(right[i], rows[i])
    if score in table.squares:
        root = score in ROOTS
        squares = np.asarray(table.squares[score], np.float64)[finite]
        means = values**2 if root else 1 - values if score in SHORTFALLS else values
        return evidence.of_means_alike(means, squares, rows, root=root)
    spread, blind = _spread(table, score, finite)
    error = np.where(blind, np.inf, spread * np.sqrt(rows / np.maximum(rows - 2, 1)))
    edges = (0.0, 1.0) if score in BETWEEN_ZERO_AND_ONE else (-math.inf, math.inf)
    return lambda i: evidence.of_errors(values[i], error[i], rows[i], edges=edges)


def chosen(table: PerClient, score: str | None) -> str:
    """`score`, or the one that says most."""
    name = main_score(table.scores) if score is None else score
    if name is None or name not in table.scores:
        raise unknown("score", str(name), table.scores)
    return name
