"""How evenly a model serves its clients by one score, and what their finite test sets leave open."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from equipoise.errors import require, unknown
from equipoise.evaluation import fairness, intervals
from equipoise.evaluation.evidence import FEW_ROWS, Evidence, of_errors, of_means, of_shares
from equipoise.evaluation.exchange import PerClient
from equipoise.evaluation.intervals import UNKNOWN, Bounds
from equipoise.evaluation.predictions import ROOTS
from equipoise.evaluation.rules import SHARE, higher_is_better, main_score

RESAMPLED = 20  # resampling fewer rows than this says nothing about them
BEYOND = 10  # times a client's score: a bound so far off says nothing
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
    key: Any = 0,
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
    known = np.flatnonzero(np.isfinite(values))
    require(known.size, f"no client has a score '{score}'; evaluate again, or choose another")
    up = higher_is_better(score) if up is None else up
    summary = _summary(values[known], k, up)
    low, high = np.full((2, len(values)), np.nan)
    mean = worst = UNKNOWN
    rows = np.asarray(sizes if counted is None else counted, np.float64)
    short = score in SHORTFALLS
    evidence_of = _evidence(table, score, known, rows[known], resampling=counted is None)
    if evidence_of is not None:
        found = intervals.bounds_of(evidence_of, rows[known], higher_is_better=up != short, key=key, k=k, level=level)
        low[known], high[known], mean, worst = found
        if score != "accuracy":
            silent = (rows < FEW_ROWS) | (high > BEYOND * np.abs(1 - values if short else values))
            low[silent], high[silent] = np.nan, np.nan
        if short:
            low, high, mean, worst = 1 - high, 1 - low, _from_one(mean), _from_one(worst)
    left_out = tuple(int(i) for i in np.flatnonzero(~np.isfinite(values)))
    return Standing(score, summary, low, high, mean, worst, left_out)


def _from_one(bounds: Bounds) -> Bounds:
    return Bounds(1 - bounds.high, 1 - bounds.estimate, 1 - bounds.low)


def _summary(values: np.ndarray, k: float, up: bool) -> dict[str, float]:
    """On the CPU: a GPU would compile and start forty operations on a handful of numbers."""
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        cpu = None
    with jax.default_device(cpu):
        return {name: float(v) for name, v in fairness.summary(values, k, higher_is_better=up).items()}


def _evidence(
    table: PerClient, score: str, known: np.ndarray, rows: np.ndarray, *, resampling: bool
) -> Callable[[np.ndarray], Evidence] | None:
    """Of some of the known clients, by their indices; None: nothing says how certain the score is."""
    values = np.asarray(table.scores[score], np.float64)[known]
    if score == "accuracy":
        right = np.rint(values * np.asarray(table.sizes)[known]) * (rows / np.asarray(table.sizes)[known])
        return lambda i: of_shares(right[i], rows[i])
    if score in table.squares:
        root = score in ROOTS
        squares = np.asarray(table.squares[score], np.float64)[known]
        means = values**2 if root else 1 - values if score in SHORTFALLS else values
        return lambda i: of_means(means[i], squares[i], rows[i], root=root)
    if score in table.resampled and resampling:
        drawn = np.asarray(table.resampled[score], np.float64)[known]
        missing = np.isnan(drawn)
        error = np.where(missing, values[:, None], drawn).std(1) * np.sqrt(rows / np.maximum(rows - 2, 1))
        # Draws in which the score is not defined tell that it hangs on a few rows.
        blind = (rows < RESAMPLED) | (missing.mean(1) > 0.005) | (error == 0)
        edges = (0.0, 1.0) if score in BETWEEN_ZERO_AND_ONE else (-math.inf, math.inf)
        if blind.any() and score not in BETWEEN_ZERO_AND_ONE:
            return None
        error = np.where(blind, np.inf, error)
        return lambda i: of_errors(values[i], error[i], rows[i], edges=edges)
    return None


def chosen(table: PerClient, score: str | None) -> str:
    """`score`, or the one that says most."""
    found = main_score(table.scores) if score is None else score
    if found is None or found not in table.scores:
        raise unknown("score", str(found), table.scores)
    return found
