"""Which way a column's numbers and dates are written, found from all cells of all owners.

A text column is looked at in every way that `written.py` knows. A cell such as `1,5` can be read in one way only and
settles its column; where all cells can be read in two ways that differ, as `1,500` and `05/01/2024` can, the column
follows the rest of its file and the same column of the others; where nothing decides, that is said, not guessed.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, NamedTuple

import polars as pl
from pydantic import Field

from equipoise.data.silos.cells import TEXTS, Answers, Table, first_row
from equipoise.data.silos.written import DOTTED, MONEY, SHORT_YEAR, THOUSANDS
from equipoise.errors import require

DECIMALS = (".", ",")
ORDERS = ("day-first", "month-first")
PERCENTS = ("share", "number")
WORDS = {".": "a decimal point", ",": "a decimal comma", "day-first": "the day first", "month-first": "the month first"}
# What is asked about the two ways of a kind, a and b: how many cells can be read, in which rows they differ or fail.
ANSWERS = ("a", "b", "either", "differ", "odd", "even", "only a", "only b", "not a", "not b")
Way = Annotated[str, Field(pattern="^(|[.,]|day-first|month-first)$")]


class Conventions(NamedTuple):
    """How tables are written, as set; "auto": found from their cells."""

    decimal: str = "auto"  # "." or ","
    dates: str = "auto"  # "day-first" or "month-first"
    percent: str = "auto"  # "share": 12% is 0.12; "number": 12% is 12

    def checked(self) -> "Conventions":
        for name, given, allowed in zip(self._fields, self, (DECIMALS, ORDERS, PERCENTS), strict=True):
            require(given in ("auto", *allowed), f"{name} is {given!r}; give 'auto', {' or '.join(map(repr, allowed))}")
        return self


class Writing(NamedTuple):
    """The cells of a text column, read as numbers or as dates in the two ways to write them."""

    ways: tuple[str, str]
    read: tuple[int, int] = (0, 0)  # cells that can be read in each way
    either: int = 0  # in at least one
    differ: int | None = None  # the first row that says something else in the other way
    alone: tuple[int | None, int | None] = (None, None)  # the first row that only this way can read
    unread: tuple[int | None, int | None] = (None, None)  # the first row that this way cannot read
    mark: str = ""  # of the cells that differ: "." or ","; of dates "." or "/"; "?": several

    @property
    def most(self) -> str:
        """The way that can read most cells."""
        return self.ways[int(self.read[1] > self.read[0])]

    def possible(self, cells: int, setting: str) -> tuple[str, ...]:
        """The ways to read all cells; "": whichever, they say the same."""
        ways = tuple(way for way, count in zip(self.ways, self.read, strict=True) if count == cells)
        if len(ways) == 2 and self.differ is None:
            return ("",)
        return ways if setting == "auto" else tuple(way for way in ways if way == setting)


class Look(NamedTuple):
    """What a text column looks like."""

    cells: int  # that are not missing
    first: int | None
    infinite: int | None = None
    number: Writing = Writing((".", ","))
    date: Writing = Writing(("day-first", "month-first"))
    signed: int | None = None  # the first row of a number with a percent sign
    unsigned: int | None = None  # and of one without, other than zero
    short: int | None = None  # the first row of a date with a year of two digits
    shorts: int = 0  # how many
    amount: int | None = None  # the first row of an amount of money, or of one in brackets
    amounts: int = 0


def look(table: Table, names: Iterable[str]) -> dict[str, Look]:
    """How the text columns among `names` look: plain numbers in one pass over the table, the rest in two."""
    texts = [name for name in names if table.columns[name][1] in TEXTS]
    questions: dict[tuple[str, str], pl.Expr] = {}
    for name in texts:
        cell = pl.col(table.columns[name][0])
        plain = pl.col(f"{table.columns[name][0]} plain")
        dot = plain.is_not_null() & cell.str.contains(".", literal=True)
        questions |= {
            (name, "cells"): cell.is_not_null().sum(),
            (name, "first"): first_row(cell.is_not_null()),
            (name, "plain"): plain.count(),
            (name, "infinite"): first_row(plain.is_infinite()),
            (name, "dots"): dot.sum(),
            (name, "decimal"): first_row(dot & ~cell.str.contains(THOUSANDS)),
            (name, "nonzero"): first_row(plain != 0),
        }
    answers = table.ask(questions)
    looks = {name: _plainly(answers[name]) for name in texts}
    again = [name for name in texts if looks[name] is None]
    closer = table.ask({(name, what): e for name in again for what, e in _questions(table, name).items()})
    return {name: seen or _closely(answers[name], closer[name]) for name, seen in looks.items()}


def _plainly(answers: Answers) -> Look | None:
    """The look of numbers that nobody would write in another way; None: there are other cells."""
    cells, decimal = answers["cells"], answers["decimal"]
    if answers["plain"] < cells or (answers["dots"] and decimal is None):
        return None
    both = not answers["dots"]
    writing = Writing(DECIMALS, (cells, cells if both else 0), cells, None, (decimal, None), (None, decimal))
    return Look(cells, answers["first"], answers["infinite"], writing, unsigned=answers["nonzero"])


def _questions(table: Table, name: str) -> dict[str, pl.Expr]:
    i = table.columns[name][0]
    cell, signed = pl.col(i), pl.col(f"{i} signed")
    out: dict[str, pl.Expr] = {}
    for kind, (a, b) in (("number", ("number", "comma")), ("date", ("date", "month"))):
        one, other = pl.col(f"{i} {a}"), pl.col(f"{i} {b}")
        both = one.is_not_null() & other.is_not_null()
        # Differences of rounding do not count.
        differ = both & ((one - other).abs() > 1e-9 * one.abs())
        odd = cell.str.contains(",", literal=True) if kind == "number" else ~cell.str.contains(DOTTED)
        counts = (one.count(), other.count(), (one.is_not_null() | other.is_not_null()).sum())
        odds = (first_row(differ), (differ & odd).sum(), (differ & ~odd).sum())
        only = (one.is_not_null() & other.is_null(), one.is_null() & other.is_not_null())
        unread = (cell.is_not_null() & one.is_null(), cell.is_not_null() & other.is_null())
        answers = (*counts, *odds, *map(first_row, (*only, *unread)))
        out |= {f"{kind} {what}": answer for what, answer in zip(ANSWERS, answers, strict=True)}
    number = pl.coalesce(pl.col(f"{i} number"), pl.col(f"{i} comma"))
    short = cell.str.contains(SHORT_YEAR)
    amount = pl.col(f"{i} odd").str.contains(MONEY) & number.is_null()
    return out | {
        "infinite": first_row(number.is_infinite()),
        "signed": first_row(signed & number.is_not_null()),
        "unsigned": first_row(~signed & (number != 0)),
        "short": first_row(short),
        "shorts": short.sum(),
        "amount": first_row(amount),
        "amounts": amount.sum(),
    }


def _closely(answers: Answers, closer: Answers) -> Look:
    def writing(kind: str, ways: tuple[str, str], marks: tuple[str, str]) -> Writing:
        a, b, either, differ, odd, even, only_a, only_b, not_a, not_b = (closer[f"{kind} {what}"] for what in ANSWERS)
        mark = "" if not differ else marks[0] if not even else marks[1] if not odd else "?"
        return Writing(ways, (a, b), either, differ, (only_a, only_b), (not_a, not_b), mark)

    number, date = writing("number", DECIMALS, (",", ".")), writing("date", ORDERS, ("/", "."))
    rest = {key: closer[key] for key in ("infinite", "signed", "unsigned", "short", "shorts", "amount", "amounts")}
    return Look(answers["cells"], answers["first"], number=number, date=date, **rest)


def settle(
    ways: Collection[str], mark: str, own: Collection[str], same: Collection[str], every: Collection[str]
) -> str:
    """Which of two ways; "": nothing decides.

    `own`, `same`, `every`: the ways that are certain in other columns of the file, in the same column of other owners,
    and in all columns of all owners.
    """
    own, same, every = ({way for way in some if way in ways} for some in (own, same, every))
    if len(own) == 1:
        (way,) = own
        # A point in a file with decimal points is one, whatever others write; but one between thousands ...
        return way if way in ORDERS or way == mark or same <= own else ""
    if len(same) == 1:
        return next(iter(same))
    if not own and not same and len(every) == 1:
        return next(iter(every))
    usual = {DECIMALS: ".", ORDERS: "day-first"}[DECIMALS if "." in ways else ORDERS]
    return usual if mark == "." and not (own or same or every) else ""


def undecided(where: str, ways: Collection[str]) -> str:
    """The sentence where nothing decides; `where` ends in a row."""
    decimal = "." in ways
    one, other = (WORDS[way] for way in (DECIMALS if decimal else ORDERS))
    setting = "data.decimal = '.' or ','" if decimal else "data.dates = 'day-first' or 'month-first'"
    return f"{where}: the cell can be read with {one} or with {other}, and no other cell decides; set {setting}"
