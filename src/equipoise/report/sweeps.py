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


def table(cells: Sequence[Cell], show: Sequence[str]) -> Table:
    """The best of each federation and column is bold."""
    columns = [measure(name) for name in show]
    score = _measure(cells[0])
    seeds = {len(cell.runs) for cell in cells}
    over = f"over {min(seeds)} seeds" if len(seeds) == 1 else "over the seeds"
    out = narrow_table(f"{score}{': ' if score else ''}mean ± standard deviation {over}")
    groups = []
    for federation, of_it in _by_federation(cells):
        written = _with_texts(of_it, columns)
        groups.append((federation, [[cell.label, *numbers, *_last_columns(cell)] for cell, numbers in written]))
    headings = _headings(columns)[: -1 if len(seeds) == 1 else None]  # one number of seeds stands in the caption
    for k, heading in enumerate(headings):
        words = [heading, *(row[k] for _, rows in groups for row in rows)]
        side = "left" if heading in ("method", "chosen") else "right"
        out.add_column(heading, justify=side, overflow="ellipsis", min_width=longest_word(words))  # type: ignore[arg-type]
    for (federation, rows), (_, cells_of) in zip(groups, _by_federation(cells), strict=True):
        if federation:
            out.add_row(f"[bold]{escape(federation)}[/bold]")
        best = _best(cells_of, columns)
        for cell, row in zip(cells_of, rows, strict=True):
            bold = [len(cells_of) > 1 and cell is first for first in best]
            texts = [Text(text, "bold" if b else "") for text, b in zip(row[1:], bold, strict=False)]
            out.add_row(Text(row[0]), *texts, *map(Text, row[1 + len(texts) : len(headings)]))
        out.add_section()
    return out


def markdown(cells: Sequence[Cell], show: Sequence[str]) -> str:
    columns = [measure(name) for name in show]
    lines = []
    for federation, rows in _by_federation(cells):
        if federation:
            lines += [f"**{escaped(federation)}**", ""]
        lines += ["| " + " | ".join(_headings(columns)) + " |", "|---|" + "---:|" * len(columns) + "---:|---|---:|"]
        best = _best(rows, columns)
        for cell, numbers in _with_texts(rows, columns):
            several = len(rows) > 1
            texts = [f"**{t}**" if several and cell is b else t for t, b in zip(numbers, best, strict=True)]
            lines.append("| " + " | ".join([escaped(cell.label), *texts, *map(escaped, _last_columns(cell))]) + " |")
        lines.append("")
    return "\n".join(lines)


def _headings(columns: Sequence[Measure]) -> list[str]:
    return ["method", *(column.heading for column in columns), "floats per client", "chosen", "seeds"]


def _by_federation(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        federation = ", ".join(f"{key.rpartition('.')[2]} = {_value(value)}" for key, value in cell.over.items())
        groups.setdefault(federation, []).append(cell)
    return list(groups.items())


def _with_texts(rows: Sequence[Cell], columns: Sequence[Measure]) -> list[tuple[Cell, list[str]]]:
    """A federation's cells and their numbers."""
    return [(cell, [_text(cell, column) for column in columns]) for cell in rows]


def _best(rows: Sequence[Cell], columns: Sequence[Measure]) -> list[Cell]:
    """The best cell of each column."""

    def rank(cell: Cell, column: Measure) -> float:
        value = cell.over_seeds(column)[0]
        return -math.inf if math.isnan(value) else value if column.more_is_better(cell.runs[0]) else -value

    return [max(rows, key=partial(rank, column=column)) for column in columns]


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
