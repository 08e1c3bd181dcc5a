"""The numbers of runs side by side, for a terminal (rich), for documents (Markdown) and for the page."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from equipoise.experiment.records import Run
from equipoise.report import numbers
from equipoise.report.numbers import NONE, Entry

AT_MOST = 50  # clients of a table: beyond them the worst-served ones


class Column(NamedTuple):
    """A heading (and one for terminals), a number of each run, how it is written, and which end is good."""

    title: str
    narrow: str
    value: Callable[[Entry], float]
    written: Callable[[Entry, float], str]
    best: Callable[[Sequence[float]], float] | None  # None: nothing to win


class Cell(NamedTuple):
    """What stands there, and whether it is the best of its column."""

    text: str
    best: bool
    value: float


class Clients(NamedTuple):
    """The clients shown, worst first by the first run, and each run's score and bounds for them."""

    order: list[int]
    note: str  # what was left out; empty: nothing


def columns(up: bool) -> list[Column]:
    better = max if up else min

    def of(key: str) -> Callable[[Entry], float]:
        return lambda entry: entry.summary[key]

    def score(entry: Entry, value: float) -> str:
        return entry.written(value)

    def corrected(entry: Entry, value: float) -> str:
        span = numbers.bounds(entry.worst.low, entry.worst.high, entry.written)
        return entry.written(value) + (f" ({span})" if span != NONE else "")

    def spread(entry: Entry, value: float) -> str:
        return entry.written(value).removesuffix("%")  # in points, not in per cent of something

    def count(_: Entry, value: float) -> str:
        return numbers.count(value)

    return [
        Column("average", "average", of("mean"), score, better),
        Column("worst 20%", "worst\n20%", of("worst20"), score, better),
        Column("corrected (bounds)", "corrected\n(bounds)", lambda entry: entry.worst.estimate, corrected, better),
        Column("best 20%", "best\n20%", of("best20"), score, better),
        Column("worst client", "worst\nclient", of("worst"), score, better),
        Column("std", "std", of("std"), spread, min),
        Column("rounds", "", lambda entry: entry.rounds, count, None),
        Column("floats per client", "floats", lambda entry: entry.floats_each, lambda _, v: numbers.many(v), min),
        Column("bytes per client", "", lambda entry: entry.bytes_each, lambda _, v: numbers.size(v), min),
        Column("time", "time", lambda entry: entry.seconds, lambda _, v: numbers.duration(v), min),
    ]


def cells(entries: Sequence[Entry]) -> tuple[list[Column], list[list[Cell]]]:
    """A row for each run. Unfinished runs win nothing; what reads the same wins together."""
    found = columns(entries[0].up)
    return found, [[_cell(column, entry, entries) for column in found] for entry in entries]


def _cell(column: Column, entry: Entry, entries: Sequence[Entry]) -> Cell:
    value = column.value(entry)
    text = column.written(entry, value)
    known = [v for v in (column.value(e) for e in entries if e.finished) if math.isfinite(v)]
    if column.best is None or not entry.finished or not math.isfinite(value) or len(known) < 2:
        return Cell(text, False, value)
    winner = column.written(entry, column.best(known))  # with this run's bounds: only the value can differ
    every = {column.written(entry, v) for v in known}
    return Cell(text, text == winner and len(every) > 1, value)


def measured(entries: Sequence[Entry]) -> str:
    """What the scores are."""
    first = entries[0]
    rows = "held-out rows" if first.run.federation.held_out else "training rows (none were held out)"
    return f"{first.score} of {first.n:,} clients on their {rows}, {_direction(first.up)}"


def _direction(up: bool) -> str:
    return "higher is better" if up else "lower is better"


def named(entry: Entry) -> str:
    return entry.label if entry.finished else f"{entry.label} (unfinished)"


def clients_shown(entries: Sequence[Entry], limit: int = AT_MOST) -> Clients:
    n, order = entries[0].n, entries[0].worse_first()
    if n <= limit:
        return Clients(order, "")
    return Clients(order[:limit], f"the {limit} clients of {n:,} that {entries[0].label} serves worst")


def comparison(runs: Sequence[Run]) -> Any:
    """A rich table with a row for each run; one table for each set of clients."""
    from rich.text import Text

    found = []
    for group in numbers.together(numbers.entries(runs)):
        heads, grid = cells(group)
        kept = [k for k, head in enumerate(heads) if head.narrow]
        table = _narrow(f"{measured(group)}; floats: sent to and from a client, all rounds")
        table.add_column("method", overflow="fold", min_width=8)
        for k in kept:
            folds = any(" (" in row[k].text for row in grid)
            table.add_column(heads[k].narrow, justify="right", no_wrap=not folds, min_width=_longest(grid, k))
        for entry, row in zip(group, grid, strict=True):
            shown = (Text(row[k].text, style="bold green" if row[k].best else "") for k in kept)
            table.add_row(Text(named(entry)), *shown)
        found.append(table)
    return _stacked(found)


def _longest(grid: list[list[Cell]], k: int) -> int:
    """The longest word of a column: it may be folded between words only."""
    return max(len(word) for row in grid for word in row[k].text.split(" ("))


def per_client(*runs: Run, limit: int = AT_MOST) -> Any:
    """A rich table with a row for each client, the worst served first; one table for each set of clients."""
    from rich.text import Text

    found = []
    for group in numbers.together(numbers.entries(runs)):
        shown = clients_shown(group, limit)
        table = _narrow("; ".join(filter(None, (measured(group), shown.note))))
        table.add_column("client", overflow="fold", min_width=8)
        table.add_column("rows", justify="right")
        for entry in group:
            table.add_column(Text(named(entry)), justify="right", overflow="fold")
        for i in shown.order:
            table.add_row(*map(Text, client_cells(group, i, bounds=len(group) < 3)))
        found.append(table)
    return _stacked(found)


def _narrow(caption: str) -> Any:
    """A table that fits into eighty columns, and folds what does not rather than cut it off."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 0, 0, 1)}
    return Table(caption=Text(caption), caption_justify="left", **look)


def _stacked(found: Sequence[Any]) -> Any:
    from rich.console import Group

    return found[0] if len(found) == 1 else Group(*found)


def client_cells(entries: Sequence[Entry], i: int, *, bounds: bool = True) -> list[str]:
    """Name, training rows, and what each run does for client i."""
    member = entries[0].run.federation.members[i]
    rows = {entry.run.federation.members[i].train for entry in entries}
    told = f"{member.train:,}" if len(rows) == 1 else f"{min(rows):,}–{max(rows):,}"
    values = (client_score(e, i) if bounds else e.written(float(e.values[i])) for e in entries)
    return [member.name, told, *values]


def client_score(entry: Entry, i: int) -> str:
    span = numbers.bounds(entry.low[i], entry.high[i], entry.written)
    return entry.written(entry.values[i]) + (f" ({span})" if span != NONE else "")


def markdown(runs: Sequence[Run]) -> str:
    """The comparison, the best of each column in bold."""
    parts = []
    for group in numbers.together(numbers.entries(runs)):
        heads, grid = cells(group)
        rows = [
            [plain(named(entry)), *(f"**{c.text}**" if c.best else c.text for c in row)]
            for entry, row in zip(group, grid, strict=True)
        ]
        parts.append(_markdown(["method", *(head.title for head in heads)], rows) + f"\n{plain(measured(group))}\n")
    return "\n".join(parts)


def per_client_markdown(*runs: Run, limit: int = AT_MOST) -> str:
    """The clients, the worst served first."""
    parts = []
    for group in numbers.together(numbers.entries(runs)):
        shown = clients_shown(group, limit)
        headings = ["client", "rows", *(plain(named(entry)) for entry in group)]
        rows = [[plain(cell) for cell in client_cells(group, i)] for i in shown.order]
        note = "; ".join(filter(None, (measured(group), shown.note)))
        parts.append(_markdown(headings, rows) + f"\n{plain(note)}\n")
    return "\n".join(parts)


def _markdown(headings: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


def plain(text: str) -> str:
    """Names are the user's: nothing in them is Markdown, HTML or a new row."""
    # An underscore between letters, as in local_lr, is one in Markdown too.
    return re.sub(r"([\\`*\[\]<>|#&]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))
