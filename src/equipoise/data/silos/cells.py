"""A table's cells read as names, numbers and dates: one reading for training and for prediction."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from pydantic import Field, TypeAdapter, ValidationError

from equipoise.data.silos import written
from equipoise.errors import InputError, require

Answers = dict[str, Any]  # what Polars says of a column, by what it was asked


class Cells(NamedTuple):
    """A column's cells as names, as numbers, as days; null where a cell is missing or cannot be read so."""

    present: pl.Expr
    text: pl.Expr
    number: pl.Expr
    date: pl.Expr


class Table(NamedTuple):
    """A frame with safe column names: a header may hold anything, "*" and "^.*$" included."""

    file: str
    frame: pl.LazyFrame  # column i as "i" (the cell itself), "i text", "i number" and "i date"; and "row"
    columns: dict[str, tuple[str, pl.DataType]]  # name in the file -> its "i", its type there
    readings: Mapping[str, str] = {}  # how a column's texts are written, where it matters: see conventions.py

    def collect(self, *expressions: pl.Expr, rows: np.ndarray | None = None) -> pl.DataFrame:
        frame = self.frame if rows is None else self.frame.filter(pl.lit(pl.Series(rows)))
        try:
            return frame.select(expressions).collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{self.file} cannot be read: {first_line(error)}") from error

    def ask(self, questions: Mapping[tuple[str, str], pl.Expr], rows: np.ndarray | None = None) -> dict[str, Answers]:
        """All questions (column, what) in one pass over the table."""
        answers: dict[str, Answers] = {}
        if questions:
            row = self.collect(*(e.alias(str(k)) for k, e in enumerate(questions.values())), rows=rows).row(0)
            for (name, what), answer in zip(questions, row, strict=True):
                answers.setdefault(name, {})[what] = answer
        return answers

    def where(self, column: str, row: int | None = None) -> str:
        """As messages name a column, or a cell of it."""
        return f"{self.file}, column {column!r}" + ("" if row is None else f", data row {row}")

    def cited(self, column: str, row: int | None) -> str:
        """The same, with what stands in the cell."""
        if row is None:
            return self.where(column)
        cell = self.collect(pl.col(self.columns[column][0]).filter(pl.col("row") == row)).item()
        return f"{self.where(column, row)}: {cell!r}"

    def cells(self, column: str) -> Cells:
        (i, dtype), reading = self.columns[column], self.readings.get(column, "")
        number = pl.col(f"{i} comma" if reading == "," else f"{i} number")
        date = pl.col(f"{i} month" if reading == "month-first" else f"{i} date")
        seen = number if dtype.is_numeric() else pl.col(i)
        return Cells(seen.is_not_null(), pl.col(f"{i} text"), number, date)


def first_row(condition: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(pl.col("row")).min()


def open_table(frame: pl.DataFrame | pl.LazyFrame, file: str, missing: Iterable[str], percent: str = "auto") -> Table:
    lazy = frame.lazy()
    try:
        schema = lazy.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}") from error
    names = [name.strip() for name in schema]
    twice = [name for name in names if names.count(name) > 1][:1]
    require(not twice, f"{file} has the column {listing(twice)} more than once; rename or remove one")
    columns = {name: (str(i), dtype) for i, (name, dtype) in enumerate(zip(names, schema.dtypes(), strict=True))}
    safe = lazy.rename(dict(zip(schema, (i for i, _ in columns.values()), strict=True)))
    absent = tuple(m.lower() for m in missing)
    try:
        small = safe.select(pl.len()).collect().item() * len(columns) <= AT_ONCE
        read = _read(safe.collect() if small else safe, columns.values(), absent, percent)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}") from error
    return Table(file, read, columns)


# Cells, at most, of a table that is read as it is opened: a plan of all readings, made anew for every question, takes
# far longer than the answer.
AT_ONCE = 100_000


def _read(
    frame: pl.DataFrame | pl.LazyFrame,
    columns: Collection[tuple[str, pl.DataType]],
    absent: tuple[str, ...],
    percent: str,
) -> pl.LazyFrame:
    """Clean cells and all readings, each step from the columns of those before; of a LazyFrame they are a plan."""
    frame = frame.with_row_index("row", offset=1)
    texts = [i for i, dtype in columns if dtype in TEXTS]
    steps: list[list[pl.Expr]] = [
        [pl.col(i).cast(pl.String).str.strip_chars() for i in texts],
        [pl.when(~pl.col(i).str.to_lowercase().is_in(absent)).then(pl.col(i)) for i in texts],  # null stays null
        [e.alias(f"{i} {what}") for i, dtype in columns for what, e in _readings(i, dtype).items()],
        *_together(written.numbers(i, percent) for i in texts),
    ]
    for step in steps:
        frame = frame.with_columns(step)
    dated = texts
    if isinstance(frame, pl.DataFrame) and texts:  # dates take longest: of columns that have any
        dated = [c.name for c in frame.select(written.has_dates(i).alias(i) for i in texts) if c.item()]
    for step in _together(written.dates(i) for i in dated):
        frame = frame.with_columns(step)
    without = [i for i in texts if i not in dated]
    return frame.with_columns(NOTHING.alias(f"{i} {what}") for i in without for what in ("date", "month")).lazy()


def _together(steps: Iterable[tuple[dict[str, pl.Expr], ...]]) -> list[list[pl.Expr]]:
    """The first steps of all columns, then the second ones, and so on."""
    return [[e.alias(name) for made in step for name, e in made.items()] for step in zip(*steps, strict=True)]


TEXTS = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
DATES = (pl.Date, pl.Datetime)
NOTHING = pl.lit(None, pl.Float64)


@lru_cache(maxsize=written.COLUMNS)
def _readings(i: str, dtype: pl.DataType) -> dict[str, pl.Expr]:
    cell = pl.col(i)
    if dtype in DATES:
        days = cell.dt.epoch("us").cast(pl.Float64) / 86_400e6
        return {"text": cell.cast(pl.String), "number": NOTHING, "date": days}
    if dtype.is_numeric():
        number = cell.cast(pl.Float64).fill_nan(None)
        text = pl.when(number.is_not_null()).then(cell).cast(pl.String)
        return {"text": _name(text), "number": number, "date": NOTHING}
    return {"text": _name(cell)} if dtype in TEXTS else {}


def _name(text: pl.Expr) -> pl.Expr:
    """One spelling per value, whichever program wrote the file: True and true, 3.0 and 3."""
    lower = text.str.to_lowercase()
    plain = text.str.replace(r"^(-?\d+)\.0+$", "${1}")
    return pl.when(lower.is_in(["true", "false"])).then(lower).otherwise(plain)


def label_names(cells: Cells) -> pl.Expr:
    """Labels as class names: whole numbers in one spelling (1, 1.0, 01), anything else as it is written."""
    whole = cells.number.is_finite() & (cells.number == cells.number.round()) & (cells.number.abs() < 2**53)
    return pl.when(whole).then(cells.number.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(cells.text)


def listing(names: Iterable[str], most: int = 8) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


Natural = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
J = TypeVar("J")


def read_json(kind: type[J], text: str | bytes, what: str) -> J:
    """A NamedTuple from JSON, every field of its type; `what` begins the sentence where it is not."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "nested too deep"}
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise InputError(f"{what} ({where}: {first['msg']}); send what `to_json` wrote") from None
