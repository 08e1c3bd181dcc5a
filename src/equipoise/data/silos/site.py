"""One silo by itself, for engines where each one is a machine.

site = open_site("hospitals/north.csv", options)
statistics = site.statistics(options)           # crosses
encoding = agree([statistics, ...], options)    # crosses back
(inputs, labels), test = site.encode(encoding)  # stays
"""

import zlib
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from equipoise.data.partition import stratified
from equipoise.data.silos.encoding import Encoding
from equipoise.data.silos.files import scan
from equipoise.data.silos.statistics import Options, Statistics, statistics, strata, units
from equipoise.errors import not_none, require

Pair = tuple[np.ndarray, np.ndarray]


class Site(NamedTuple):
    """One silo, at home."""

    name: str
    file: str
    frame: pl.LazyFrame
    held_out: np.ndarray  # per row: it is for testing
    unit: np.ndarray | None = None  # per row: the number of its unit; None: every row is one of its own

    @property
    def counted(self) -> float | None:
        """As how many independent rows the scored ones count, at the least: all rows of a unit may say the same.

        None: each of them counts.
        """
        if self.unit is None:
            return None
        scored = self.held_out if self.held_out.any() else ~self.held_out
        counts = np.unique(self.unit[scored], return_counts=True)[1].astype(np.float64)
        return float(counts.sum() ** 2 / (counts**2).sum())

    def statistics(self, options: Options) -> Statistics:
        return statistics(self.frame, options, site=self.file, train=~self.held_out)

    def encode(self, encoding: Encoding, min_count: int = 1, min_rows: int = 1) -> tuple[Pair, Pair | None]:
        """(inputs, labels) for training, and for testing; what fewer training rows have is hidden (`hide_few`)."""
        inputs, label_values = encoding.apply(self.frame, file=self.file)
        if max(min_count, min_rows) > 1:
            filled = encoding.filled(self.frame, file=self.file)
            encoding.hide_few(inputs, filled, ~self.held_out, min_count, min_rows)
        labels = not_none(label_values, f"{self.file} has no column {encoding.target.name!r}, the label")
        train, test = ~self.held_out, self.held_out
        return (inputs[train], labels[train]), (inputs[test], labels[test]) if test.any() else None


def open_site(
    path: str | PathLike[str],
    options: Options,
    *,
    name: str | None = None,
    separator: str = "auto",
    test: float = 0.2,
    seed: int = 0,
) -> Site:
    """A silo with its own split, which depends on its rows, its name and the seed, not on other silos."""
    path = Path(path)
    file = path.name if name is None else f"{name} ({path.name})"
    frame = scan(path, label=options.label, separator=separator)
    return site_of(frame, options, name=path.stem if name is None else name, file=file, test=test, seed=seed)


def site_of(frame: pl.LazyFrame, options: Options, *, name: str, file: str, test: float = 0.2, seed: int = 0) -> Site:
    """A silo from a table, split as `open_site` splits; `file` is what messages call it."""
    require(0 <= test < 1, f"test is {test}; give the share of rows to hold out, from 0 to below 1")
    classes = strata(frame, options, site=file)
    require(
        len(classes) > 1 or test == 0,
        f"{file} has a single row; a silo needs two, one to train with and one to test with, or data.test = 0",
    )
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    unit_names = units(frame, options, site=file)
    if unit_names is None:
        return Site(name, file, frame, stratified(classes.to_numpy(), test, rng))
    _, first, unit = np.unique(unit_names.to_numpy(), return_index=True, return_inverse=True)
    require(
        len(first) > 1 or test == 0,
        f"{file} has rows of a single {options.unit}; a silo needs two, one to train with and one to test with, "
        "or data.test = 0",
    )
    # Whole units, each counted for the label of its first row: no unit is on both sides.
    return Site(name, file, frame, stratified(classes.to_numpy()[first], test, rng)[unit], unit)
