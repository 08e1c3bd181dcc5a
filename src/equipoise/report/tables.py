"""The numbers of runs side by side, for a terminal (rich), for documents (Markdown) and for the page."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from equipoise.evaluation.rules import is_fraction
from equipoise.experiment.records import Run
from equipoise.report import formats, numbers, personal, wording
from equipoise.report.numbers import ReportedRun

WIDE = 104  # columns of a terminal that has room for all numbers
FOLDED = re.compile(r" (?=\()|(?<=not in) ")  # where a cell may be
MOST_CLIENTS = 50  # of a table: of more, the worst-served ones
TO_ONE_PERCENT = (
    "to 1%: rounds, and bytes to and from a client, until the objective is within 1% of the certified optimum"
)
Best = Callable[[Sequence[float]], float]


class Column(NamedTuple):
    """One number of each run."""

    title: str
    narrow_title: str  # for terminals; empty: not shown there
    value: Callable[[ReportedRun], float]
    format: Callable[[ReportedRun, float], str]
    best: Best | None  # None: no value is better than another
    needs: int = 0  # columns of a terminal, to be shown there


class Cell(NamedTuple):
    """One number of one run."""

    text: str
    best: bool  # of its column
    value: float


def columns(runs: Sequence[ReportedRun]) -> list[Column]:
    """Those of a comparison, in their order."""
    better = max if runs[0].higher_is_better else min
    near = {run.series: numbers.reached(run, runs) for run in runs}

    def score(title: str, key: str) -> Column:
        narrow = title.replace(" ", "\n")
        return Column(title, narrow, lambda run: run.summary[key], lambda run, value: run.format(value), better)

    def corrected(run: ReportedRun, value: float) -> str:
        return formats.with_interval(value, run.worst.low, run.worst.high, run.format)

    def spread(run: ReportedRun, value: float) -> str:
        return run.format(value).removesuffix("%")  # in points, not in per cent of something

    def byte_size(_: ReportedRun, value: float) -> str:
        return formats.byte_size(value)

    def amount(title: str, narrow: str, name: str, write: Callable[[float], str], best: Best | None = min) -> Column:
        return Column(title, narrow, lambda run: getattr(run, name), lambda _, value: write(value), best, WIDE)

    return [
        score("average", "mean"),
        score("worst 20%", "worst20"),
        Column("corrected (bounds)", "corrected\n(bounds)", lambda run: run.worst.estimate, corrected, better),
        score("best 20%", "best20")._replace(needs=WIDE),
        score("worst client", "worst"),
        Column("std", "std", lambda run: run.summary["std"], spread, min, WIDE),
        Column("rounds to 1%", "rounds\nto 1%", lambda run: near[run.series].rounds, numbers.rounds_text, min),
        Column("bytes to 1%", "bytes\nto 1%", lambda run: near[run.series].bytes, byte_size, min),
        amount("rounds", "rounds", "rounds", formats.count, None),
        amount("floats per client", "floats", "floats_per_client", formats.with_unit),
        amount("bytes per client", "", "bytes_per_client", formats.byte_size),
        amount("time", "time", "seconds", formats.duration),
    ]


def cells(runs: Sequence[ReportedRun]) -> tuple[list[Column], list[list[Cell]]]:
    """A row for each run. Unfinished runs are never the best; equal texts are the best together."""
    shown = columns(runs)
    return shown, [[_cell(column, run, runs) for column in shown] for run in runs]


def _cell(column: Column, run: ReportedRun, runs: Sequence[ReportedRun]) -> Cell:
    value = column.value(run)
    text = column.format(run, value)
    numbers = [v for v in (column.value(other) for other in runs if other.finished) if not math.isnan(v)]
    if column.best is None or not run.finished or not math.isfinite(value) or len(numbers) < 2:
        return Cell(text, False, value)
    best = column.format(run, column.best(numbers))  # with this run's bounds: only the value can differ
    different = {column.format(run, v) for v in numbers}
    return Cell(text, text == best and len(different) > 1, value)


def measured(runs: Sequence[ReportedRun]) -> str:
    """Which scores these are, of whom, and which way is better."""
    first = runs[0]
    rows = "held-out rows" if first.record.federation.held_out else "training rows (none were held out)"
    direction = "higher" if first.higher_is_better else "lower"
    text = f"{first.score_name} of {first.n:,} clients on their {rows}, {direction} is better"
    return f"{text} ({wording.SKILL})" if first.measure == "skill" else text


def clients_shown(runs: Sequence[ReportedRun], limit: int = MOST_CLIENTS) -> tuple[list[int], str]:
    """Those that the first run serves worst, the worst first, and a note on who they are; empty: all clients."""
    n, order = runs[0].n, runs[0].worst_first()
    return order[:limit], f"the {limit} clients of {n:,} that {runs[0].label} serves worst" if n > limit else ""


def client_cells(runs: Sequence[ReportedRun], i: int, *, bounds: bool = True) -> list[str]:
    """Name, training rows, and what each run does for client i."""
    member = runs[0].members[i]
    rows = {run.members[i].train for run in runs}
    size = f"{member.train:,}" if len(rows) == 1 else f"{min(rows):,}–{max(rows):,}"
    values = (run.client_score(i) if bounds else run.format(float(run.values[i])) for run in runs)
    return [member.name, size, *values]


def comparison(runs: Sequence[Run], width: int = 80) -> Group:
    """A rich table with a row for each run; one table for each set of clients. `width`: of the terminal."""
    rows = []
    for group in _groups(runs):
        heads, grid = cells(group)
        kept = [k for k, head in enumerate(heads) if head.narrow_title and head.needs <= width]
        more = "" if width >= WIDE else f"; more numbers on the page, or from {WIDE} columns on"
        alike = wording.alike(group)
        shown = [group[0]._replace(label=f"all {len(group)} methods")] if alike else group
        table = narrow_table(f"{measured(group)}; {TO_ONE_PERCENT}{more}")
        table.add_column("method", overflow="ellipsis", min_width=longest_word([run.title for run in group]))
        for k in kept:
            words = [word for row in grid for word in FOLDED.split(row[k].text)]  # a cell is folded between words only
            folds = len(words) > len(grid)
            table.add_column(heads[k].narrow_title, justify="right", no_wrap=not folds, min_width=max(map(len, words)))
        served = [worst_served(run) for run in shown]
        table.add_column("worst\nserved", overflow="ellipsis", min_width=longest_word(served))
        for run, row, name in zip(shown, grid[: len(shown)], served, strict=True):
            texts = (Text(row[k].text, "bold green" if row[k].best else "") for k in kept)
            table.add_row(Text(run.title), *texts, Text(name))
        alone = numbers.alone(group)
        if alone is not None:
            table.add_section()
            by_title = alone_cells(alone)
            table.add_row("each alone", *(by_title.get(heads[k].title, "") for k in kept), Text(worst_served(alone)))
        _narrow(table, width)
        rows.append(table)
    return Group(*rows)


def _narrow(table: Table, width: int) -> None:
    """Folds cells until the table fits, the methods' names last; left to rich, the last column loses letters."""
    console = Console(width=10_000)
    for column in (*table.columns[1:], table.columns[0]):
        excess = console.measure(table).maximum - width
        if excess > 0 and not column.no_wrap:
            room = console.measure(Group(*column.cells)).maximum - excess if column is table.columns[0] else 0
            column.max_width = max(column.min_width or 1, room)


def scores(runs: Sequence[ReportedRun]) -> tuple[list[str], list[list[str]], str] | None:
    """What the models are worth by their losses: headings, a row for each run and for each alone, and a caption.

    One more row is of the models that each client should use. None where there is only the score that the comparison
    is by.
    """
    main, *mains = [_loss_of(numbers.scored(run)) for run in runs]
    if main is None or any(other != main for other in mains):
        return None
    rows = [(run.title, numbers.scored(run)) for run in runs] + list(personal.scores_offered(runs).items())
    alone = numbers.scored_alone(runs)
    rows += [] if alone is None else [("each alone", alone)]
    heads = ["method", SCORE_TITLES[main], f"{SCORE_TITLES[main]}\nworst 20%"]
    others = [name for name in OTHER_SCORES if any(name in of_one for _, of_one in rows)]
    heads += [SCORE_TITLES[name] for name in others]
    heads += [] if alone is None else ["gain", "gain\nworst 20%", "lose"]

    def cells(of_one: numbers.Scores) -> Iterator[str]:
        losses = numbers.summarize(of_one[main], False)
        yield from (formats.number(losses["mean"]), formats.number(losses["worst20"]))
        for name in others:
            write = formats.percent if is_fraction(name) or name == "auroc" else formats.number
            yield write(numbers.summarize(of_one[name], True)["mean"]) if name in of_one else ""
        if of_one is alone:
            yield from ("", "", "")
        elif alone is not None:
            values = alone[main] - of_one[main] if main in alone else np.full(runs[0].n, np.nan)
            gain, finite = numbers.summarize(values, True), values[np.isfinite(values)]
            yield from (formats.signed(gain["mean"]), formats.signed(gain["worst20"]))
            yield formats.percent(float((finite < 0).mean()) if finite.size else math.nan)

    caption = f"means over the clients on the same rows; {SCORE_TITLES[main]}: lower is better"
    if alone is not None:
        caption += "; gain: in it, over each client's own model; lose: clients whose own model is better, as measured"
    return heads, [[title, *cells(of_one)] for title, of_one in rows], caption


def _loss_of(scores: numbers.Scores) -> str | None:
    """Of which gains are told: the log loss of probabilities, or the RMSE; None: there is no such score."""
    return "rmse" if "rmse" in scores else "loss" if "brier" in scores else None


SCORE_TITLES = {"loss": "log loss", "rmse": "RMSE", "accuracy": "accuracy", "balanced_accuracy": "balanced\naccuracy"}
SCORE_TITLES |= {"auroc": "AUC", "brier": "Brier", "r2": "R²", "skill": "skill"}
OTHER_SCORES = ("skill", "accuracy", "balanced_accuracy", "auroc", "brier", "r2")


def scores_table(runs: Sequence[Run], width: int = 80) -> Group | None:
    """`scores` as a rich table, one for each set of clients; None: there is nothing to show."""
    shown = []
    for heads, rows, caption in filter(None, map(scores, _groups(runs))):
        kept = [k for k, head in enumerate(heads) if width >= WIDE or head not in ("Brier", "balanced\naccuracy")]
        table = narrow_table(caption)
        for k in kept:
            table.add_column(heads[k], justify="right" if k else "left", no_wrap=bool(k))
        for row in rows:
            table.add_row(*(Text(row[k]) for k in kept))
        shown.append(table)
    return Group(*shown) if shown else None


def own_models(run: Run, limit: int = MOST_CLIENTS) -> Table | None:
    """A rich table with a row for each owner, the worst served by the shared model first; None: no own models."""
    (reported,) = numbers.reported([run])
    own = personal.with_own(reported)
    if own is None or run.personal is None:
        return None
    shared = personal.with_shared(reported)
    table = narrow_table(personal.sentence(shared, own))
    for k, heading in enumerate(personal.headings(run.personal)):
        table.add_column(heading, justify="right" if k else "left", overflow="fold", min_width=0 if k else 8)
    for i in shared.worst_first()[:limit]:
        table.add_row(*map(Text, personal.cells(shared, own, i)))
    return table


def longest_word(texts: Iterable[str], most: int = 16) -> int:
    """So that cells are folded between words; a word beyond `most` letters is cut instead of broken."""
    return min(most, max((len(word) for text in texts for word in text.split()), default=1))


def worst_served(run: ReportedRun) -> str:
    """The client that it serves worst, if any has a score."""
    i = run.worst_first()[0]
    return run.members[i].name if math.isfinite(run.values[i]) else formats.MISSING


def alone_cells(alone: ReportedRun) -> dict[str, str]:
    """What clients get alone, by the titles of the columns; they send nothing."""
    keys = {"average": "mean", "worst 20%": "worst20", "best 20%": "best20", "worst client": "worst"}
    cells = {title: alone.format(alone.summary[key]) for title, key in keys.items()}
    return cells | {"std": alone.format(alone.summary["std"]).removesuffix("%"), "floats per client": "0"}


def per_client(*runs: Run, limit: int = MOST_CLIENTS) -> Group:
    """A rich table with a row for each client, the worst served first; one table for each set of clients."""
    rows = []
    for group in _groups(runs):
        order, note = clients_shown(group, limit)
        table = narrow_table("; ".join(filter(None, (measured(group), note))))
        table.add_column("client", overflow="fold", min_width=8)
        table.add_column("rows", justify="right")
        for run in group:
            table.add_column(Text(run.title), justify="right", overflow="fold")
        for i in order:
            table.add_row(*map(Text, client_cells(group, i, bounds=len(group) < 3)))
        rows.append(table)
    return Group(*rows)


def _groups(runs: Sequence[Run]) -> list[list[ReportedRun]]:
    return numbers.comparable(numbers.reported(runs))


def narrow_table(caption: str) -> Table:
    """A table for eighty columns, which folds long cells and cuts nothing off."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    table.caption, table.caption_justify = Text(caption), "left"
    return table


def markdown(runs: Sequence[Run]) -> str:
    """The comparison, the best of each column in bold."""
    parts = []
    for group in _groups(runs):
        heads, grid = cells(group)
        texts = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in grid]
        rows = ([escaped(run.title), *row] for run, row in zip(group, texts, strict=True))
        parts.append(_markdown(["method", *(head.title for head in heads)], rows, measured(group)))
    return "\n".join(parts)


def per_client_markdown(*runs: Run, limit: int = MOST_CLIENTS) -> str:
    """The clients, the worst served first."""
    parts = []
    for group in _groups(runs):
        order, note = clients_shown(group, limit)
        headings = ["client", "rows", *(escaped(run.title) for run in group)]
        rows = (map(escaped, client_cells(group, i)) for i in order)
        parts.append(_markdown(headings, rows, "; ".join(filter(None, (measured(group), note)))))
    return "\n".join(parts)


def _markdown(headings: list[str], rows: Iterable[Iterable[str]], caption: str) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows)) + f"\n{escaped(caption)}\n"


def csv_link(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as a CSV file inside a link: nothing is fetched to get it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    return "data:text/csv;charset=utf-8," + quote(out.getvalue().encode("utf-8", "replace"), safe=" ,.-_+")


def _csv_cell(cell: object) -> object:
    """A number as it is, nothing where there is none; a text that a spreadsheet would compute stays a text."""
    if isinstance(cell, float):
        return f"{cell:.7g}" if math.isfinite(cell) else ""
    if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + cell
    return "" if cell is None else cell


def runs_csv(runs: Sequence[ReportedRun]) -> str:
    """All numbers of the comparison."""
    keys = ("mean", "worst20", "best20", "worst", "std")
    headings = ["method", *keys, "worst20_corrected", "worst20_low", "worst20_high"]
    headings += ["rounds_to_1_percent", "bytes_to_1_percent", "rounds", "floats_per_client", "seconds"]
    rows = []
    for run in runs:
        scores, near = [run.summary[key] for key in keys], numbers.reached(run, runs)
        costs = [near.rounds, near.bytes, run.rounds, run.floats_per_client, run.seconds]
        rows.append([run.title, *scores, run.worst.estimate, run.worst.low, run.worst.high, *costs])
    return csv_link(headings, rows)


def clients_csv(runs: Sequence[ReportedRun]) -> str:
    """Every client with every run: score, bounds and, where it has one, its last weight."""
    columns: dict[str, np.ndarray] = {}
    for run in runs:
        columns |= {run.title: run.values, f"{run.title}: low": run.low, f"{run.title}: high": run.high}
        lam = numbers.weights(run.record, limit=2)[1]
        columns |= {f"{run.title}: weight": lam[-1]} if len(lam) else {}
    members = enumerate(runs[0].members)
    rows = ([m.name, m.train, m.test, *(float(values[i]) for values in columns.values())] for i, m in members)
    return csv_link(["client", "train_rows", "test_rows", *columns], rows)


def escaped(text: str) -> str:
    """A name of the user's, escaped: nothing in it is Markdown, HTML or a new row."""
    # An underscore between letters, as in local_lr, needs no escape.
    return re.sub(r"([\\`*\[\]<>|#&]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))
