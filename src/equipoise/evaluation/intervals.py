"""What finitely many scored rows leave open about the clients: bounds for each, for their mean, for the worst share.

What is bounded is the score that each of these clients would have if it had endlessly many rows, and the mean and the
worst share of those true scores. The worst share of measured scores is no good guide to it: choosing the worst of
noisy scores picks the unlucky ones, so it looks worse than it is, the more so the fewer rows a client has.
How far it is off depends on whether the clients differ, which the scores say too: if they scatter no more than their
rows explain, the clients are alike. So the true scores are drawn many times from what the scores leave possible,

    different   clients scatter around one or two centres, as beta, gamma or normal variables do
    alike       clients have exactly one or two common scores

and in both some clients may follow their own rows alone. Centres, scatter and shares are weighed by how well they
explain all clients together. A bound is the farther one of the two: with few clients the rows cannot tell the two apart
and both are heeded; with many they decide. `benchmarks/interval_coverage.py` shows how often the bounds hold.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from equipoise.data.partition import generator
from equipoise.errors import require
from equipoise.evaluation.evidence import (
    BOX_TAIL,
    LEAST_PEERS,
    TINY,
    Drawn,
    Evidence,
    bounds_of_mean,
    of_errors,
    of_means_alike,
    of_shares,
)
from equipoise.evaluation.rules import SHARE, worst_clients, worst_count, worst_mean
from equipoise.protocol import RandomKey

DRAWS = 600  # the quantiles that are asked of them are of about ten draws
CAUTION = 0.6  # of each tail: the rest is for what the two explanations, and approximations of sums, get wrong
CENTRES = (14, 40)  # places for the centres of clients that differ, and of clients that are alike
SHARES = (0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99)  # of the clients: the second centre's
FEW_WORST = 2  # clients of a worst share: too few to learn from the others how bad they are
MOST_WEIGHED = 400  # clients that the explanations are weighed by, where there are more: time
SIMILAR = 3  # times as many rows, at most, as the smallest of the clients that are taken for similar in size


class Bounds(NamedTuple):
    """A number, and between which two it lies."""

    low: float
    estimate: float
    high: float


UNKNOWN = Bounds(math.nan, math.nan, math.nan)


class Intervals(NamedTuple):
    """What finite test sets leave open: bounds for every client, for their mean, and for the worst share of them.

    The estimate of the worst share is corrected for chance: it is what the worst-served would have on many more rows.
    """

    low: np.ndarray  # [n]
    high: np.ndarray  # [n]
    mean: Bounds
    worst: Bounds


def bounds_of(
    evidence_of: Callable[[np.ndarray], Evidence],
    rows: np.ndarray,
    *,
    higher_is_better: bool,
    key: RandomKey | int,
    k: float = SHARE,
    level: float = 0.95,
    draws: int = DRAWS,
) -> Intervals:
    """Bounds at `level`. `evidence_of` has the evidence of some of the clients, by their indices."""
    require(0 < level < 1, f"the level is {level}; give one between 0 and 1, such as 0.95")
    tail, n = (1 - level) / 2, rows.size
    classes = [(some, evidence_of(some)) for some in similar_sizes(rows)]
    value, low, high = np.full((3, n), np.nan)
    for some, part in classes:
        value[some], low[some], high[some] = part.value, part.low(tail / n), part.high(tail / n)
    mean = bounds_of_mean([part for _, part in classes], CAUTION * tail)
    worst = _worst(classes, value, generator(key, "intervals"), Asked(higher_is_better, k, tail, draws))
    middle = float(value.mean())
    return Intervals(low, high, Bounds(min(mean[0], middle), middle, max(mean[1], middle)), worst)


Classes = list[tuple[np.ndarray, Evidence]]  # clients of similar size, and what their rows say


class Asked(NamedTuple):
    """Of which share of the clients, and how surely."""

    up: bool  # higher is better
    k: float
    tail: float
    draws: int


def similar_sizes(rows: np.ndarray) -> list[np.ndarray]:
    """The clients in classes of similar numbers of rows, the small ones first."""
    groups: list[list[int]] = []
    for i in np.argsort(rows, kind="stable"):
        if not groups or rows[i] > SIMILAR * rows[groups[-1][0]]:
            groups.append([])
        groups[-1].append(int(i))
    return [np.array(some) for some in groups]


def _worst(classes: Classes, value: np.ndarray, rng: np.random.Generator, asked: Asked) -> Bounds:
    n, (up, k, tail, draws) = value.size, asked
    alone, drawn, guess = np.empty((2, draws, n)), np.empty((2, 2, draws, n)), np.empty((2, 2, draws, n))
    for some, part in classes:
        alone[..., some] = own = part.draw_alone(rng, draws)
        for e, draw in enumerate((_draw_different, _draw_alike)):
            if some.size < LEAST_PEERS:
                drawn[e][..., some], guess[e][..., some] = own, part.value
            else:
                drawn[e][..., some] = guess[e][..., some] = draw(part, own, rng, draws)
    means = worst_mean(drawn, up, k)  # [explanation, erring downwards or upwards, draws]
    least = float(np.quantile(means[:, 0], CAUTION * tail, axis=1).min())
    most = float(np.quantile(means[:, 1], 1 - CAUTION * tail, axis=1).max())
    clients = worst_clients(value, up, k)
    if clients.size <= FEW_WORST:  # too few to learn from the others for certain: their own rows bound how bad they are
        own = alone[0 if up else 1][:, clients].mean(1)
        bad = float(np.quantile(own, CAUTION * tail if up else 1 - CAUTION * tail))
        least, most = (min(least, bad), most) if up else (least, max(most, bad))
    first, last = classes[0][1].edges  # scores at the edge do not rule out that the truth lies there
    least = first if (value[clients] == first).all() else least
    most = last if (value[clients] == last).all() else most
    measured = float(worst_mean(value, up, k))
    lucky = _alike_as_can_be(classes, measured, rng, asked)
    least, most = (least, max(most, lucky)) if up else (min(least, lucky), most)
    middle = float(np.median(worst_mean(guess, up, k), axis=-1).mean())
    middle = max(middle, measured) if up else min(middle, measured)  # choosing the worst of noisy scores errs one way
    return Bounds(least, min(max(middle, least), most), most)


def _alike_as_can_be(classes: Classes, measured: float, rng: np.random.Generator, asked: Asked) -> float:
    """The best worst share with which one as bad as this may still be measured, whatever size has to do with score.

    Choosing the worst is most misleading where the clients are alike, so they are taken to be, as far as the bounds of
    each allow; their rows are drawn again for one common score after the other.
    """
    n, (up, k, tail, draws) = sum(some.size for some, _ in classes), asked
    box = np.empty((2, n))
    for some, part in classes:
        box[:, some] = part.low(BOX_TAIL * tail / n), part.high(BOX_TAIL * tail / n)

    def possible(truth: np.ndarray) -> bool:
        again = np.empty((draws, n))
        for some, part in classes:
            again[:, some] = part.draw_measured(rng, truth[some], draws)
        means = worst_mean(again, up, k)
        return float(np.mean(means <= measured if up else means >= measured)) >= (1 - BOX_TAIL) * tail

    inside, outside = measured, float(box[1].max() if up else box[0].min())
    for _ in range(8):
        common = (inside + outside) / 2
        inside, outside = (common, outside) if possible(np.clip(common, *box)) else (inside, common)
    return float(worst_mean(np.clip(outside, *box), up, k))


def _draw_different(
    evidence: Evidence, alone: tuple[Drawn, Drawn], rng: np.random.Generator, draws: int
) -> tuple[Drawn, Drawn]:
    places, scatters = evidence.centres(CENTRES[0]), np.array(evidence.scatters)
    centre, scatter = np.repeat(places, scatters.size), np.tile(scatters, places.size)
    likelihood = np.column_stack([evidence.log_likelihood_alone, evidence.log_likelihood_around(centre, scatter)])
    first, second, which = _draw_explanations(
        likelihood, np.r_[-1, np.repeat(np.arange(places.size), scatters.size)], rng, draws
    )
    part = np.where(which, second, first)
    drawn = evidence.draw_around(rng, np.r_[centre[0], centre][part], np.r_[scatter[0], scatter][part])
    below, above = (np.where(part == 0, own, drawn) for own in alone)
    return below, above


def _draw_alike(
    evidence: Evidence, alone: tuple[Drawn, Drawn], rng: np.random.Generator, draws: int
) -> tuple[Drawn, Drawn]:
    places = evidence.centres(CENTRES[1])
    likelihood = np.column_stack([evidence.log_likelihood_alone, evidence.log_likelihood_at(places)])
    first, second, which = _draw_explanations(likelihood, np.arange(-1, places.size), rng, draws)
    below, above = alone
    for part, who in ((first, ~which), (second, which)):
        common = evidence.draw_common(rng, who & (part > 0))
        below, above = (np.where(who & (part > 0), common, a) for a in (below, above))
    return below, above


def _draw_explanations(
    likelihood: np.ndarray, place: np.ndarray, rng: np.random.Generator, draws: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws explanations of one or two parts by their posterior; returns the parts and who belongs to the second.

    `likelihood` [n, c] is of each client under each part; the first part is "follows its own rows alone".
    """
    n, c = likelihood.shape
    relative = np.exp(np.maximum(likelihood - likelihood.max(1, keepdims=True), -700))
    heard = relative if n <= MOST_WEIGHED else relative[rng.permutation(n)[:MOST_WEIGHED]]
    a, b = np.triu_indices(c, 1)
    a, b = a[place[a] != place[b]], b[place[a] != place[b]]
    parts = [(np.arange(c), np.arange(c), 0.0), *((a, b, share) for share in SHARES)]
    of_a, of_b = heard[:, a], heard[:, b]
    weight = [np.log(heard + TINY).sum(0) - math.log(c)]
    weight += [np.log((1 - s) * of_a + s * of_b + TINY).sum(0) - math.log(len(a) * len(SHARES)) for s in SHARES]
    first, second = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    share = np.concatenate([np.full(len(i), s) for i, _, s in parts])
    logs = np.concatenate(weight)
    chance = np.exp(logs - logs.max())
    pick = rng.choice(chance.size, draws, p=chance / chance.sum())
    first, second, share = first[pick], second[pick], share[pick][:, None]
    theirs = share * relative[:, second].T
    which = rng.random((draws, n)) < theirs / (theirs + (1 - share) * relative[:, first].T + TINY)
    return first[:, None], second[:, None], which


def accuracy_intervals(
    accuracy: ArrayLike,
    sizes: ArrayLike,
    *,
    key: RandomKey | int,
    k: float = SHARE,
    level: float = 0.95,
    draws: int = DRAWS,
) -> Intervals:
    """From each client's accuracy and number of test samples."""
    a, m = np.asarray(accuracy, np.float64), np.asarray(sizes, np.int64)
    require(a.ndim == 1 and a.shape == m.shape, f"accuracy has shape {a.shape}, sizes {m.shape}; give one each")
    require(a.size and m.min() >= 1, "a client has no test samples; leave it out")
    require((a >= 0).all() and (a <= 1).all(), "an accuracy is not between 0 and 1; give shares, not percentages")
    worst_count(a.size, k)
    right = np.rint(a * m)
    return bounds_of(
        lambda i: of_shares(right[i], m[i]), m, higher_is_better=True, key=key, k=k, level=level, draws=draws
    )


def intervals(
    values: ArrayLike,
    sizes: ArrayLike,
    *,
    key: RandomKey | int,
    k: float = SHARE,
    level: float = 0.95,
    draws: int = DRAWS,
    higher_is_better: bool = False,
) -> Intervals:
    """From one number per example [n, m], such as a loss; client i's first sizes[i] are real."""
    x, m = np.asarray(values, np.float64), np.asarray(sizes, np.int64)
    require(
        x.ndim == 2 and m.shape == x.shape[:1], f"values have shape {x.shape}, sizes {m.shape}; give [n, m] and [n]"
    )
    require(m.size and m.min() >= 1 and m.max() <= x.shape[1], "a size is below 1 or beyond the values' columns")
    real = np.arange(x.shape[1]) < m[:, None]
    x = np.where(real, x, 0)
    mean, squares = x.sum(1) / m, (x**2).sum(1) / m
    spread = np.where(real, (x - mean[:, None]) ** 2, 0).sum(1) / np.maximum(m - 1, 1)

    def of_any(i: np.ndarray) -> Evidence:
        return of_errors(mean[i], np.sqrt(spread / m)[i], m[i])

    evidence_of = of_means_alike(mean, squares, m) if (x >= 0).all() else of_any
    return bounds_of(evidence_of, m, higher_is_better=higher_is_better, key=key, k=k, level=level, draws=draws)
