"""Drawings of runs: average against worst-served, how they converged, and how the weights moved."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from equipoise.report import numbers, svg
from equipoise.report.markup import Safe, tag
from equipoise.report.numbers import Against, Entry

WORDS = {
    "mean": "Average client",
    "worst20": "Worst-served fifth",
    "objective": "Robust objective",
    "gap": "Gap to the optimum, at most",
    "distance": "Squared distance to the optimum",
}
LEFT, RIGHT, TOP, BOTTOM = 0.115, 0.965, 10.0, 236.0
HEIGHT = BOTTOM + 44
TYPICAL = 460  # pixels; how wide these charts mostly are, to keep labels apart
SIGNS = 7  # markers on a curve
LINES = 8  # weights that get a colour and a name
FAINT = 60  # clients that get a line of their own


def tradeoff(entries: Sequence[Entry], other: str) -> Safe:
    """The worst-served fifth against the average ("mean") or the best-served fifth ("best20"): Figure 4 of SCAFF-PD."""
    points = [(e, e.summary[other], e.corrected) for e in entries]
    known = [(e, x, y) for e, x, y in points if math.isfinite(x) and math.isfinite(y)]
    ends = [v for e, _, y in known for v in (y, e.worst.low, e.worst.high) if math.isfinite(v)]
    frame = _frame(svg.axis((x for _, x, _ in known), room=0.12), svg.axis(ends, room=0.06, parts=5))
    told = "the average client" if other == "mean" else "the best-served fifth"
    entry = entries[0]
    parts = frame.grid(_short(entry), _short(entry), f"{entry.score} of {told} {_better(entry, '→', '←')}")
    parts.append(
        svg.words(frame.left, frame.top - 14, f"worst-served fifth {_better(entry, '↑', '↓')}", "start", "axis")
    )
    taken: list[tuple[float, float, float]] = [(frame.across(x) * TYPICAL, frame.down(y), 10) for _, x, y in known]
    for e, x, y in known[::-1]:  # the first on top
        across, down = frame.across(x), frame.down(y)
        hint = f"{e.label}: {told} {e.written(x)}, worst-served fifth {e.written(y)}"
        span = numbers.bounds(e.worst.low, e.worst.high, e.written)
        if span != numbers.NONE:
            hint += f" ({span})"
            ends = [frame.down(bound) for bound in (e.worst.low, e.worst.high)]
            parts.append(svg.rule(across, ends[0], across, ends[1], f"whisker {svg.colour(e.kind)}"))
        parts.append(svg.marker(across, down, e.kind, hint, scale=1.4, data_run=e.kind))
    parts.extend(_label(e.label, frame.across(x), frame.down(y), taken, e.kind) for e, x, y in known)
    return svg.chart(f"Worst-served fifth against {told}", HEIGHT, *parts)


def _better(entry: Entry, more: str, less: str) -> str:
    return f"(better {more if entry.up else less})"


def _label(text: str, across: float, down: float, taken: list[tuple[float, float, float]], kind: int) -> Safe:
    """Beside its marker, where nothing else stands; left to the legend where there is no room."""
    shown = text if len(text) <= 22 else text[:21] + "…"
    wide, x = 6.8 * len(shown), across * TYPICAL
    for dx, dy, anchor in ((10, 4, "start"), (-10, 4, "end"), (0, -11, "middle"), (0, 20, "middle")):
        left = x + dx - {"start": 0, "end": wide, "middle": wide / 2}[anchor]
        centre = left + wide / 2, down + dy - 4
        inside = left > LEFT * TYPICAL and left + wide < TYPICAL
        if inside and all(abs(centre[0] - a) > (wide + w) / 2 or abs(centre[1] - b) > 13 for a, b, w in taken):
            taken.append((*centre, wide))
            return tag(
                "text", shown, x=svg.cent(across), y=down + dy, dx=dx, text_anchor=anchor, class_="label", data_run=kind
            )
    return Safe()


def _frame(x: svg.Axis, y: svg.Axis, right: float = RIGHT) -> svg.Frame:
    return svg.Frame(x, y, LEFT, right, TOP + 14, BOTTOM)


def _short(entry: Entry) -> Callable[[float], str]:
    return (lambda v: f"{100 * v:.3g}%") if entry.measure == "accuracy" else numbers.compact


def drawn(entries: Sequence[Entry], of: str) -> bool:
    """Whether there is anything to draw."""
    return any(math.isfinite(y) for e in entries for _, y, _ in numbers.curve(e, of, "rounds"))


def convergence(entries: Sequence[Entry], of: str, against: Against) -> Safe:
    """A line for each run; where a number was not finite there is a gap."""
    limit, entry = max(60, 1200 // len(entries)), entries[0]
    curves = [numbers.curve(e, of, against, limit) for e in entries]
    pairs = list(zip(entries, curves, strict=True))[::-1]  # the first on top
    heights = [y for c in curves for _, y, _ in c if math.isfinite(y)]
    y_axis = svg.axis(heights, log=_spans_decades(of, entry.up, heights), room=0.06)
    x_axis = svg.axis((x for c in curves for x, _, _ in c), zero=True, room=0)
    frame = _frame(x_axis, y_axis)
    score = of in numbers.OF_SCORES
    name = "rounds of communication" if against == "rounds" else "bytes sent to and from a client"
    parts = frame.grid(
        (lambda v: f"{v:,g}") if against == "rounds" else numbers.size,
        _short(entry) if score else numbers.compact,
        name,
    )
    written = entry.written if score else numbers.plain
    lines = [
        tag(
            "path",
            tag("title", f"{e.label}: {written(c[-1][1])} at the end"),
            d=frame.path([(x, y) for x, y, _ in c]),
            class_=f"line {svg.colour(e.kind)}",
            stroke_dasharray=svg.dash(e.kind),
            data_run=e.kind,
        )
        for e, c in pairs
        if c
    ]
    parts.append(frame.stretched(*lines))
    for e, c in pairs:
        for x, y, round_ in _some(c, e.kind):
            if math.isfinite(y):
                where = f"round {round_:,}" if against == "rounds" else f"round {round_:,}, {numbers.size(x)}"
                hint = f"{e.label}, {where}: {written(y)}"
                parts.append(svg.marker(frame.across(x), frame.down(y), e.kind, hint, scale=0.8, data_run=e.kind))
    return svg.chart(f"{WORDS[of]} against {name}", HEIGHT, *parts)


def _spans_decades(of: str, up: bool, heights: Sequence[float]) -> bool:
    """Gaps and distances fall by factors; so do errors and objectives, often."""
    if of in ("gap", "distance"):
        return any(y > 0 for y in heights)
    falls = of not in numbers.OF_SCORES or not up
    return falls and bool(heights) and min(heights) > 0 and max(heights) > 5 * min(heights)


def _some(points: numbers.Curve, kind: int) -> numbers.Curve:
    """A few of them and the last; another run's are others, so that they do not hide each other."""
    every = max(1, math.ceil(len(points) / SIGNS))
    return [p for i, p in enumerate(points) if i == len(points) - 1 or i % every == kind % every]


def weights(entry: Entry) -> Safe:
    """The weight of each client: the heaviest with name and colour, the others faint, or as a band."""
    rounds, lam = numbers.weights(entry.run)
    n, members = entry.n, entry.run.federation.members
    order = [int(i) for i in np.argsort(-np.nan_to_num(lam[-1], nan=-1.0), kind="stable")]
    heavy, light = order[:LINES], order[LINES:]
    frame = _frame(svg.axis(rounds, zero=True, room=0), svg.axis([*lam.ravel(), 0, 1 / n], room=0.06), right=0.78)
    parts = frame.grid(lambda v: f"{v:,g}", numbers.compact, "rounds of communication")
    lines: list[object] = []
    if len(light) > FAINT:
        rest = lam[:, light]
        edges = [
            (float(r), float(row.min()), float(row.max()))
            for r, row in zip(rounds, rest, strict=True)
            if np.isfinite(row).all()
        ]
        ends = f"between {numbers.compact(edges[-1][1])} and {numbers.compact(edges[-1][2])}" if edges else "not finite"
        hint = f"the other {len(light):,} clients: {ends} at the end"
        lines.append(tag("path", tag("title", hint), d=frame.band(edges), class_="band"))
    shown = heavy + (light if len(light) <= FAINT else [])
    for i in reversed(shown):
        place = order.index(i)
        points = [(float(r), float(v)) for r, v in zip(rounds, lam[:, i], strict=True)]
        strong = place < LINES
        lines.append(
            tag(
                "path",
                tag("title", f"{members[i].name}: {numbers.plain(float(lam[-1, i]))} at the end"),
                d=frame.path(points),
                class_=f"line {svg.colour(place)}" if strong else "line faint",
                stroke_dasharray=svg.dash(place) if strong else None,
                data_client=i,
            )
        )
    parts.append(frame.stretched(*lines))
    level = frame.down(1 / n)
    parts.append(svg.rule(frame.left, level, frame.right, level, "mark-line"))
    for i, at in zip(heavy, _apart([frame.down(float(np.nan_to_num(lam[-1, i]))) for i in heavy]), strict=True):
        place = order.index(i)
        known = np.flatnonzero(np.isfinite(lam[:, i]))
        hint = f"{members[i].name}: {numbers.plain(float(lam[-1, i]))} at the end"
        for t in known[-1:]:
            across, down = frame.across(rounds[t]), frame.down(float(lam[t, i]))
            parts.append(svg.marker(across, down, place, hint, scale=0.8, data_client=i))
        text = tag("text", members[i].name, x="0", y="14", class_=f"label {svg.colour(place)}")
        parts.append(tag("svg", text, x="80%", y=at - 10, width="20%", height="20", overflow="hidden", data_client=i))
    return svg.chart(f"How {entry.label} weighted the clients", HEIGHT, *parts, class_="chart weights")


def _apart(heights: list[float], least: float = 15.0) -> list[float]:
    """The same heights, moved so that lines of text do not touch; they stand from the top down."""
    out: list[float] = []
    for height in heights:
        out.append(max(height, out[-1] + least) if out else height)
    over = max(0.0, out[-1] - BOTTOM) if out else 0.0
    out = [height - over for height in out]
    for k in range(len(out) - 2, -1, -1):
        out[k] = min(out[k], out[k + 1] - least)
    return out
