"""The numbers of run records: per client, per round and per run."""

import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np

from equipoise import algorithms, objectives
from equipoise.errors import InputError, require
from equipoise.evaluation import Bounds, differences, main_score_named
from equipoise.evaluation.differences import SameRows
from equipoise.evaluation.intervals import UNKNOWN
from equipoise.evaluation.predictions import ROOTS
from equipoise.evaluation.rules import TASK_SCORES, higher_is_better, is_fraction, main_score, worst_mean
from equipoise.experiment import records
from equipoise.experiment.records import ClientRecord, Number, PerClient, Row, Run, RunResult
from equipoise.report import formats

SCORE_NAMES = {"rmse": "RMSE", "auroc": "AUROC", "r2": "R²", "loss": "log loss", "brier": "Brier score"}
DIVERGED = 1e100

XAxis = Literal["rounds", "bytes"]


class ReportedRun(NamedTuple):
    """A run with the numbers that the report shows of it."""

    record: Run
    label: str
    measure: str  # the name of its score
    higher_is_better: bool
    values: np.ndarray  # [n] scores of the last row; NaN: no score
    low: np.ndarray  # [n] bounds of the scores, which hold for all clients together; NaN: not known
    high: np.ndarray
    summary: dict[str, float]  # mean, worst20, best20, worst, std; NaN: not known
    worst: Bounds  # of the true scores of the worst-served fifth; NaN: not known
    mean: Bounds  # of the average client's
    series: int = 0  # its place in its group, which decides its colour, dash and marker
    rows: str = records.ROW_SCORES  # the file of its scores row by row

    @property
    def finished(self) -> bool:
        return self.record.outcome is not None

    @property
    def title(self) -> str:
        return self.label if self.finished else f"{self.label} (unfinished)"

    @property
    def score_name(self) -> str:
        """The measure as it is called in a sentence."""
        return SCORE_NAMES.get(self.measure, self.measure.replace("_", " "))

    @property
    def is_fraction(self) -> bool:
        return is_fraction(self.measure)

    @property
    def trains_for_average(self) -> bool:
        """Whether it trains for the average client: such runs are what fair ones are compared with."""
        try:
            algorithm = algorithms.named(setting(self.record, "algorithm", "name") or "")
        except InputError:  # the user's own, and no longer there
            return all(row.lam is None for row in self.record.rows)
        try:
            objective = objectives.named(setting(self.record, "objective", "name") or "")
        except InputError:
            return algorithm.average
        return algorithm.average or (algorithm.takes_dual and objective.average)

    @property
    def members(self) -> tuple[ClientRecord, ...]:
        return self.record.federation.members

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def rounds(self) -> int:
        return self.record.rows[-1].round if self.record.rows else 0

    @property
    def bytes_per_client(self) -> float:
        """Sent to and from a client, over all rounds; the mean over the clients."""
        return bytes_per_client(self.record.rows[-1], self.n) if self.record.rows else math.nan

    @property
    def floats_per_client(self) -> float:
        return self.bytes_per_client / bytes_per_float(self.record)

    @property
    def seconds(self) -> float:
        last = self.record.outcome or (self.record.rows[-1] if self.record.rows else None)
        return math.nan if last is None else last.seconds

    @property
    def format(self) -> Callable[[float], str]:
        """How its score is written: a fraction in per cent, anything else as it is."""
        return formats.percent if self.is_fraction else formats.number

    @property
    def format_tick(self) -> Callable[[float], str]:
        return (lambda value: f"{100 * value:.3g}%") if self.is_fraction else formats.tick

    @property
    def format_difference(self) -> Callable[[float], str]:
        """How the difference of two of its scores is written, without a sign."""
        return formats.points if self.is_fraction else (lambda value: f"{abs(value):.3g}")

    def signed(self, value: float) -> str:
        """A gain or a loss."""
        sign = "+" if value > 0 else "−" if value < 0 else ""
        return f"{sign}{self.format_difference(value)}" if math.isfinite(value) else formats.MISSING

    def signed_interval(self, low: float, high: float) -> str:
        """`−1.2 to +3.4`, without a unit; empty where it is not known."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return ""
        ends = (f"{100 * v:+.1f}" if self.is_fraction else f"{v:+.3g}" for v in (low, high))
        return " to ".join(ends).replace("-", "−")

    def gain(self, gains: "Gains", i: int) -> str:
        """What client i gains, with its bounds where they are known."""
        bounds = self.signed_interval(float(gains.low[i]), float(gains.high[i]))
        return self.signed(float(gains.values[i])) + (f" ({bounds})" if bounds else "")

    def signed_tick(self, value: float) -> str:
        """The same on an axis, without its unit."""
        return (f"{100 * value:+.3g}" if self.is_fraction else f"{value:+.3g}").replace("-", "−") if value else "0"

    def rounded(self, value: float) -> float:
        """As it is written, so that the differences add up for the reader."""
        if self.is_fraction:
            return round(value, 3)
        return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")

    def client_score(self, i: int) -> str:
        return formats.with_interval(self.values[i], self.low[i], self.high[i], self.format)

    @property
    def corrected_worst(self) -> float:
        """The worst-served fifth, corrected for chance where that is known."""
        return self.worst.estimate if math.isfinite(self.worst.estimate) else self.summary["worst20"]

    def with_scores(self, values: np.ndarray, **changed: Any) -> "ReportedRun":
        """The same clients, served by another model."""
        return self._replace(values=values, summary=summarize(values, self.higher_is_better), **changed)

    def worst_first(self) -> list[int]:
        """Clients from the worst served to the best; those without a score last."""
        order = np.argsort(self.values if self.higher_is_better else -self.values, kind="stable")
        return [int(i) for i in order]


def reported(runs: Sequence[Run]) -> list[ReportedRun]:
    require(runs, "there are no runs to report; give at least one run folder")
    return [_reported(run, label) for run, label in zip(runs, labels(runs), strict=True)]


def comparable(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """Groups of runs whose scores can be compared: the same clients, by name, and the same measure."""
    groups: dict[object, list[ReportedRun]] = {}
    for run in runs:
        names = tuple(member.name for member in run.members)
        group = groups.setdefault((run.record.federation.task, run.measure, run.higher_is_better, names), [])
        group.append(run._replace(series=len(group)))
    return list(groups.values())


def labels(runs: Sequence[Run]) -> list[str]:
    """What each run is called; runs of the same name get the settings in which they differ, then a number."""
    names = [run.outcome.label if run.outcome else _folder_label(run.path.resolve()) for run in runs]
    tables = [records.flat(run.config) for run in runs]
    full = []
    for name, settings in zip(names, tables, strict=True):
        others = [table for table, other in zip(tables, names, strict=True) if other == name]
        differing = [key for key in settings if any(table.get(key) != settings[key] for table in others)]
        full.append(", ".join((name, *(f"{key.rpartition('.')[2]} {settings[key]}" for key in differing))))
    return [f"{name} #{full[: i + 1].count(name)}" if full.count(name) > 1 else name for i, name in enumerate(full)]


def _folder_label(folder: pathlib.Path) -> str:
    """Its name; where that is only a seed, with the folder above it."""
    return f"{folder.parent.name}/{folder.name}" if folder.name.startswith("seed-") else folder.name


def setting(run: Run, section: str, key: str) -> str | None:
    table = run.config.get(section)
    value = table.get(key) if isinstance(table, dict) else None
    return None if value is None else str(value)


def _reported(run: Run, label: str) -> ReportedRun:
    n = len(run.federation.members)
    measure, higher = _main_measure(run)
    values = array(run.final.scores.get(measure, ()) if run.rows else (), n)
    summary = summarize(values, higher)
    low, high = np.full((2, n), np.nan)
    worst = mean = UNKNOWN
    if (out := run.outcome) is not None:
        saved = out.summary | {"worst": out.summary.get("min" if higher else "max")}
        summary |= {key: finite(saved[key]) for key in summary if saved.get(key) is not None}
        low, high = array(out.low, n), array(out.high, n)
        worst, mean = _worst(out, summary), _mean(out, summary, low, high)
    return ReportedRun(run, label, measure, higher, values, low, high, summary, worst, mean)


def _worst(out: RunResult, summary: dict[str, float]) -> Bounds:
    """Results of earlier versions have no estimate: their bounds are stretched to hold the measured number."""
    low, high = finite(out.worst_low), finite(out.worst_high)
    estimate = summary["worst20"] if out.worst_estimate is None else finite(out.worst_estimate)
    return Bounds(min(low, estimate), estimate, max(high, estimate)) if math.isfinite(low + high) else UNKNOWN


def _mean(out: RunResult, summary: dict[str, float], low: np.ndarray, high: np.ndarray) -> Bounds:
    """Results of earlier versions have no bounds of it: each client's half interval is an independent error.

    Where a client has none of its own, those of the mean are not known either.
    """
    mean, least, most = summary["mean"], finite(out.mean_low), finite(out.mean_high)
    if math.isfinite(least + most):
        return Bounds(min(least, mean), mean, max(most, mean))
    half = float(np.linalg.norm((high - low) / 2)) / max(low.size, 1)
    return Bounds(mean - half, mean, mean + half) if math.isfinite(half) else UNKNOWN


def _main_measure(run: Run) -> tuple[str, bool]:
    """Its name, and whether higher is better."""
    if run.outcome is not None:
        return run.outcome.measure, run.outcome.higher_is_better
    scores = run.rows[-1].scores if run.rows else {}
    with suppress(InputError):  # the user's own, and no longer there
        name, higher, _ = main_score_named(setting(run, "run", "score") or "")
        if name in scores:
            return name, higher
    leads = run.federation.score
    measure = leads if leads in scores else main_score(scores) or TASK_SCORES.get(run.federation.task, "loss")
    return measure, higher_is_better(measure)


def summarize(values: np.ndarray, higher: bool) -> dict[str, float]:
    """As `fairness.summary`, over the clients that have a score."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return dict.fromkeys(("mean", "worst20", "best20", "worst", "std"), math.nan)
    worst20, best20 = worst_mean(finite, higher), worst_mean(finite, not higher)
    worst = finite.min() if higher else finite.max()
    numbers = {"mean": finite.mean(), "worst20": worst20, "best20": best20, "worst": worst, "std": finite.std()}
    return {name: float(value) for name, value in numbers.items()}


class Paired(NamedTuple):
    """What two runs that were scored on the same rows say of their difference."""

    mean: Bounds  # of the average client, the new run's less the old one's; NaN: a client has too few rows
    worst: float  # how far the errors of the two worst fifths go together: a correlation


def paired(old: ReportedRun, new: ReportedRun) -> Paired | None:
    """None unless both kept the scores of the same rows."""
    pairs = _pairs(new, old) if _scored_rows(old) == _scored_rows(new) else None
    if pairs is None:
        return None
    correlation = differences.worst_correlation(pairs, up=new.higher_is_better)
    return Paired(differences.mean_difference(pairs), correlation)


def _pairs(run: ReportedRun, other: ReportedRun) -> SameRows | None:
    """Another model and the run's on the same rows; None unless both kept what each row adds to the score."""
    old, new = (records.read_row_scores(one.record.path / one.rows) for one in (other, run))
    if old is None or new is None or old.rows != new.rows or {old.score, new.score} != {run.measure}:
        return None
    sizes = _scored_rows(run)
    if {old.values.size, new.values.size} != {sum(sizes)}:
        return None
    root, shares, counts = run.measure in ROOTS, run.measure == "accuracy", [m.counted for m in run.members]
    counted = None if None in counts else np.array(counts, np.float64)
    pairs = differences.on_same_rows(old.values, new.values, np.array(sizes), shares=shares, root=root, counted=counted)
    if not root:
        return pairs
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = run.values / pairs.new  # rows of a regression were kept in units of the training
    finite = ratio[np.isfinite(ratio)]
    return pairs.in_units(float(np.median(finite))) if finite.size else pairs


def _scored_rows(run: ReportedRun) -> list[int]:
    return [m.test if run.record.federation.held_out else m.train for m in run.members]


def _alone_records(runs: Sequence[ReportedRun]) -> Iterator[tuple[ReportedRun, records.AloneRecord]]:
    """What runs say of models of each client's own rows: nothing, where they were not part of a comparison."""
    for run in runs:
        record = records.read_alone(run.record.path)
        if record is not None and len(record.low) == run.n:
            yield run, record


def alone(runs: Sequence[ReportedRun]) -> ReportedRun | None:
    """What each client gets from a model of its own rows; of the first of comparable runs that has it."""
    for run, record in _alone_records(runs):
        values = array(record.scores.get(run.measure, ()), run.n)
        if record.measure == run.measure and np.isfinite(values).any():
            bounds = {"low": array(record.low, run.n), "high": array(record.high, run.n)}
            return run.with_scores(values, label="each alone", rows=records.ALONE_ROWS, **bounds)
    return None


Scores = dict[str, np.ndarray]  # by name, [n] each; NaN: not known


def scored(run: ReportedRun) -> Scores:
    """All scores of a run's model."""
    scores = run.record.final.scores if run.record.rows else {}
    return {name: array(values, run.n) for name, values in scores.items()}


def scored_alone(runs: Sequence[ReportedRun]) -> Scores | None:
    """All scores of each client's own model; of the first of comparable runs that has it."""
    for run, record in _alone_records(runs):
        return {name: array(values, run.n) for name, values in record.scores.items()}
    return None


class Gains(NamedTuple):
    """What a run gives each client beyond another model; above zero is better, NaN: not known."""

    against: str
    values: np.ndarray  # [n]
    low: np.ndarray  # [n], bounds of each by its own rows, which hold for all clients together
    high: np.ndarray
    paired: bool  # both models were compared row by row

    @property
    def sure(self) -> np.ndarray:
        """[n]: 1 a gain and -1 a loss beyond what the rows leave open; 0: either may be chance, or is not known."""
        return np.where(self.low > 0, 1, np.where(self.high < 0, -1, 0))


def gains(run: ReportedRun, other: ReportedRun, against: str) -> Gains:
    """Client by client."""
    pairs = _pairs(run, other)
    value = run.values - other.values
    if pairs is not None:
        low, high = differences.each_difference(pairs)
    else:
        old, new = (map(Bounds, one.low, one.values, one.high) for one in (other, run))
        bounds = [differences.difference(a, b, 0.0) for a, b in zip(old, new, strict=True)]
        low, high = np.array([bound.low for bound in bounds]), np.array([bound.high for bound in bounds])
    if not run.higher_is_better:
        low, value, high = -high, -value, -low
    return Gains(against, value, low, high, pairs is not None)


class Path(NamedTuple):
    """Runs that differ in one number of their objective only, from the average to the worst client."""

    setting: str  # rho, alpha, ...
    points: list[tuple[float, ReportedRun]]
    chosen: ReportedRun | None  # the fairest whose average is not clearly below the best one


def path(runs: Sequence[ReportedRun]) -> Path | None:
    """The path that the runs make; None: they make none."""
    tables = [records.flat(run.record.config) for run in runs]
    key, *more = {key for table in tables for key in table if any(t.get(key) != table[key] for t in tables)} or {""}
    values = [float(value) for table in tables if isinstance(value := table.get(key), int | float)]
    if len(runs) < 3 or more or not key.startswith("objective.") or len(values) < len(runs):
        return None
    points = sorted(zip(values, runs, strict=True), key=lambda point: -point[0])
    return Path(key.partition(".")[2], points, _chosen([run for _, run in points if run.finished]))


def _chosen(runs: Sequence[ReportedRun]) -> ReportedRun | None:
    finite = [run for run in runs if math.isfinite(run.summary["mean"]) and math.isfinite(run.corrected_worst)]
    if not finite:
        return None
    sign = 1 if finite[0].higher_is_better else -1
    best = max(finite, key=lambda run: sign * run.summary["mean"])
    edge = best.mean.low if sign > 0 else best.mean.high
    free = [run for run in finite if sign * run.summary["mean"] >= sign * edge] if math.isfinite(edge) else [best]
    return max(free, key=lambda run: sign * run.corrected_worst)


CERTIFIED = (0.1, 0.01, 0.001)  # of the objective
SHOWN = 0.01  # in tables


class Reached(NamedTuple):
    """When a run came within a share of the best objective that is possible."""

    rounds: float  # the first recorded round from which on it stayed there; infinite: none; NaN: nothing was certified
    bytes: float  # to and from a client until then, what crossed before the first round included


NOT_KNOWN = Reached(math.nan, math.nan)


def reached(run: ReportedRun, runs: Sequence[ReportedRun], share: float = SHOWN) -> Reached:
    """By the best certificate of `runs` on the same problem: no model's objective is below it."""
    problem = _problem(run)
    same = [row for other in runs if _problem(other) == problem for row in other.record.rows]
    certified = [(row.objective, row.gap) for row in same if row.gap is not None and row.objective is not None]
    if not certified:
        return NOT_KNOWN
    baselines = [finite(member.baseline) for member in run.members]
    base = float(np.mean(baselines)) if all(map(math.isfinite, baselines)) else 0.0  # gains may be about zero
    best = max(objective - gap for objective, gap in certified)
    if min(objective for objective, _ in certified) - best > share * abs(best + base):
        return NOT_KNOWN
    first = Reached(math.inf, math.inf)
    for row in reversed(run.record.rows):
        if row.objective is None or row.objective - best > share * abs(best + base):
            break
        first = Reached(row.round, bytes_per_client(row, run.n))
    return first


def rounds_text(run: ReportedRun, rounds: float) -> str:
    """Of what was `reached`."""
    return f"not in {run.rounds:,}" if rounds == math.inf else formats.count(rounds)


def _problem(run: ReportedRun) -> object:
    """Equal for runs whose objectives are of the same function."""
    config = run.record.config
    model, how = (config.get(section) for section in ("model", "run"))
    used = {key: value for key, value in config.items() if key not in ("name", "algorithm", "federation")}
    if isinstance(model, dict):  # a file that was edited by hand may hold anything
        used["model"] = {key: value for key, value in model.items() if key not in ("metric", "batch")}
    if isinstance(how, dict):
        kept = {"seed", "keep_best", "precision", *(("validation",) if how.get("keep_best") else ())}
        used["run"] = {key: value for key, value in how.items() if key in kept}
    return json.dumps(used, sort_keys=True, default=str)


def array(values: PerClient, n: int) -> np.ndarray:
    """[n]; NaN where there is no number."""
    return np.array([finite(v) for v in values] if len(values) == n else [math.nan] * n, np.float64)


def finite(value: Number) -> float:
    """NaN for what is missing, and for what has diverged so far that its square may not be finite."""
    return float(value) if value is not None and abs(value) < DIVERGED else math.nan


def bytes_per_float(run: Run) -> int:
    return 8 if "64" in run.environment.precision else 4


def bytes_per_client(row: Row, n: int) -> float:
    return (row.bytes_down + row.bytes_up) / max(n, 1)


Curve = list[tuple[float, float, int]]  # (x, y, round)
SCORE_CURVES = ("mean", "worst20")  # curves of the scores; others are numbers of the rows


def curve(run: ReportedRun, quantity: str, against: XAxis, limit: int = 150) -> Curve:
    """A quantity over the rounds; more than `limit` rows are thinned evenly."""

    def y(row: Row) -> float:
        if quantity in SCORE_CURVES:
            values = array(row.scores.get(run.measure, ()), run.n)
            return summarize(values, run.higher_is_better)[quantity]
        return finite(getattr(row, quantity))

    def x(row: Row) -> float:
        return float(row.round) if against == "rounds" else bytes_per_client(row, run.n)

    return [(x(row), y(row), row.round) for row in thinned(run.record.rows, limit)]


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
