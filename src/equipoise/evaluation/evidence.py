"""What the rows of each client say about its true score, for three kinds of score.

    of_shares   rows are right or wrong: an accuracy
    of_means    a mean of numbers from zero up: a loss, a squared error, or the root of one
    of_errors   anything else, of which a standard error is known: an AUROC that was resampled

Nothing of one client is used for another here but how widely the numbers of rows scatter: by clients of similar size,
and never less widely than those of most rows. Whether a client is small may have to do with how it is served.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts load when they are used

Drawn = np.ndarray  # [draws, n]: true scores of the clients
TINY = 1e-300
BOX_TAIL = 0.1  # of a tail: that a client's true score lies outside of the box in which it is sought
LEAST_ROWS = 5  # of fewer, losses and errors say nothing about one client
LEAST_PEERS = 4  # of fewer similar clients each follows its own rows
# How widely rows scatter, as squared coefficients of variation: 1 for exponential losses, 2 for squares of normal
# errors, 8 for those of Student's t with five degrees of freedom.
NORMAL_SCATTER = 2.0
PRIOR_ROWS = 8.0  # as if so many rows had shown the scatter of normal errors
FEW_SCATTER = 3.0  # with it, gamma bounds of up to 20 rows hold for squares of Student's t with five degrees as well
PEERS_WEIGH = 32.0  # rows that similar clients count for beside a client's own: skewed rows show their scatter late
LEAST_DEGREES = 6.0  # degrees of freedom: no scatter is known worse than this
MOST_ROWS = 0.9  # of all: what is beyond them, such as one client whose losses explode, is no measure for the others


class SumError(NamedTuple):
    """How far the sum of several clients' true scores may lie from that of the measured ones."""

    below: np.ndarray  # one number each, or one for all together: independent errors
    above: np.ndarray
    bias: float  # by how much the measured sum is too small on average


class Evidence(NamedTuple):
    """What the rows of n clients say about their true scores, for one kind of score."""

    value: np.ndarray  # [n], as measured
    edges: tuple[float, float]  # no score lies outside
    low: Callable[[float], np.ndarray]  # tail -> [n], each client's own lower bound
    high: Callable[[float], np.ndarray]
    sum_error: Callable[[float], SumError] | None  # tail -> how far the sum of the scores may be off; None: of shares
    counts: tuple[np.ndarray, np.ndarray] | None  # of shares: rows that are right, and all rows
    centres: Callable[[int], np.ndarray]  # how many -> about as many places for a centre
    scatters: tuple[float, ...]  # how closely clients may stand around a centre
    log_likelihood_around: Callable[[np.ndarray, np.ndarray], np.ndarray]  # centre, scatter [c] -> [n, c]
    log_likelihood_at: Callable[[np.ndarray], np.ndarray]  # centre [c] -> [n, c], of clients that have just this score
    log_likelihood_alone: np.ndarray  # [n], of a client that follows nobody
    draw_around: Callable[..., Drawn]  # rng, centre, scatter [draws, n]
    draw_common: Callable[..., Drawn]  # rng, who [draws, n] -> [draws, 1], the common score of those
    draw_alone: Callable[..., tuple[Drawn, Drawn]]  # rng, draws -> the same, erring downwards and upwards
    draw_measured: Callable[..., Drawn]  # rng, true scores [n], draws -> scores as they would be measured


def clopper_pearson(right: np.ndarray, rows: np.ndarray, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of each share that hold whatever it is (Clopper and Pearson 1934)."""
    wrong = rows - right
    low = scipy.special.betaincinv(np.maximum(right, TINY), wrong + 1, tail)
    high = scipy.special.betaincinv(right + 1, np.maximum(wrong, TINY), 1 - tail)
    return np.where(right <= 0, 0.0, low), np.where(wrong <= 0, 1.0, high)


def bounds_of_mean_share(
    right: np.ndarray, rows: np.ndarray, tail: float, weights: np.ndarray | None = None
) -> tuple[float, float]:
    """Bounds of the (weighted) mean of the true shares, whatever the rows of a client have to do with its share.

    The measured mean varies most, about a true mean, when the shares are as near to one half as their own rows allow,
    those of few rows first: with that variance it is tested as one share of as many rows as would vary so much (Korn
    and Graubard 1998). Clients of few rows that are all right thus leave open that they were lucky.
    """
    n = rows.size
    w = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    mean = float(w @ (right / rows))
    low, high = clopper_pearson(right, rows, BOX_TAIL * tail / n)
    pull = rows / w  # the share at a price l of the mean is (1 - l pull) / 2, kept within its box

    def variance(means: np.ndarray) -> np.ndarray:
        least, most = np.full(means.size, -1 / pull.min()), np.full(means.size, 1 / pull.min())
        for _ in range(50):
            price = (least + most) / 2
            shares = np.clip((1 - price[:, None] * pull) / 2, low, high)
            above = shares @ w > means
            least, most = np.where(above, price, least), np.where(above, most, price)
        return (shares * (1 - shares)) @ (w**2 / rows)

    def chance(means: np.ndarray, at_least: bool) -> np.ndarray:
        """Of a measured mean as far up (or down) as this one."""
        count = means * (1 - means) / np.maximum(variance(means), TINY)
        share = mean if at_least else 1 - mean
        x = share * count
        return scipy.special.betainc(np.maximum(x, TINY), count - x + 1, means if at_least else 1 - means)

    def bound(at_least: bool) -> float:
        edge = float(w @ (low if at_least else high))
        ends = (edge, mean)
        for _ in range(3):
            grid = np.linspace(*ends, 18)
            inner = grid[1:-1]
            possible = np.r_[False, chance(inner, at_least) >= (1 - BOX_TAIL) * tail, True]
            first = int(np.argmax(possible))
            ends = (grid[first - 1], grid[first])
        return float(ends[0])

    return (bound(True) if mean > 0 else 0.0), (bound(False) if mean < 1 else 1.0)


def bounds_of_mean(parts: Sequence[Evidence], tail: float) -> tuple[float, float]:
    """Of the mean over the clients of all parts. Where it is not of shares, by how far each part may be off (MOVER; Zou
    and Donner 2008, "Construction of confidence limits about effect measures")."""
    counts = [part.counts for part in parts if part.counts is not None]
    if counts:
        right, rows = (np.concatenate(side) for side in zip(*counts, strict=True))
        return bounds_of_mean_share(right, rows, tail)
    errors = [part.sum_error(tail) for part in parts if part.sum_error is not None]
    below, above = (float(np.linalg.norm(np.concatenate(side))) for side in list(zip(*errors, strict=True))[:2])
    total, n = sum(float(part.value.sum()) for part in parts), sum(part.value.size for part in parts)
    low, high = total - below, total + sum(error.bias for error in errors) + above
    first, last = parts[0].edges
    return max(low / n, first), min(high / n, last)


def of_shares(right: np.ndarray, rows: np.ndarray) -> Evidence:
    """Of `rows` rows that many are right: binomial. Neither needs to be a whole number, where rows count as fewer."""
    betaln = scipy.special.betaln
    r, m = right.astype(np.float64), rows.astype(np.float64)
    wrong = m - r
    smooth = (r + 0.5) / (m + 1)
    pooled = (r.sum() + 0.5) / (m.sum() + 1)
    whole = np.maximum(np.floor(m + 1e-9), 1).astype(np.int64)

    def log_likelihood_around(centre: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        a, b = centre * scatter, (1 - centre) * scatter
        return betaln(a + r[:, None], b + wrong[:, None]) - betaln(a, b)

    def draw_alone(rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
        """Of the distributions whose quantiles are Clopper and Pearson's bounds."""
        shape = (draws, m.size)
        below = np.where(r <= 0, 0.0, rng.beta(np.maximum(r, TINY), wrong + 1, shape))
        return below, np.where(wrong <= 0, 1.0, rng.beta(r + 1, np.maximum(wrong, TINY), shape))

    return Evidence(
        value=r / m,
        edges=(0.0, 1.0),
        low=lambda tail: clopper_pearson(r, m, tail)[0],
        high=lambda tail: clopper_pearson(r, m, tail)[1],
        sum_error=None,
        counts=(r, m),
        centres=lambda count: np.unique([*np.linspace(smooth.min(), smooth.max(), count), pooled]),
        scatters=(4.0, 12.0, 40.0, 150.0),
        log_likelihood_around=log_likelihood_around,
        log_likelihood_at=lambda centre: r[:, None] * np.log(centre) + wrong[:, None] * np.log1p(-centre),
        log_likelihood_alone=betaln(1 + r, 1 + wrong),
        draw_around=lambda rng, centre, scatter: rng.beta(centre * scatter + r, (1 - centre) * scatter + wrong),
        draw_common=lambda rng, who: rng.beta(0.5 + who @ r, 0.5 + who @ wrong)[:, None],
        draw_alone=draw_alone,
        draw_measured=lambda rng, truth, draws: rng.binomial(whole, truth, (draws, m.size)) / whole,
    )


def usual_scatter(mean: np.ndarray, squares: np.ndarray, rows: np.ndarray) -> float:
    """How widely numbers scatter where most rows are: clients of few rows may not have met the rare large ones yet."""
    spare = np.maximum(rows - 1.0, 0)
    scatter = _own_scatter(_above_zero(mean), squares - mean**2, rows)
    order = np.argsort(scatter)
    return float(scatter[order][np.searchsorted(np.cumsum(spare[order]), spare.sum() / 2)])


def rare_scatter(mean: np.ndarray, squares: np.ndarray, rows: np.ndarray) -> float:
    """How widely the rows of all clients scatter together, those rare large ones included that few clients have met."""
    variance = np.maximum(squares - mean**2, 0) * rows / np.maximum(rows - 1, 1)
    return mean_of_most(variance, np.maximum(rows - 1.0, 0)) / max(mean_of_most(mean, rows), 1e-100) ** 2


def mean_of_most(values: np.ndarray, weights: np.ndarray) -> float:
    """The weighted mean, in which what is beyond most of the weight counts no more than the last of these."""
    if not weights.sum():
        return 0.0
    order = np.argsort(values)
    last = np.searchsorted(np.cumsum(weights[order]), MOST_ROWS * weights.sum())
    return float(weights @ np.minimum(values, values[order][last])) / float(weights.sum())


def _above_zero(mean: np.ndarray) -> np.ndarray:
    return np.maximum(mean, max(float(mean.max()), 1e-100) * 1e-9)


def _own_scatter(mean: np.ndarray, variance: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[n], of each client's own rows; `mean` is above zero."""
    return np.maximum(variance, 0) * rows / np.maximum(rows - 1, 1) / mean**2


def _gamma_shapes(
    x: np.ndarray, variance: np.ndarray, m: np.ndarray, least_scatter: float, rare: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the gamma variables that means of `m` rows are taken for: their shapes, how many degrees of freedom say so,
    and the shapes that bounds above rest on."""
    spare = np.maximum(m - 1, 0)
    own_scatter = _own_scatter(x, variance, m)
    pooled = float(spare @ own_scatter + PRIOR_ROWS * NORMAL_SCATTER) / (spare.sum() + PRIOR_ROWS)
    heavier = 1 + max(pooled - NORMAL_SCATTER, 0) / 2  # a heavy tail that shows is heavier than it shows
    pooled = heavier * pooled * (1 + 2 * pooled / m.mean())  # the mean in the denominator errs too
    pooled = max(pooled, least_scatter, 1e-12)

    def with_peers(theirs: float) -> np.ndarray:
        return (PEERS_WEIGH * theirs + spare * own_scatter) / (PEERS_WEIGH + spare)

    scatter = np.maximum(with_peers(pooled), own_scatter * (1 + own_scatter / m))
    degrees = np.maximum(np.minimum(spare.sum(), PEERS_WEIGH + spare) / (1 + 3 * scatter), LEAST_DEGREES)
    # How bad a client may be follows from how small the mean of its rows may come out, on which its largest ones have
    # no bearing: one outlier is no reason for more doubt on this side. But rows among which nothing rare is look alike.
    shape_above = m / np.maximum(with_peers(max(pooled, FEW_SCATTER)), rare)
    return np.clip(m / scatter, 0.05, 1e9), degrees, shape_above


def of_means(
    mean: np.ndarray,
    squares: np.ndarray,
    rows: np.ndarray,
    *,
    root: bool = False,
    least_scatter: float = 0.0,
    rare: float = 0.0,
) -> Evidence:
    """Each client's mean of numbers from zero up, such as losses or squared errors, and the mean of their squares.

    Their mean is taken for a gamma variable, which it is for exponential losses and for squares of normal errors. How
    far a client's numbers scatter is learnt from all of them, where it has few. `root`: the score is the mean's root.
    `least_scatter`, `rare`: what `usual_scatter` and `rare_scatter` say of all clients, also of those of other sizes.
    """
    gammaln = scipy.special.gammaln
    m, x = rows.astype(np.float64), _above_zero(mean)
    shape, degrees, shape_above = _gamma_shapes(x, squares - mean**2, m, least_scatter, rare)
    centre_of_all = float(np.exp(np.log(x).mean()))
    common = float(shape @ x / shape.sum())
    s, x_ = shape[:, None], x[:, None]
    constant = s * np.log(s) + (s - 1) * np.log(x_) - gammaln(s)
    score = np.sqrt if root else np.asarray

    def log_likelihood_around(centre: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        a, b = scatter, scatter * centre
        return constant + a * np.log(b) + gammaln(a + s) - gammaln(a) - (a + s) * np.log(b + s * x_)

    def draw_shapes(rng: np.random.Generator, draws: int) -> np.ndarray:
        return np.maximum(shape * (rng.chisquare(degrees, (draws, m.size)) / degrees), 0.2)

    def draw_around(rng: np.random.Generator, centre: np.ndarray, scatter: np.ndarray) -> Drawn:
        drawn = draw_shapes(rng, len(centre))
        return score((scatter * centre + drawn * x) / rng.gamma(scatter + drawn))

    def draw_common(rng: np.random.Generator, who: np.ndarray) -> Drawn:
        drawn = draw_shapes(rng, len(who)) * who
        return score((drawn @ x) / np.maximum(rng.gamma(np.maximum(drawn.sum(1), 0.05)), TINY))[:, None]

    def draw_alone(rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
        drawn = draw_shapes(rng, draws)
        true = score(drawn * x / np.maximum(rng.gamma(drawn), TINY))
        return true, true

    def student(tail: float) -> np.ndarray:
        return -scipy.special.stdtrit(degrees, tail)

    def low(tail: float) -> np.ndarray:
        """As if of so many fewer rows as Student's t is wider than the normal distribution."""
        fewer = np.maximum(shape * (scipy.special.ndtri(tail) / student(tail)) ** 2, 0.05)
        return score(x * fewer / scipy.special.gammaincinv(fewer, 1 - tail))

    def high(tail: float) -> np.ndarray:
        return score(x * shape_above / np.maximum(scipy.special.gammaincinv(shape_above, tail), TINY))

    def sum_error(tail: float) -> SumError:
        y = score(x)
        error = y / np.sqrt(shape) / (2 if root else 1)
        # The root of a mean of few rows is too small on average.
        bias = y * np.exp(gammaln(shape) + np.log(shape) / 2 - gammaln(shape + 0.5)) - y if root else np.zeros(m.size)
        if m.size < LEAST_PEERS:
            below, above = np.maximum(y - low(tail), student(tail) * error), np.maximum(high(tail) - y, 0)
            return SumError(below, above, float(bias.sum()))
        total, spread = float(y.sum()), float(np.linalg.norm(error))
        all_of_them = (total / max(spread, TINY)) ** 2 * (scipy.special.ndtri(tail) / student(tail).max()) ** 2
        above = total * all_of_them / scipy.special.gammaincinv(all_of_them, tail) - total
        return SumError(np.array([student(tail).max() * spread]), np.array([above]), float(bias.sum()))

    return Evidence(
        value=score(mean),
        edges=(0.0, math.inf),
        low=low,
        high=high,
        sum_error=sum_error,
        counts=None,
        centres=lambda count: np.unique([*np.geomspace(x.min(), x.max(), count), common]),
        scatters=(2.0, 6.0, 20.0, 75.0),
        log_likelihood_around=log_likelihood_around,
        log_likelihood_at=lambda centre: constant - s * np.log(centre) - s * x_ / centre,
        log_likelihood_alone=log_likelihood_around(np.array([centre_of_all]), np.array([1.0]))[:, 0],
        draw_around=draw_around,
        draw_common=draw_common,
        draw_alone=draw_alone,
        draw_measured=lambda rng, truth, draws: truth * score(rng.gamma(shape, size=(draws, m.size)) / shape),
    )


def of_means_alike(
    mean: np.ndarray, squares: np.ndarray, rows: np.ndarray, *, root: bool = False
) -> Callable[[np.ndarray], Evidence]:
    """`of_means` of some of the clients, by their indices, with what all of them say of how widely rows scatter."""
    usual, rare = usual_scatter(mean, squares, rows), rare_scatter(mean, squares, rows)
    return lambda i: of_means(mean[i], squares[i], rows[i], root=root, least_scatter=usual, rare=rare)


def of_errors(
    value: np.ndarray, error: np.ndarray, rows: np.ndarray, *, edges: tuple[float, float] = (-math.inf, math.inf)
) -> Evidence:
    """Each client's score and its standard error, whatever the score is: normal.

    An infinite error: the client's rows say nothing of its score, which may be anything between the edges.
    """
    blind = np.isinf(error)
    spread = float(np.ptp(value))
    least = max(spread, float(np.abs(value).max()), TINY) * 1e-6
    usual = float(np.median(error[~blind])) if not blind.all() else edges[1] - edges[0]
    e = np.where(blind, edges[1] - edges[0], np.maximum(error, max(usual / 10, least)))
    degrees = np.where(blind, 100.0, np.maximum(rows - 1.0, 1.0))
    precise = 1 / e**2
    wide = math.hypot(spread, usual)
    common = float(precise @ value / precise.sum())

    def log_normal(away: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return -(away**2) / variance / 2 - np.log(variance) / 2

    def log_likelihood_around(centre: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        return log_normal(value[:, None] - centre, (e**2)[:, None] + (wide * scatter) ** 2)

    def draw_errors(rng: np.random.Generator, draws: int) -> np.ndarray:
        return e * np.sqrt(degrees / rng.chisquare(degrees, (draws, e.size)))  # errors are estimates too: Student's t

    def within_edges(drawn: np.ndarray) -> np.ndarray:
        return np.clip(drawn, *edges)

    def draw_around(rng: np.random.Generator, centre: np.ndarray, scatter: np.ndarray) -> Drawn:
        mine, theirs = draw_errors(rng, len(centre)) ** -2, (wide * scatter) ** -2
        middle = (mine * value + theirs * centre) / (mine + theirs)
        return within_edges(middle + rng.normal(size=middle.shape) / np.sqrt(mine + theirs))

    def draw_common(rng: np.random.Generator, who: np.ndarray) -> Drawn:
        weight = np.maximum(who @ precise, TINY)
        return within_edges((who @ (precise * value)) / weight + rng.normal(size=len(who)) / np.sqrt(weight))[:, None]

    def draw_alone(rng: np.random.Generator, draws: int) -> tuple[Drawn, Drawn]:
        true = within_edges(value + draw_errors(rng, draws) * rng.normal(size=(draws, e.size)))
        return true, true

    def reach(tail: float) -> np.ndarray:
        return np.where(blind, edges[1] - edges[0], -scipy.special.stdtrit(degrees, tail) * e)

    return Evidence(
        value=value,
        edges=edges,
        low=lambda tail: within_edges(value - reach(tail)),
        high=lambda tail: within_edges(value + reach(tail)),
        sum_error=lambda tail: SumError(reach(tail), reach(tail), 0.0),
        counts=None,
        centres=lambda count: np.unique([*np.linspace(value.min(), value.max(), count), common]),
        scatters=(0.5, 0.2, 0.07, 0.02),
        log_likelihood_around=log_likelihood_around,
        log_likelihood_at=lambda centre: log_normal(value[:, None] - centre, (e**2)[:, None]),
        log_likelihood_alone=log_normal(value - float(np.median(value)), e**2 + (2 * wide) ** 2),
        draw_around=draw_around,
        draw_common=draw_common,
        draw_alone=draw_alone,
        draw_measured=lambda rng, truth, draws: within_edges(truth + e * rng.standard_t(degrees, (draws, e.size))),
    )
