"""Two models on the same rows of the same clients: how far apart they truly are.

A row that is hard for one model is hard for the other, so that their difference is more certain than either score. What
says so are the rows on which the two differ; few rows that agree do not show that the models agree.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy  # its parts load when they are used

from equipoise.evaluation.evidence import (
    LEAST_PEERS,
    LEAST_ROWS,
    TINY,
    bounds_of_mean_share,
    clopper_pearson,
    mean_of_most,
)
from equipoise.evaluation.intervals import CAUTION, UNKNOWN, Bounds, similar_sizes
from equipoise.evaluation.rules import SHARE, worst_clients

MOST_DEGREES = 8.0  # of freedom: with heavy tails no variance is known better
MOST_TOGETHER = 0.8  # correlation of the errors of two worst fifths: for each model chance makes others look worst


class SameRows(NamedTuple):
    """What two models make of the same rows: of each client the mean over its rows, and how sure it is."""

    old: np.ndarray  # [n], scores; NaN: no rows
    new: np.ndarray
    better: np.ndarray  # [n], share of its rows on which the new model does better, or worse: of rights and wrongs
    worse: np.ndarray
    moments: np.ndarray  # [3, n], of the errors of the two scores: both variances, and the covariance
    bias: np.ndarray  # [n], by how much the difference is too small on average: of roots of few rows
    rows: np.ndarray  # [n], as many as count: fewer where several are of one unit
    shares: bool  # the rows are right or wrong
    root: bool  # scores are roots of means

    @property
    def scored(self) -> np.ndarray:
        """The clients that both models have a score of."""
        return np.flatnonzero(np.isfinite(self.old) & np.isfinite(self.new) & (self.rows > 0))

    def in_units(self, unit: float) -> "SameRows":
        """The same of scores in another unit: so many times as large."""
        scaled = {name: unit * getattr(self, name) for name in ("old", "new", "bias")}
        return self._replace(moments=unit**2 * self.moments, **scaled)


def on_same_rows(
    old: np.ndarray,
    new: np.ndarray,
    sizes: np.ndarray,
    *,
    shares: bool,
    root: bool = False,
    counted: np.ndarray | None = None,
) -> SameRows:
    """From a number per row of either model, client after client. `root`: a client's score is the root of its mean.

    `counted` [n]: as how many independent rows each client's count.
    """
    n = len(sizes)
    values, signs, moments = np.full((2, n), np.nan), np.zeros((2, n)), np.zeros((3, n))
    rows = np.asarray(sizes if counted is None else counted, np.float64)
    ends = np.cumsum(sizes)[:-1]
    parts = [np.split(np.asarray(a, np.float64), ends) for a in (old, new)]
    for i, (a, b) in enumerate(zip(*parts, strict=True)):
        if a.size:
            values[:, i] = a.mean(), b.mean()
            signs[:, i] = np.mean(b > a), np.mean(b < a)
        if a.size > 1:
            both = np.cov(a, b) / rows[i]
            moments[:, i] = both[0, 0], both[1, 1], both[0, 1]
    bias = np.zeros(n)
    if root:
        values = np.sqrt(values)
        slope = 1 / (2 * np.maximum(values, TINY))
        moments *= np.stack([slope[0] ** 2, slope[1] ** 2, slope[0] * slope[1]])
        # By the second term of an expansion, and as much again for what that leaves out.
        bias = 2 * np.nan_to_num(slope[1] * moments[1] - slope[0] * moments[0])
    return SameRows(values[0], values[1], signs[0], signs[1], moments, bias, rows, shares, root)


def mean_difference(pairs: SameRows, *, level: float = 0.95) -> Bounds:
    """Of the mean over the clients, the new model's less the old one's; NaN where a client has too few rows to say."""
    tail, some = CAUTION * (1 - level) / 2, pairs.scored
    if not some.size:
        return UNKNOWN
    rows, n = pairs.rows[some], some.size
    if pairs.shares:
        better, worse = (side[some] for side in (pairs.better, pairs.worse))

        def bounds(side: np.ndarray) -> Bounds:
            low, high = bounds_of_mean_share(side * rows, rows, tail)
            return Bounds(low, float(side.mean()), high)

        return difference(bounds(worse), bounds(better), _correlation_of_shares(better, worse, rows))
    change, variance = (pairs.new - pairs.old)[some], _variances(pairs)[some]
    if (rows < 1.5).any():  # one row does not say how far it is off
        return UNKNOWN
    squared_reaches = []
    for peers in similar_sizes(rows):
        several, degrees = variance[peers], _degrees(rows[peers])
        if peers.size < LEAST_PEERS:
            squared_reaches += list(several * scipy.special.stdtrit(degrees, tail) ** 2)
        else:  # Satterthwaite 1946
            of_sum = several.sum() ** 2 / max(float(several**2 @ (1 / degrees)), TINY)
            wide = scipy.special.stdtrit(min(max(of_sum, 1.0), MOST_DEGREES), tail)
            squared_reaches.append(float(several.sum()) * wide**2)
    half, middle = math.sqrt(sum(squared_reaches)) / n + abs(float(pairs.bias[some].mean())), float(change.mean())
    return Bounds(middle - half, middle, middle + half)


def each_difference(pairs: SameRows, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """([n], [n]): bounds of every client's own difference, which hold for all clients together; NaN: not known."""
    n = max(pairs.scored.size, 1)
    tail = CAUTION * (1 - level) / 2 / n
    intervals, variance = np.full((2, pairs.old.size), np.nan), _variances(pairs)
    for i in pairs.scored:
        rows = pairs.rows[[i]]
        if pairs.shares:
            better, worse = (side[[i]] for side in (pairs.better, pairs.worse))
            ends = [(side, *clopper_pearson(side * rows, rows, tail)) for side in (worse, better)]
            old, new = (Bounds(float(low[0]), float(side[0]), float(high[0])) for side, low, high in ends)
            bounds = difference(old, new, _correlation_of_shares(better, worse, rows))
            intervals[:, i] = bounds.low, bounds.high
        elif rows[0] >= LEAST_ROWS:
            half = -float(scipy.special.stdtrit(_degrees(rows[0]), tail)) * math.sqrt(variance[i])
            half, middle = half + abs(pairs.bias[i]), pairs.new[i] - pairs.old[i]
            intervals[:, i] = middle - half, middle + half
    return intervals[0], intervals[1]


def worst_correlation(pairs: SameRows, *, up: bool, k: float = SHARE, level: float = 0.95) -> float:
    """How far the errors of the two worst shares go together, at least as far as few rows can tell."""
    worst = [worst_clients(v, up, k) for v in (pairs.old, pairs.new)]
    both = np.intersect1d(worst[0], worst[1])
    first, second = (float(pairs.moments[side, some].sum()) for side, some in enumerate(worst))
    if not (both.size and first > 0 and second > 0):
        return 0.0
    if pairs.shares:
        # The variance of the difference is at most that of the share of rows on which the models differ.
        rows = pairs.rows[both]
        differ = np.minimum((pairs.better + pairs.worse)[both] * rows, rows)
        most = bounds_of_mean_share(differ, rows, (1 - level) / 2, 1 / rows)[1] * float((1 / rows).sum())
        covariance = min((float(pairs.moments[:2, both].sum()) - most) / 2, float(pairs.moments[2, both].sum()))
        return min(max(covariance / math.sqrt(first * second), -1.0), 1.0)
    correlation = min(max(float(pairs.moments[2, both].sum()) / math.sqrt(first * second), -1.0), 1 - 1e-9)
    sure = math.tanh(math.atanh(max(correlation, -1 + 1e-9)) - 2 / math.sqrt(max(pairs.rows[both].sum() - 3, 1)))
    return min(sure, MOST_TOGETHER)


def difference(old: Bounds, new: Bounds, correlation: float) -> Bounds:
    """Of `new` less `old`, whose errors have that correlation: the bounds of both, put together (MOVER; Zou and
    Donner 2008, "Construction of confidence limits about effect measures")."""

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a**2 + b**2 - 2 * correlation * a * b, 0.0))

    estimate = new.estimate - old.estimate
    low = reach(new.estimate - new.low, old.high - old.estimate)
    high = reach(new.high - new.estimate, old.estimate - old.low)
    return Bounds(estimate - low, estimate, estimate + high)


def _degrees(rows: np.ndarray) -> np.ndarray:
    """Degrees of freedom of a variance: half of what they are for normal errors, because tails are heavier."""
    return np.clip((rows - 1) / 2, 1.0, MOST_DEGREES)


def _variances(pairs: SameRows) -> np.ndarray:
    """[n], variances of the differences; no client's rows scatter less than those of all clients do on average.

    Two models that disagree about a rare class differ a little on every row without it, always the same way, and much
    the other way on the few that are of it. A client that has met none of those looks certain, and is not.
    """
    own, some = np.maximum(pairs.moments[0] + pairs.moments[1] - 2 * pairs.moments[2], 0), pairs.scored
    rows = pairs.rows[some]
    # Errors are of any size, and those of a client in proportion; losses are in one unit, and small where nothing rare
    # was met.
    unit = ((pairs.old + pairs.new)[some] / 2) ** 2 + TINY if pairs.root else np.ones(some.size)
    usual = mean_of_most(own[some] * rows / unit, np.maximum(rows - 1, 0))
    own[some] = np.maximum(own[some], usual * unit / rows)
    return own


def _correlation_of_shares(better: np.ndarray, worse: np.ndarray, rows: np.ndarray) -> float:
    """The correlation of two shares of which a row can count for one only: below zero."""
    one, other = (float((p * (1 - p) / rows).sum()) for p in (better, worse))
    return -float((better * worse / rows).sum()) / math.sqrt(one * other) if one > 0 and other > 0 else 0.0
