"""Drawings as files of their own: SVG without variables or scripts, so that any viewer shows it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from equipoise.data.partition import Summary
from equipoise.report import formats, svg
from equipoise.report.markup import printable, tag

STYLE = """text{font:12px sans-serif;fill:#1b1d21} rect,.key path{fill:currentColor}
.grid{stroke:#e8e6df} .base{stroke:#5d6169}
.line,.key line{fill:none;stroke:currentColor;stroke-width:1.5;vector-effect:non-scaling-stroke}""" + "".join(
    f".s{k}{{color:{colour}}}" for k, colour in enumerate(svg.COLOURS)
)
HEATMAP_TITLE = "Equipoise: samples of each client by label"  # heat-maps are recognised by it
MOST_NAMES = 40  # clients or labels that are named
MOST_ROWS = 400  # more clients share rows with their neighbours
CUT = 24  # characters of a name


def heatmap(summary: Summary) -> str:
    """Clients down, labels across; a row is a client's labels as shares of its samples, then how many these are."""
    n, k = summary.histogram.shape
    each = math.ceil(n / MOST_ROWS)
    starts = np.arange(0, n, each)
    counts, sizes = np.add.reduceat(summary.histogram, starts), np.add.reduceat(summary.sizes, starts)
    clients = [_cut(name) for name in summary.clients] if n <= MOST_NAMES else []
    labels = [_cut(name) for name in summary.labels] if k <= MOST_NAMES else []
    width, height = max(3.0, min(32.0, 640 / k)), max(2.0, min(24.0, 720 / len(starts)))
    left, top = 30 + 7 * max(map(len, clients), default=0), 40
    right, bottom = left + width * k, top + height * len(starts)
    turned = any(len(name) > 3 for name in labels)
    below = bottom + (12 + 7 * max(map(len, labels)) if turned else 20)
    map_, bars, names = [], [], []
    for row, size in enumerate(sizes):
        y = top + height * row
        several = summary.clients[row * each : (row + 1) * each]
        client = several[0] if len(several) == 1 else f"{several[0]} to {several[-1]}"
        for label in np.flatnonzero(counts[row]):
            count = int(counts[row, label])
            hint = tag("title", f"{client}, {summary.labels[label]}: {count:,} of {size:,}")
            map_.append(_rect(left + width * label, y, width, height, hint, fill_opacity=f"{count / size:.3f}"))
        hint = tag("title", f"{client}: {size:,}")
        bars.append(_rect(right + 16, y, 120 * size / max(1, sizes.max()), 0.85 * height, hint))
        if clients:
            names.append(text(clients[row], left - 6, y + height / 2 + 4, "end"))
            names.append(text(f"{size:,}", right + 142, y + height / 2 + 4))
    for column, name in enumerate(labels):
        x = left + width * (column + 0.5)
        names.append(_turned(name, x + 4, bottom + 8, "end") if turned else text(name, x, bottom + 16, "middle"))
    stops = [tag("stop", offset=str(end), stop_color=svg.COLOURS[0], stop_opacity=str(end)) for end in (0, 1)]
    key = tag("rect", x=float(left), y="10", width="80", height="10", style="fill:url(#shares)")
    axis = "clients" if each == 1 else f"clients, {each} to a row"
    names.append(_turned(axis, 14, (top + bottom) / 2, "middle"))
    names.append(text("labels", (left + right) / 2, below + 12, "middle"))
    names += [text("0 to 100% of a client's samples", left + 88, 19), text("samples", right + 16, top - 6)]
    gradient = tag("defs", tag("linearGradient", *stops, id="shares"))
    groups = (tag("g", *map_, *bars, class_=svg.colour(0)), tag("g", *names))
    return document(HEATMAP_TITLE, right + 210, below + 24, gradient, key, *groups)


def panels(title: str, charts: Mapping[str, Mapping[str, Sequence[float]]], *, columns: int, x_name: str) -> str:
    """Charts in a grid: each has a heading, and a line per name through its values of 1, 2, ...; with a legend."""
    names = list(dict.fromkeys(name for lines in charts.values() for name in lines))
    width, height, parts = 420, 300, []
    for place, (heading, lines) in enumerate(charts.items()):
        longest = max(map(len, lines.values()), default=2)
        y_axis = svg.axis((float(v) for values in lines.values() for v in values), margin=0.06)
        frame = svg.Frame(svg.axis((1, longest), margin=0), y_axis, 0.13, 0.965, 30, 240)
        points = {name: list(enumerate(map(float, values), 1)) for name, values in lines.items()}
        curves = [frame.curve(points[name], names.index(name), name) for name in lines]
        grid = frame.grid(formats.tick, formats.tick, x_name)
        inside = (svg.label(0.13, 18, heading), *grid, frame.stretched(*curves))
        corner = {"x": width * (place % columns), "y": height * (place // columns)}
        parts.append(tag("svg", *inside, **corner, width=width, height=height))
    bottom = height * math.ceil(len(charts) / columns)
    for place, name in enumerate(names):
        x, y = 40 + width * (place % columns), bottom + 22 * (place // columns)
        parts += [tag("svg", svg.legend_key(place), x=x, y=y), text(name, x + 34, y + 11)]
    return document(title, width * columns, bottom + 22 * math.ceil(len(names) / columns) + 12, *parts)


def _cut(name: str) -> str:
    return name if len(name) <= CUT else name[: CUT - 1] + "…"


def _rect(x: float, y: float, width: float, height: float, *children: object, **attributes: object) -> Markup:
    size = {"width": float(width), "height": float(height)}
    return tag("rect", *children, x=float(x), y=float(y), **size, **attributes)


def text(words: str, x: float, y: float, anchor: str = "start", **attributes: object) -> Markup:
    return tag("text", words, x=float(x), y=float(y), text_anchor=anchor, **attributes)


def _turned(words: str, x: float, y: float, anchor: str) -> Markup:
    return text(words, x, y, anchor, transform=f"rotate(-90 {x:.1f} {y:.1f})")


def document(title: str, width: float, height: float, *children: object) -> str:
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}", "viewBox": f"0 0 {width:.0f} {height:.0f}"}
    paper = tag("rect", width="100%", height="100%", style="fill:#fff")
    inside = (tag("title", title), tag("style", STYLE), paper, *children)
    return printable(f'<?xml version="1.0"?>\n{tag("svg", *inside, xmlns="http://www.w3.org/2000/svg", **size)}\n')
