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
import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl
from pydantic import Field

from equipoise.data.silos.cells import (
    DATES,
    TEXTS,
    Answers,
    Finite,
    Natural,
    Table,
    first_row,
    label_names,
    listing,
    open_table,
    read_json,
)
from equipoise.data.silos.conventions import WORDS, Conventions, Look, Way, Writing, look
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
    decimal: str = "auto"  # of numbers in texts: "." or ","; "auto": found from the cells of all silos
    dates: str = "auto"  # in texts: "day-first" or "month-first", unless the year is
    percent: str = "auto"  # "share": 12% is 0.12; "number": it is 12

    @property
    def conventions(self) -> Conventions:
        return Conventions(self.decimal, self.dates, self.percent)


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
    reading: Way = ""  # of texts: the way in which numbers and dates are written, where it makes a difference
    mark: str = ""  # of texts that can be read in another way, too: what stands in them; "": the reading is certain
    percent: Annotated[bool, Field(strict=True)] = False  # its numbers have percent signs


class Statistics(NamedTuple):
    """All that leaves a silo before training."""

    site: str
    rows: Natural
    label: Column
    columns: tuple[Column, ...]
    others: tuple[Column, ...] = ()  # those that can be read in another way, in that way; the label too
    unnamed: tuple[str, ...] = ()  # columns that are the index of a table, and are left out

    def to_json(self) -> str:
        columns, others = ([c._asdict() for c in some] for some in (self.columns, self.others))
        fields = {**self._asdict(), "label": self.label._asdict(), "columns": columns, "others": others}
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Statistics":
        """Checks what it reads: a site may send anything."""
        return read_json(cls, text, "these statistics cannot be read")


def statistics(
    frame: pl.DataFrame | pl.LazyFrame, options: Options, *, site: str = "the table", train: np.ndarray | None = None
) -> Statistics:
    """What `agree` needs to know of this silo; `site` names it in messages.

    With `train` (a boolean per row) means, categories and missing counts are of those rows only; kinds are
    checked, and the label's values collected, over all rows.
    """
    table, features = _opened(frame, options, site)
    shown = _label_kind(table, options)
    cells = _label(table, options, shown[0])
    rows = len(cells) if train is None else int(train.sum())
    kinds = _kinds(table, features, options)
    label = _label_column(table, options, shown[0], cells, train)
    columns, others = (
        _columns(table, [ways[k] for ways in kinds.values() if len(ways) > k], options, rows, train) for k in (0, 1)
    )
    others += tuple(_label_column(table, options, way, _label(table, options, way), train) for way in shown[1:])
    unnamed = tuple(name for name in table.columns if _is_index(name, options))
    return Statistics(site, rows, label, columns, others, unnamed)


def _is_index(name: str, options: Options) -> bool:
    """What has no name, or the name that pandas gives to the numbers of rows, and is not asked for."""
    asked = (options.label, options.unit, *options.drop, *options.categorical)
    return name not in asked and re.fullmatch(r"|Unnamed: \d+|__index_level_\d+__", name) is not None


def strata(frame: pl.DataFrame | pl.LazyFrame, options: Options, *, site: str = "the table") -> pl.Series:
    """The class of every row as this silo sees it, to split within classes; a single one for a quantity."""
    table, _ = _opened(frame, options, site)
    shown = _label_kind(table, options)[0]
    cells = _label(table, options, shown)
    classes = shown.kind == "text" or (options.task is None and _few(cells))
    return cells["name"] if classes else pl.repeat("", len(cells), eager=True)


def units(frame: pl.DataFrame | pl.LazyFrame, options: Options, *, site: str = "the table") -> pl.Series | None:
    """The unit of every row, such as its patient; None: every row is one of its own."""
    if options.unit is None:
        return None
    table, _ = _opened(frame, options, site)
    names = table.collect(table.cells(options.unit).text).to_series()
    gaps = names.is_null().arg_true().to_list()
    where = table.where(options.unit, gaps[0] + 1 if gaps else None)
    require(not gaps, f"{where}: the unit is missing; fill it in or leave the row out")
    return names


def _opened(frame: pl.DataFrame | pl.LazyFrame, options: Options, site: str) -> tuple[Table, list[str]]:
    """The table and the names of its input columns."""
    table = open_table(frame, site, options.missing, options.conventions.checked().percent)
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
            require(name != options.label, f"{what} names the label {name!r}; take it out, or say which task it is")
    unit = options.unit
    require(
        unit is None or (unit in table.columns and unit != options.label),
        f"unit is {unit!r}, which is {'the label' if unit == options.label else f'no column of {site}'}; name the one "
        f"that says whose rows belong together, of {listing(table.columns)}",
    )
    require(table.collect(pl.len()).item() > 0, f"{site} has no rows; leave this silo out or give it data")
    left = (options.label, unit, *options.drop)
    return table, [name for name in table.columns if name not in left and not _is_index(name, options)]


Ways = tuple[Column, ...]  # what a column is by its cells, nothing counted yet; two where they can be read in two ways


def _kinds(table: Table, names: Sequence[str], options: Options, remedy: str = "data.categorical") -> dict[str, Ways]:
    """The kind of each column; `remedy` is the setting that makes names of its cells."""
    questions: dict[tuple[str, str], pl.Expr] = {}
    kinds: dict[str, Ways] = {}
    categorical = {*options.categorical, *([options.label] if options.task == "classification" else [])}
    for name in names:
        dtype = table.columns[name][1]
        if isinstance(dtype, pl.Array) and _inner(dtype).is_numeric() | (_inner(dtype) == pl.Boolean):
            kinds[name] = (Column(name, "array", 1),)
            continue
        require(
            dtype.is_numeric() or dtype in TEXTS or dtype in DATES,
            f"{table.where(name)} holds {dtype}, not numbers, dates or names; set data.drop = [{name!r}]",
        )
        if dtype not in TEXTS:
            cells = table.cells(name)
            questions[name, "first"] = first_row(cells.present)
            questions[name, "infinite"] = first_row(cells.number.is_infinite())
    for name, answers in table.ask(questions).items():
        kind = "number" if table.columns[name][1].is_numeric() else "date"
        kinds[name] = (_shown(table, name, Look(1, **answers), kind, categorical),)
    for name, seen in look(table, names).items():
        if not seen.cells or name in categorical:
            kinds[name] = (_shown(table, name, seen, "text", categorical),)
        else:
            kinds[name] = _of_texts(table, name, seen, options, remedy)
    return {name: kinds[name] for name in table.columns if name in kinds}


def _shown(table: Table, name: str, seen: Look, kind: str, categorical: Collection[str]) -> Column:
    if seen.first is None:
        return Column(name, "empty")
    if name in categorical:
        return Column(name, "text", seen.first)
    where = table.where(name, seen.infinite)
    require(seen.infinite is None, f"{where}: the value is infinite; correct the cell or empty it")
    return Column(name, kind, seen.first)


def _of_texts(table: Table, name: str, seen: Look, options: Options, remedy: str) -> Ways:
    """More than half of the cells numbers (dates) and the rest text is an error, not a guess."""
    asked = options.conventions
    names = "data.task = 'classification'" if remedy == "data.task" else f"{remedy} = [{name!r}]"
    for kind, writing, setting in (("number", seen.number, asked.decimal), ("date", seen.date, asked.dates)):
        if writing.either * 2 <= seen.cells:
            continue
        ways = writing.possible(seen.cells, setting)
        if not ways:
            raise InputError(_mixed(table, name, kind, writing, setting, names))
        shown = _shown(table, name, seen, kind, ())
        if kind == "number" and seen.signed is not None and seen.unsigned is not None and asked.percent == "auto":
            last = max(seen.signed, seen.unsigned)
            has, others = ("no percent sign", "one") if last == seen.unsigned else ("a percent sign", "none")
            raise InputError(
                f"{table.cited(name, last)} has {has} although cells above have {others}; write them alike, or set "
                "data.percent = 'share' (12% is 0.12) or 'number' (12% is 12)"
            )
        telling = {writing.ways[0]: writing.alone[0], writing.ways[1]: writing.alone[1]}.get(ways[0])
        row = writing.differ if len(ways) > 1 else telling
        signed = kind == "number" and seen.signed is not None and asked.percent == "auto"
        mark = writing.mark if len(ways) > 1 else ""
        return tuple(shown._replace(row=row or shown.row, reading=way, mark=mark, percent=signed) for way in ways)
    require(
        seen.shorts * 2 <= seen.cells,
        f"{table.cited(name, seen.short)} has a year of two digits, which can be read in several ways; write years "
        f"with four, or set {names}",
    )
    require(
        not seen.amounts or (seen.number.either + seen.amounts) * 2 <= seen.cells,
        f"{table.cited(name, seen.amount)} is a number with something beside it; write the number alone, and what is "
        f"below zero with a minus, or set {names}",
    )
    return (Column(name, "text", seen.number.unread[0] or seen.first or 0),)


def _mixed(table: Table, name: str, kind: str, writing: Writing, setting: str, names: str) -> str:
    """The sentence about the first cell that is written in another way than most."""
    key, settings = ("data.decimal", (".", ",")) if kind == "number" else ("data.dates", ("day-first", "month-first"))
    most = writing.ways.index(setting) if setting in settings else int(writing.read[1] > writing.read[0])
    row = writing.unread[most] or 0
    cell, way = table.cited(name, row), WORDS[writing.ways[most]]
    if row != writing.alone[1 - most]:
        return f"{cell} is not a {kind} although most of the column is; correct the cell, or set {names}"
    if setting in settings:
        return f"{cell} is not a {kind} with {way}; correct the cell, or leave out {key} = '{setting}'"
    return f"{cell} is not written with {way} although other cells of the column are; write them alike, or set {names}"


def _moments(table: Table, columns: dict[str, pl.Expr], train: np.ndarray | None) -> dict[str, Answers]:
    """n, mean, rest and m2 of each column: the mean first, then the deviations from it, corrected."""
    moments: dict[str, Answers] = {}
    looks = {"n": pl.Expr.count, "low": pl.Expr.min, "high": pl.Expr.max, "mean": pl.Expr.mean}
    first = table.ask({(name, what): f(x) for name, x in columns.items() for what, f in looks.items()}, train)
    spread: dict[tuple[str, str], pl.Expr] = {}
    for name, answers in first.items():
        constant = answers["n"] == 0 or answers["low"] == answers["high"]  # exactly, whatever the mean is rounded to
        moments[name] = {"n": answers["n"], "mean": answers["low"] or 0.0, "rest": 0.0, "m2": 0.0}
        if not constant:
            off = columns[name] - answers["mean"]
            spread |= {(name, "off"): off.sum(), (name, "squares"): (off * off).sum()}
    for name, answers in table.ask(spread, train).items():
        n, centre, off = first[name]["n"], first[name]["mean"], answers["off"] / first[name]["n"]
        mean, m2 = centre + off, max(answers["squares"] - n * off * off, 0.0)
        require(
            math.isfinite(mean) and math.isfinite(m2),
            f"{table.where(name)} holds values too large to standardise; rescale it or leave it out",
        )
        moments[name] = {"n": n, "mean": mean, "rest": (centre - mean) + off, "m2": m2}
    return moments


def _columns(
    table: Table, shown: Sequence[Column], options: Options, rows: int, train: np.ndarray | None
) -> tuple[Column, ...]:
    table = table._replace(readings={column.name: column.reading for column in shown})
    texts: dict[tuple[str, str], pl.Expr] = {}
    numbers: dict[str, pl.Expr] = {}
    for name, kind, *_ in shown:
        if kind == "text":
            values = table.cells(name).text.drop_nulls().alias("value").value_counts(sort=True)
            most = max(options.max_categories, IDS) + 1  # enough to see that there are too many
            texts[name, "values"] = (values if name in options.categorical else values.head(most)).implode()
            texts[name, "missing"] = (~table.cells(name).present).sum()
        elif kind in ("number", "date"):
            numbers[name] = table.cells(name).number if kind == "number" else table.cells(name).date
    answers = table.ask(texts, train) | _moments(table, numbers, train)
    return tuple(_counted(table, column, rows, answers.get(column.name, {}), options) for column in shown)


def _inner(dtype: Any) -> pl.DataType:
    """What arrays of arrays hold in the end."""
    while isinstance(dtype, pl.Array):
        dtype = dtype.inner
    return dtype


def _counted(table: Table, shown: Column, rows: int, answers: Answers, options: Options) -> Column:
    if shown.kind == "array":
        dtype: Any = table.columns[shown.name][1]
        return shown._replace(shape=dtype.shape, dtype=str(_inner(dtype)))
    if shown.kind == "empty":
        return shown._replace(missing=rows)
    if shown.kind != "text":
        return shown._replace(missing=rows - answers["n"], **answers)
    counts = {v["value"]: v["count"] for v in answers["values"]}
    ids = len(counts) >= IDS and max(counts.values()) == 1
    if shown.name not in options.categorical and (ids or len(counts) > options.max_categories):
        return shown._replace(missing=answers["missing"], categories=None)
    common = tuple(sorted(v for v, count in counts.items() if count >= options.min_count))
    return shown._replace(missing=answers["missing"], categories=common, rare=len(common) < len(counts))


def _label_kind(table: Table, options: Options) -> Ways:
    name = options.label
    safe, dtype = table.columns[name]
    column = table.collect(pl.col(rf"^(row|{safe}( \w+)?)$"))  # with its readings, in one pass over the file
    alone = Table(table.file, column.lazy(), {name: (safe, dtype)})
    ways = _kinds(alone, [name], options, "data.task")[name]
    shown = ways[0]
    allowed = ("number",) if options.task == "regression" else ("number", "text")
    require(
        shown.kind in (*allowed, "empty"),
        f"{table.where(name, shown.row)}: the label is of kind {shown.kind}, but {options.task or 'a label'} needs "
        f"{' or '.join(allowed)}",
    )
    return ways


def _label(table: Table, options: Options, shown: Column) -> pl.DataFrame:
    """The label's cells as (row, present, name, number)."""
    name = options.label
    cells = table._replace(readings={name: shown.reading}).cells(name)
    columns = {"row": pl.col("row"), "present": cells.present, "name": label_names(cells), "number": cells.number}
    values = table.collect(*(e.alias(what) for what, e in columns.items()))
    gap: Any = values.filter(~pl.col("present"))["row"].min()
    require(gap is None, f"{table.where(name, gap)}: the label is missing; fill it in or leave the row out")
    return values


def _few(cells: pl.DataFrame) -> bool:
    """Whether a label of numbers looks like classes."""
    numbers = cells["number"]
    return bool((numbers == numbers.round()).all()) and numbers.n_unique() <= CLASSES


def _label_column(
    table: Table, options: Options, shown: Column, cells: pl.DataFrame, train: np.ndarray | None
) -> Column:
    label = options.label
    counted = dict(cells["name"].value_counts().iter_rows())
    every = sorted(counted)
    names = tuple(name for name in every if counted[name] >= options.min_count)
    rare = len(names) < len(every)
    if shown.kind == "text":
        many = len(every) > options.max_categories or len(every) == len(cells) >= IDS
        require(
            options.task == "classification" or not many,
            f"{table.where(label)} has {len(every)} different texts as labels; choose another label, or set data.task "
            "= 'classification' if these are classes",
        )
        return shown._replace(categories=names, rare=rare)
    alone = Table(table.file, cells.lazy(), {})
    moments = _moments(alone, {label: pl.col("number")}, train)[label]
    values = names if options.task is None and _few(cells) else None
    return shown._replace(categories=values, rare=rare and values is not None, **moments)
