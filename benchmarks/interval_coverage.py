"""How often the 95% bounds hold that a page prints, over unequal owners, and how wide they are.

    python benchmarks/interval_coverage.py                    the table of docs/fairness.md
    python benchmarks/interval_coverage.py --only rmse --repeats 50
    python benchmarks/interval_coverage.py --former 36e3597   the bounds of an earlier commit: coverage and widths
    python benchmarks/interval_coverage.py --end-to-end       20 trainings, each judged on fresh rows

The owners' true scores are fixed, their rows are drawn again and again. Two models are scored on the same rows: in
every other repeat they are equally good, so that a difference that excludes zero is a false positive; in the others the
second one is better for half of the owners.
"""

import argparse
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from equipoise.evaluation import Bounds, PerClient, standing
from equipoise.evaluation.differences import (
    SameRows,
    difference,
    each_difference,
    mean_difference,
    on_same_rows,
    worst_correlation,
)
from equipoise.evaluation.rules import higher_is_better, worst_mean
from equipoise.evaluation.standing import Standing

REPEATS, MANY = 100, 300  # of owners from MANY on half as many
RESAMPLED = 100
OF_A_UNIT = 5  # rows
UNITS = {"units of 5": 1.0, "units of 5 alike": 0.01}  # of a unit's beta, a + b: its rows correlate by 1 / (1 + a + b)
RARE_MEAN = 0.16257  # the mean log loss of a calibrated model whose logits are normal around -3.5
# Two models that are equally good where 5% of the rows are of a class: one expects 9%, the other 2.4%.
RATE, OPINIONS, OPINIONS_MEAN = 0.05, (0.09, 0.02362), 0.21
SECOND_ALONE = 0.1  # of the rows: where the second model errs on its own
Owners = tuple[np.ndarray, np.ndarray]  # rows and true score of each


class Setting(NamedTuple):
    kind: str
    name: str
    rows: np.ndarray
    truth: np.ndarray

    @property
    def score(self) -> str:
        return "accuracy" if self.kind in UNITS else self.kind.split()[0] if "log loss" not in self.kind else "loss"

    @property
    def up(self) -> bool:
        return higher_is_better(self.score)


def two(a: int, rows: int, truth: float, b: int, more: int, other: float) -> Owners:
    return np.repeat([rows, more], [a, b]), np.repeat([truth, other], [a, b])


def many(n: int, least: int, most: int, first: float, last: float) -> Owners:
    """Sizes from `least` to `most`, scores from `first` to `last`."""
    return np.rint(np.geomspace(least, most, n)).astype(int), np.linspace(first, last, n)


def unrelated(n: int) -> Owners:
    rng = np.random.default_rng(n)
    return np.rint(np.exp(rng.uniform(np.log(2), np.log(1000), n))).astype(int), rng.beta(16, 4, n)


def settings() -> Iterator[Setting]:
    accuracies = {
        "5 of 8 rows at 75%, 15 of 200 at 88%": two(5, 8, 0.75, 15, 200, 0.88),
        "5 of 8 at 88%, 15 of 200 at 75%": two(5, 8, 0.88, 15, 200, 0.75),
        "10 of 2 at 60%, 40 of 300 at 90%": two(10, 2, 0.6, 40, 300, 0.9),
        "4 of 2 at 99%, 16 of 300 at 80%": two(4, 2, 0.99, 16, 300, 0.8),
        "1 of 3 at 50%, 4 of 500 at 90%": two(1, 3, 0.5, 4, 500, 0.9),
        "1 of 3 at 95%, 4 of 500 at 70%": two(1, 3, 0.95, 4, 500, 0.7),
        "4 of 2 to 1,000, rising 60 to 95%": many(4, 2, 1000, 0.6, 0.95),
        "4 of 2 to 1,000, falling": many(4, 2, 1000, 0.95, 0.6),
        "12 of 2 to 1,000, all at 85%": many(12, 2, 1000, 0.85, 0.85),
        "20 of 2 to 1,000, unrelated": unrelated(20),
        "100 of 2 to 1,000, unrelated": unrelated(100),
        "100 of 2 to 1,000, rising 50 to 95%": many(100, 2, 1000, 0.5, 0.95),
        "100 of 2 to 1,000, falling": many(100, 2, 1000, 0.95, 0.5),
        "300 of 2 to 1,000, rising 50 to 95%": many(300, 2, 1000, 0.5, 0.95),
        "300 of 2 to 1,000, falling": many(300, 2, 1000, 0.95, 0.5),
        "150 of 5 at 60%, 150 of 500 at 90%": two(150, 5, 0.6, 150, 500, 0.9),
        "150 of 5 at 95%, 150 of 500 at 60%": two(150, 5, 0.95, 150, 500, 0.6),
        "50 of 2 at 100%, 50 of 50 at 80%": two(50, 2, 1.0, 50, 50, 0.8),
        "50 of 2 at 50%, 50 of 50 at 80%": two(50, 2, 0.5, 50, 50, 0.8),
        "50 of 3 and 50 of 300, all at 80%": two(50, 3, 0.8, 50, 300, 0.8),
        "10 of 20 at 70%, 10 of 60 at 90%": two(10, 20, 0.7, 10, 60, 0.9),
        "10 of 20 at 90%, 10 of 60 at 70%": two(10, 20, 0.9, 10, 60, 0.7),
        "60 of 10 to 30, rising 60 to 95%": many(60, 10, 30, 0.6, 0.95),
        "60 of 10 to 30, falling": many(60, 10, 30, 0.95, 0.6),
        "2 of 30 at 60%, 6 of 1,000 at 92%": two(2, 30, 0.6, 6, 1000, 0.92),
        "30 of 10 at 98%, 10 of 300 at 85%": two(30, 10, 0.98, 10, 300, 0.85),
        "95 of 30 at 85%, 5 of 1,000 at 60%": two(95, 30, 0.85, 5, 1000, 0.6),
        "5 of 4 at 40%, 95 of 1,000 at 85%": two(5, 4, 0.4, 95, 1000, 0.85),
        "20 of 30, all at 80%": two(10, 30, 0.8, 10, 30, 0.8),
    }
    yield from (Setting("accuracy", name, *owners) for name, owners in accuracies.items())
    losses = {
        "5 of 8 rows at 1.5, 15 of 200 at 0.6": two(5, 8, 1.5, 15, 200, 0.6),
        "10 of 2 at 2, 40 of 300 at 0.5": two(10, 2, 2.0, 40, 300, 0.5),
        "100 of 2 to 1,000, falling 1.5 to 0.3": many(100, 2, 1000, 1.5, 0.3),
        "100 of 5 to 1,000, rising 0.3 to 1.5": many(100, 5, 1000, 0.3, 1.5),
    }
    yield from (Setting("log loss", name, *owners) for name, owners in losses.items())
    yield Setting("log loss", "4 of 5 to 500, falling 1.5 to 0.3", *many(4, 5, 500, 1.5, 0.3))
    yield Setting("log loss", "300 of 5 to 500, falling 1.5 to 0.3", *many(300, 5, 500, 1.5, 0.3))
    yield from (Setting("log loss, heavy tail", name, *owners) for name, owners in losses.items())
    rare = ("5 of 8 rows at 1.5, 15 of 200 at 0.6", "100 of 5 to 1,000, rising 0.3 to 1.5")
    yield from (Setting("log loss, rare class", name, *losses[name]) for name in rare)
    yield Setting("log loss, rare class", "30 of 50 at 0.5", *two(15, 50, 0.5, 15, 50, 0.5))
    opinions = {
        "20 of 50 at 0.2": two(10, 50, 0.2, 10, 50, 0.2),
        "50 of 20 at 0.2": two(25, 20, 0.2, 25, 20, 0.2),
        "5 of 8, 20 of 200, at 0.2": two(5, 8, 0.2, 20, 200, 0.2),
    }
    yield from (Setting("log loss, two opinions", name, *owners) for name, owners in opinions.items())
    errors = {
        "5 of 8 rows at 2, 15 of 200 at 1": two(5, 8, 2.0, 15, 200, 1.0),
        "10 of 2 at 0.5, 40 of 300 at 1": two(10, 2, 0.5, 40, 300, 1.0),
        "100 of 2 to 1,000, falling 2 to 0.5": many(100, 2, 1000, 2.0, 0.5),
        "100 of 2 to 1,000, rising 0.5 to 2": many(100, 2, 1000, 0.5, 2.0),
    }
    yield from (Setting("rmse", name, *owners) for name, owners in errors.items())
    yield Setting("rmse", "1 of 3 at 2, 4 of 500 at 1", *two(1, 3, 2.0, 4, 500, 1.0))
    yield Setting("rmse", "300 of 5 to 300, rising 0.5 to 2", *many(300, 5, 300, 0.5, 2.0))
    yield from (Setting("rmse t5", name, *owners) for name, owners in errors.items())
    yield from (Setting("rmse outliers", name, *of) for name, of in list(errors.items())[:2])
    yield Setting("auroc", "5 of 20 rows at 70%, 15 of 200 at 90%", *two(5, 20, 0.7, 15, 200, 0.9))
    yield Setting("auroc", "40 of 20 to 1,000, falling 95 to 60%", *many(40, 20, 1000, 0.95, 0.6))
    yield Setting("auroc", "10 of 8 at 95%, 10 of 300 at 75%", *two(10, 8, 0.95, 10, 300, 0.75))
    yield Setting("auroc", "20 of 10 to 500, rising 60 to 95%", *many(20, 10, 500, 0.6, 0.95))
    clusters = {
        "5 of 40 rows at 75%, 15 of 200 at 88%": two(5, 40, 0.75, 15, 200, 0.88),
        "10 of 10 at 60%, 40 of 300 at 90%": two(10, 10, 0.6, 40, 300, 0.9),
        "60 of 10 to 1,000, rising 50 to 95%": many(60, 10, 1000, 0.5, 0.95),
        "20 of 50 and 20 of 500, all at 80%": two(20, 50, 0.8, 20, 500, 0.8),
    }
    yield from (Setting(kind, name, *owners) for kind in UNITS for name, owners in clusters.items())


def shares(setting: Setting, other: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Which rows the two models have right, owner by owner; rows of a unit are alike."""
    for m, p, q in zip(setting.rows, setting.truth, other, strict=True):
        if setting.kind in UNITS:
            # The second model is drawn anew for some units, or for all of an owner whom it serves better.
            units, strength = max(m // OF_A_UNIT, 1), UNITS[setting.kind]
            first, fresh = (rng.beta(strength * of, strength * (1 - of), units) for of in (p, q))
            anew = (rng.random(units) < 2 * SECOND_ALONE) | (p != q)
            luck, own = rng.random((2, units, OF_A_UNIT))
            second = np.where(anew, fresh, first)[:, None] > np.where(anew[:, None], own, luck)
            yield (luck < first[:, None]).ravel(), second.ravel()
        else:
            luck, fresh = rng.random((2, m))
            yield luck < p, np.where(rng.random(m) < SECOND_ALONE, fresh, luck) < q


def of_a_rare_class(m: int, rng: np.random.Generator) -> np.ndarray:
    """Log losses of a good model where 4% of the rows are of the other class; their mean is one."""
    logit = rng.normal(size=m) - 3.5
    return (np.logaddexp(0, logit) - logit * (rng.random(m) < 1 / (1 + np.exp(-logit)))) / RARE_MEAN


def losses(setting: Setting, other: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What each row adds to the mean: losses, or squared errors."""
    for m, p, q in zip(setting.rows, setting.truth, other, strict=True):
        if setting.kind == "log loss, two opinions":
            rare = rng.random(m) < RATE
            first, second = (-np.log(np.where(rare, of, 1 - of)) / OPINIONS_MEAN for of in OPINIONS)
            yield p * first, q * second
            continue
        if setting.score == "rmse":
            base, p, q = ERRORS[setting.kind](m, rng) ** 2, p**2, q**2
        else:
            base = LOSSES[setting.kind](m, rng)
        yield p * base, q * base * np.exp(rng.normal(0, 0.3, m) - 0.045)


LOSSES = {  # of mean one
    "log loss": lambda m, rng: rng.exponential(size=m),
    "log loss, heavy tail": lambda m, rng: np.exp(rng.normal(size=m) - 0.5),
    "log loss, rare class": of_a_rare_class,
}
ERRORS = {  # of mean square one
    "rmse": lambda m, rng: rng.normal(size=m),
    "rmse t5": lambda m, rng: rng.standard_t(5, m) * np.sqrt(0.6),
    "rmse outliers": lambda m, rng: rng.normal(size=m) * np.where(rng.random(m) < 0.05, 10, 1) / np.sqrt(5.95),
}
Ranked = tuple[np.ndarray, np.ndarray, np.ndarray]  # which rows are positive, how the two models rank them


def curves(setting: Setting, other: np.ndarray, rng: np.random.Generator) -> Iterator[Ranked]:
    for m, p, q in zip(setting.rows, setting.truth, other, strict=True):
        positive = rng.random(m) < 0.5
        noise, own = rng.normal(size=(2, m))
        apart, also = (np.sqrt(2) * ndtri(of) for of in (p, q))
        yield positive, noise + apart * positive, 0.9 * noise + np.sqrt(0.19) * own + also * positive


def area(positive: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """[draws] of [draws, m]; NaN: one class only."""
    ranks, a = rankdata(ranked, axis=1), positive.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return ((ranks * positive).sum(1) - a * (a + 1) / 2) / (a * (positive.shape[1] - a))


class Scored(NamedTuple):
    """One repeat: what a report has of the two models."""

    tables: tuple[PerClient, PerClient]
    pairs: SameRows | None
    counted: np.ndarray | None


def scored(setting: Setting, other: np.ndarray, rng: np.random.Generator) -> Scored:
    score = setting.score
    if score == "auroc":
        values, again = np.full((2, setting.rows.size), np.nan), np.full((2, setting.rows.size, RESAMPLED), np.nan)
        for i, (positive, *models) in enumerate(curves(setting, other, rng)):
            draws = rng.integers(0, positive.size, (RESAMPLED, positive.size))
            for k, ranked in enumerate(models):
                values[k, i] = area(positive[None], ranked[None])[0]
                again[k, i] = area(positive[draws], ranked[draws])
        made = [PerClient(setting.rows, {score: v}, {score: a}, {}) for v, a in zip(values, again, strict=True)]
        return Scored((made[0], made[1]), None, None)
    drawn = list(zip(*(shares if score == "accuracy" else losses)(setting, other, rng), strict=True))
    sizes = np.array([a.size for a in drawn[0]])
    counted = sizes / OF_A_UNIT if setting.kind in UNITS else None
    made = []
    for rows in drawn:
        mean, squares = np.array([a.mean() for a in rows]), np.array([(a.astype(float) ** 2).mean() for a in rows])
        value = np.sqrt(mean) if score == "rmse" else mean
        made.append(PerClient(sizes, {score: value}, {}, {} if score == "accuracy" else {score: squares}))
    options: dict[str, Any] = {"shares": score == "accuracy", "root": score == "rmse", "counted": counted}
    pairs = on_same_rows(np.concatenate(drawn[0]), np.concatenate(drawn[1]), sizes, **options)
    return Scored((made[0], made[1]), pairs, counted)


def holds(bounds: Bounds, truth: float) -> bool:
    return bool(bounds.low - 1e-9 <= truth <= bounds.high + 1e-9)


def repeat(setting: Setting, seed: int, former: Any) -> dict[str, float]:
    """Of one drawing of all rows: 1 or 0 for what held, widths, and how far the worst fifth is off."""
    rng, up = np.random.default_rng([seed, setting.rows.size]), setting.up
    half, other = (np.arange(setting.truth.size) % 2).astype(bool), setting.truth.copy()
    if seed % 2:
        better = np.maximum(np.minimum(other + 0.05, 0.99), other) if up else 0.95 * other
        other = np.where(half, better, other)
    got = scored(setting, other, rng)
    there = np.isfinite(got.tables[0].scores[setting.score]) & np.isfinite(got.tables[1].scores[setting.score])
    truth, second = setting.truth[there], other[there]
    value = got.tables[0].scores[setting.score][there]
    old = standing(got.tables[0], setting.score, key=seed, counted=got.counted)
    goal = float(worst_mean(truth, up))
    found = {"worst told": float(np.isfinite(old.worst.estimate))}
    if np.isfinite(old.worst.estimate):
        found |= {"measured": abs(float(worst_mean(value, up)) - goal), "corrected": abs(old.worst.estimate - goal)}
    found |= of_one(old, there, truth, value, goal, up)
    if former is not None:
        told = earlier(former, setting, got, there, value, seed)
        before = of_one(told, np.ones(truth.size, bool), truth, value, goal, up)
        return found | {f"{name} before": v for name, v in before.items()}
    new = standing(got.tables[1], setting.score, key=seed, counted=got.counted)
    gains: dict[str, tuple[Bounds, float]] = {
        "mean gain": (difference(old.mean, new.mean, 0.0), float((second - truth).mean())),
        "worst gain": (difference(old.worst, new.worst, 0.0), float(worst_mean(second, up)) - goal),
    }
    each = [difference(Bounds(*a), Bounds(*b), 0.0) for a, b in zip(sides(old), sides(new), strict=True)]
    low, high = np.array([b.low for b in each]), np.array([b.high for b in each])
    if got.pairs is not None:
        paired, together = mean_difference(got.pairs), worst_correlation(got.pairs, up=up)
        gains["worst gain"] = (difference(old.worst, new.worst, together), gains["worst gain"][1])
        if np.isfinite(paired.low):
            gains["mean gain"] = (paired, gains["mean gain"][1])
        low, high = each_difference(got.pairs)
    found |= {name: float(holds(*of)) for name, of in gains.items() if np.isfinite(of[0].low)}
    known = np.isfinite(low) & there
    gain = (other - setting.truth)[known]
    held = (low[known] - 1e-9 <= gain) & (gain <= high[known] + 1e-9)
    if held.size:
        found["client gain"] = float(held.mean())
    if seed % 2 == 0:
        found |= {f"false {name}": 1 - found[name] for name in gains if name in found}
        found["false client gain"] = float(not held.all())
    return found


def of_one(of: Any, there: np.ndarray, truth: np.ndarray, value: np.ndarray, goal: float, up: bool) -> dict[str, float]:
    """What held of the bounds of one model, and how wide they are."""
    low, high = of.low[there], of.high[there]
    found = {}
    for name, bounds, true in (("mean", of.mean, float(truth.mean())), ("worst", of.worst, goal)):
        if np.isfinite(bounds.low):
            found |= {name: float(holds(bounds, true)), f"{name} width": bounds.high - bounds.low}
    known = np.flatnonzero(np.isfinite(low))
    if known.size:
        held = (low[known] - 1e-9 <= truth[known]) & (truth[known] <= high[known] + 1e-9)
        last = int(np.argmin(value[known] if up else -value[known]))
        found |= {"client": float(held.mean()), "worst client": float(held[last])}
        found["client width"] = float(np.mean(high[known] - low[known]))
    return found


def sides(of: Standing) -> Iterator[tuple[float, float, float]]:
    middle = (of.low + of.high) / 2
    return zip(of.low, middle, of.high, strict=True)


def load_former(revision: str) -> Any:
    """The module of an earlier commit, when it had evidence and bounds in one file."""
    text = subprocess.run(
        ["git", "show", f"{revision}:src/equipoise/evaluation/intervals.py"], capture_output=True, text=True, check=True
    ).stdout
    module = sys.modules["former"] = types.ModuleType("former")
    exec(compile(text, "former", "exec"), module.__dict__)
    return module


def earlier(former: Any, setting: Setting, got: Scored, there: np.ndarray, value: np.ndarray, seed: int) -> Any:
    table, score = got.tables[0], setting.score
    sizes = np.asarray(table.sizes)[there]
    if score == "accuracy":
        evidence = former.of_shares(np.rint(value * sizes), sizes)
    elif score == "auroc":
        drawn = table.resampled[score][there]
        evidence = former.of_errors(value, np.where(np.isnan(drawn), value[:, None], drawn).std(1), sizes)
    else:
        root = score == "rmse"
        evidence = former.of_means(value**2 if root else value, table.squares[score][there], sizes, root=root)
    return former.bounds_of(evidence, higher_is_better=setting.up, key=seed)


HELD = ("mean", "worst", "client", "worst client", "mean gain", "worst gain", "client gain")
FALSE = ("false mean gain", "false worst gain", "false client gain")
OFF = ("worst told", "measured", "corrected")
WIDE = ("mean width", "worst width", "client width")


def table(repeats: int, only: str, former: Any) -> None:
    heads = [*HELD, *FALSE, *OFF, *WIDE]
    if former is not None:
        heads = [name for told in (*HELD[:4], *WIDE) for name in (told, f"{told} before")]
    print(f"| setting | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}", flush=True)
    means: dict[str, list[float]] = {}
    for setting in settings():
        if only not in f"{setting.kind}: {setting.name}":
            continue
        times = repeats if setting.rows.size < MANY else repeats // 2
        got = [repeat(setting, seed, former) for seed in range(times)]
        cells = []
        for head in heads:
            values = [of[head] for of in got if head in of]
            mean = float(np.mean(values)) if values else np.nan
            means.setdefault(head, []).append(mean)
            percent = head.removesuffix(" before") in (*HELD, *FALSE, "worst told")
            cells.append("" if np.isnan(mean) else f"{100 * mean:.0f}%" if percent else f"{mean:.3g}")
        print(f"| {setting.kind}: {setting.name} | {' | '.join(cells)} |", flush=True)
    print()
    for head in heads:
        found = np.array(means[head])
        found = 100 * found[np.isfinite(found)]
        if head.removesuffix(" before") in HELD and found.size:
            print(
                f"{head}: {found.mean():.1f}% on average, least {found.min():.1f}%, below 93% in {(found < 93).sum()}"
            )
        elif head in FALSE and found.size:
            print(f"{head}: {found.mean():.1f}% on average, most {found.max():.1f}%, above 7% in {(found > 7).sum()}")


def end_to_end(runs: int) -> None:
    """20 owners, 15 of 200 scored rows, and 5 of 8 scored rows that follow another law; truth by 20,000 fresh rows."""
    import equipoise as eq

    held, told = np.zeros(3), []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        laws = rng.normal(size=(2, 5))

        def rows(owner: int, m: int, rng: np.random.Generator = rng, laws: np.ndarray = laws) -> Any:
            x = rng.normal(size=(m, 5))
            return x, (x @ laws[int(owner < 5)] + rng.normal(size=m) > 0).astype(int)

        tables = [rows(i, 40 if i < 5 else 1000) for i in range(20)]
        settings = {"run": {"seed": seed, "score": "accuracy"}, "data": {"test": 0.2}}
        fitted = eq.fit(tables, settings=settings)
        order = [int(member.name.split()[1]) for member in fitted.run.federation.members]
        truth = np.array([np.mean(fitted.predict(x) == y) for i in order for x, y in [rows(i, 20_000)]])
        end: Any = fitted.run.outcome
        worst, mean = float(worst_mean(truth, True)), float(truth.mean())
        low, high = np.array(end.low), np.array(end.high)
        held += [
            end.worst_low <= worst <= end.worst_high,
            end.mean_low <= mean <= end.mean_high,
            bool(((low <= truth) & (truth <= high)).all()),
        ]
        told.append([worst, end.worst_low, end.worst_high, end.worst_estimate, end.summary["worst20"]])
    for what, count in zip(("the worst fifth", "the mean", "every client at once"), held, strict=True):
        print(f"{what}: within the bounds in {count:.0f} of {runs} runs")
    words = ("truth", "low", "high", "corrected", "measured")
    print(
        "worst fifth on average:",
        ", ".join(f"{w} {100 * v:.1f}%" for w, v in zip(words, np.mean(told, 0), strict=True)),
    )
    off = np.abs(np.array(told)[:, 3:] - np.array(told)[:, :1]).mean(0)
    print(f"off by, on average: corrected {100 * off[0]:.1f} points, measured {100 * off[1]:.1f}")


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, default=REPEATS)
    asked.add_argument("--only", default="", help="settings whose name has this in it")
    asked.add_argument("--former", metavar="COMMIT")
    asked.add_argument("--end-to-end", action="store_true")
    given = asked.parse_args()
    if given.end_to_end:
        end_to_end(20)
    else:
        table(given.repeats, given.only, None if given.former is None else load_former(given.former))
