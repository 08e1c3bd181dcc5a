"""A small SVG builder: axes, a frame, lines and markers.

Across, everything is in per cent of the width and the text keeps its size, so that a chart is as legible on a phone
as on a wall; down, everything is in pixels. Lines are drawn in a nested <svg> that is stretched.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from equipoise.report.markup import Safe, tag

TINY = 1e-200  # less is zero, and its inverse beyond any axis
DECADES = 14  # of a logarithmic axis; what is below lies on its lowest line
ACROSS = 1000  # units of the stretched part
COLOURS = 7  # of page.css, told apart by the colour-blind; the dashes and markers make more of them
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
    """From numbers to 0..1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis(
    values: Iterable[float], *, zero: bool = False, log: bool = False, room: float | None = None, parts: int = 4
) -> Axis:
    """One that holds the values. Its ends are ticks; or, with `room`, that share beyond the values.

    Logarithmic ones hold the positive values.
    """
    known = [0.0 if abs(v) < TINY else float(v) for v in values if abs(v) < 1 / TINY]
    known = [v for v in known if v > 0] if log else known
    low, high = (min(known), max(known)) if known else (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        return _decades(max(low, high * 10.0**-DECADES), high)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    if high - low <= 1e-9 * max(abs(high), abs(low)):  # all alike
        pad = abs(high) / 10 or 1.0
        low, high = (low, high + pad) if zero else (low - pad, high + pad)
    step = _nice((high - low) / parts)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{k * step:.14g}") for k in range(first, last + 1))
    if room is not None:
        more = room * (high - low)
        low, high = low - (0 if low == 0 else more), high + (0 if high == 0 else more)
        return Axis(low, high, tuple(t for t in ticks if low - 1e-9 * step <= t <= high + 1e-9 * step))
    return Axis(ticks[0], ticks[-1], ticks)


def _decades(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    if 1.5 * low < high < 100 * low:  # too few decades to mark them only
        ticks = tuple(float(f"{m}e{k}") for k in range(first, last) for m in (1, 2, 5))
        low, high = low * (low / high) ** 0.06, high * (high / low) ** 0.06
        return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), log=True)
    every = math.ceil((last - first) / 5)
    ticks = tuple(10.0**k for k in range(first, last + 1, every))
    return Axis(10.0**first, 10.0**last, ticks, log=True)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))


def cent(share: float) -> str:
    """0.25 -> 25%."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


class Frame(NamedTuple):
    """Where the data lie in a chart: between two shares of its width and two heights."""

    x: Axis
    y: Axis
    left: float
    right: float
    top: float
    bottom: float

    def across(self, value: float) -> float:
        """As a share of the chart's width."""
        return self.left + (self.right - self.left) * self.x.at(value)

    def down(self, value: float) -> float:
        """In pixels."""
        return self.bottom - (self.bottom - self.top) * self.y.at(value)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Through the points, with a gap where there is no number."""
        out, pen_down = [], False
        for x, y in points:
            known = math.isfinite(x) and math.isfinite(y)
            if known:
                out.append(f"{'L' if pen_down else 'M'}{self._unit(x):.1f} {self.down(y) - self.top:.1f}")
            pen_down = known
        return "".join(out)

    def band(self, points: Sequence[tuple[float, float, float]]) -> str:
        """The area between (x, low, high)."""
        known = [p for p in points if all(map(math.isfinite, p))]
        if not known:
            return ""
        edge = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
        return self.path(edge) + "Z"

    def _unit(self, x: float) -> float:
        return ACROSS * self.x.at(x)

    def stretched(self, *children: object) -> Safe:
        """Paths of this frame, as wide as the chart will be."""
        return tag(
            "svg",
            *children,
            x=cent(self.left),
            y=self.top,
            width=cent(self.right - self.left),
            height=self.bottom - self.top,
            viewBox=f"0 0 {ACROSS} {self.bottom - self.top:g}",
            preserveAspectRatio="none",
            class_="lines",
        )

    def grid(self, x: Callable[[float], str], y: Callable[[float], str], x_name: str) -> list[Safe]:
        """Lines across at the ticks of y, numbers at both axes, and what the x axis is."""
        out = []
        for tick in self.y.ticks:
            at = self.down(tick)
            out.append(rule(self.left, at, self.right, at, "grid"))
            out.append(words(self.left - 0.012, at + 4, y(tick), "end", "tick"))
        for tick in self.x.ticks:
            share = self.across(tick)
            out.append(words(share, self.bottom + 18, x(tick), "middle", "tick"))
        out.append(rule(self.left, self.bottom, self.right, self.bottom, "base"))
        out.append(words(self.right, self.bottom + 36, x_name, "end", "axis"))
        return out


def chart(name: str, height: float, *children: object, class_: str = "chart") -> Safe:
    """A drawing with a name for those who do not see it."""
    return tag("svg", tag("title", name), *children, class_=class_, role="img", width="100%", height=float(height))


def words(x: float, y: float, text: object, anchor: str = "start", class_: str | None = None) -> Safe:
    return tag("text", text, x=cent(x), y=float(y), text_anchor=anchor, class_=class_)


def rule(x1: float, y1: float, x2: float, y2: float, class_: str) -> Safe:
    return tag("line", x1=cent(x1), y1=float(y1), x2=cent(x2), y2=float(y2), class_=class_)


def marker(x: float, y: float, kind: int, hint: str | None = None, *, scale: float = 1.0, **attributes: object) -> Safe:
    """The sign of run number `kind`, with what it says when pointed at."""
    told = () if hint is None else (tag("title", hint),)
    shape = tag("path", *told, d=MARKERS[kind % len(MARKERS)], transform=None if scale == 1 else f"scale({scale:g})")
    return tag("svg", shape, x=cent(x), y=float(y), class_=f"mark {colour(kind)}", overflow="visible", **attributes)


def colour(kind: int) -> str:
    return f"s{kind % COLOURS}"


def dash(kind: int) -> str | None:
    return DASHES[kind // COLOURS % len(DASHES)]


def key(kind: int) -> Safe:
    """A line with its marker, for a legend."""
    line = tag("line", x1="0", y1="7", x2="26", y2="7", stroke_dasharray=dash(kind))
    shape = tag("path", d=MARKERS[kind % len(MARKERS)], transform="translate(13 7)")
    return tag("svg", line, shape, class_=f"key {colour(kind)}", width="26", height="14", aria_hidden="true")
