"""Drawings of runs: average against worst-served, how they converged, and how the weights moved."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from markupsafe import Markup

from equipoise.errors import not_none
from equipoise.experiment.records import Choice
from equipoise.report import formats, numbers, svg
from equipoise.report.markup import tag
from equipoise.report.numbers import ReportedRun, XAxis

Taken = tuple[float, float, float]  # a label or marker: across and down in pixels, and how wide
QUANTITIES = {
    "mean": "Average client",
    "worst20": "Worst-served fifth",
    "objective": "Robust objective",
    "gap": "Gap to the optimum, at most",
    "distance": "Squared distance to the optimum",
}
LEFT, RIGHT, TOP, BOTTOM = 0.115, 0.965, 10.0, 236.0
HEIGHT = BOTTOM + 44
TYPICAL_WIDTH = 460  # pixels; to keep labels apart
MARKERS_PER_CURVE = 7
ROUND = "{:,g}".format
NAMED_LINES = 8  # the heaviest weights, with a colour and a name
FAINT_LINES = 60  # others with a line of their own; more become a band


def tradeoff(runs: Sequence[ReportedRun], other: str) -> Markup:
    """The worst-served fifth against the average ("mean") or the best-served fifth ("best20"): Figure 4 of SCAFF-PD."""
    points = [(run, run.summary[other], run.corrected_worst) for run in runs]
    drawn = [(run, x, y) for run, x, y in points if math.isfinite(x) and math.isfinite(y)]
    group = "the average client" if other == "mean" else "the best-served fifth"
    frame, parts = _against(runs[0], [(run, x) for run, x, _ in drawn], group)
    taken = _markers_of(frame, [(x, y) for _, x, y in drawn])
    for run, x, y in drawn[::-1]:  # the first run on top
        x_at, y_at = frame.x_at(x), frame.y_at(y)
        hint = f"{run.label}: {group} {run.format(x)}, worst-served fifth {run.format(y)}"
        span = formats.interval(run.worst.low, run.worst.high, run.format)
        if span != formats.MISSING:
            hint += f" ({span})"
            ends = [frame.y_at(bound) for bound in (run.worst.low, run.worst.high)]
            parts.append(svg.line(x_at, ends[0], x_at, ends[1], f"whisker {svg.colour(run.series)}"))
        parts.append(svg.marker(x_at, y_at, run.series, hint, scale=1.4, data_run=run.series))
    parts.extend(_label(run.label, frame.x_at(x), frame.y_at(y), taken, run.series) for run, x, y in drawn)
    return svg.chart(f"Worst-served fifth against {group}", HEIGHT, *parts)


def _against(first: ReportedRun, drawn: Sequence[tuple[ReportedRun, float]], group: str) -> tuple[svg.Frame, list]:
    """The frame of a chart of the worst-served fifth, with its bounds, against a number of each run; and its axes."""
    spans = [(run.corrected_worst, run.worst.low, run.worst.high) for run, _ in drawn]
    axes = [svg.axis((x for _, x in drawn), margin=0.12)]
    axes.append(svg.axis([v for span in spans for v in span if math.isfinite(v)], margin=0.06, steps=5))
    if first.is_fraction and first.measure != "skill":  # where all runs have 100%, the axis goes beyond it
        axes = [axis._replace(ticks=tuple(t for t in axis.ticks if 0 <= t <= 1)) for axis in axes]
    frame = _frame(axes[0], axes[1])
    right, up = ("→", "↑") if first.higher_is_better else ("←", "↓")
    write = first.format_tick
    parts = frame.grid(write, write, f"{first.score_name} of {group} (better {right})")
    parts.append(svg.label(frame.left, frame.top - 14, f"worst-served fifth (better {up})", "start", "axis"))
    return frame, parts


def calibration(runs: Sequence[ReportedRun]) -> Markup:
    """What came against what the model expected: a curve for each run, and a dot for each client of the first."""
    curves = [[(x, y) for x, y, _ in not_none(run.record.outcome).calibration] for run in runs]
    dots = numbers.scored(runs[0])
    points = list(zip(dots["predicted"], dots["observed"], strict=True)) if "predicted" in dots else []
    values = [v for curve in (*curves, points) for point in curve for v in point if math.isfinite(v)]
    axis = svg.axis([*values, 0.0], margin=0.04)
    frame = _frame(axis, axis)
    write = "{:.0%}".format if max(values, default=1.0) > 0.1 else "{:.1%}".format
    parts = frame.grid(write, write, "expected: mean probability")
    parts.append(svg.label(frame.left, frame.top - 2, "came", "start", "axis"))
    ends = (max(axis.low, 0.0), min(axis.high, 1.0))
    same = tag("path", d=frame.path([(v, v) for v in ends]), class_="line faint")
    shown = [(run, curve) for run, curve in zip(runs, curves, strict=True) if curve]
    lines = [frame.curve(curve, run.series, run.label, data_run=run.series) for run, curve in shown]
    parts.append(frame.stretched(same, *lines))
    for member, (x, y) in zip(runs[0].members, points, strict=False):
        if math.isfinite(x) and math.isfinite(y):
            hint = f"{member.name}: expected {x:.1%}, came {y:.1%}"
            parts.append(svg.marker(frame.x_at(x), frame.y_at(y), runs[0].series, hint, scale=0.8))
    return svg.chart("What came against what was expected", HEIGHT, *parts)


def path(swept: numbers.Path) -> Markup:
    """Fairness against average along a path of objectives; the chosen point has a ring."""
    points = [(value, run, run.summary["mean"], run.corrected_worst) for value, run in swept.points]
    drawn = [point for point in points if math.isfinite(point[2]) and math.isfinite(point[3])]
    frame, parts = _against(swept.points[0][1], [(run, x) for _, run, x, _ in drawn], "the average client")
    line = [(x, y) for _, _, x, y in drawn]
    name = f"from {swept.setting} {drawn[0][0]:g} to {drawn[-1][0]:g}" if drawn else ""
    parts.append(frame.stretched(frame.curve(line, 0, name)))
    taken = _markers_of(frame, line)
    for value, run, x, y in drawn:
        text = f"{swept.setting} {value:g}"
        hint = f"{text}: the average client {run.format(x)}, worst-served fifth "
        hint += formats.with_interval(y, run.worst.low, run.worst.high, run.format)
        place, chosen = (frame.x_at(x), frame.y_at(y)), run is swept.chosen
        parts += _on_the_line(text, hint, place, taken, run.series, chosen, data_run=run.series)
    return svg.chart(f"Worst-served fifth against the average client, along {swept.setting}", HEIGHT, *parts)


def price(choice: Choice) -> Markup:
    """The path that rho was chosen along, by rows left out: the chosen point has a ring, and every point its bounds."""
    rows = [{key: float(cell) for key, cell in row.items() if isinstance(cell, float)} for row in choice.tried]
    names = "average skill", "worst fifth gain", "worst fifth low", "worst fifth high"
    drawn = [(row["value"], *(row[name] for name in names)) for row in rows if {"value", *names} <= row.keys()]
    if not drawn:
        return Markup()
    down = svg.axis([v for _, _, *y in drawn for v in y], margin=0.06)
    frame, line = _frame(svg.axis((x for _, x, *_ in drawn), margin=0.12), down), [(x, y) for _, x, y, *_ in drawn]
    parts = frame.grid("{:.1%}".format, formats.tick, "average skill of rows left out (better →)")
    parts.append(svg.label(frame.left, frame.top - 14, "gain over own models, worst fifth (better ↑)", "start", "axis"))
    parts.append(frame.stretched(frame.curve(line, 0, "from the average to the worst")))
    taken = _markers_of(frame, line)
    for value, x, y, low, high in drawn:
        x_at, text = frame.x_at(x), f"rho {value:g}"
        hint = f"{text}: average skill {x:.2%}, gain in the worst fifth {y:+.4f} ({low:+.4f} to {high:+.4f})"
        parts.append(svg.line(x_at, frame.y_at(low), x_at, frame.y_at(high), f"whisker {svg.colour(0)}"))
        parts += _on_the_line(text, hint, (x_at, frame.y_at(y)), taken, 0, value == choice.value)
    return svg.chart("What fairness costs along rho, by rows left out", HEIGHT, *parts)


def _on_the_line(
    text: str, hint: str, place: tuple[float, float], taken: list[Taken], series: int, chosen: bool, **marks: int
) -> Iterator[Markup]:
    """A point of a line: its marker, its label, and a ring if it was chosen."""
    if chosen:
        ring = tag("circle", r="11", cx="0", cy="0", class_="ring")
        yield tag("svg", ring, x=svg.percent(place[0]), y=float(place[1]), overflow="visible", class_="chosen-point")
        text, hint = f"{text}, chosen", f"{hint}; chosen"
    yield svg.marker(*place, 0, hint, scale=1.2, **marks)
    yield _label(text, *place, taken, series, OFF_THE_LINE)


BESIDE = ((10, 4, "start"), (-10, 4, "end"), (0, -11, "middle"), (0, 20, "middle"))
OFF_THE_LINE = ((0, -15, "middle"), (0, 24, "middle"), *BESIDE)


def _markers_of(frame: svg.Frame, points: Sequence[tuple[float, float]]) -> list[Taken]:
    return [(frame.x_at(x) * TYPICAL_WIDTH, frame.y_at(y), 10) for x, y in points]


def _label(
    text: str, x_at: float, y_at: float, taken: list[Taken], series: int,
    places: Sequence[tuple[int, int, str]] = BESIDE,
) -> Markup:  # fmt: skip
    """At its marker where there is room; otherwise the legend has to do."""
    shown = text if len(text) <= 22 else text[:21] + "…"
    width, x = 6.8 * len(shown), x_at * TYPICAL_WIDTH
    for dx, dy, anchor in places:
        left = x + dx - {"start": 0, "end": width, "middle": width / 2}[anchor]
        centre = left + width / 2, y_at + dy - 4
        inside = left > LEFT * TYPICAL_WIDTH and left + width < TYPICAL_WIDTH
        if inside and all(abs(centre[0] - a) > (width + w) / 2 or abs(centre[1] - b) > 13 for a, b, w in taken):
            taken.append((*centre, width))
            place = {"x": svg.percent(x_at), "y": y_at + dy, "dx": dx, "text_anchor": anchor}
            return tag("text", shown, **place, class_="label", data_run=series)
    return Markup()


def _frame(x: svg.Axis, y: svg.Axis, right: float = RIGHT) -> svg.Frame:
    return svg.Frame(x, y, LEFT, right, TOP + 14, BOTTOM)


def has_data(runs: Sequence[ReportedRun], quantity: str) -> bool:
    return any(math.isfinite(y) for run in runs for _, y, _ in numbers.curve(run, quantity, "rounds"))


def convergence(runs: Sequence[ReportedRun], quantity: str, against: XAxis) -> Markup:
    """A line for each run; where a number was not finite there is a gap."""
    limit = max(60, 1200 // len(runs))
    curves = [numbers.curve(run, quantity, against, limit) for run in runs]
    pairs = list(zip(runs, curves, strict=True))[::-1]  # the first run on top
    heights = [y for c in curves for _, y, _ in c if math.isfinite(y)]
    y_axis = svg.axis(heights, log=_spans_decades(quantity, runs[0].higher_is_better, heights), margin=0.06)
    x_axis = svg.axis((x for c in curves for x, _, _ in c), from_zero=True, margin=0)
    frame = _frame(x_axis, y_axis)
    is_score = quantity in numbers.SCORE_CURVES
    name = "rounds of communication" if against == "rounds" else "bytes sent to and from a client"
    write, y_tick = (runs[0].format, runs[0].format_tick) if is_score else (formats.number, formats.tick)
    parts = frame.grid(ROUND if against == "rounds" else formats.byte_size, y_tick, name)
    lines = []
    for run, c in pairs:
        if c:
            hint = f"{run.label}: {write(c[-1][1])} at the end"
            lines.append(frame.curve([(x, y) for x, y, _ in c], run.series, hint, data_run=run.series))
    parts.append(frame.stretched(*lines))
    for run, c in pairs:
        for x, y, round_ in _marked(c, run.series):
            if math.isfinite(y):
                where = f"round {round_:,}" if against == "rounds" else f"round {round_:,}, {formats.byte_size(x)}"
                hint = f"{run.label}, {where}: {write(y)}"
                parts.append(svg.marker(frame.x_at(x), frame.y_at(y), run.series, hint, scale=0.8, data_run=run.series))
    return svg.chart(f"{QUANTITIES[quantity]} against {name}", HEIGHT, *parts)


def _spans_decades(quantity: str, higher_is_better: bool, heights: Sequence[float]) -> bool:
    """Whether the axis is logarithmic: for gaps and distances, and for errors and objectives that fall far."""
    if quantity in ("gap", "distance"):
        return any(y > 0 for y in heights)
    falls = quantity not in numbers.SCORE_CURVES or not higher_is_better
    return falls and bool(heights) and min(heights) > 0 and max(heights) > 5 * min(heights)


def _marked(points: numbers.Curve, series: int) -> numbers.Curve:
    """The points that get a marker: a few and the last, others for each run so that they do not overlap."""
    every = max(1, math.ceil(len(points) / MARKERS_PER_CURVE))
    return [p for i, p in enumerate(points) if i == len(points) - 1 or i % every == series % every]


def weights(run: ReportedRun) -> Markup:
    """The weight of each client: the heaviest with name and colour, the others faint, or as a band."""
    rounds, lam = numbers.weights(run.record)
    n, members = run.n, run.members
    order = [int(i) for i in np.argsort(-np.nan_to_num(lam[-1], nan=-1.0), kind="stable")]
    heavy, light = order[:NAMED_LINES], order[NAMED_LINES:]
    x_axis, y_axis = svg.axis(rounds, from_zero=True, margin=0), svg.axis([*lam.ravel(), 0, 1 / n], margin=0.06)
    frame = _frame(x_axis, y_axis, right=0.78)
    parts = frame.grid(ROUND, formats.tick, "rounds of communication")
    lines: list[object] = []

    def hint(i: int) -> str:
        return f"{members[i].name}: {formats.number(float(lam[-1, i]))} at the end"

    if len(light) > FAINT_LINES:
        rest = zip(rounds, lam[:, light], strict=True)
        edges = [(float(r), float(row.min()), float(row.max())) for r, row in rest if np.isfinite(row).all()]
        ends = f"between {formats.tick(edges[-1][1])} and {formats.tick(edges[-1][2])}" if edges else "not finite"
        others = f"the other {len(light):,} clients: {ends} at the end"
        lines.append(tag("path", tag("title", others), d=frame.band(edges), class_="band"))
    for rank, i in reversed(list(enumerate(heavy if len(light) > FAINT_LINES else order))):
        points = list(zip(map(float, rounds), lam[:, i].tolist(), strict=True))
        lines.append(frame.curve(points, rank if rank < NAMED_LINES else None, hint(i), data_client=i))
    parts.append(frame.stretched(*lines))
    level = frame.y_at(1 / n)
    parts.append(svg.line(frame.left, level, frame.right, level, "mark-line"))
    heights = _separated([frame.y_at(float(np.nan_to_num(lam[-1, i]))) for i in heavy])
    for rank, (i, y) in enumerate(zip(heavy, heights, strict=True)):
        for t in np.flatnonzero(np.isfinite(lam[:, i]))[-1:]:
            x_at, y_at = frame.x_at(rounds[t]), frame.y_at(float(lam[t, i]))
            parts.append(svg.marker(x_at, y_at, rank, hint(i), scale=0.8, data_client=i))
        text = tag("text", members[i].name, x="0", y="14", class_=f"label {svg.colour(rank)}")
        parts.append(tag("svg", text, x="80%", y=y - 10, width="20%", height="20", overflow="hidden", data_client=i))
    return svg.chart(f"How {run.label} weighted the clients", HEIGHT, *parts, class_="chart weights")


def _separated(heights: list[float], least: float = 15.0) -> list[float]:
    """The heights, from the top down, moved so that lines of text do not overlap."""
    out: list[float] = []
    for height in heights:
        out.append(max(height, out[-1] + least) if out else height)
    over = max(0.0, out[-1] - BOTTOM) if out else 0.0
    out = [height - over for height in out]
    for k in range(len(out) - 2, -1, -1):
        out[k] = min(out[k], out[k + 1] - least)
    return out
