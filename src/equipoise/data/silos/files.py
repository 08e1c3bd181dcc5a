"""A silo's file as a table: CSV, Parquet or NPZ, each read once and checked to its last line."""

import codecs
import csv
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path

import numpy as np
import polars as pl

from equipoise.data.silos.cells import first_line, listing
from equipoise.errors import InputError, not_none, require

SUFFIXES = (".csv", ".npz", ".parquet")
SEPARATORS = (",", ";", "\t", "|")
SEPARATOR = "one character of ASCII that is not a quotation mark and ends no line, such as ';', or 'auto'"


def is_separator(text: str) -> bool:
    """'auto', or one byte, for Polars; and what quotes a cell or ends a line cannot separate cells."""
    return text == "auto" or (len(text) == 1 and text.isascii() and text not in '"\r\n\0')


def silo_files(directory: Path, suffixes: tuple[str, ...] = SUFFIXES) -> tuple[list[Path], list[str]]:
    """The silo files, by name, and a sentence about other files; without `suffixes` every file is one."""
    require(directory.is_dir(), f"{directory} is not a directory; give the one that holds a file per silo")
    visible = sorted(p for p in directory.iterdir() if p.is_file() and not p.name.startswith("."))
    paths = sorted((p for p in visible if not suffixes or p.suffix.lower() in suffixes), key=lambda p: p.stem)
    require(
        paths, f"{directory} holds no silo files; put one file per silo there ({', '.join(suffixes) or 'of any kind'})"
    )
    for one, other in pairwise(paths):
        require(
            one.stem != other.stem,
            f"{one.name} and {other.name} would both be the silo {one.stem!r}; rename or remove one",
        )
    others = [p.name for p in visible if p not in paths]
    return paths, [f"{listing(others)} in {directory.name} is not a silo file and was left out"] if others else []


def scan(path: str | PathLike[str], *, label: str = "label", separator: str = "auto") -> pl.LazyFrame:
    """The table in a file, which is read once; cells of a CSV stay text until the silos agree on kinds.

    An .npz holds `inputs` and (for training) `labels`, which become the column `label`. Inputs [m, k] of
    floats become the columns x0, x1, ... of a table; others (images, whole numbers) stay arrays, `inputs`.
    """
    path = Path(path)
    require(path.is_file(), f"there is no file {path}")
    kind = path.suffix.lower()
    require(kind in SUFFIXES, f"{path.name} ends in {kind!r}; silo files end in {', '.join(SUFFIXES)}")
    if kind == ".csv":
        require(is_separator(separator), f"the separator is {separator!r}; give {SEPARATOR}")
        return _read_csv(path, separator)
    if kind == ".npz":
        return _read_npz(path, label)
    try:
        return pl.read_parquet(path, glob=False).lazy()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path.name} cannot be read as Parquet: {first_line(error)}") from error


def _read_csv(path: Path, separator: str) -> pl.LazyFrame:
    """Every line is checked first: Polars fills up short lines, renames double columns and loses rows to stray
    quotation marks, without a word."""
    row, blank, header = 0, [], []
    raw: list[str] = []  # the lines of the record that is read next
    try:
        content, said = _plain(path.read_bytes())
        separator = (said or _separator(path, content)) if separator == "auto" else separator
        with _lines(content) as file:
            lines = csv.reader(_remembered(file, raw), delimiter=separator, strict=True)
            header = [name.strip() for name in next(lines, [])]
            require(header, f"{path.name} is empty; leave this silo out or give it data")
            _check_quotes(path, raw, header, 0, separator)
            other = next((s for s in SEPARATORS if s != separator and len(header) == 1 and s in header[0]), None)
            require(
                other is None,
                f"{path.name} seems to be separated by {other!r}; set data.separator = {other!r}, or leave it out",
            )
            twice = [name for name in header if name and header.count(name) > 1]
            require(not twice, f"{path.name} has the column {listing(twice[:1])} more than once; rename or remove one")
            raw.clear()
            for number, cells in enumerate(lines):
                if len(header) > 1 and len(cells) < 2 and not "".join(cells).strip():
                    blank.append(number)
                    raw.clear()
                    continue
                row += 1
                require(
                    len(cells or [""]) == len(header),
                    f"{path.name}, data row {row} has {len(cells)} cells but the header has {len(header)}",
                )
                _check_quotes(path, raw, cells, row, separator, header)
                raw.clear()
    except csv.Error as error:
        _check_quotes(path, raw, ['"'], row + 1 if header else 0, separator, header)
        raise InputError(
            f"{path.name} cannot be read as CSV from {f'data row {row + 1}' if header else 'the header'} on: "
            f"{first_line(error)}; a quotation mark that opens a cell has to close it"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} is not UTF-8 text, as the byte {error.object[error.start]:#04x} after data row {row} shows; "
            "save it as UTF-8 (Excel calls that 'CSV UTF-8')"
        ) from error
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {first_line(error)}") from error
    frame = pl.read_csv(content, separator=separator, infer_schema=False, raise_if_empty=False)
    require(
        frame.shape == (row + len(blank), len(header)),
        f"{path.name} has {row + len(blank)} rows of {len(header)} cells by one way to read it and {len(frame)} of "
        f"{frame.width} by another; save it as plain CSV, with one kind of line ends",
    )
    unnamed = [i for i, name in enumerate(header) if not name]
    if len(unnamed) > 1:  # Polars has given names to all but one
        frame = frame.select(pl.nth([i for i in range(len(header)) if i not in unnamed[1:]]))
    if blank:
        frame = frame.with_row_index("\0line").filter(~pl.col("\0line").is_in(blank)).drop("\0line")
    return frame.lazy()


def _plain(content: bytes) -> tuple[bytes, str | None]:
    """In UTF-8, with one kind of line ends, from the header on; and the separator that a first line `sep=;` says."""
    content = content.removeprefix(codecs.BOM_UTF8)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # Excel's "Unicode text"
        content = content.decode("utf-16").encode()
    if b"\r" in content:
        content = re.sub(rb"\r+\n|\r", b"\n", content)
    content = re.sub(rb"^(?:[ \t]*\n)+", b"", content)
    if match := re.match(rb"(?i)sep=([^\n])\n", content):
        return content[match.end() :], match[1].decode("latin1")
    return content, None


def _lines(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")


def _separator(path: Path, content: bytes) -> str:
    """The separator with which every line has as many cells as the header."""

    def widths(separator: str) -> Iterator[int]:
        return (
            len(cells) for cells in csv.reader(_lines(content), delimiter=separator) if len(cells) > 1 or any(cells)
        )

    header = {separator: next(widths(separator), 0) for separator in SEPARATORS}
    wide = [separator for separator in SEPARATORS if header[separator] > 1]
    if not wide:  # a table of one column
        return next((separator for separator in SEPARATORS if separator.encode() not in content), ",")
    if len(wide) == 1:
        return wide[0]
    fit = [separator for separator in wide if all(width == header[separator] for width in widths(separator))]
    require(
        len(fit) < 2, f"{path.name} can be read as separated by {' or by '.join(map(repr, fit))}; set data.separator"
    )
    return fit[0] if fit else max(wide, key=lambda separator: header[separator])


def _remembered(lines: Iterable[str], kept: list[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        yield line


def _check_quotes(
    path: Path, raw: list[str], cells: list[str], row: int, separator: str, header: Sequence[str] = ()
) -> None:
    """A quotation mark inside a cell that is not quoted, or after its end, is read in different ways by everybody."""
    if not raw or not any('"' in cell for cell in cells):
        return
    text, place, column = "".join(raw).rstrip("\r\n"), 0, 0
    part = re.compile(rf'(?:"(?:[^"]|"")*"|[^"{re.escape(separator)}\r\n]*)(?:{re.escape(separator)}|$)')
    while place < len(text) and (match := part.match(text, place)):
        place, column = match.end(), column + 1
        if match.end() == len(text):
            return
    cell = text[place:].split(separator)[0].partition("\n")[0][:80]
    where = f"data row {row}, column {header[column]!r}" if row and column < len(header) else f"row {row}"
    quoted = '"' + cell.removeprefix('"').replace('"', '""') + '"'
    raise InputError(
        f"{path.name}, {where if row else 'header'}: {cell} has a quotation mark where none may stand; put the whole "
        f"cell in quotation marks and double those inside it: {quoted}"
    )


def _read_npz(path: Path, label: str) -> pl.LazyFrame:
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            single = isinstance(arrays, np.ndarray)  # a .npy file under another name
            inputs, labels = (None, None) if single else (arrays.get("inputs"), arrays.get("labels"))
            held = ["a single array without a name"] if single else list(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path.name} cannot be read as NPZ: {first_line(error)}") from error
    inputs = not_none(inputs, f"{path.name} has no array 'inputs'; it holds {listing(held)}")
    return frame_of(inputs, labels, label, file=path.name)


def frame_of(inputs: np.ndarray, labels: np.ndarray | None, label: str, *, file: str) -> pl.LazyFrame:
    """Arrays as a table, see `scan`; `file` is what messages call it."""
    require(inputs.ndim >= 2, f"{file} has inputs of shape {inputs.shape}; give one example per row: [rows, ...]")
    require(inputs.dtype.kind in "biuf", f"{file} has inputs of type {inputs.dtype}; give numbers: floats or integers")
    native = np.float32 if inputs.dtype == np.float16 else inputs.dtype.newbyteorder("=")
    inputs = inputs.astype(native, copy=False)
    if inputs.ndim == 2 and inputs.dtype.kind == "f":
        frame = pl.from_numpy(inputs, schema=[f"x{i}" for i in range(inputs.shape[1])])
    else:
        frame = pl.DataFrame({"inputs": inputs})
    if labels is not None:
        require(
            labels.shape == inputs.shape[:1],
            f"{file} has inputs of shape {inputs.shape} but labels of shape {labels.shape}; give one label per row",
        )
        require(label not in frame.columns, f"in {file} {label!r} is an input; give the label another name")
        frame = frame.with_columns(pl.Series(label, labels))
    return frame.lazy()
