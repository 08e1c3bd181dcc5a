"""How people write numbers and dates, as Polars expressions: decimal point or comma, percent, day or month first.

A cell that cannot be read in a way is null there. Whether `1,500` is a number between one and two or one thousand five
hundred is not for a cell to say; `conventions.py` asks all cells of all owners.
"""

from functools import lru_cache

import polars as pl

COLUMNS = 4096  # whose expressions are kept: they are the same in every table, and to build them takes milliseconds

GROUPS = r"(?:\d+|[1-9]\d{{0,2}}(?:(?:{0}\d{{3}})+|(?: \d{{3}})+|(?:'\d{{3}})+))"  # 1234, 1,234, 1 234, 1'234
POINT = rf"^[+-]?(?:{GROUPS.format(',')}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$"
COMMA = rf"^[+-]?(?:{GROUPS.format('[.]')}(?:,\d*)?|,\d+)(?:[eE][+-]?\d+)?$"
THOUSANDS = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"  # a decimal point, unless it is one between thousands
CLOCK = (
    r"(?:(?:[Tt]|,? +)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<part>\d{1,9}))?)?"
    r" *(?:(?P<half>[AaPp])\.?[Mm]\.?)? *(?P<zone>[Zz]|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?"
)
WEEKDAY = "(?:[Mm]on|[Tt]ues?|[Ww]ed(?:nes)?|[Tt]hu(?:rs?)?|[Ff]ri|[Ss]at(?:ur)?|[Ss]un)(?:day)?"
DATE = (
    rf"^(?:{WEEKDAY}[.,]? +)?"
    r"(?:(?P<y1>\d{4})[-/.](?P<m1>\d{1,2})[-/.](?P<d1>\d{1,2})|(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<y2>\d{4})"
    r"|(?P<d3>\d{1,2})[- ]?(?P<name>[A-Za-z]{3})[a-z]*[- ]?(?P<y3>\d{4})"
    rf"|(?P<before>[A-Za-z]{{3}})[a-z]*\.? (?P<d4>\d{{1,2}}),? (?P<y4>\d{{4}})){CLOCK}$"
)
NAMED_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
SHORT_YEAR = rf"(?i)^(?:\d{{1,2}}[-/.]\d{{1,2}}[-/.]|\d{{1,2}}[-/. ]{NAMED_MONTH}[-/. ])\d{{2}}(?:$|[^\d])"
CURRENCY = r"(?:[$€£¥]|EUR|USD|GBP|CHF)"
AMOUNT = r"[-+]? ?\d[\d.,' ]*"
MONEY = (
    rf"^(?:[-+]? ?{CURRENCY} ?{AMOUNT}|{AMOUNT}{CURRENCY}|\((?:{CURRENCY} ?)?{AMOUNT}{CURRENCY}?\))$"  # $5, 5 €, (5)
)
DOTTED = r"^\d{1,2}\.\d{1,2}\.\d{4}"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAY = 86_400_000_000  # microseconds


@lru_cache(maxsize=COLUMNS)
def numbers(i: str, percent: str) -> tuple[dict[str, pl.Expr], ...]:
    """The texts in column `i` as numbers, in columns of their own: "i number" has a decimal point, "i comma" a comma.

    Step by step, each from the columns of those before: within one expression each would run many times.
    """
    cell, plain, odd, bare = (pl.col(name) for name in (i, f"{i} plain", f"{i} odd", f"{i} bare"))
    signed = pl.col(f"{i} signed")
    share = 1.0 if percent == "number" else 100.0
    value = {
        "number": pl.coalesce(plain, _grouped(bare, POINT, "[,' ]") / pl.when(signed).then(share).otherwise(1.0)),
        "comma": pl.coalesce(
            pl.when(~cell.str.contains(".", literal=True)).then(plain),
            _grouped(pl.when(plain.is_null()).then(bare).otherwise(cell), COMMA, "[.' ]")
            / pl.when(signed).then(share).otherwise(1.0),
        ),
    }
    return (
        {f"{i} plain": cell.cast(pl.Float64, strict=False).fill_nan(None)},
        {
            f"{i} odd": pl.when(plain.is_null())
            .then(cell)
            .str.replace_all("[\u00a0\u2009\u202f]", " ")
            .str.replace_all("\u2019", "'", literal=True)
            .str.replace("^\u2212", "-")
        },
        {
            f"{i} signed": odd.str.ends_with("%").fill_null(False),
            f"{i} bare": odd.str.strip_suffix("%").str.strip_chars_end(),
        },
        {f"{i} {what}": e for what, e in value.items()},
    )


@lru_cache(maxsize=COLUMNS)
def dates(i: str) -> tuple[dict[str, pl.Expr], ...]:
    """The same as dates, after the steps of `numbers`: "i date" has the day first, "i month" the month."""
    parts = pl.col(f"{i} parts")
    return (
        {f"{i} parts": pl.col(f"{i} odd").str.extract_groups(DATE)},
        {f"{i} date": _days(parts, "two", "one"), f"{i} month": _days(parts, "one", "two")},
    )


def has_dates(i: str) -> pl.Expr:
    return pl.col(f"{i} odd").str.contains(DATE).any()


def _grouped(text: pl.Expr, pattern: str, marks: str) -> pl.Expr:
    bare = pl.when(text.str.contains(pattern)).then(text).str.replace_all(marks, "")
    return bare.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)


def _days(parts: pl.Expr, month: str, day: str) -> pl.Expr:
    """Since 1970-01-01, in UTC where a zone is given."""

    def part(name: str) -> pl.Expr:
        return parts.struct.field(name)

    def whole(name: str) -> pl.Expr:
        return part(name).cast(pl.Int64, strict=False).fill_null(0)

    named = (
        pl.coalesce(part("name"), part("before"))
        .str.to_lowercase()
        .replace_strict(MONTHS, [str(k) for k in range(1, 13)], default=None)
    )
    date = pl.concat_str(
        pl.coalesce(part("y1"), part("y2"), part("y3"), part("y4")),
        pl.coalesce(part("m1"), part(month), named),
        pl.coalesce(part("d1"), part(day), part("d3"), part("d4")),
        separator="-",
    ).str.to_date("%Y-%m-%d", strict=False)
    half, zone = part("half").str.to_lowercase(), part("zone")
    hour = pl.when(half.is_null()).then(whole("hour")).otherwise(whole("hour") % 12 + (half == "p").cast(pl.Int64) * 12)
    ahead = pl.when(zone.str.contains(r"^[+-]")).then(
        zone.str.slice(1, 2).cast(pl.Int64, strict=False) * 60
        + zone.str.extract(r"(\d{2})$").cast(pl.Int64, strict=False) * (zone.str.len_chars() > 3).cast(pl.Int64)
    ) * pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)
    behind = part("part").str.pad_end(9, "0").cast(pl.Int64, strict=False).fill_null(0) // 1000
    minutes = hour * 60 + whole("minute") - ahead.fill_null(0)
    clock = (whole("hour") <= 23) & (whole("minute") <= 59) & (whole("second") <= 59)
    since = date.dt.epoch("d").cast(pl.Int64) * DAY + (minutes * 60 + whole("second")) * 1_000_000 + behind
    return pl.when(clock).then(since).cast(pl.Float64) / float(DAY)
