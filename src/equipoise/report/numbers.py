"""What the records hold, as numbers: one per client, per round and per run, and how they are written."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from equipoise import algorithms
from equipoise.errors import InputError, require
from equipoise.evaluation import Bounds, intervals
from equipoise.evaluation.intervals import Paired
from equipoise.evaluation.predictions import ROOTS
from equipoise.evaluation.rules import higher_is_better, main_score, worst_mean
from equipoise.experiment import records
from equipoise.experiment.records import Number, PerClient, Row, Run, RunResult

NAMES = {"rmse": "RMSE", "auroc": "AUROC", "r2": "R²"}
NONE = "–"
UNKNOWN = Bounds(math.nan, math.nan, math.nan)
DIVERGED = 1e100

Against = Literal["rounds", "bytes"]


class Entry(NamedTuple):
    """A run and what is said about it."""

    run: Run
    label: str
    measure: str
    up: bool  # more is better
    values: np.ndarray  # [n] of the last row; NaN: no score
    low: np.ndarray  # [n]; NaN: not known
    high: np.ndarray
    summary: dict[str, float]  # mean, worst20, best20, worst, std; NaN: not known
    worst: Bounds  # of the true scores of the worst-served fifth; NaN: not known
    mean: Bounds  # of the average client's
    kind: int = 0  # its number among those beside it, for its colour and sign

    @property
    def finished(self) -> bool:
        return self.run.outcome is not None

    @property
    def score(self) -> str:
        """What the measure is called in a sentence."""
        return NAMES.get(self.measure, self.measure.replace("_", " "))

    @property
    def averages(self) -> bool:
        return averages(self.run)

    @property
    def n(self) -> int:
        return len(self.run.federation.members)

    @property
    def rounds(self) -> int:
        return self.run.rows[-1].round if self.run.rows else 0

    @property
    def bytes_each(self) -> float:
        """Sent to and from a client, over all rounds; the mean over the clients."""
        return traffic(self.run.rows[-1], self.n) if self.run.rows else math.nan

    @property
    def floats_each(self) -> float:
        return self.bytes_each / (8 if "64" in self.run.environment.precision else 4)

    @property
    def seconds(self) -> float:
        if self.run.outcome is not None:
            return self.run.outcome.seconds
        return self.run.rows[-1].seconds if self.run.rows else math.nan

    @property
    def written(self) -> Callable[[float], str]:
        """How its score is written: a share as per cent, anything else as it is."""
        return percent if self.measure == "accuracy" else plain

    @property
    def difference(self) -> Callable[[float], str]:
        """How much two of its scores differ, without a sign."""
        return points if self.measure == "accuracy" else (lambda value: f"{abs(value):.3g}")

    def rounded(self, value: float) -> float:
        """As it reads when it is written, so that differences add up for the reader."""
        if self.measure == "accuracy":
            return round(value, 3)
        return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")

    @property
    def corrected(self) -> float:
        """The worst-served fifth, corrected for chance where that is known."""
        return self.worst.estimate if math.isfinite(self.worst.estimate) else self.summary["worst20"]

    def worse_first(self) -> list[int]:
        """Clients from the worst served to the best; those without a score last."""
        order = np.argsort(self.values if self.up else -self.values, kind="stable")
        return [int(i) for i in order]


def entries(runs: Sequence[Run]) -> list[Entry]:
    require(runs, "there are no runs to report; give at least one run folder")
    return [_entry(run, label) for run, label in zip(runs, labels(runs), strict=True)]


def together(found: Sequence[Entry]) -> list[list[Entry]]:
    """Entries whose scores may stand side by side: the same clients, by name, and the same measure."""
    groups: dict[object, list[Entry]] = {}
    for entry in found:
        federation = entry.run.federation
        key = (federation.task, entry.measure, entry.up, tuple(member.name for member in federation.members))
        group = groups.setdefault(key, [])
        group.append(entry._replace(kind=len(group)))
    return list(groups.values())


def labels(runs: Sequence[Run]) -> list[str]:
    """What each run is called; runs of the same name get the settings in which they differ, then a number."""
    own = [run.outcome.label if run.outcome else _unfinished_label(run) for run in runs]
    told = [
        ", ".join((label, *_own_settings(run, [r for r, a in zip(runs, own, strict=True) if a == label])))
        for run, label in zip(runs, own, strict=True)
    ]
    return [f"{a} #{told[: i + 1].count(a)}" if told.count(a) > 1 else a for i, a in enumerate(told)]


def _own_settings(run: Run, others: Sequence[Run]) -> list[str]:
    """`rho 0.1`: what the others' configurations have otherwise."""
    flat = [_flat(other.config) for other in others]
    mine = _flat(run.config)
    differing = [key for key in mine if any(table.get(key) != mine[key] for table in flat)]
    return [f"{key.rpartition('.')[2]} {mine[key]}" for key in differing]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def _unfinished_label(run: Run) -> str:
    """Its folder; of a sweep that is called after the seed only."""
    name = run.path.resolve().name
    return f"{run.path.resolve().parent.name}/{name}" if name.startswith("seed-") else name


def setting(run: Run, section: str, key: str) -> str | None:
    table = run.config.get(section)
    value = table.get(key) if isinstance(table, dict) else None
    return None if value is None else str(value)


def averages(run: Run) -> bool:
    """Whether it trains for the average client, which is what fairness is measured against."""
    method = setting(run, "algorithm", "name")
    try:
        record = algorithms.named(method or "")
    except InputError:  # not there any more, such as the user's own
        return all(row.lam is None for row in run.rows)
    return record.average or (record.takes_dual and setting(run, "objective", "name") == "average")


def _entry(run: Run, label: str) -> Entry:
    n = len(run.federation.members)
    measure, up = _measured(run)
    values = scores(run.rows[-1], measure, n) if run.rows else np.full(n, np.nan)
    told = standing(values, up)
    if run.outcome is None:
        nothing = np.full(n, np.nan)
        return Entry(run, label, measure, up, values, nothing, nothing, told, UNKNOWN, UNKNOWN)
    out = run.outcome
    names = {"mean": "mean", "worst20": "worst20", "best20": "best20", "worst": "min" if up else "max", "std": "std"}
    told |= {mine: number(out.summary[key]) for mine, key in names.items() if out.summary.get(key) is not None}
    low, high = array(out.low, n), array(out.high, n)
    return Entry(run, label, measure, up, values, low, high, told, _worst(out, told), _mean(out, told, low, high))


def _worst(out: RunResult, told: dict[str, float]) -> Bounds:
    """Of a run from before there was an estimate the bounds are stretched: no number stands outside of its own."""
    low, high = number(out.worst_low), number(out.worst_high)
    estimate = told["worst20"] if out.worst_estimate is None else number(out.worst_estimate)
    return Bounds(min(low, estimate), estimate, max(high, estimate)) if math.isfinite(low + high) else UNKNOWN


def _mean(out: RunResult, told: dict[str, float], low: np.ndarray, high: np.ndarray) -> Bounds:
    """Of a run from before there were bounds of it: each client's half interval is an independent error."""
    mean = told["mean"]
    if out.mean_low is not None and out.mean_high is not None:
        return Bounds(min(out.mean_low, mean), mean, max(out.mean_high, mean))
    halves = ((high - low) / 2)[np.isfinite(low)]
    half = float(np.sqrt(np.sum(halves**2)) / halves.size) if halves.size else math.nan
    return Bounds(mean - half, mean, mean + half)


def _measured(run: Run) -> tuple[str, bool]:
    if run.outcome is not None:
        return run.outcome.measure, run.outcome.higher_is_better
    known = run.rows[-1].scores if run.rows else {}
    start = "accuracy" if run.federation.task == "classification" else "rmse"
    measure = main_score(known) or start
    return measure, higher_is_better(measure)


def standing(values: np.ndarray, up: bool) -> dict[str, float]:
    """As `fairness.summary`, over the clients that have a score."""
    known = values[np.isfinite(values)]
    if not known.size:
        return dict.fromkeys(("mean", "worst20", "best20", "worst", "std"), math.nan)
    return {
        "mean": float(known.mean()),
        "worst20": float(worst_mean(known, up)),
        "best20": float(worst_mean(known, not up)),
        "worst": float(known.min() if up else known.max()),
        "std": float(known.std()),
    }


def paired(old: Entry, new: Entry) -> Paired | None:
    """How the errors of two runs go together; None unless both kept what they make of the same rows."""
    kept = [records.read_row_scores(entry.run.path / records.ROW_SCORES) for entry in (old, new)]
    sizes = [[m.test if e.run.federation.held_out else m.train for m in e.run.federation.members] for e in (old, new)]
    first, second = kept
    if first is None or second is None or first.rows != second.rows or sizes[0] != sizes[1]:
        return None
    if {first.score, second.score} != {old.measure} or {first.values.size, second.values.size} != {sum(sizes[0])}:
        return None
    root = old.measure in ROOTS
    return intervals.correlations(first.values, second.values, np.array(sizes[0]), up=old.up, root=root)


def scores(row: Row, measure: str, n: int) -> np.ndarray:
    return array(row.scores.get(measure, ()), n)


def array(values: PerClient, n: int) -> np.ndarray:
    """[n]; NaN where there is no number."""
    return np.array([number(v) for v in values] if len(values) == n else [math.nan] * n, np.float64)


def number(value: Number) -> float:
    """What is beyond all measure has diverged, and is as good as not finite: its square may not be a number."""
    return float(value) if value is not None and abs(value) < DIVERGED else math.nan


def traffic(row: Row, n: int) -> float:
    return (row.bytes_down + row.bytes_up) / max(n, 1)


Curve = list[tuple[float, float, int]]  # (x, y, round)
OF_SCORES = ("mean", "worst20")


def curve(entry: Entry, of: str, against: Against, limit: int = 150) -> Curve:
    """How a summary of the scores, or a number of the rows, went; evenly chosen points beyond `limit`."""

    def height(row: Row) -> float:
        if of in OF_SCORES:
            return standing(scores(row, entry.measure, entry.n), entry.up)[of]
        return number(getattr(row, of))

    def along(row: Row) -> float:
        return float(row.round) if against == "rounds" else traffic(row, entry.n)

    return [(along(row), height(row), row.round) for row in thinned(entry.run.rows, limit)]


def thinned(rows: Sequence[Row], limit: int) -> list[Row]:
    """At most `limit` of them, the first and the last among them."""
    if len(rows) <= limit:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (limit - 1))] for i in range(limit)]


def weights(run: Run, limit: int = 120) -> tuple[list[int], np.ndarray]:
    """(rounds [t], lambda [t, n]) of the rows that have weights."""
    n = len(run.federation.members)
    rows = thinned([row for row in run.rows if row.lam is not None and len(row.lam) == n], limit)
    return [row.round for row in rows], np.array([array(row.lam or (), n) for row in rows]).reshape(len(rows), n)


def percent(value: float) -> str:
    return f"{100 * value:.1f}%" if math.isfinite(value) else NONE


def points(value: float) -> str:
    size = f"{abs(100 * value):.1f}"
    return f"{size} point" if size == "1.0" else f"{size} points"


def plain(value: float) -> str:
    if not math.isfinite(value):
        return NONE
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else "0" if value == 0 else f"{value:#.4g}"


def compact(value: float) -> str:
    """For the ticks of an axis."""
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def count(value: float) -> str:
    return f"{round(value):,}" if math.isfinite(value) else NONE


def many(value: float, units: Sequence[str] = ("", "k", "M", "G", "T"), least: int = 0) -> str:
    """Three digits and a unit."""
    if not math.isfinite(value):
        return NONE
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == least or abs(value) >= 99.95 else 1
    return f"{value:,.{digits}f}{units[power]}"


def size(value: float) -> str:
    """Bytes."""
    return many(value, (" B", " kB", " MB", " GB", " TB"))


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return NONE
    if seconds < 99.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def bounds(low: float, high: float, written: Callable[[float], str]) -> str:
    """`61.2–66.9%`: the unit once."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return NONE
    between = "–" if low >= 0 else " to "
    return f"{written(low).removesuffix('%')}{between}{written(high)}"
