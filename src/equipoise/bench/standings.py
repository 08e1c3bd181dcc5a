"""All entries together: who is better, by how much, and how certain that is.

On a federation, a method's numbers are means over its splits. What differs from owner to owner is drawn anew by taking
owners with replacement, the same ones for every method and split: bounds of differences are paired, and of splits only
those that both methods have count. Over federations, these are drawn too, and within them their owners. Bounds are
Student's, of how such draws scatter: of few owners or federations their quantiles are too narrow.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from equipoise.bench.entries import Entry
from equipoise.bench.methods import ALONE, DEFAULT, FIXED
from equipoise.errors import one_of, require
from equipoise.evaluation.intervals import Bounds
from equipoise.evaluation.rules import worst_mean

DRAWS = 2000
LEVEL = 0.95
STEADY = 1e-3  # of the skill: less is no difference, however certain


class OnFederation(NamedTuple):
    """A method on a federation, over its splits."""

    mean: Bounds  # of the skill
    worst: Bounds  # of its worst fifth, corrected
    worst_gain: Bounds  # over each owner's own model, corrected
    losers: Bounds  # share of the owners that their own model serves better
    auroc: Bounds | None
    calibration: Bounds | None
    rounds: float | None
    megabytes: float | None
    seconds: float | None
    splits: int


Counts = tuple[int, int, int]  # wins, ties, losses


class Against(NamedTuple):
    """A method against another one, on the federations that both have."""

    average: Bounds  # of the difference in average skill
    worst: Bounds  # in the worst fifth's
    by_federation: Mapping[str, tuple[Bounds, Bounds]]
    counts: Counts  # in the average
    worst_counts: Counts


class Overall(NamedTuple):
    """A method over all federations."""

    federations: int
    rank: Bounds | None  # by average skill among the methods that ran everywhere
    worst_rank: Bounds | None
    against_it: Against | None
    losers: Bounds


class Standings(NamedTuple):
    """All that the page says."""

    federations: dict[str, list[Entry]]
    methods: list[str]  # in the order of their ranks, then those that did not run everywhere
    on: dict[tuple[str, str], OnFederation]  # federation, method
    overall: dict[str, Overall]
    against: str  # the method that all are compared with


def standings(entries: Sequence[Entry], against: str | None = None) -> Standings:
    """Unless told, all are compared with `fixed`; where it was not run, with the default, or with owners alone."""
    names = list(dict.fromkeys(entry.method for entry in entries))
    if against is None:
        against = next((method for method in (FIXED, DEFAULT) if method in names), ALONE)
    one_of("method with results", against, names)
    federations: dict[str, list[Entry]] = {}
    for entry in entries:
        federations.setdefault(entry.federation, []).append(entry)
    require(federations, "there are no entries; run `equipoise bench` first")
    drawn = {name: _drawn(results) for name, results in federations.items()}
    on = {(name, m): _on(m, results, drawn[name]) for name, results in federations.items() for m in drawn[name].skill}
    everywhere = [m for m in names if all(_splits(d, against) <= _splits(d, m) != set() for d in drawn.values())]
    ranks = _ranks(drawn, everywhere)
    overall = {method: _overall(method, drawn, ranks, against) for method in names}
    order = sorted(everywhere, key=lambda m: ranks[m][0].estimate) + [m for m in names if m not in everywhere]
    return Standings(federations, order, on, overall, against)


class Drawn(NamedTuple):
    """A federation's methods, and the draws of its owners, which are the same for all of them."""

    who: np.ndarray  # [1 + draws, owners]: first the owners as they are
    skill: dict[str, dict[int, np.ndarray]]  # method, split: of every owner
    gain: dict[str, dict[int, np.ndarray]]


def _drawn(entries: Sequence[Entry]) -> Drawn:
    n = len(entries[0].owners)
    rng = np.random.default_rng(zlib.crc32(entries[0].federation.encode()))
    drawn = Drawn(np.concatenate([np.arange(n)[None], rng.integers(n, size=(DRAWS, n))]), {}, {})
    for entry in entries:
        drawn.skill.setdefault(entry.method, {})[entry.split] = _array(entry.skill)
        drawn.gain.setdefault(entry.method, {})[entry.split] = _array(entry.gain)
    return drawn


def _splits(drawn: Drawn, *methods: str) -> set[int]:
    """That all these methods have."""
    return set.intersection(*(set(drawn.skill.get(method, ())) for method in methods))


def _skills(drawn: Drawn, method: str, splits: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """[1 + draws]: the mean, and the mean of the worst fifth."""
    owners = np.mean([drawn.skill[method][s] for s in splits], axis=0)[drawn.who]
    return owners.mean(1), worst_mean(owners, True)


def _losers(drawn: Drawn, method: str) -> np.ndarray:
    """[1 + draws]: the share of the owners that their own model serves better."""
    return (np.mean(list(drawn.gain[method].values()), axis=0) < 0)[drawn.who].mean(1)


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values])


def _bounds(values: np.ndarray, n: int, least: float = -np.inf, most: float = np.inf) -> Bounds:
    """Of draws of n owners or federations, the first of which is what was measured.

    A worst fifth of draws is seldom worse than the one that was measured: what counts is how much they scatter.
    """
    middle, width = values[0], 0.0
    if n > 1:
        width = stats.t.ppf((1 + LEVEL) / 2, n - 1) * values[1:].std() * np.sqrt(n / (n - 1))
    return Bounds(*(float(np.clip(edge, least, most)) for edge in (middle - width, middle, middle + width)))


def _on(method: str, entries: Sequence[Entry], drawn: Drawn) -> OnFederation:
    mine = [entry for entry in entries if entry.method == method]

    def over_splits(field: str) -> Bounds:
        """Splits share most rows: their bounds are averaged, and do not narrow."""
        return Bounds(*np.mean([_array(getattr(entry, field)) for entry in mine], axis=0).tolist())

    def mean_of(field: str) -> float | None:
        values = [getattr(entry, field) for entry in mine if getattr(entry, field) is not None]
        return float(np.mean(values)) if values else None

    losers = _bounds(_losers(drawn, method), drawn.who.shape[1], 0, 1)
    calibration = over_splits("calibration") if mine[0].calibration is not None else None
    mean, worst, gain = (over_splits(field) for field in ("mean", "worst", "worst_gain"))
    rounds, megabytes, seconds = (mean_of(field) for field in ("rounds", "megabytes", "seconds"))
    auroc = _of_owners(np.array([_array(entry.auroc) for entry in mine]))
    return OnFederation(mean, worst, gain, losers, auroc, calibration, rounds, megabytes, seconds, len(mine))


def _of_owners(values: np.ndarray) -> Bounds | None:
    """[splits, owners]: of the mean over the owners that have the score in some split; None: nobody has."""
    some = np.isfinite(values).any(0)
    if not some.any():
        return None
    each = np.nanmean(values[:, some], axis=0)
    who = np.random.default_rng(len(each)).integers(len(each), size=(DRAWS, len(each)))
    return _bounds(np.append(each.mean(), each[who].mean(1)), len(each), 0, 1)


def _ranks(drawn: Mapping[str, Drawn], methods: Sequence[str]) -> dict[str, tuple[Bounds, Bounds]]:
    """Of every method, the mean over the federations of its place by average skill, and by the worst fifth's."""
    if not methods:
        return {}
    ranks = []
    skills = [[_skills(d, m, _splits(d, *methods)) for m in methods] for d in drawn.values()]
    for part in np.moveaxis(np.array(skills), 2, 0):  # of each: federation, method, draw
        places = (part[:, None] > part[:, :, None] + STEADY).sum(2) + 1.0  # how many are better, and one
        ties = (np.abs(part[:, None] - part[:, :, None]) <= STEADY).sum(2) - 1
        places += ties / 2
        ranks.append([_over_federations(places[:, j], _sizes(drawn), 1, len(methods)) for j in range(len(methods))])
    return dict(zip(methods, zip(*ranks, strict=True), strict=True))


def _overall(
    method: str, drawn: Mapping[str, Drawn], ranks: Mapping[str, tuple[Bounds, Bounds]], against: str
) -> Overall:
    here = {name: d for name, d in drawn.items() if method in d.skill}
    losers = _over_federations(np.array([_losers(d, method) for d in here.values()]), _sizes(here), 0, 1)
    rank, worst_rank = ranks.get(method, (None, None))
    return Overall(len(here), rank, worst_rank, compared(method, against, drawn), losers)


def compared(method: str, against: str, drawn: Mapping[str, Drawn]) -> Against | None:
    """On the splits that both have; None if they share no split, or are the same method."""
    both = {name: d for name, d in drawn.items() if _splits(d, method, against)}
    if not both or method == against:
        return None
    sizes = _sizes(both)
    pairs = [[_skills(d, m, _splits(d, method, against)) for m in (method, against)] for d in both.values()]
    average, worst = np.moveaxis(np.array([np.array(a) - np.array(b) for a, b in pairs]), 1, 0)  # federation, draw
    each = {name: (_bounds(a, n), _bounds(w, n)) for name, n, a, w in zip(both, sizes, average, worst, strict=True)}
    overall = [_over_federations(values, sizes) for values in (average, worst)]
    counts = [_counted(side) for side in zip(*each.values(), strict=True)]
    return Against(overall[0], overall[1], each, counts[0], counts[1])


def _counted(bounds: Sequence[Bounds]) -> Counts:
    """A win or a loss: a difference whose bounds leave zero out, and that is large enough to matter."""
    wins = sum(b.low > 0 and b.estimate > STEADY for b in bounds)
    losses = sum(b.high < 0 and b.estimate < -STEADY for b in bounds)
    return wins, len(bounds) - wins - losses, losses


def _sizes(drawn: Mapping[str, Drawn]) -> list[int]:
    return [d.who.shape[1] for d in drawn.values()]


def _over_federations(values: np.ndarray, sizes: Sequence[int], least: float = -np.inf, most: float = np.inf) -> Bounds:
    """[federations, 1 + draws] of their owners: of the mean over federations, which are drawn too, the same for all
    methods that are on as many.

    A single one is not drawn: what is said is said of its owners.
    """
    n = len(values)
    drawn = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    mean = np.append(values[:, 0].mean(), values[drawn, np.arange(1, values.shape[1])[:, None]].mean(1))
    return _bounds(mean, n if n > 1 else sizes[0], least, most)
