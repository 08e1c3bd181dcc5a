"""How evenly a model serves its clients by one score, and what their finite test sets leave open."""

from typing import Any, NamedTuple

import jax
import numpy as np

from equipoise.errors import require, unknown
from equipoise.evaluation import fairness, intervals
from equipoise.evaluation.exchange import PerClient
from equipoise.evaluation.intervals import UNKNOWN, Bounds, Evidence
from equipoise.evaluation.predictions import ROOTS
from equipoise.evaluation.rules import SHARE, higher_is_better, main_score

FEW = 5  # resampling fewer rows than this says nothing about them


class Standing(NamedTuple):
    """How evenly a model serves its clients by one score."""

    score: str
    summary: dict[str, float]  # as `fairness.summary`, of the scores as measured
    low: np.ndarray  # [n], bounds of each client's score; NaN: not known
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
) -> Standing:
    """The summary of one score over the clients that have it, and what their finite test sets leave open.

    Accuracy and RMSE bring their bounds with them; other scores need `draws` when they are evaluated. `score` is
    accuracy, else RMSE, else the loss, unless given. `up`: higher is better, of a score that the library does not know.
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
    evidence = _evidence(table, score, known)
    if evidence is not None:
        found = intervals.bounds_of(evidence, higher_is_better=up, key=key, k=k, level=level)
        low[known], high[known], mean, worst = found
        if score != "accuracy":
            low[sizes < FEW], high[sizes < FEW] = np.nan, np.nan
    left_out = tuple(int(i) for i in np.flatnonzero(~np.isfinite(values)))
    return Standing(score, summary, low, high, mean, worst, left_out)


def _summary(values: np.ndarray, k: float, up: bool) -> dict[str, float]:
    """On the CPU: a GPU would compile and start forty operations on a handful of numbers."""
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        cpu = None
    with jax.default_device(cpu):
        return {name: float(v) for name, v in fairness.summary(values, k, higher_is_better=up).items()}


def _evidence(table: PerClient, score: str, known: np.ndarray) -> Evidence | None:
    values, sizes = np.asarray(table.scores[score], np.float64)[known], np.asarray(table.sizes)[known]
    if score == "accuracy":
        return intervals.of_shares(np.rint(values * sizes), sizes)
    if score in table.squares:
        root = score in ROOTS
        squares = np.asarray(table.squares[score], np.float64)[known]
        return intervals.of_means(values**2 if root else values, squares, sizes, root=root)
    if score in table.resampled:
        drawn = np.asarray(table.resampled[score], np.float64)[known]
        drawn = np.where(np.isnan(drawn), values[:, None], drawn)
        return intervals.of_errors(values, drawn.std(1), sizes)
    return None


def chosen(table: PerClient, score: str | None) -> str:
    """`score`, or the one that says most."""
    found = main_score(table.scores) if score is None else score
    if found is None or found not in table.scores:
        raise unknown("score", str(found), table.scores)
    return found
