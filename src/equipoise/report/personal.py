"""Each owner with the shared model and with its own, where a run has made such models."""

import math
from collections.abc import Sequence

import numpy as np

from equipoise.errors import not_none
from equipoise.experiment import records
from equipoise.experiment.records import PersonalRecord
from equipoise.report import formats, numbers, wording
from equipoise.report.numbers import ReportedRun

HOW = {
    "best": "the one that serves it best on folds of its training rows: the shared one, one tuned from it, or its own",
    "fine_tuning": "fine-tuned from the shared one, if that does better on training rows that the owner left out",
    "moreau": "near the shared one, which was trained for this",
}
HEADINGS = ("client", "rows", "shared model", "own model", "change")


def with_own(run: ReportedRun) -> ReportedRun | None:
    """The same run, scored by the owners' own models; None where it has none, or they have another score."""
    record = run.record.personal
    if record is None or record.measure != run.measure:
        return None
    values, unknown = numbers.array(record.own, run.n), np.full(run.n, np.nan)
    title = "best for each" if record.kind == "best" else f"{run.label}, own models"
    return run.with_scores(values, label=title, low=unknown, high=unknown, rows=records.OWN_ROWS)


def offered(runs: Sequence[ReportedRun]) -> tuple[ReportedRun, ReportedRun] | None:
    """Of the run that owners are told about: as it is, and with what each should use; None: nothing was chosen."""
    with_offers = [run for run in runs if run.record.personal is not None and run.record.personal.kind == "best"]
    run = wording.fairest(with_offers) or (wording.leading(with_offers) if with_offers else None)
    own = None if run is None else with_own(run)
    return None if run is None or own is None else (run, own)


def scores_offered(runs: Sequence[ReportedRun]) -> dict[str, numbers.Scores]:
    """Of the models that each owner should use, for a table of scores: all of them by their title."""
    run, own = offered(runs) or (None, None)
    if run is None or own is None or not (kept := not_none(run.record.personal).scores):
        return {}
    return {own.label: {name: numbers.array(values, run.n) for name, values in kept.items()}}


def used(run: ReportedRun, i: int) -> str:
    """What owner i should use, in words."""
    record = not_none(run.record.personal)
    pull = (record.pull or [None] * run.n)[i]
    if pull is None:
        return formats.MISSING
    if record.kind != "best":
        return "keeps the shared" if pull == 0 else f"{pull:g}"
    return SHARED if pull == 0 else ALONE if pull < 0 else TUNED


SHARED, TUNED, ALONE = "the shared model", "one tuned from it", "its own alone"
MOST_NAMES = 5


def offer(runs: Sequence[ReportedRun]) -> str:
    """How many owners should use what, and how sure it is that nobody loses by it; empty: nothing was chosen."""
    with_offer = offered(runs)
    if with_offer is None:
        return ""
    run, own = with_offer
    parts = []
    for what in (SHARED, TUNED, ALONE):
        who = [member.name for i, member in enumerate(run.members) if used(run, i) == what]
        names = f" ({', '.join(who)})" if what == ALONE and 0 < len(who) <= MOST_NAMES else ""
        parts.append(f"{what} for {len(who):,}{names}")
    own_part = numbers.setting(run.record, "model", "own") not in (None, "none")
    first = (
        f"What each client should use, by five folds of its own training rows, with {run.label}: {', '.join(parts)}"
        f"{'; each with its own part' if own_part else ''}."
    )
    alone = numbers.alone(runs)
    gains = None if alone is None else numbers.gains(own, alone, wording.OWN_ROWS)
    if gains is None or not np.isfinite(gains.values).any():
        return first
    rows = "held-out" if run.record.federation.held_out else "training"
    finite = gains.values[np.isfinite(gains.values)]
    second = (
        f"On {rows} rows that is {own.signed(float(finite.mean()))} for the average client against {wording.OWN_ROWS}, "
        f"and as measured {int((finite < 0).sum()):,} of {finite.size:,} lose by it."
    )
    return f"{first} {second} {wording.sure_of(own, gains)}"


def with_shared(run: ReportedRun) -> ReportedRun:
    """The run, scored by the shared model in the same exchange."""
    return run.with_scores(numbers.array(not_none(run.record.personal).shared, run.n))


def headings(record: PersonalRecord) -> list[str]:
    if record.kind == "best":
        return [*HEADINGS[:3], "best for it", "change", "which is"]
    return [*HEADINGS, *(["pull"] if record.pull is not None else [])]


def cells(shared: ReportedRun, own: ReportedRun, i: int) -> list[str]:
    """Name, training rows, both scores, the change, and the pull."""
    record, member = not_none(shared.record.personal), shared.members[i]
    before, after = float(shared.values[i]), float(own.values[i])
    change = formats.MISSING
    if math.isfinite(before + after):
        difference = shared.rounded(after) - shared.rounded(before)
        change = ("+" if difference > 0 else "−" if difference < 0 else "±") + shared.format_difference(difference)
    row = [member.name, f"{member.train:,}", shared.format(before), own.format(after), change]
    return row if record.pull is None else [*row, used(shared, i)]


def sentence(shared: ReportedRun, own: ReportedRun) -> str:
    """What own models bring, to whom."""
    record = not_none(shared.record.personal)
    gains = (own.values - shared.values) * (1 if shared.higher_is_better else -1)
    finite = gains[np.isfinite(gains)]
    said = [
        f"{who} {own.format(own.summary[key])} instead of {shared.format(shared.summary[key])}"
        for who, key in (("the average client has", "mean"), ("the worst-served one", "worst"))
    ]
    rows = "held-out" if shared.record.federation.held_out else "training"
    return (
        f"{shared.label}: with a model of its own ({HOW.get(record.kind, record.kind)}) {', '.join(said)}. On their "
        f"{rows} rows {int((finite > 0).sum())} of {shared.n:,} owners fare better with it, {int((finite < 0).sum())} "
        f"worse, {int((finite == 0).sum())} the same."
    )
