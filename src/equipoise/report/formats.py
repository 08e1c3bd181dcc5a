"""How numbers are written on the page and in tables."""

import math
from collections.abc import Callable, Sequence

MISSING = "–"


def percent(value: float) -> str:
    return f"{100 * value:.1f}%" if math.isfinite(value) else MISSING


def points(value: float) -> str:
    """A difference of two fractions, without a sign."""
    size = f"{abs(100 * value):.1f}"
    return f"{size} point" if size == "1.0" else f"{size} points"


def number(value: float) -> str:
    if not math.isfinite(value):
        return MISSING
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else "0" if value == 0 else f"{value:#.4g}"


def shortest(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def tick(value: float) -> str:
    """Short, for an axis."""
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def count(value: float) -> str:
    return f"{round(value):,}" if math.isfinite(value) else MISSING


def with_unit(value: float, units: Sequence[str] = ("", "k", "M", "G", "T")) -> str:
    """Three digits and a unit, each a thousand times the one before."""
    if not math.isfinite(value):
        return MISSING
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == 0 or abs(value) >= 99.95 else 1
    return f"{value:,.{digits}f}{units[power]}"


def byte_size(value: float) -> str:
    return with_unit(value, (" B", " kB", " MB", " GB", " TB"))


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 99.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def interval(low: float, high: float, write: Callable[[float], str]) -> str:
    """`61.2–66.9%`: the unit once."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    between = "–" if low >= 0 else " to "
    return f"{write(low).removesuffix('%')}{between}{write(high)}"


def with_interval(value: float, low: float, high: float, write: Callable[[float], str]) -> str:
    """`64.1% (61.2–66.9%)`; the value alone where the bounds are not known."""
    span = interval(low, high, write)
    return write(value) if span == MISSING else f"{write(value)} ({span})"


def signed(value: float) -> str:
    """A gain or a loss, to four digits behind the point at most."""
    return f"{value:+.3f}".replace("-", "−") if math.isfinite(value) else MISSING


def capitalized(text: str) -> str:
    """The first letter only; the others may be those of a name."""
    return text[:1].upper() + text[1:]
