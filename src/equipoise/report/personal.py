"""Each owner with the shared model and with its own, where a run has made such models."""

import math
from typing import Any

import numpy as np
from rich.text import Text

from equipoise.errors import not_none
from equipoise.experiment.records import PersonalRecord, Run
from equipoise.report import formats, numbers, tables
from equipoise.report.numbers import ReportedRun

HOW = {
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
    summary = numbers.summarize(values, run.higher_is_better)
    return run._replace(label=f"{run.label}, own models", values=values, low=unknown, high=unknown, summary=summary)


def with_shared(run: ReportedRun) -> ReportedRun:
    """The run, scored by the shared model in the same exchange."""
    values = numbers.array(not_none(run.record.personal).shared, run.n)
    return run._replace(values=values, summary=numbers.summarize(values, run.higher_is_better))


def headings(record: PersonalRecord) -> list[str]:
    return [*HEADINGS, *(["pull"] if record.pull is not None else [])]


def cells(shared: ReportedRun, own: ReportedRun, i: int) -> list[str]:
    """Name, training rows, both scores, the change, and the pull."""
    record, member = not_none(shared.record.personal), shared.members[i]
    before, after = float(shared.values[i]), float(own.values[i])
    row = [member.name, f"{member.train:,}", shared.format(before), own.format(after), _change(shared, before, after)]
    if record.pull is None:
        return row
    pull = record.pull[i]
    return [*row, formats.MISSING if pull is None else "keeps the shared" if pull == 0 else f"{pull:g}"]


def _change(run: ReportedRun, before: float, after: float) -> str:
    if not math.isfinite(before + after):
        return formats.MISSING
    difference = run.rounded(after) - run.rounded(before)
    sign = "+" if difference > 0 else "−" if difference < 0 else "±"
    return sign + run.format_difference(difference)


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


def table(run: Run, limit: int = tables.MOST_CLIENTS) -> Any:
    """A rich table with a row for each owner, the worst served by the shared model first; None: no own models."""
    (reported,) = numbers.reported([run])
    own = with_own(reported)
    if own is None or run.personal is None:
        return None
    shared = with_shared(reported)
    out = tables.narrow_table(sentence(shared, own))
    for k, heading in enumerate(headings(run.personal)):
        out.add_column(heading, justify="right" if k else "left", overflow="fold", min_width=0 if k else 8)
    for i in shared.worst_first()[:limit]:
        out.add_row(*map(Text, cells(shared, own, i)))
    return out
