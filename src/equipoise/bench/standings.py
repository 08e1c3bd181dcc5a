"""All entries together: who is better, by how much, and how certain that is.

On a federation, a method's numbers are means over its splits. What differs from owner to owner is drawn anew by taking
owners with replacement, the same ones for every method and split: bounds of differences are paired. Over federations,
these are drawn too, and within them their owners.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from equipoise.bench.entries import Entry
from equipoise.bench.methods import ALONE, DEFAULT
from equipoise.errors import require
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
    calibration: float | None
    rounds: float | None
    megabytes: float | None
    seconds: float | None
    splits: int


class Against(NamedTuple):
    """A method against another one, on the federations that both have."""

    average: Bounds  # of the difference in average skill
    worst: Bounds  # in the worst fifth's
    by_federation: Mapping[str, tuple[Bounds, Bounds]]
    counts: tuple[int, int, int]  # wins, ties, losses in the average
    worst_counts: tuple[int, int, int]


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


def standings(entries: Sequence[Entry]) -> Standings:
    """All methods are compared with the default; where it was not run, with owners alone."""
    against = DEFAULT if any(entry.method == DEFAULT for entry in entries) else ALONE
    federations: dict[str, list[Entry]] = {}
    for entry in entries:
        federations.setdefault(entry.federation, []).append(entry)
    require(federations, "there are no entries; run `equipoise bench` first")
    drawn = {name: _drawn(results) for name, results in federations.items()}
    on = {(name, m): _on(m, results, drawn[name]) for name, results in federations.items() for m in drawn[name].skill}
    names = list(dict.fromkeys(entry.method for entry in entries))
    everywhere = [m for m in names if all(m in d.skill for d in drawn.values())]
    ranks = _ranks(drawn, everywhere)
    overall = {method: _overall(method, drawn, ranks, against) for method in names}
    order = sorted(everywhere, key=lambda m: ranks[m][0].estimate) + [m for m in names if m not in everywhere]
    return Standings(federations, order, on, overall, against)


class Drawn(NamedTuple):
    """A federation's methods, on the same draws of its owners: first the owners as they are."""

    skill: dict[str, np.ndarray]  # [1 + draws]
    worst: dict[str, np.ndarray]
    losers: dict[str, np.ndarray]


def _drawn(entries: Sequence[Entry]) -> Drawn:
    n = len(entries[0].owners)
    rng = np.random.default_rng(n)
    who = np.concatenate([np.arange(n)[None], rng.integers(n, size=(DRAWS, n))])
    drawn = Drawn({}, {}, {})
    for method in dict.fromkeys(entry.method for entry in entries):
        mine = [entry for entry in entries if entry.method == method]
        skill = np.mean([_array(entry.skill) for entry in mine], axis=0)
        gain = np.mean([_array(entry.gain) for entry in mine], axis=0)
        drawn.skill[method] = skill[who].mean(1)
        drawn.worst[method] = worst_mean(skill[who], True)
        drawn.losers[method] = (gain < 0)[who].mean(1)
    return drawn


def _array(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values])


def _bounds(values: np.ndarray) -> Bounds:
    """Of draws, the first of which is what was measured."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return Bounds(float(min(low, values[0])), float(values[0]), float(max(high, values[0])))


def _on(method: str, entries: Sequence[Entry], drawn: Drawn) -> OnFederation:
    mine = [entry for entry in entries if entry.method == method]

    def over_splits(field: str) -> Bounds:
        """Splits share most rows: their bounds are averaged, and do not narrow."""
        values = np.array([[np.nan if v is None else v for v in getattr(entry, field)] for entry in mine])
        return Bounds(*np.mean(values, axis=0).tolist())

    def mean_of(field: str) -> float | None:
        values = [getattr(entry, field) for entry in mine if getattr(entry, field) is not None]
        return float(np.mean(values)) if values else None

    areas = np.array([_array(entry.auroc) for entry in mine])
    return OnFederation(
        over_splits("mean"),
        over_splits("worst"),
        over_splits("worst_gain"),
        _bounds(drawn.losers[method]),
        _of_owners(areas) if np.isfinite(areas).any() else None,
        mean_of("calibration"),
        mean_of("rounds"),
        mean_of("megabytes"),
        mean_of("seconds"),
        len(mine),
    )


def _of_owners(values: np.ndarray) -> Bounds:
    """[splits, owners]: of the mean over the owners that have the score in some split."""
    some = np.isfinite(values).any(0)
    each = np.nanmean(values[:, some], axis=0)
    who = np.random.default_rng(len(each)).integers(len(each), size=(DRAWS, len(each)))
    return _bounds(np.append(each.mean(), each[who].mean(1)))


def _ranks(drawn: Mapping[str, Drawn], methods: Sequence[str]) -> dict[str, tuple[Bounds, Bounds]]:
    """Of every method, the mean over the federations of its place by average skill, and by the worst fifth's."""
    ranks = []
    which = np.random.default_rng(0).integers(len(drawn), size=(DRAWS, len(drawn)))
    for part in ("skill", "worst"):
        values = np.array([[getattr(d, part)[m] for m in methods] for d in drawn.values()])  # federation, method, draw
        if not methods:
            return {}
        places = (values[:, None] > values[:, :, None] + STEADY).sum(2) + 1.0  # how many are better, and one
        ties = (np.abs(values[:, None] - values[:, :, None]) <= STEADY).sum(2) - 1
        places += ties / 2
        over = [places[:, :, 0].mean(0)]
        over += [places[which[k], :, k + 1].mean(0) for k in range(DRAWS)]
        ranks.append(np.array(over))
    return {m: (_bounds(ranks[0][:, j]), _bounds(ranks[1][:, j])) for j, m in enumerate(methods)}


def _overall(
    method: str, drawn: Mapping[str, Drawn], ranks: Mapping[str, tuple[Bounds, Bounds]], against: str
) -> Overall:
    here = [d for d in drawn.values() if method in d.skill]
    which = np.random.default_rng(0).integers(len(here), size=(DRAWS, len(here)))
    return Overall(
        len(here),
        ranks[method][0] if method in ranks else None,
        ranks[method][1] if method in ranks else None,
        compared(method, against, drawn),
        _over_federations(np.array([d.losers[method] for d in here]), which),
    )


def compared(method: str, against: str, drawn: Mapping[str, Drawn]) -> Against | None:
    """None where they share no federation, or are the same."""
    both = {name: d for name, d in drawn.items() if method in d.skill and against in d.skill}
    if not both or method == against:
        return None
    which = np.random.default_rng(0).integers(len(both), size=(DRAWS, len(both)))
    average = np.array([d.skill[method] - d.skill[against] for d in both.values()])
    worst = np.array([d.worst[method] - d.worst[against] for d in both.values()])
    each = {name: (_bounds(a), _bounds(w)) for name, a, w in zip(both, average, worst, strict=True)}
    counts = [tuple(_verdicts([pair[k] for pair in each.values()])) for k in (0, 1)]
    return Against(
        _over_federations(average, which),
        _over_federations(worst, which),
        each,
        counts[0],  # type: ignore[arg-type]
        counts[1],  # type: ignore[arg-type]
    )


def _verdicts(bounds: Sequence[Bounds]) -> tuple[int, int, int]:
    """Wins, ties, losses: a difference whose bounds leave zero out, and that is large enough to matter."""
    wins = sum(b.low > 0 and b.estimate > STEADY for b in bounds)
    losses = sum(b.high < 0 and b.estimate < -STEADY for b in bounds)
    return wins, len(bounds) - wins - losses, losses


def _over_federations(values: np.ndarray, which: np.ndarray) -> Bounds:
    """[federations, 1 + draws] of their owners: of the mean over federations, which are drawn too."""
    draws = np.arange(1, values.shape[1])[:, None]
    return _bounds(np.append(values[:, 0].mean(), values[which, draws].mean(1)))
