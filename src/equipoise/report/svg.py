"""A small SVG builder: axes, a frame, lines and markers.

Across, everything is in per cent of the width and the text keeps its size, so that a chart is as legible on a phone
as on a wall; down, everything is in pixels. Lines are drawn in a nested <svg> that is stretched.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from equipoise.report.markup import tag

TINY = 1e-200  # less counts as zero, more than its inverse as infinite
DECADES = 14  # of a logarithmic axis; what is below lies on its lowest line
ACROSS = 1000  # units of the stretched part
# Those of page.css in the light, safe for the colour-blind; dashes and markers tell more runs apart.
COLOURS = ("#0067a5", "#c94f00", "#00825f", "#a8508a", "#9a6b00", "#2f8fc7", "#4a4d55")
DASHES = (None, "7 3", "2 3", "9 3 2 3")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.6L4.4 3.4H-4.4z",  # triangle
    "M0-5L5 0L0 5L-5 0z",  # diamond
    "M0 4.6L4.4-3.4H-4.4z",  # triangle, down
    "M-4.4-1.5h2.9v-2.9h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9z",  # plus
)


class Axis(NamedTuple):
    """Maps numbers to 0..1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def fraction(self, value: float) -> float:
        if self.log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis(
    values: Iterable[float], *, from_zero: bool = False, log: bool = False, margin: float | None = None, steps: int = 4
) -> Axis:
    """An axis that holds the values. Its ends are ticks; or, with `margin`, that fraction beyond the values.

    A logarithmic axis holds the positive values.
    """
    finite = [0.0 if abs(v) < TINY else float(v) for v in values if abs(v) < 1 / TINY]
    finite = [v for v in finite if v > 0] if log else finite
    low, high = (min(finite), max(finite)) if finite else (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        return _decades(max(low, high * 10.0**-DECADES), high)
    low, high = (min(low, 0.0), max(high, 0.0)) if from_zero else (low, high)
    if high - low <= 1e-9 * max(abs(high), abs(low)):  # all alike
        pad = abs(high) / 10 or 1.0
        low, high = (low, high + pad) if from_zero else (low - pad, high + pad)
    step = _nice((high - low) / steps)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{k * step:.14g}") for k in range(first, last + 1))
    if margin is not None:
        more = margin * (high - low)
        low, high = low - (0 if low == 0 else more), high + (0 if high == 0 else more)
        return Axis(low, high, tuple(t for t in ticks if low - 1e-9 * step <= t <= high + 1e-9 * step))
    return Axis(ticks[0], ticks[-1], ticks)


def _decades(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    if 1.5 * low < high < 100 * low:  # too few decades to mark them only
        ticks = tuple(float(f"{m}e{k}") for k in range(first, last) for m in (1, 2, 5))
        low, high = low * (low / high) ** 0.06, high * (high / low) ** 0.06
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        return Axis(low, high, inside or axis([low, high]).ticks[1:-1], log=True)
    every = math.ceil((last - first) / 5)
    ticks = tuple(10.0**k for k in range(first, last + 1, every))
    return Axis(10.0**first, 10.0**last, ticks, log=True)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))


def percent(share: float) -> str:
    """0.25 -> 25%."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


class Frame(NamedTuple):
    """Where the data are in a chart: between two fractions of its width and two heights."""

    x: Axis
    y: Axis
    left: float
    right: float
    top: float
    bottom: float

    def x_at(self, value: float) -> float:
        """As a fraction of the chart's width."""
        return self.left + (self.right - self.left) * self.x.fraction(value)

    def y_at(self, value: float) -> float:
        """In pixels."""
        return self.bottom - (self.bottom - self.top) * self.y.fraction(value)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Through the points, with a gap where there is no number."""
        out, pen_down = [], False
        for x, y in points:
            finite = math.isfinite(x) and math.isfinite(y)
            if finite:
                out.append(f"{'L' if pen_down else 'M'}{ACROSS * self.x.fraction(x):.1f} {self.y_at(y) - self.top:.1f}")
            pen_down = finite
        return "".join(out)

    def band(self, points: Sequence[tuple[float, float, float]]) -> str:
        """The area between (x, low, high)."""
        finite = [p for p in points if all(map(math.isfinite, p))]
        if not finite:
            return ""
        edge = [(x, high) for x, _, high in finite] + [(x, low) for x, low, _ in reversed(finite)]
        return self.path(edge) + "Z"

    def curve(
        self, points: Sequence[tuple[float, float]], series: int | None, hint: str, **attributes: object
    ) -> Markup:
        """A line in the colour and dash of run number `series`; None: a faint one."""
        look = {"class_": "line faint"} if series is None else {"class_": f"line {colour(series)}"}
        dashes = None if series is None else dash(series)
        return tag("path", tag("title", hint), d=self.path(points), **look, stroke_dasharray=dashes, **attributes)

    def stretched(self, *children: object) -> Markup:
        """Paths of this frame, stretched to the width of the chart."""
        height, width = self.bottom - self.top, percent(self.right - self.left)
        size = {"x": percent(self.left), "y": self.top, "width": width, "height": height}
        view = f"0 0 {ACROSS} {height:g}"
        return tag("svg", *children, **size, viewBox=view, preserveAspectRatio="none", class_="lines")

    def grid(self, x: Callable[[float], str], y: Callable[[float], str], x_name: str) -> list[Markup]:
        """Horizontal lines at the ticks of y, numbers at both axes, and the name of the x axis."""
        out = []
        for tick in self.y.ticks:
            y_at = self.y_at(tick)
            out.append(line(self.left, y_at, self.right, y_at, "grid"))
            out.append(label(self.left - 0.012, y_at + 4, y(tick), "end", "tick"))
        for tick in self.x.ticks:
            out.append(label(self.x_at(tick), self.bottom + 18, x(tick), "middle", "tick"))
        out.append(line(self.left, self.bottom, self.right, self.bottom, "base"))
        out.append(label(self.right, self.bottom + 36, x_name, "end", "axis"))
        return out


def chart(name: str, height: float, *children: object, class_: str = "chart") -> Markup:
    """A drawing with a name, which screen readers read."""
    return tag("svg", tag("title", name), *children, class_=class_, role="img", width="100%", height=float(height))


def label(x: float, y: float, text: object, anchor: str = "start", class_: str | None = None) -> Markup:
    return tag("text", text, x=percent(x), y=float(y), text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=percent(x1), y1=float(y1), x2=percent(x2), y2=float(y2), class_=class_)


def marker(x: float, y: float, series: int, hint: str = "", *, scale: float = 1, **attributes: object) -> Markup:
    """The marker of run number `series`, with its hint."""
    title = [tag("title", hint)] if hint else []
    shape = tag("path", *title, d=MARKERS[series % len(MARKERS)], transform=None if scale == 1 else f"scale({scale:g})")
    look = {"class_": f"mark {colour(series)}", "overflow": "visible", **attributes}
    return tag("svg", shape, x=percent(x), y=float(y), **look)


def colour(series: int) -> str:
    return f"s{series % len(COLOURS)}"


def dash(series: int) -> str | None:
    return DASHES[series // len(COLOURS) % len(DASHES)]


def legend_key(series: int) -> Markup:
    """A line with its marker, for a legend."""
    line = tag("line", x1="0", y1="7", x2="26", y2="7", stroke_dasharray=dash(series))
    shape = tag("path", d=MARKERS[series % len(MARKERS)], transform="translate(13 7)")
    return tag("svg", line, shape, class_=f"key {colour(series)}", width="26", height="14", aria_hidden="true")
