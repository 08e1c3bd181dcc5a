"""Drawings of clients: how each is served, and how large it is."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from equipoise.evaluation.rules import worst_count
from equipoise.experiment.records import ClientRecord
from equipoise.report import numbers, svg
from equipoise.report.markup import Safe, tag
from equipoise.report.numbers import Entry
from equipoise.report.tables import client_score

NAMED = 40  # clients with a row each; more become a profile
COLUMNS = 400  # of a profile
ZONES = 50  # of a profile that can be pointed at
ROW, DOT_ROW = 28, 26
NAME, BAR, END = 0.23, 0.24, 0.87  # shares of the width: a name, from there to there a bar, then the number


def scale(entries: Sequence[Entry]) -> svg.Axis:
    """From zero, the same for all runs; the whole of it for shares."""
    if entries[0].measure == "accuracy":
        return svg.Axis(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
    return svg.axis((v for e in entries for v in (*e.values, *e.high)), zero=True)


def clients(entry: Entry, axis: svg.Axis, beside: Entry | None = None) -> Safe:
    """A bar for each client, the worst served first, with its bounds; `beside`: another run, as a marker."""
    return _rows(entry, axis, beside) if entry.n <= NAMED else _profile(entry, axis, beside)


def _rows(entry: Entry, axis: svg.Axis, beside: Entry | None) -> Safe:
    frame = svg.Frame(axis, axis, BAR, END, 8, 8 + ROW * entry.n)
    parts = [_across_grid(frame, entry)]
    for place, i in enumerate(entry.worse_first()):
        member, top = entry.run.federation.members[i], 8 + ROW * place
        middle, value = top + ROW / 2, float(entry.values[i])
        hint = f"{member.name}: {client_score(entry, i)} with {entry.label}"
        inside: list[object] = []
        if math.isfinite(value):
            inside.append(_bar(frame, value, top + 6, ROW - 12))
            inside.append(_whisker(frame, float(entry.low[i]), float(entry.high[i]), middle))
        if beside is not None and math.isfinite(beside.values[i]):
            hint += f"; {client_score(beside, i)} with {beside.label}"
            inside.append(svg.marker(frame.across(float(beside.values[i])), middle, beside.kind))
        parts.append(
            tag(
                "g",
                tag("title", hint),
                tag("rect", x="0", y=float(top), width="100%", height=float(ROW), class_="hit"),
                _name(member, top, ROW),
                *inside,
                svg.words(1, middle + 4.5, entry.written(value), "end", "value"),
                class_="row",
                data_client=i,
            )
        )
    return svg.chart(f"How each client is served by {entry.label}", frame.bottom + 30, *parts, class_=_class(entry))


def _class(entry: Entry) -> str:
    return f"chart bars {svg.colour(entry.kind)}"


def _across_grid(frame: svg.Frame, entry: Entry) -> Safe:
    lines = [
        part
        for tick in frame.x.ticks
        for part in (
            svg.rule(frame.across(tick), frame.top, frame.across(tick), frame.bottom, "grid"),
            svg.words(frame.across(tick), frame.bottom + 18, _tick(entry)(tick), "middle", "tick"),
        )
    ]
    return tag("g", *lines)


def _tick(entry: Entry) -> Callable[[float], str]:
    return (lambda v: f"{100 * v:g}%") if entry.measure == "accuracy" else numbers.compact


def _name(member: ClientRecord, top: float, height: float) -> Safe:
    """Cut off where the bars begin; the hint has all of it."""
    text = tag("text", member.name, x="0", y=height / 2 + 4.5, class_="name")
    return tag("svg", text, x="0", y=float(top), width=svg.cent(NAME), height=float(height), overflow="hidden")


def _bar(frame: svg.Frame, value: float, top: float, height: float) -> Safe:
    ends = sorted((frame.across(0.0), frame.across(value)))
    width = svg.cent(ends[1] - ends[0])
    return tag("rect", x=svg.cent(ends[0]), y=float(top), width=width, height=float(height), rx="2", class_="bar")


def _whisker(frame: svg.Frame, low: float, high: float, y: float) -> Safe:
    if not (math.isfinite(low) and math.isfinite(high)):
        return Safe()
    a, b = frame.across(low), frame.across(high)
    ends = (svg.rule(at, y - 4, at, y + 4, "whisker") for at in (a, b))
    return tag("g", svg.rule(a, y, b, y, "whisker"), *ends)


def _profile(entry: Entry, axis: svg.Axis, beside: Entry | None) -> Safe:
    """Columns side by side, of neighbours in the order where there are more clients than columns."""
    order = [i for i in entry.worse_first() if math.isfinite(entry.values[i])]
    known = len(order)
    frame = svg.Frame(svg.Axis(0, max(known, 1), ()), axis, 0.07, 1.0, 12, 272)
    parts = frame.grid(str, _tick(entry), "clients, the worst served first")
    if not known:
        return svg.chart(f"How the clients are served by {entry.label}", 320, *parts, class_=_class(entry))
    each = math.ceil(known / COLUMNS)
    cuts = range(0, known, each)
    steps = [(k, min(k + each, known), _mean(entry.values, order[k : k + each])) for k in cuts]
    tops = [(float(at), height) for a, b, height in steps for at in (a, b)]
    area = frame.band([(x, 0.0 if axis.low <= 0 else axis.low, y) for x, y in tops])
    spans = [
        (at, _mean(entry.low, order[k : k + each]), _mean(entry.high, order[k : k + each]))
        for k in cuts
        for at in (float(k), float(min(k + each, known)))
    ]
    drawn: list[object] = [tag("path", d=area, class_="area"), tag("path", d=frame.band(spans), class_="span")]
    drawn.append(tag("path", d=frame.path(tops), class_="edge"))
    if beside is not None:
        theirs = np.sort(beside.values[np.isfinite(beside.values)])[:: 1 if beside.up else -1]
        wide = known / max(len(theirs), 1)  # in its own order: the same place, not the same client
        chunks = [(k, theirs[k : k + each]) for k in range(0, len(theirs), each)]
        line = frame.path([((k + len(part) / 2) * wide, float(part.mean())) for k, part in chunks])
        drawn.append(tag("path", d=line, stroke_dasharray="5 4", class_=f"line {svg.colour(beside.kind)}"))
    parts.append(frame.stretched(*drawn))
    fifth = worst_count(known)
    parts.append(svg.rule(frame.across(fifth), frame.top, frame.across(fifth), frame.bottom, "mark-line"))
    parts.append(svg.words(frame.across(fifth) + 0.01, frame.top + 10, "← the worst-served fifth", "start", "label"))
    parts.append(_zones(entry, frame, order))
    return svg.chart(f"How the {known} clients are served by {entry.label}", 320, *parts, class_=_class(entry))


def _zones(entry: Entry, frame: svg.Frame, order: list[int]) -> Safe:
    """What can be pointed at: who stands there."""
    known, out = len(order), []
    wide = math.ceil(known / ZONES)
    for k in range(0, known, wide):
        there = order[k : k + wide]
        ends = [entry.written(float(entry.values[i])) for i in (there[0], there[-1])]
        names = ", ".join(entry.run.federation.members[i].name for i in there[:6]) + (" …" if len(there) > 6 else "")
        hint = f"places {k + 1} to {k + len(there)}: {ends[0]} to {ends[1]} ({names})"
        a, b = frame.across(k), frame.across(k + len(there))
        height = frame.bottom - frame.top
        zone = {"x": svg.cent(a), "y": frame.top, "width": svg.cent(b - a), "height": height}
        out.append(tag("rect", tag("title", hint), class_="hit", **zone))
    return tag("g", *out)


def _mean(values: np.ndarray, clients: list[int]) -> float:
    return float(np.mean(values[clients])) if clients else math.nan


def dots(entries: Sequence[Entry], order: Sequence[int]) -> Safe:
    """A row for each client, a marker for each run."""
    axis = svg.axis((float(e.values[i]) for e in entries for i in order), room=0.04)
    bottom = 8 + DOT_ROW * len(order)
    frame = svg.Frame(axis, axis, BAR, 0.97, 8, bottom)
    parts = [_across_grid(frame, entries[0])]
    for place, i in enumerate(order):
        member, top = entries[0].run.federation.members[i], 8 + DOT_ROW * place
        middle = top + DOT_ROW / 2
        known = [float(e.values[i]) for e in entries if math.isfinite(e.values[i])]
        ends = [frame.across(v) for v in (min(known), max(known))] if known else [0, 0]
        signs = [
            svg.marker(
                frame.across(float(e.values[i])),
                middle,
                e.kind,
                f"{member.name}: {client_score(e, i)} with {e.label}",
                data_run=e.kind,
            )
            for e in reversed(entries)
            if math.isfinite(e.values[i])
        ]
        back = tag("rect", x="0", y=float(top), width="100%", height=float(DOT_ROW), class_="hit")
        name = _name(member, top, DOT_ROW)
        span = svg.rule(ends[0], middle, ends[1], middle, "span-line")
        parts.append(tag("g", back, name, span, *signs, class_="row", data_client=i))
    return svg.chart("Each client across the runs", bottom + 30, *parts, class_="chart dots")


def sizes(members: Sequence[ClientRecord]) -> Safe:
    """Training rows of the clients, from the largest to the smallest, as one shape."""
    rows = sorted((m.train for m in members), reverse=True)
    each = math.ceil(len(rows) / COLUMNS)
    columns = [max(rows[k : k + each]) for k in range(0, len(rows), each)]
    frame = svg.Frame(svg.Axis(0, len(columns), ()), svg.Axis(0, max(*columns, 1), ()), 0, 1, 2, 62)
    gap = 0.15 if len(columns) <= 100 else 0
    shape = "".join(frame.band([(k + gap, 0, float(v)), (k + 1 - gap, 0, float(v))]) for k, v in enumerate(columns))
    told = f"Training rows of the {len(rows):,} clients, from {rows[0]:,} to {rows[-1]:,}"
    return svg.chart(told, 64, frame.stretched(tag("path", d=shape, class_="area")), class_="chart sizes")
