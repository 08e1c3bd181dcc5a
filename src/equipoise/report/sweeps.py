"""The table of a sweep: every method with its best setting, mean and deviation over the seeds."""

import math
from collections.abc import Sequence
from functools import partial

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from equipoise.evaluation.rules import is_fraction
from equipoise.experiment.measures import Measure, measure
from equipoise.experiment.plan import Cell
from equipoise.report.numbers import bytes_per_client, bytes_per_float
from equipoise.report.tables import escaped, longest_word, narrow_table

OTHER_UNITS = ("objective", "certificate", "distance", "jain")  # measures that are not in the unit of the score
LAST_COLUMNS = ("floats per client", "chosen", "seeds")
Row = list[tuple[str, bool]]  # texts, and which are the best of their federation and column


def table(cells: Sequence[Cell], show: Sequence[str]) -> Table:
    """The best of each federation and column is bold."""
    headings, groups = _grid(cells, show)
    score, seeds = _measure(cells[0]), {len(cell.runs) for cell in cells}
    over = f"over {min(seeds)} seeds" if len(seeds) == 1 else "over the seeds"
    out = narrow_table(f"{score}{': ' if score else ''}mean ± standard deviation {over}")
    headings = headings[: -1 if len(seeds) == 1 else None]  # one number of seeds stands in the caption
    for k, heading in enumerate(headings):
        words = [heading, *(row[k][0] for rows in groups.values() for row in rows)]
        side = "left" if heading in ("method", "chosen") else "right"
        out.add_column(heading, justify=side, overflow="ellipsis", min_width=longest_word(words))  # type: ignore[arg-type]
    for federation, rows in groups.items():
        if federation:
            out.add_row(f"[bold]{escape(federation)}[/bold]")
        for row in rows:
            out.add_row(*(Text(text, "bold" if best else "") for text, best in row[: len(headings)]))
        out.add_section()
    return out


def markdown(cells: Sequence[Cell], show: Sequence[str]) -> str:
    headings, groups = _grid(cells, show)
    lines = []
    for federation, rows in groups.items():
        lines += [f"**{escaped(federation)}**", ""] if federation else []
        lines += ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * len(show) + "---:|---|---:|"]
        for row in rows:
            lines.append("| " + " | ".join(f"**{text}**" if best else escaped(text) for text, best in row) + " |")
        lines.append("")
    return "\n".join(lines)


def _grid(cells: Sequence[Cell], show: Sequence[str]) -> tuple[list[str], dict[str, list[Row]]]:
    """The headings, and the rows of each federation by its name."""
    columns = [measure(name) for name in show]
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        federation = ", ".join(f"{key.rpartition('.')[2]} = {_value(value)}" for key, value in cell.over.items())
        groups.setdefault(federation, []).append(cell)
    headings = ["method", *(column.heading for column in columns), *LAST_COLUMNS]
    return headings, {federation: _rows(of_it, columns) for federation, of_it in groups.items()}


def _rows(cells: Sequence[Cell], columns: Sequence[Measure]) -> list[Row]:
    def rank(cell: Cell, column: Measure) -> float:
        value = cell.over_seeds(column)[0]
        return -math.inf if math.isnan(value) else value if column.more_is_better(cell.runs[0]) else -value

    best = [max(cells, key=partial(rank, column=column)) for column in columns]
    rows = []
    for cell in cells:
        bold = [len(cells) > 1 and cell is first for first in best]
        numbers = zip((_text(cell, column) for column in columns), bold, strict=True)
        rows.append([(cell.label, False), *numbers, *((text, False) for text in _last_columns(cell))])
    return rows


def _text(cell: Cell, column: Measure) -> str:
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


def _last_columns(cell: Cell) -> list[str]:
    chosen = ", ".join(f"{key.rpartition('.')[2]} {_value(v)}" for key, v in cell.chosen.items())
    count = f" (of {cell.tried})" if cell.tried > 1 else ""
    first = cell.runs[0]
    sent = bytes_per_client(first.rows[-1], len(first.federation.members))
    return [f"{sent / bytes_per_float(first):,.0f}", chosen + count, str(len(cell.runs))]


def _measure(cell: Cell) -> str:
    outcome = cell.runs[0].outcome
    return "" if outcome is None else outcome.measure


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} {_value(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
