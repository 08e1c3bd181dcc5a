"""A folder with one file per silo becomes a federation.

    silos = read("hospitals/", label="readmitted")
    silos.names, silos.train, silos.test, silos.encoding

Each silo's rows are split and encoded on their own; the encoding is agreed from the silos' statistics alone
(`statistics.py` says what they tell).
"""

import warnings
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.data.shards import Shards, stack
from equipoise.data.silos.agreement import agree
from equipoise.data.silos.encoding import Encoding
from equipoise.data.silos.files import silo_files
from equipoise.data.silos.site import open_site
from equipoise.data.silos.statistics import MISSING, Options
from equipoise.errors import not_none, require


class SiloWarning(UserWarning):
    """Something of a silo folder was left out: a column, a file."""


class Silos(NamedTuple):
    """A federation read from files."""

    names: tuple[str, ...]  # the files' names without their endings, sorted
    train: Shards
    test: Shards | None  # None where no rows were held out
    encoding: Encoding
    task: str  # "classification" or "regression"
    warnings: tuple[str, ...]  # what was left out, a sentence each
    counted: np.ndarray | None = None  # [n], with `unit`: as how many independent rows each silo's scored ones count
    units: tuple[np.ndarray, ...] | None = None  # with `unit`: of every silo's training rows, whose they are


def read(
    directory: str | PathLike[str],
    label: str = "label",
    *,
    task: str | None = None,
    categorical: Collection[str] = (),
    drop: Collection[str] = (),
    missing: Collection[str] = MISSING,
    max_categories: int = 100,
    min_count: int = 1,
    indicators: bool = False,
    scale_label: bool = True,
    unit: str | None = None,
    separator: str = "auto",
    decimal: str = "auto",
    dates: str = "auto",
    percent: str = "auto",
    test: float = 0.2,
    seed: int = 0,
) -> Silos:
    """Each .csv, .parquet and .npz file of a directory as a silo; `Options` says what the settings mean."""
    for name, value in (("categorical", categorical), ("drop", drop), ("missing", missing)):
        require(not isinstance(value, str), f"{name} is the text {value!r}; give a list")
    columns = (tuple(categorical), tuple(drop), tuple(missing))
    options = Options(
        label, task, *columns, max_categories, min_count, indicators, scale_label, unit, decimal, dates, percent
    )
    return read_with(Path(directory), options, separator=separator, test=test, seed=seed)


def read_with(directory: Path, options: Options, *, separator: str, test: float, seed: int) -> Silos:
    """`read`, with its options as one record."""
    paths, left = silo_files(directory)
    sites = [open_site(path, options, separator=separator, test=test, seed=seed) for path in paths]
    encoding = agree([site.statistics(options) for site in sites], options)
    notes = (*left, *encoding.notes)
    for sentence in notes:
        warnings.warn(sentence, SiloWarning, stacklevel=3)
    pairs = [site.encode(encoding, options.min_count) for site in sites]
    names, train = tuple(site.name for site in sites), stack([train for train, _ in pairs])
    held_out = [held for _, held in pairs if held is not None]
    tested, counted, units = stack(held_out) if held_out else None, None, None
    if options.unit is not None:
        counted = np.array([site.counted for site in sites], np.float64)
        units = tuple(not_none(site.unit)[~site.held_out] for site in sites)
    return Silos(names, train, tested, encoding, encoding.task, notes, counted, units)
