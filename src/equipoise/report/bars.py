"""Drawings of clients: how each is served, and how large it is."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from equipoise.evaluation.rules import worst_count
from equipoise.experiment.records import ClientRecord
from equipoise.report import svg
from equipoise.report.markup import tag
from equipoise.report.numbers import Gains, ReportedRun

NAMED = 40  # clients with a row each; more become a profile
COLUMNS = 400  # of a profile
ZONES = 50  # of a profile, each with a hint of its own
ROW, DOT_ROW = 28, 26
NAME, BAR, END = 0.23, 0.24, 0.87  # fractions of the width: where names end, bars begin, and bars end
Ends = list[tuple[float, list[int]]]  # of a profile: both ends of every column, and its clients
Sides = Callable[[float], tuple[float, float]]  # of a column: a value -> from where to where its area goes


def scale(runs: Sequence[ReportedRun]) -> svg.Axis:
    """From zero, the same for all runs; up to one for fractions. Of a skill bounds may reach beyond it."""
    if runs[0].measure == "skill":
        return svg.axis((v for run in runs for v in run.values), from_zero=True)
    if runs[0].is_fraction:
        return svg.Axis(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
    top = max((float(v) for run in runs for v in run.values if math.isfinite(v)), default=0.0)
    most = top + 2 * abs(top)  # bounds of few rows reach far beyond: they would leave no room for the scores
    return svg.axis((min(v, most) for run in runs for v in (*run.values, *run.high)), from_zero=True)


def clients(run: ReportedRun, axis: svg.Axis, other: ReportedRun | None = None) -> Markup:
    """A bar for each client, the worst served first, with its bounds; `other`: another run, as markers."""
    return _rows(run, axis, other) if run.n <= NAMED else _profile(run, axis, other)


def _rows(run: ReportedRun, axis: svg.Axis, other: ReportedRun | None) -> Markup:
    frame = svg.Frame(axis, axis, BAR, END, 8, 8 + ROW * run.n)
    parts = [_vertical_grid(frame, run.format_tick)]
    for row, i in enumerate(run.worst_first()):
        member, top = run.members[i], 8 + ROW * row
        middle, value = top + ROW / 2, float(run.values[i])
        hint = f"{member.name}: {run.client_score(i)} with {run.label}"
        inside: list[object] = []
        if math.isfinite(value):
            inside.append(_bar(frame, value, top + 6, ROW - 12))
            inside.append(_whisker(frame, float(run.low[i]), float(run.high[i]), middle))
        if other is not None and math.isfinite(other.values[i]):
            hint += f"; {other.client_score(i)} with {other.label}"
            inside.append(svg.marker(frame.x_at(float(other.values[i])), middle, other.series))
        inside.append(svg.label(1, middle + 4.5, run.format(value), "end", "value"))
        parts.append(_row(i, member.name, top, ROW, tag("title", hint), inside))
    return _chart(run, f"How each client is served by {run.label}", frame.bottom + 30, parts)


def _chart(run: ReportedRun, title: str, height: float, parts: Sequence[object]) -> Markup:
    return svg.chart(title, height, *parts, class_=f"chart bars {svg.colour(run.series)}")


def _vertical_grid(frame: svg.Frame, write: Callable[[float], str]) -> Markup:
    lines = []
    for tick in frame.x.ticks:
        x = frame.x_at(tick)
        lines.append(svg.line(x, frame.top, x, frame.bottom, "grid"))
        lines.append(svg.label(x, frame.bottom + 18, write(tick), "middle", "tick"))
    return tag("g", *lines)


def _row(client: int, name: str, top: float, height: float, title: str, children: Sequence[object]) -> Markup:
    """A client's row; the hint shows its whole name."""
    background = tag("rect", x="0", y=float(top), width="100%", height=float(height), class_="hit")
    return tag("g", title, background, _name(name, top, height), *children, class_="row", data_client=client)


def _name(name: str, top: float, height: float) -> Markup:
    """Cut off where the bars begin."""
    text = tag("text", name, x="0", y=height / 2 + 4.5, class_="name")
    return tag("svg", text, x="0", y=float(top), width=svg.percent(NAME), height=float(height), overflow="hidden")


def _bar(frame: svg.Frame, value: float, top: float, height: float) -> Markup:
    ends = sorted((frame.x_at(0.0), frame.x_at(value)))
    width = svg.percent(ends[1] - ends[0])
    return tag("rect", x=svg.percent(ends[0]), y=float(top), width=width, height=float(height), rx="2", class_="bar")


def _whisker(frame: svg.Frame, low: float, high: float, y: float) -> Markup:
    if not (math.isfinite(low) and math.isfinite(high)):
        return Markup()
    a, b = (frame.x_at(min(max(v, frame.x.low), frame.x.high)) for v in (low, high))
    inside = [x for x, v in ((a, low), (b, high)) if frame.x.low <= v <= frame.x.high]
    return tag("g", svg.line(a, y, b, y, "whisker"), *(svg.line(x, y - 4, x, y + 4, "whisker") for x in inside))


def _profile(run: ReportedRun, axis: svg.Axis, other: ReportedRun | None) -> Markup:
    """The sorted scores as one shape; each column is the mean of neighbours where there are too many clients."""
    order = [i for i in run.worst_first() if math.isfinite(run.values[i])]
    count = len(order)
    frame = svg.Frame(svg.Axis(0, max(count, 1), ()), axis, 0.07, 1.0, 12, 272)
    parts = frame.grid(str, run.format_tick, "clients, the worst served first")
    if not count:
        return _chart(run, f"How the clients are served by {run.label}", 320, parts)
    each, ends = _columns(order)
    floor = 0.0 if axis.low <= 0 else axis.low
    drawn = _shape(frame, ends, run.values, run.low, run.high, lambda y: (floor, y))
    if other is not None:
        scores = np.sort(other.values[np.isfinite(other.values)])[:: 1 if other.higher_is_better else -1]
        width = count / max(len(scores), 1)  # in the other run's own order: the same rank, not the same client
        chunks = [(k, scores[k : k + each]) for k in range(0, len(scores), each)]
        line = frame.path([((k + len(part) / 2) * width, float(part.mean())) for k, part in chunks])
        drawn.append(tag("path", d=line, stroke_dasharray="5 4", class_=f"line {svg.colour(other.series)}"))
    parts.append(frame.stretched(*drawn))
    fifth = worst_count(count)
    parts.append(svg.line(frame.x_at(fifth), frame.top, frame.x_at(fifth), frame.bottom, "mark-line"))
    parts.append(svg.label(frame.x_at(fifth) + 0.01, frame.top + 10, "← the worst-served fifth", "start", "label"))
    parts.append(_zones(run, frame, order))
    return _chart(run, f"How the {count} clients are served by {run.label}", 320, parts)


def _zones(run: ReportedRun, frame: svg.Frame, order: list[int]) -> Markup:
    """Areas with hints: which clients are there."""
    count, out = len(order), []
    width = math.ceil(count / ZONES)
    for k in range(0, count, width):
        there = order[k : k + width]
        ends = [run.format(float(run.values[i])) for i in (there[0], there[-1])]
        names = ", ".join(run.members[i].name for i in there[:6]) + (" …" if len(there) > 6 else "")
        hint = f"places {k + 1} to {k + len(there)}: {ends[0]} to {ends[1]} ({names})"
        x = frame.x_at(k)
        size = {"width": svg.percent(frame.x_at(k + len(there)) - x), "height": frame.bottom - frame.top}
        out.append(tag("rect", tag("title", hint), class_="hit", x=svg.percent(x), y=frame.top, **size))
    return tag("g", *out)


def _columns(order: list[int]) -> tuple[int, Ends]:
    """How many clients share a column of a profile, and the two ends of every column with its clients."""
    n, each = len(order), math.ceil(len(order) / COLUMNS)
    return each, [(x, order[k : k + each]) for k in range(0, n, each) for x in (float(k), float(min(k + each, n)))]


def _shape(
    frame: svg.Frame, ends: Ends, values: np.ndarray, low: np.ndarray, high: np.ndarray, sides: Sides
) -> list[object]:
    """The means of every column as an area between the `sides` of each, and its bounds as far as the axis goes."""

    def means(numbers: np.ndarray) -> list[float]:
        return [float(np.mean(numbers[clients])) for _, clients in ends]

    places, tops = [x for x, _ in ends], means(values)
    seen = (means(np.clip(bounds, frame.y.low, frame.y.high)) for bounds in (low, high))
    area, spans = [(x, *sides(y)) for x, y in zip(places, tops, strict=True)], list(zip(places, *seen, strict=True))
    edge = frame.path(list(zip(places, tops, strict=True)))
    shapes = (frame.band(area), "area"), (frame.band(spans), "span"), (edge, "edge")
    return [tag("path", d=d, class_=class_) for d, class_ in shapes]


def dots(runs: Sequence[ReportedRun], order: Sequence[int]) -> Markup:
    """A row for each client, a marker for each run."""
    axis = svg.axis((float(run.values[i]) for run in runs for i in order), margin=0.04)
    bottom = 8 + DOT_ROW * len(order)
    frame = svg.Frame(axis, axis, BAR, 0.97, 8, bottom)
    parts = [_vertical_grid(frame, runs[0].format_tick)]
    for row, i in enumerate(order):
        member, top = runs[0].members[i], 8 + DOT_ROW * row
        middle = top + DOT_ROW / 2
        values = [float(run.values[i]) for run in runs if math.isfinite(run.values[i])]
        ends = [frame.x_at(v) for v in (min(values), max(values))] if values else [0, 0]
        markers = []
        for run in reversed(runs):
            if math.isfinite(run.values[i]):
                hint = f"{member.name}: {run.client_score(i)} with {run.label}"
                x_at = frame.x_at(float(run.values[i]))
                markers.append(svg.marker(x_at, middle, run.series, hint, data_run=run.series))
        span = svg.line(ends[0], middle, ends[1], middle, "span-line")
        parts.append(_row(i, member.name, top, DOT_ROW, "", [span, *markers]))
    return svg.chart("Each client across the runs", bottom + 30, *parts, class_="chart dots")


def gains(run: ReportedRun, main: Gains, other: Gains | None = None) -> Markup:
    """A bar for each client from zero to what it gains, the largest loss first, with its bounds; `other` as markers."""
    order = [int(i) for i in np.argsort(main.values, kind="stable") if math.isfinite(main.values[i])]
    values = [float(v) for g in (main, other) if g is not None for v in g.values if math.isfinite(v)]
    if len(order) > NAMED:  # an axis for the bounds, which are wide, would leave nothing to see of the gains
        return _gains_profile(run, main, other, order, svg.axis([*values, 0.0], margin=0.05))
    axis = svg.axis([*values, 0.0, *(float(v) for v in (*main.low, *main.high) if math.isfinite(v))], margin=0.02)
    frame = svg.Frame(axis, axis, BAR, END, 8, 8 + ROW * len(order))
    zero = frame.x_at(0.0)
    parts = [_vertical_grid(frame, run.signed_tick), svg.line(zero, frame.top, zero, frame.bottom, "base")]
    for row, i in enumerate(order):
        top = 8 + ROW * row
        value, low, high = (float(numbers[i]) for numbers in (main.values, main.low, main.high))
        hint = f"{run.members[i].name}: {run.gain(main, i)} against {main.against}"
        inside: list[object] = [_bar(frame, value, top + 6, ROW - 12), _whisker(frame, low, high, top + ROW / 2)]
        if other is not None and math.isfinite(other.values[i]):
            far = float(other.values[i])
            hint += f"; {run.signed(far)} against {other.against}"
            inside.append(svg.marker(frame.x_at(far), top + ROW / 2, 6))
        inside.append(svg.label(1, top + ROW / 2 + 4.5, _without_unit(run.signed(value)), "end", "value"))
        parts.append(_row(i, run.members[i].name, top, ROW, tag("title", hint), inside))
    return _chart(run, f"What each client gains with {run.label} against {main.against}", frame.bottom + 30, parts)


def _without_unit(text: str) -> str:
    return text.replace(" points", "").replace(" point", "")


def by_method(pairs: Sequence[tuple[ReportedRun, Gains]]) -> Markup:
    """A row for each run: a mark for what each client gains, a line at their mean."""
    values = [float(v) for _, g in pairs for v in g.values if math.isfinite(v)]
    axis = svg.axis([*values, 0.0], margin=0.04)
    frame = svg.Frame(axis, axis, BAR, END, 8, 8 + ROW * len(pairs))
    zero = frame.x_at(0.0)
    parts = [_vertical_grid(frame, pairs[0][0].signed_tick), svg.line(zero, frame.top, zero, frame.bottom, "base")]
    for row, (run, g) in enumerate(pairs):
        top = 8 + ROW * row
        middle = top + ROW / 2
        each = [i for i in range(run.n) if math.isfinite(g.values[i])]
        marks = []
        for i in each:
            hint = f"{run.members[i].name}: {run.signed(float(g.values[i]))} with {run.label}"
            marks.append(svg.marker(frame.x_at(float(g.values[i])), middle, run.series, hint, scale=0.7, data_client=i))
        mean = float(np.mean(g.values[each])) if each else math.nan
        x = frame.x_at(mean) if each else zero
        marks.append(svg.line(x, top + 3, x, top + ROW - 3, "mark-line"))
        marks.append(svg.label(1, middle + 4.5, _without_unit(run.signed(mean)), "end", "value"))
        title = tag("title", f"{run.label}: {run.signed(mean)} on average")
        parts.append(tag("g", title, _name(run.label, top, ROW), *marks, data_run=run.series))
    return svg.chart("What each client gains over its own model, by method", frame.bottom + 30, *parts, class_="chart")


def _gains_profile(run: ReportedRun, main: Gains, other: Gains | None, order: list[int], axis: svg.Axis) -> Markup:
    count = len(order)
    frame = svg.Frame(svg.Axis(0, count, ()), axis, 0.07, 1.0, 12, 272)
    parts = frame.grid(str, run.signed_tick, "clients, the largest loss first")
    ends = _columns(order)[1]
    drawn = _shape(frame, ends, main.values, main.low, main.high, lambda y: (min(y, 0.0), max(y, 0.0)))
    if other is not None:
        own = np.sort(other.values[np.isfinite(other.values)])
        line = [((k + 0.5) * count / len(own), float(v)) for k, v in enumerate(own)][:: max(1, len(own) // COLUMNS)]
        drawn.append(tag("path", d=frame.path(line), stroke_dasharray="5 4", class_=f"line {svg.colour(6)}"))
    parts.append(frame.stretched(*drawn))
    parts.append(svg.line(frame.left, frame.y_at(0.0), frame.right, frame.y_at(0.0), "base"))
    return _chart(run, f"What {count} clients gain with {run.label} against {main.against}", 320, parts)


def sizes(members: Sequence[ClientRecord]) -> Markup:
    """Training rows of the clients, from the largest to the smallest, as one shape."""
    rows = sorted((m.train for m in members), reverse=True)
    each = math.ceil(len(rows) / COLUMNS)
    columns = [max(rows[k : k + each]) for k in range(0, len(rows), each)]
    frame = svg.Frame(svg.Axis(0, len(columns), ()), svg.Axis(0, max(*columns, 1), ()), 0, 1, 2, 62)
    gap = 0.15 if len(columns) <= 100 else 0
    shape = "".join(frame.band([(k + gap, 0, float(v)), (k + 1 - gap, 0, float(v))]) for k, v in enumerate(columns))
    title = f"Training rows of the {len(rows):,} clients, from {rows[0]:,} to {rows[-1]:,}"
    return svg.chart(title, 64, frame.stretched(tag("path", d=shape, class_="area")), class_="chart sizes")
