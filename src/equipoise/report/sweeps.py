"""The table of a sweep: every method with its best setting, mean and deviation over the seeds."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table

from equipoise.evaluation.rules import is_fraction
from equipoise.experiment.measures import Measure, measure
from equipoise.report.numbers import bytes_per_client, bytes_per_float
from equipoise.report.tables import escaped

OTHER_UNITS = ("objective", "certificate", "distance", "jain")  # measures that are not in the unit of the score


def table(cells: Sequence[Any], show: Sequence[str]) -> Table:
    """`cells` are those of `experiment.plan`; the best of each federation and column is bold."""
    columns = [measure(name) for name in show]
    score = _measure(cells[0])
    out = Table(title=f"{score}{': ' if score else ''}mean ± standard deviation over the seeds")
    for heading in _headings(columns):
        out.add_column(heading, justify="left" if heading in ("method", "chosen") else "right")
    for federation, rows in _by_federation(cells):
        if federation:
            out.add_row(f"[bold]{escape(federation)}[/bold]")
        for cell, texts in zip(rows, _texts(rows, columns, "[bold]", "[/bold]"), strict=True):
            out.add_row(escape(cell.label), *texts, *map(escape, _last_columns(cell)))
        out.add_section()
    return out


def markdown(cells: Sequence[Any], show: Sequence[str]) -> str:
    columns = [measure(name) for name in show]
    lines = []
    for federation, rows in _by_federation(cells):
        if federation:
            lines += [f"**{escaped(federation)}**", ""]
        lines += ["| " + " | ".join(_headings(columns)) + " |", "|---|" + "---:|" * len(columns) + "---:|---|---:|"]
        for cell, texts in zip(rows, _texts(rows, columns, "**", "**"), strict=True):
            lines.append("| " + " | ".join([escaped(cell.label), *texts, *map(escaped, _last_columns(cell))]) + " |")
        lines.append("")
    return "\n".join(lines)


def _headings(columns: Sequence[Measure]) -> list[str]:
    return ["method", *(column.heading for column in columns), "floats per client", "chosen", "seeds"]


def _by_federation(cells: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    found: dict[str, list[Any]] = {}
    for cell in cells:
        federation = ", ".join(f"{key.rpartition('.')[2]} = {_value(value)}" for key, value in cell.over.items())
        found.setdefault(federation, []).append(cell)
    return list(found.items())


def _texts(rows: Sequence[Any], columns: Sequence[Measure], before: str, after: str) -> list[list[str]]:
    """The numbers of a federation's cells; the best of each column stands between `before` and `after`."""
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
    if is_fraction(_measure(cell)) and column.name not in OTHER_UNITS:
        return f"{100 * mean:.2f} ± {100 * deviation:.2f}" if several else f"{100 * mean:.2f}"
    return f"{mean:.4g} ± {deviation:.2g}" if several else f"{mean:.4g}"


def _last_columns(cell: Any) -> list[str]:
    chosen = ", ".join(f"{key.rpartition('.')[2]} {_value(v)}" for key, v in cell.chosen.items())
    of = f" (of {cell.tried})" if cell.tried > 1 else ""
    first = cell.runs[0]
    sent = bytes_per_client(first.rows[-1], len(first.federation.members))
    return [f"{sent / bytes_per_float(first):,.0f}", chosen + of, str(len(cell.runs))]


def _measure(cell: Any) -> str:
    outcome = cell.runs[0].outcome
    return "" if outcome is None else outcome.measure


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} {_value(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
