"""A table's cells read as names, numbers and dates: one reading for training and for prediction."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import polars as pl

from equipoise.errors import InputError, require


class Table(NamedTuple):
    """A frame with safe column names: a header may hold anything, "*" and "^.*$" included."""

    file: str
    frame: pl.LazyFrame  # columns "0", "1", ... and "row"
    columns: dict[str, tuple[str, pl.DataType]]  # name in the file -> name in `frame`, type

    def collect(self, *expressions: pl.Expr, rows: np.ndarray | None = None) -> pl.DataFrame:
        frame = self.frame if rows is None else self.frame.filter(pl.lit(pl.Series(rows)))
        try:
            return frame.select(expressions).collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{self.file} cannot be read: {first_line(error)}") from error

    def cells(self, column: str, missing: tuple[str, ...]) -> "Cells":
        return _cells(*self.columns[column], missing)


class Cells(NamedTuple):
    """A column's cells as names, as numbers, as days; null where a cell is missing or cannot be read so."""

    present: pl.Expr
    text: pl.Expr
    number: pl.Expr
    date: pl.Expr


def table(frame: pl.DataFrame | pl.LazyFrame, file: str) -> Table:
    lazy = frame.lazy()
    try:
        schema = lazy.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}") from error
    names = [name.strip() for name in schema]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(
        not twice, f"{file} has the column {twice[0] if twice else ''!r} more than once; rename or remove one"
    )
    safe = [str(i) for i in range(len(names))]
    lazy = lazy.rename(dict(zip(schema, safe, strict=True))).with_row_index("row", offset=1)
    return Table(file, lazy, dict(zip(names, zip(safe, schema.dtypes(), strict=True), strict=True)))


def _cells(name: str, dtype: pl.DataType, missing: tuple[str, ...]) -> Cells:
    cell, nothing = pl.col(name), pl.lit(None, pl.Float64)
    if dtype in (pl.Date, pl.Datetime):
        return Cells(cell.is_not_null(), cell.cast(pl.String), nothing, _days(cell))
    if dtype.is_numeric():
        number = cell.cast(pl.Float64).fill_nan(None)
        present = number.is_not_null()
        return Cells(present, _name(pl.when(present).then(cell).cast(pl.String)), number, nothing)
    text = cell.cast(pl.String).str.strip_chars()
    absent = text.str.to_lowercase().is_in([m.lower() for m in missing])
    text = pl.when(~absent).then(text)  # null stays null
    day = text.str.replace("T", " ", literal=True)
    formats = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f")
    date = pl.coalesce(day.str.to_datetime(f, strict=False, time_unit="us") for f in formats)
    return Cells(
        text.is_not_null(), _name(text), text.cast(pl.Float64, strict=False).fill_nan(None), _days(date)
    )


def _days(date: pl.Expr) -> pl.Expr:
    return date.dt.epoch("us").cast(pl.Float64) / 86_400e6


def _name(text: pl.Expr) -> pl.Expr:
    """One spelling per value, whichever program wrote the file: True and true, 3.0 and 3."""
    lower = text.str.to_lowercase()
    return (
        pl.when(lower.is_in(["true", "false"]))
        .then(lower)
        .otherwise(text.str.replace(r"^(-?\d+)\.0+$", "${1}"))
    )


def label_names(cells: Cells) -> pl.Expr:
    """Labels as class names: whole numbers in one spelling (1, 1.0, 01), anything else as it is written."""
    whole = cells.number.is_finite() & (cells.number == cells.number.round()) & (cells.number.abs() < 2**53)
    return (
        pl.when(whole).then(cells.number.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(cells.text)
    )


def listing(names: Iterable[str], most: int = 8) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
