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
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts load when they are used
from jax.typing import ArrayLike

from equipoise.data.partition import generator
from equipoise.errors import require
from equipoise.evaluation.rules import SHARE, worst_clients, worst_count, worst_mean

Drawn = np.ndarray  # [draws, n]: true scores of the clients
DRAWS = 600
CAUTION = 0.6  # of each tail: what the two explanations get wrong
CENTRES = (14, 40)  # places for the centres of clients that differ, and of clients that are alike
SHARES = (0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99)  # of the clients: the second centre's
FEW = 2  # clients of a worst share that follow their own rows on the side where they are worse
WEIGHED = 400  # clients that the explanations are weighed by, where there are more
TINY = 1e-300


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


class Evidence(NamedTuple):
    """What the rows of n clients say about their true scores, for one kind of score."""

    value: np.ndarray  # [n], as measured
    edges: tuple[float, float]  # no score lies outside
    low: Callable[[float], np.ndarray]  # tail -> [n], each client's own lower bound
    high: Callable[[float], np.ndarray]
    centres: Callable[[int], np.ndarray]  # how many -> about as many places for a centre
    scatters: tuple[float, ...]  # how closely clients may stand around a centre
    around: Callable[[np.ndarray, np.ndarray], np.ndarray]  # centre, scatter [c] -> log likelihoods [n, c]
    at: Callable[[np.ndarray], np.ndarray]  # centre [c] -> log likelihoods [n, c] of clients that all have it
    alone: np.ndarray  # [n], log likelihood of a client that follows nobody
    draw_around: Callable[..., Drawn]  # rng, centre, scatter [draws, n]
    draw_at: Callable[..., Drawn]  # rng, who [draws, n] -> [draws, 1], the common score of those
    draw_alone: Callable[..., tuple[Drawn, Drawn]]  # rng, draws -> the same, erring downwards and upwards


def bounds_of(
    evidence: Evidence, *, higher_is_better: bool, key: Any, k: float = SHARE, level: float = 0.95, draws: int = DRAWS
) -> Intervals:
    """Bounds at `level` from the evidence of the clients."""
    require(0 < level < 1, f"the level is {level}; give one between 0 and 1, such as 0.95")
    rng, tail = generator(key, "intervals"), (1 - level) / 2
    alone = evidence.draw_alone(rng, draws)
    found = [explained(evidence, alone, rng, draws) for explained in (_different, _alike)]
    low, high = evidence.low(tail), evidence.high(tail)
    value, up = evidence.value, higher_is_better

    def bounds(of: Callable[[np.ndarray], np.ndarray], clients: np.ndarray) -> Bounds:
        """`clients` are the clients that the number is of, as measured."""
        drawn = [(of(below), of(above)) for below, above in found]
        least = min(float(np.quantile(below, CAUTION * tail)) for below, _ in drawn)
        most = max(float(np.quantile(above, 1 - CAUTION * tail)) for _, above in drawn)
        if clients.size <= FEW:  # too few to learn from the others for certain: their own rows bound how bad they are
            own = alone[0 if up else 1][:, clients].mean(1)
            bad = float(np.quantile(own, CAUTION * tail if up else 1 - CAUTION * tail))
            least, most = (min(least, bad), most) if up else (least, max(most, bad))
        first, last = evidence.edges  # scores at the edge do not rule out that the truth lies there
        least = first if (value[clients] == first).all() else least
        most = last if (value[clients] == last).all() else most
        middle = float(np.mean([np.median(part) for pair in drawn for part in pair]))
        return Bounds(least, min(max(middle, least), most), most)

    everyone = np.arange(value.size)
    return Intervals(
        low,
        high,
        bounds(lambda a: a.mean(-1), everyone),
        bounds(lambda a: worst_mean(a, up, k), worst_clients(value, up, k)),
    )


def _different(
    evidence: Evidence, alone: tuple[Drawn, Drawn], rng: np.random.Generator, draws: int
) -> tuple[Drawn, Drawn]:
    places, scatters = evidence.centres(CENTRES[0]), np.array(evidence.scatters)
    centre, scatter = np.repeat(places, scatters.size), np.tile(scatters, places.size)
    likelihood = np.column_stack([evidence.alone, evidence.around(centre, scatter)])
    first, second, which = _explained(
        likelihood, np.r_[-1, np.repeat(np.arange(places.size), scatters.size)], rng, draws
    )
    part = np.where(which, second, first)
    drawn = evidence.draw_around(rng, np.r_[centre[0], centre][part], np.r_[scatter[0], scatter][part])
    below, above = (np.where(part == 0, own, drawn) for own in alone)
    return below, above


def _alike(evidence: Evidence, alone: tuple[Drawn, Drawn], rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
    places = evidence.centres(CENTRES[1])
    likelihood = np.column_stack([evidence.alone, evidence.at(places)])
    first, second, which = _explained(likelihood, np.arange(-1, places.size), rng, draws)
    below, above = alone
    for part, who in ((first, ~which), (second, which)):
        common = evidence.draw_at(rng, who & (part > 0))
        below, above = (np.where(who & (part > 0), common, a) for a in (below, above))
    return below, above


def _explained(
    likelihood: np.ndarray, place: np.ndarray, rng: np.random.Generator, draws: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws explanations of one or two parts by their posterior; returns the parts and who belongs to the second.

    `likelihood` [n, c] is of each client under each part; the first part is "follows its own rows alone".
    """
    n, c = likelihood.shape
    relative = np.exp(np.maximum(likelihood - likelihood.max(1, keepdims=True), -700))
    heard = relative if n <= WEIGHED else relative[rng.permutation(n)[:WEIGHED]]
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


def of_shares(right: np.ndarray, rows: np.ndarray) -> Evidence:
    """Of `rows` rows that many are right: binomial.

    A client's own bounds are Jeffreys' (the quantiles of Beta(right + 1/2, wrong + 1/2)): resampling would claim that
    five right answers of five are certain.
    """
    betaln, quantile = scipy.special.betaln, scipy.special.betaincinv
    r, m = right.astype(np.float64), rows.astype(np.float64)
    wrong = m - r
    smooth = (r + 0.5) / (m + 1)
    pooled = (r.sum() + 0.5) / (m.sum() + 1)

    def around(centre: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        a, b = centre * scatter, (1 - centre) * scatter
        return betaln(a + r[:, None], b + wrong[:, None]) - betaln(a, b)

    def draw_alone(rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
        shape = (draws, m.size)
        below = np.where(r == 0, 0.0, rng.beta(np.maximum(r, TINY), wrong + 1, shape))
        return below, np.where(wrong == 0, 1.0, rng.beta(r + 1, np.maximum(wrong, TINY), shape))

    return Evidence(
        value=r / m,
        edges=(0.0, 1.0),
        low=lambda tail: np.where(r == 0, 0.0, quantile(r + 0.5, wrong + 0.5, tail)),
        high=lambda tail: np.where(wrong == 0, 1.0, quantile(r + 0.5, wrong + 0.5, 1 - tail)),
        centres=lambda count: np.unique([*np.linspace(smooth.min(), smooth.max(), count), pooled]),
        scatters=(4.0, 12.0, 40.0, 150.0),
        around=around,
        at=lambda centre: r[:, None] * np.log(centre) + wrong[:, None] * np.log1p(-centre),
        alone=betaln(1 + r, 1 + wrong),
        draw_around=lambda rng, centre, scatter: rng.beta(centre * scatter + r, (1 - centre) * scatter + wrong),
        draw_at=lambda rng, who: rng.beta(0.5 + who @ r, 0.5 + who @ wrong)[:, None],
        draw_alone=draw_alone,
    )


def of_means(mean: np.ndarray, squares: np.ndarray, rows: np.ndarray, *, root: bool = False) -> Evidence:
    """Each client's mean of numbers from zero up, such as losses or squared errors, and the mean of their squares.

    Their mean is taken for a gamma variable, which it is for exponential losses and for squares of normal errors. How
    far a client's numbers scatter is learnt from all of them, where it has few. `root`: the score is the mean's root.
    """
    gammaln = scipy.special.gammaln
    m = rows.astype(np.float64)
    x = np.maximum(mean, max(float(mean.max()), 1e-100) * 1e-9)
    free = m - 1
    ratio = np.maximum(squares - mean**2, 0) * m / np.maximum(free, 1) / x**2  # squared coefficient of variation
    pooled = float(free @ ratio) / max(free.sum(), 1.0) if free.any() else 1.0
    pooled = max(pooled * (1 + pooled / m.mean()), 1e-12)  # the mean in the denominator errs too
    # The scatter of skewed rows is uncertain, for exponential ones as that of a quarter as many normal ones: a client's
    # own counts fully only where it has many rows.
    shape = np.clip(m / ((32 * pooled + free * ratio) / (32 + free)), 0.05, 1e9)
    known = max(free.sum(), 8.0)  # degrees of freedom of that shape
    centre_of_all = float(np.exp(np.log(x).mean()))
    common = float(shape @ x / shape.sum())
    s, x_ = shape[:, None], x[:, None]
    constant = s * np.log(s) + (s - 1) * np.log(x_) - gammaln(s)
    score = np.sqrt if root else np.asarray

    def around(centre: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        a, b = scatter, scatter * centre
        return constant + a * np.log(b) + gammaln(a + s) - gammaln(a) - (a + s) * np.log(b + s * x_)

    def shapes(rng: np.random.Generator, draws: int) -> np.ndarray:
        return np.maximum(shape * (rng.chisquare(known, (draws, 1)) / known), 0.05)

    def draw_around(rng: np.random.Generator, centre: np.ndarray, scatter: np.ndarray) -> Drawn:
        drawn = shapes(rng, len(centre))
        return score((scatter * centre + drawn * x) / rng.gamma(scatter + drawn))

    def draw_at(rng: np.random.Generator, who: np.ndarray) -> Drawn:
        drawn = shapes(rng, len(who)) * who
        return score((drawn @ x) / np.maximum(rng.gamma(np.maximum(drawn.sum(1), 0.05)), TINY))[:, None]

    def draw_alone(rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
        drawn = shapes(rng, draws)
        own = score(drawn * x / np.maximum(rng.gamma(drawn), TINY))
        return own, own

    def own(tail: float) -> np.ndarray:
        """Of one row, or of rows all alike, little is known; of none that differ, nothing."""
        drawn = draw_alone(np.random.default_rng(0), 2000)[0]
        return np.quantile(drawn, tail, axis=0)

    return Evidence(
        value=score(mean),
        edges=(0.0, math.inf),
        low=own,
        high=lambda tail: own(1 - tail),
        centres=lambda count: np.unique([*np.geomspace(x.min(), x.max(), count), common]),
        scatters=(2.0, 6.0, 20.0, 75.0),
        around=around,
        at=lambda centre: constant - s * np.log(centre) - s * x_ / centre,
        alone=around(np.array([centre_of_all]), np.array([1.0]))[:, 0],
        draw_around=draw_around,
        draw_at=draw_at,
        draw_alone=draw_alone,
    )


def of_errors(value: np.ndarray, error: np.ndarray, rows: np.ndarray) -> Evidence:
    """Each client's score and its standard error, whatever the score is: normal."""
    spread = float(np.ptp(value))
    least = max(spread, float(np.abs(value).max()), TINY) * 1e-6
    e = np.maximum(error, max(float(np.median(error)) / 10, least))
    free = np.maximum(rows - 1.0, 1.0)
    precise = 1 / e**2
    wide = math.hypot(spread, float(np.median(e)))
    common = float(precise @ value / precise.sum())

    def log_normal(away: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return -(away**2) / variance / 2 - np.log(variance) / 2

    def around(centre: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        return log_normal(value[:, None] - centre, (e**2)[:, None] + (wide * scatter) ** 2)

    def scaled(rng: np.random.Generator, draws: int) -> np.ndarray:
        return e * np.sqrt(free / rng.chisquare(free, (draws, e.size)))  # errors are estimates too: Student's t

    def draw_around(rng: np.random.Generator, centre: np.ndarray, scatter: np.ndarray) -> Drawn:
        own, theirs = scaled(rng, len(centre)) ** -2, (wide * scatter) ** -2
        middle = (own * value + theirs * centre) / (own + theirs)
        return middle + rng.normal(size=middle.shape) / np.sqrt(own + theirs)

    def draw_at(rng: np.random.Generator, who: np.ndarray) -> Drawn:
        weight = np.maximum(who @ precise, TINY)
        return ((who @ (precise * value)) / weight + rng.normal(size=len(who)) / np.sqrt(weight))[:, None]

    def draw_alone(rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
        own = value + scaled(rng, draws) * rng.normal(size=(draws, e.size))
        return own, own

    def own(tail: float) -> np.ndarray:
        return value + e * scipy.special.stdtrit(free, tail)

    return Evidence(
        value=value,
        edges=(-math.inf, math.inf),
        low=own,
        high=lambda tail: own(1 - tail),
        centres=lambda count: np.unique([*np.linspace(value.min(), value.max(), count), common]),
        scatters=(0.5, 0.2, 0.07, 0.02),
        around=around,
        at=lambda centre: log_normal(value[:, None] - centre, (e**2)[:, None]),
        alone=log_normal(value - float(np.median(value)), e**2 + (2 * wide) ** 2),
        draw_around=draw_around,
        draw_at=draw_at,
        draw_alone=draw_alone,
    )


def accuracy_intervals(
    accuracy: ArrayLike, sizes: ArrayLike, *, key: Any, k: float = SHARE, level: float = 0.95, draws: int = DRAWS
) -> Intervals:
    """From each client's accuracy and number of test samples."""
    a, m = np.asarray(accuracy, np.float64), np.asarray(sizes, np.int64)
    require(a.ndim == 1 and a.shape == m.shape, f"accuracy has shape {a.shape}, sizes {m.shape}; give one each")
    require(a.size and m.min() >= 1, "a client has no test samples; leave it out")
    require((a >= 0).all() and (a <= 1).all(), "an accuracy is not between 0 and 1; give shares, not percentages")
    worst_count(a.size, k)
    return bounds_of(of_shares(np.rint(a * m), m), higher_is_better=True, key=key, k=k, level=level, draws=draws)


def intervals(
    values: ArrayLike,
    sizes: ArrayLike,
    *,
    key: Any,
    k: float = SHARE,
    level: float = 0.95,
    draws: int = DRAWS,
    higher_is_better: bool = False,
) -> Intervals:
    """From one number per example [n, m], such as a loss; client i's first sizes[i] are real."""
    x, m = np.asarray(values, np.float64), np.asarray(sizes, np.int64)
    require(
        x.ndim == 2 and m.shape == x.shape[:1],
        f"values have shape {x.shape}, sizes {m.shape}; give [n, m] and [n]",
    )
    require(m.size and m.min() >= 1 and m.max() <= x.shape[1], "a size is below 1 or beyond the values' columns")
    real = np.arange(x.shape[1]) < m[:, None]
    x = np.where(real, x, 0)
    mean, squares = x.sum(1) / m, (x**2).sum(1) / m
    if (x >= 0).all():
        evidence = of_means(mean, squares, m)
    else:
        spread = np.where(real, (x - mean[:, None]) ** 2, 0).sum(1) / np.maximum(m - 1, 1)
        evidence = of_errors(mean, np.sqrt(spread / m), m)
    return bounds_of(evidence, higher_is_better=higher_is_better, key=key, k=k, level=level, draws=draws)


class Paired(NamedTuple):
    """How far the errors of two models' numbers go together, having been scored on the same rows: correlations."""

    mean: float
    worst: float


def correlations(
    old: np.ndarray, new: np.ndarray, sizes: np.ndarray, *, up: bool, root: bool, k: float = SHARE
) -> Paired:
    """From what two models make of the same rows, one number per row, client after client.

    Sums over each client's rows are enough: of either number, their squares and their product. `root`: a client's
    score is the root of its mean.
    """
    ends = np.cumsum(sizes)[:-1]
    parts = [np.split(np.asarray(a, np.float64), ends) for a in (old, new)]
    n = len(sizes)
    value, slope = np.full((2, n), np.nan), np.ones((2, n))
    moments = np.zeros((3, n))  # of the errors of a client's two scores: both variances and the covariance
    for i, (a, b) in enumerate(zip(*parts, strict=True)):
        if a.size:
            value[:, i] = a.mean(), b.mean()
        if a.size > 1:
            both = np.cov(a, b) / a.size
            moments[:, i] = both[0, 0], both[1, 1], both[0, 1]
    if root:
        value = np.sqrt(value)
        slope = 1 / (2 * np.maximum(value, TINY))
    moments *= np.stack([slope[0] ** 2, slope[1] ** 2, slope[0] * slope[1]])

    def together(first: np.ndarray, second: np.ndarray) -> float:
        spread = math.sqrt(moments[0, first].sum() * moments[1, second].sum())
        return float(np.clip(moments[2, np.intersect1d(first, second)].sum() / spread, -1, 1)) if spread > 0 else 0.0

    known = np.flatnonzero(np.isfinite(value).all(0))
    worst = [worst_clients(v, up, k) for v in value]
    return Paired(together(known, known), together(worst[0], worst[1]))


def each_correlation(old: np.ndarray, new: np.ndarray, sizes: np.ndarray, *, shares: bool) -> np.ndarray:
    """[n]: the same of every client's own score, from its own rows; zero where they do not say.

    `shares`: the rows are right or wrong. Few of them may agree by chance, so that a correlation above zero is counted
    short by half a row (Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", method 10): two models that are right on the same five rows need not be equally good.
    """
    ends, found = np.cumsum(sizes)[:-1], np.zeros(len(sizes))
    parts = [np.split(np.asarray(a, np.float64), ends) for a in (old, new)]
    for i, (a, b) in enumerate(zip(*parts, strict=True)):
        m = a.size
        if m < 2:
            continue
        covariance, spread = float(np.mean(a * b) - a.mean() * b.mean()), float(a.std() * b.std())
        if shares and covariance > 0:
            covariance = max(covariance - 1 / (2 * m), 0.0)
        found[i] = min(max(covariance / spread, -1.0), 1.0) if spread > 0 else 0.0
    return found


def difference(old: Bounds, new: Bounds, correlation: float) -> Bounds:
    """Of `new` less `old`, whose errors have that correlation: the bounds of both, put together (MOVER; Zou and
    Donner 2008, "Construction of confidence limits about effect measures")."""

    def apart(a: float, b: float) -> float:
        return math.sqrt(max(a**2 + b**2 - 2 * correlation * a * b, 0.0))

    found = new.estimate - old.estimate
    low = apart(new.estimate - new.low, old.high - old.estimate)
    high = apart(new.high - new.estimate, old.estimate - old.low)
    return Bounds(found - low, found, found + high)
