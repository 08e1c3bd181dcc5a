"""The table of a sweep: every method with its best setting, mean and deviation over the seeds."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table

from equipoise.experiment.measures import Measure, measure
from equipoise.report.tables import plain


def table(cells: Sequence[Any], show: Sequence[str]) -> Table:
    """`cells` are those of `experiment.plan`; the best of each federation and column stands out."""
    columns = [measure(name) for name in show]
    out = Table(title=f"{_score(cells)}mean ± standard deviation over the seeds")
    for head in _heads(columns):
        out.add_column(head, justify="left" if head in ("method", "chosen") else "right")
    for place, rows in _by_place(cells):
        if place:
            out.add_row(f"[bold]{escape(place)}[/bold]")
        for cell, shown in zip(rows, _shown(rows, columns, "[bold]", "[/bold]"), strict=True):
            out.add_row(escape(cell.label), *shown, *map(escape, _rest(cell)))
        out.add_section()
    return out


def markdown(cells: Sequence[Any], show: Sequence[str]) -> str:
    columns = [measure(name) for name in show]
    lines = []
    for place, rows in _by_place(cells):
        if place:
            lines += [f"**{plain(place)}**", ""]
        lines += ["| " + " | ".join(_heads(columns)) + " |", "|---|" + "---:|" * len(columns) + "---:|---|---:|"]
        for cell, shown in zip(rows, _shown(rows, columns, "**", "**"), strict=True):
            lines.append("| " + " | ".join([plain(cell.label), *shown, *map(plain, _rest(cell))]) + " |")
        lines.append("")
    return "\n".join(lines)


def _heads(columns: Sequence[Measure]) -> list[str]:
    return ["method", *(column.heading for column in columns), "floats per client", "chosen", "seeds"]


def _by_place(cells: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    found: dict[str, list[Any]] = {}
    for cell in cells:
        place = ", ".join(f"{key.rpartition('.')[2]} = {_value(value)}" for key, value in cell.over.items())
        found.setdefault(place, []).append(cell)
    return list(found.items())


def _shown(rows: Sequence[Any], columns: Sequence[Measure], before: str, after: str) -> list[list[str]]:
    """The cells of a federation as text, the best of each column between `before` and `after`."""
    best = [max(rows, key=partial(_rank, column)) for column in columns]
    return [
        [
            f"{before}{_text(cell, column)}{after}" if cell is first and len(rows) > 1 else _text(cell, column)
            for column, first in zip(columns, best, strict=True)
        ]
        for cell in rows
    ]


def _rank(column: Measure, cell: Any) -> float:
    value = cell.over_seeds(column)[0]
    if math.isnan(value):
        return -math.inf
    return value if column.more_is_better(cell.runs[0]) else -value


def _text(cell: Any, column: Measure) -> str:
    mean, deviation = cell.over_seeds(column)
    if math.isnan(mean):
        return "diverged"
    if math.isinf(mean):
        return "never"
    several = len(cell.runs) > 1
    if column.level is not None:
        return f"{mean:.0f} ± {deviation:.0f}" if several else f"{mean:.0f}"
    if _score([cell]).startswith("accuracy") and column.name not in ("objective", "certificate", "distance", "jain"):
        return f"{100 * mean:.2f} ± {100 * deviation:.2f}" if several else f"{100 * mean:.2f}"
    return f"{mean:.4g} ± {deviation:.2g}" if several else f"{mean:.4g}"


def _rest(cell: Any) -> list[str]:
    chosen = ", ".join(f"{key.rpartition('.')[2]} {_value(v)}" for key, v in cell.chosen.items())
    of = f" (of {cell.tried})" if cell.tried > 1 else ""
    return [f"{_floats_per_client(cell):,.0f}", chosen + of, str(len(cell.runs))]


def _floats_per_client(cell: Any) -> float:
    """Numbers that crossed, up and down, per client and run."""
    first = cell.runs[0]
    row, width = first.rows[-1], 8 if first.environment.precision == "float64" else 4
    return (row.bytes_down + row.bytes_up) / width / len(first.federation.members)


def _score(cells: Sequence[Any]) -> str:
    outcome = cells[0].runs[0].outcome
    return "" if outcome is None else f"{outcome.measure}: "


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} {_value(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
