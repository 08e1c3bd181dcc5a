"""What a silo tells about its table so that all silos can agree on one encoding: counts and sets, never rows.

    statistics(frame, options) -> Statistics      at each silo, on its own table
    agree([Statistics, ...], options) -> Encoding  anywhere (agreement.py)

A numeric column is told as its count n, its mean and m2, the sum of squared deviations from that mean. Count,
sum and sum of squares say the same, but these merge without cancellation (Chan, Golub and LeVeque 1979), so
that a column like 1e9 + small keeps its digits.

Rows in messages are data rows: row 1 is the first one under the header, blank lines are not counted.
"""

import json
import math
from collections.abc import Collection, Iterable
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl
from pydantic import Field

from equipoise.data.silos.cells import (
    DATES,
    TEXTS,
    Finite,
    Natural,
    Table,
    label_names,
    listing,
    open_table,
    read_json,
)
from equipoise.errors import InputError, require

MISSING = ("", "NA", "N/A", "NaN", "null", "None", "?")  # compared without regard to case
CLASSES = 20  # a label of whole numbers with more different values than this is a quantity, not a class
IDS = 20  # a text column with at least this many cells and no value twice is taken for an identifier


class Options(NamedTuple):
    """How tables are read; the same at every silo."""

    label: str = "label"
    task: str | None = None  # "classification", "regression"; None: inferred
    categorical: tuple[str, ...] = ()  # columns whose cells are names even where they look like numbers
    drop: tuple[str, ...] = ()  # columns left out
    missing: tuple[str, ...] = MISSING  # texts that mean "no value"
    max_categories: int = 100  # a text column with more different values is dropped
    min_count: int = 1  # a value of a text or of the label that occurs less often in a silo is not told
    indicators: bool = False  # an input "is missing" beside each numeric column with missing cells
    scale_label: bool = True  # divide the label of a regression by its spread
    unit: str | None = None  # the column that says whose rows belong together, such as the patient; no input


class Column(NamedTuple):
    """What one silo tells about one column. Fields that do not fit its kind keep their defaults."""

    name: str
    kind: Annotated[str, Field(pattern="^(number|date|text|array|empty)$")]  # "empty": no cell is filled
    row: Natural = 0  # the first row that shows the kind, for messages
    missing: Natural = 0
    n: Natural = 0  # number, date (days since 1970-01-01): cells, their mean, their sum of squared deviations
    mean: Finite = 0.0
    rest: Finite = 0.0  # mean + rest is the mean to more digits than one float holds
    m2: Annotated[Finite, Field(ge=0)] = 0.0
    categories: tuple[str, ...] | None = ()  # text, a label of classes: the values; None: not told
    rare: Annotated[bool, Field(strict=True)] = False  # some values were not told because of min_count
    shape: tuple[Natural, ...] = ()  # array: of one example
    dtype: str = ""


class Statistics(NamedTuple):
    """All that leaves a silo before training."""

    site: str
    rows: Natural
    label: Column
    columns: tuple[Column, ...]

    def to_json(self) -> str:
        fields = {
            **self._asdict(),
            "label": self.label._asdict(),
            "columns": [c._asdict() for c in self.columns],
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Statistics":
        """Checks what it reads: a site may send anything."""
        return read_json(cls, text, "these statistics cannot be read")


def statistics(
    frame: pl.DataFrame | pl.LazyFrame,
    options: Options,
    *,
    site: str = "the table",
    train: np.ndarray | None = None,
) -> Statistics:
    """What `agree` needs to know of this silo; `site` names it in messages.

    With `train` (a boolean per row) means, categories and missing counts are of those rows only; kinds are
    checked, and the label's values collected, over all rows.
    """
    table, features = _opened(frame, options, site)
    shown, cells = _label(table, options)
    label = _label_column(table, options, shown, cells, train)
    rows = len(cells) if train is None else int(train.sum())
    kinds = _kinds(table, features, options.categorical)
    return Statistics(site, rows, label, _columns(table, kinds, options, rows, train))


def strata(frame: pl.DataFrame | pl.LazyFrame, options: Options, *, site: str = "the table") -> pl.Series:
    """The class of every row as this silo sees it, to split within classes; a single one for a quantity."""
    table, _ = _opened(frame, options, site)
    (kind, _), cells = _label(table, options)
    classes = kind == "text" or (options.task is None and _few(cells))
    return cells["name"] if classes else pl.repeat("", len(cells), eager=True)


def units(frame: pl.DataFrame | pl.LazyFrame, options: Options, *, site: str = "the table") -> pl.Series | None:
    """The unit of every row, such as its patient; None: every row is one of its own."""
    if options.unit is None:
        return None
    table, _ = _opened(frame, options, site)
    found = table.collect(table.cells(options.unit).text).to_series()
    gaps = found.is_null().arg_true()
    require(
        not len(gaps),
        f"{site}, column {options.unit!r}, data row {gaps[0] + 1 if len(gaps) else 0}: the unit is missing; fill it in "
        "or leave the row out",
    )
    return found


def _opened(frame: pl.DataFrame | pl.LazyFrame, options: Options, site: str) -> tuple[Table, list[str]]:
    """The table and the names of its input columns."""
    table = open_table(frame, site, options.missing)
    require(
        options.task in (None, "classification", "regression"),
        f"task is {options.task!r}; say 'classification' or 'regression', or leave it out",
    )
    require(
        options.label in table.columns,
        f"{site} has no column {options.label!r}, the label; its columns are {listing(table.columns)}",
    )
    for what, names in (("categorical", options.categorical), ("drop", options.drop)):
        require(not isinstance(names, str), f"{what} is the text {names!r}; give a list of column names")
        for name in names:
            require(
                name in table.columns,
                f"{site} has no column {name!r}, which {what} names; its columns are {listing(table.columns)}",
            )
            require(
                name != options.label,
                f"{what} names the label {name!r}; take it out, or say which task it is",
            )
    unit = options.unit
    require(
        unit is None or (unit in table.columns and unit != options.label),
        f"unit is {unit!r}, which is {'the label' if unit == options.label else f'no column of {site}'}; name the one "
        f"that says whose rows belong together, of {listing(table.columns)}",
    )
    require(table.collect(pl.len()).item() > 0, f"{site} has no rows; leave this silo out or give it data")
    return table, [name for name in table.columns if name not in (options.label, unit, *options.drop)]


class _Kind(NamedTuple):
    kind: str
    row: int = 0


def _ask(
    table: Table, questions: dict[tuple[str, str], pl.Expr], rows: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:
    """All questions (column, what) in one pass over the file."""
    answers: dict[str, dict[str, Any]] = {}
    if questions:
        row = table.collect(*(e.alias(str(i)) for i, e in enumerate(questions.values())), rows=rows).row(0)
        for (name, what), answer in zip(questions, row, strict=True):
            answers.setdefault(name, {})[what] = answer
    return answers


def _kinds(
    table: Table, names: Iterable[str], categorical: Collection[str], remedy: str = "categorical=[{!r}]"
) -> dict[str, _Kind]:
    questions: dict[tuple[str, str], pl.Expr] = {}
    kinds = {}
    for name in names:
        dtype = table.columns[name][1]
        if isinstance(dtype, pl.Array):
            kinds[name] = _Kind("array", 1)
            continue
        require(
            dtype.is_numeric() or dtype in TEXTS or dtype in DATES,
            f"{table.file}, column {name!r} holds {dtype}, not numbers, dates or names; say drop=[{name!r}]",
        )
        cells = table.cells(name)
        questions |= {
            (name, "cells"): cells.present.sum(),
            (name, "first"): _first_row(cells.present),
            (name, "number"): cells.number.count(),
            (name, "infinite"): _first_row(cells.number.is_infinite()),
        }
        if not dtype.is_numeric():
            questions |= {
                (name, "date"): cells.date.count(),
                (name, "not a number"): _first_row(cells.present & cells.number.is_null()),
                (name, "not a date"): _first_row(cells.present & cells.date.is_null()),
            }
    answers = _ask(table, questions)
    return kinds | {
        name: _kind(table, name, found, name in categorical, remedy.format(name)) for name, found in answers.items()
    }


def _first_row(condition: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(pl.col("row")).min()


def _kind(table: Table, name: str, found: dict[str, Any], categorical: bool, remedy: str) -> _Kind:
    """By the cells: more than half of them numbers (dates) and the rest text is an error, not a guess."""
    if not found["cells"]:
        return _Kind("empty")
    if categorical:
        return _Kind("text", found["first"])
    for kind in ("number", "date"):
        if found[kind] * 2 > found["cells"]:
            where = f"{table.file}, column {name!r}, data row"
            bad, infinite = found.get(f"not a {kind}"), found["infinite"]
            if bad is not None:
                cell = table.collect(pl.col(table.columns[name][0]).filter(pl.col("row") == bad)).item()
                raise InputError(
                    f"{where} {bad}: {cell!r} is not a {kind} although most of the column is; "
                    f"correct the cell, or say {remedy}"
                )
            require(infinite is None, f"{where} {infinite}: the value is infinite; correct the cell or empty it")
            return _Kind(kind, found["first"])
    return _Kind("text", found["not a number"])


def _moments(table: Table, columns: dict[str, pl.Expr], train: np.ndarray | None) -> dict[str, dict[str, Any]]:
    """n, mean, rest and m2 of each column: the mean first, then the deviations from it, corrected."""
    moments: dict[str, dict[str, Any]] = {}
    looks = {"n": pl.Expr.count, "low": pl.Expr.min, "high": pl.Expr.max, "mean": pl.Expr.mean}
    first = _ask(table, {(name, what): f(x) for name, x in columns.items() for what, f in looks.items()}, train)
    spread: dict[tuple[str, str], pl.Expr] = {}
    for name, found in first.items():
        constant = found["n"] == 0 or found["low"] == found["high"]  # exactly, whatever the mean is rounded to
        moments[name] = {"n": found["n"], "mean": found["low"] or 0.0, "rest": 0.0, "m2": 0.0}
        if not constant:
            off = columns[name] - found["mean"]
            spread |= {(name, "off"): off.sum(), (name, "squares"): (off * off).sum()}
    for name, found in _ask(table, spread, train).items():
        n, centre, off = first[name]["n"], first[name]["mean"], found["off"] / first[name]["n"]
        mean, m2 = centre + off, max(found["squares"] - n * off * off, 0.0)
        require(
            math.isfinite(mean) and math.isfinite(m2),
            f"{table.file}, column {name!r} holds values too large to standardise; rescale it or leave it out",
        )
        moments[name] = {"n": n, "mean": mean, "rest": (centre - mean) + off, "m2": m2}
    return moments


def _columns(
    table: Table, kinds: dict[str, _Kind], options: Options, rows: int, train: np.ndarray | None
) -> tuple[Column, ...]:
    texts: dict[tuple[str, str], pl.Expr] = {}
    numbers: dict[str, pl.Expr] = {}
    for name, (kind, _) in kinds.items():
        if kind == "text":
            values = table.cells(name).text.drop_nulls().alias("value").value_counts(sort=True)
            most = max(options.max_categories, IDS) + 1  # enough to see that there are too many
            texts[name, "values"] = (values if name in options.categorical else values.head(most)).implode()
            texts[name, "missing"] = (~table.cells(name).present).sum()
        elif kind in ("number", "date"):
            numbers[name] = table.cells(name).number if kind == "number" else table.cells(name).date
    found = _ask(table, texts, train) | _moments(table, numbers, train)
    return tuple(
        _column_of(table, name, kinds[name], rows, found.get(name, {}), options)
        for name in table.columns
        if name in kinds
    )


def _column_of(table: Table, name: str, shown: _Kind, rows: int, found: dict[str, Any], options: Options) -> Column:
    kind, row = shown
    if kind == "array":
        dtype: Any = table.columns[name][1]
        shape = dtype.shape
        while isinstance(dtype, pl.Array):
            dtype = dtype.inner
        return Column(name, kind, row, shape=shape, dtype=str(dtype))
    if kind == "empty":
        return Column(name, kind, missing=rows)
    if kind != "text":
        return Column(name, kind, row, rows - found["n"], **found)
    counts = {v["value"]: v["count"] for v in found["values"]}
    ids = len(counts) >= IDS and max(counts.values()) == 1
    if name not in options.categorical and (ids or len(counts) > options.max_categories):
        return Column(name, kind, row, found["missing"], categories=None)
    common = tuple(sorted(v for v, count in counts.items() if count >= options.min_count))
    return Column(name, kind, row, found["missing"], categories=common, rare=len(common) < len(counts))


def _label(table: Table, options: Options) -> tuple[_Kind, pl.DataFrame]:
    """The label's kind, and its cells as (name, number)."""
    name, (safe, dtype) = options.label, table.columns[options.label]
    column = table.collect(pl.col(rf"^(row|{safe}( \w+)?)$"))  # with its readings, in one pass over the file
    alone = Table(table.file, column.lazy(), {name: (safe, dtype)})
    forced = (name,) if options.task == "classification" else ()
    shown = _kinds(alone, [name], forced, "task='classification'")[name]
    where = f"{table.file}, column {name!r}, data row"
    allowed = ("number",) if options.task == "regression" else ("number", "text")
    require(
        shown.kind in (*allowed, "empty"),
        f"{where} {shown.row}: the label is of kind {shown.kind}, but {options.task or 'a label'} "
        f"needs {' or '.join(allowed)}",
    )
    cells = alone.cells(name)
    found = alone.collect(
        pl.col("row"),
        cells.present.alias("present"),
        label_names(cells).alias("name"),
        cells.number.alias("number"),
    )
    gaps = found.filter(~pl.col("present"))["row"].to_list()
    require(not gaps, f"{where} {min(gaps, default=0)}: the label is missing; fill it in or leave the row out")
    return shown, found


def _few(cells: pl.DataFrame) -> bool:
    """Whether a label of numbers looks like classes."""
    numbers = cells["number"]
    return bool((numbers == numbers.round()).all()) and numbers.n_unique() <= CLASSES


def _label_column(
    table: Table, options: Options, shown: _Kind, cells: pl.DataFrame, train: np.ndarray | None
) -> Column:
    (kind, row), label = shown, options.label
    counted = dict(cells["name"].value_counts().iter_rows())
    every = sorted(counted)
    names = tuple(name for name in every if counted[name] >= options.min_count)
    rare = len(names) < len(every)
    if kind == "text":
        many = len(every) > options.max_categories or len(every) == len(cells) >= IDS
        require(
            options.task == "classification" or not many,
            f"{table.file}, column {label!r} has {len(every)} different texts as labels; choose another "
            "label, or say task='classification' if these are classes",
        )
        return Column(label, kind, row, categories=names, rare=rare)
    alone = Table(table.file, cells.lazy(), {})
    moments = _moments(alone, {label: pl.col("number")}, train)[label]
    values = names if options.task is None and _few(cells) else None
    return Column(label, kind, row, categories=values, rare=rare and values is not None, **moments)
