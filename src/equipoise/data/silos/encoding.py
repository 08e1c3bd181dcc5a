"""From a table's columns to a model's inputs, the same at every silo and at prediction.

A number (or a date, as days since 1970-01-01) is standardised by the mean and standard deviation over all silos,
a missing one becomes the mean; a name becomes one input per category, a missing one its own category where
training had any, an unknown one all zeros. A column whose cells are arrays (images, tokens) passes through.
"""

import json
import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import numpy as np
import polars as pl
from pydantic import Field

from equipoise.data.silos.cells import Finite, Natural, Table, first_row, label_names, listing, open_table, read_json
from equipoise.data.silos.conventions import Conventions, Look, Way, Writing, look, settle, undecided
from equipoise.errors import InputError, require


class Feature(NamedTuple):
    """How one column becomes inputs. Fields that do not fit its kind keep their defaults."""

    name: str
    kind: Annotated[str, Field(pattern="^(number|date|text|array)$")]
    mean: Finite = 0.0
    scale: Finite = 1.0
    categories: tuple[str, ...] = ()
    missing: Annotated[bool, Field(strict=True)] = False  # the last of its inputs says "is missing"
    shape: tuple[Annotated[Natural, Field(ge=1)], ...] = ()
    dtype: str = ""
    seen: tuple[Way, ...] = ()  # the ways in which silos certainly wrote it: it decides where a cell can be read in two
    percent: Annotated[bool, Field(strict=True)] = False  # with percent signs

    @property
    def inputs(self) -> tuple[str, ...]:
        """A name for each of its inputs."""
        values = tuple(f"{self.name}={c}" for c in self.categories) if self.kind == "text" else (self.name,)
        return values + ((f"{self.name} is missing",) if self.missing else ())


class Target(NamedTuple):
    """How the label becomes a target: the index of its class, or (value - mean) / scale."""

    name: str
    classes: tuple[str, ...] = ()
    mean: Finite = 0.0
    scale: Finite = 1.0
    kind: Annotated[str, Field(pattern="^(number|text)$")] = "text"  # of its cells
    seen: tuple[Way, ...] = ()  # as of a feature
    percent: Annotated[bool, Field(strict=True)] = False


class Encoding(NamedTuple):
    """A fitted encoding; `to_json` holds all of it."""

    task: str  # "classification" or "regression"
    target: Target
    features: tuple[Feature, ...]
    missing: tuple[str, ...]  # texts that mean "no value"
    dropped: tuple[tuple[str, str], ...] = ()  # the columns left out, and why
    conventions: Conventions = Conventions()  # as set
    seen: tuple[Way, ...] = ()  # the ways in which silos certainly wrote some column

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each reason why columns were left out."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.dropped:
            reasons.setdefault(why, []).append(name)
        return tuple(
            f"{'column' if len(names) == 1 else 'columns'} {listing(names, 20)} dropped: {why}"
            for why, names in reasons.items()
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order."""
        return tuple(name for feature in self.features for name in feature.inputs)

    def hide_few(
        self, inputs: np.ndarray, filled: np.ndarray, train: np.ndarray, min_count: int, min_rows: int
    ) -> None:
        """Changes inputs so that no value of fewer than `min_count` training rows shows, nor a column of which fewer
        than `min_rows` have a number: these rows get what most have.

        `filled` says per row and feature whether the cell has a value (`filled`), `train` which rows are for training.
        """
        start = 0
        for f, feature in enumerate(self.features):
            part = inputs[:, start : start + len(feature.inputs)]
            start += part.shape[1]
            if feature.kind == "text":
                part[:, (part[train] != 0).sum(0) < min_count] = 0
                none = (part == 0).all(1)  # told apart from the rest, these would show as well
                if part.size and 0 < none[train].sum() < min_count:
                    part[none, (part[train] != 0).sum(0).argmax()] = 1
            elif feature.kind in ("number", "date"):
                there, numbers = filled[:, f], part[:, 0]
                values, counts = np.unique(numbers[train & there], return_counts=True)
                if 0 < counts.sum() < min_rows:
                    numbers[:] = 0
                elif 0 < counts.sum() - counts.max(initial=0) < min_count:
                    numbers[there] = values[counts.argmax()]
                if feature.missing and 0 < min(counts.sum(), train.sum() - counts.sum()) < min_count:
                    part[:, 1] = float(2 * counts.sum() < train.sum())

    def filled(self, frame: pl.DataFrame | pl.LazyFrame, *, file: str = "the table") -> np.ndarray:
        """Per row and feature: whether the cell has a value."""
        table = open_table(frame, file, self.missing, self.conventions.percent)
        cells = (table.cells(f.name).present.alias(str(i)) for i, f in enumerate(self.features))
        return table.collect(*cells).to_numpy()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example's inputs."""
        first = self.features[0]
        return first.shape if first.kind == "array" else (len(self.inputs),)

    @property
    def outputs(self) -> int:
        """How many outputs a model needs."""
        return len(self.target.classes) or 1

    def apply(
        self, frame: pl.DataFrame | pl.LazyFrame, *, file: str = "the table"
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Inputs [m, ...] in JAX's default float and labels [m]; None without a label column."""
        table = open_table(frame, file, self.missing, self.conventions.percent)
        labelled = self.target.name in table.columns
        table = self._settled(table, labelled)
        labels = self._labels(table) if labelled else None
        return self._inputs(table), labels

    def apply_inputs(self, frame: pl.DataFrame | pl.LazyFrame, *, file: str = "the table") -> np.ndarray:
        """The inputs alone, as at prediction: what stands in a label column does not matter."""
        table = open_table(frame, file, self.missing, self.conventions.percent)
        return self._inputs(self._settled(table, False))

    def _settled(self, table: Table, labelled: bool) -> Table:
        """The table, each column of which is read as it is written; see conventions.py."""
        columns: dict[str, Feature | Target] = {f.name: f for f in self.features if f.kind in ("number", "date")}
        if labelled and self.target.kind == "number":
            columns[self.target.name] = self.target
        looks = look(table, [name for name in columns if name in table.columns])
        possible: dict[str, tuple[str, ...]] = {}
        readings: dict[str, str] = {}
        for name, seen in looks.items():
            writing, setting = self._writing(columns[name].kind, seen)
            possible[name] = writing.possible(seen.cells, setting)
            # What cannot be read is found cell by cell.
            readings[name] = next(iter(possible[name]), writing.most if setting == "auto" else setting)
        own = {ways[0] for ways in possible.values() if len(ways) == 1}
        for name, ways in possible.items():
            if len(ways) > 1:
                writing, _ = self._writing(columns[name].kind, looks[name])
                readings[name] = settle(ways, writing.mark, own, columns[name].seen, self.seen)
                require(readings[name], undecided(table.where(name, writing.differ), ways))
        if self.conventions.percent == "auto":
            for name, column in columns.items():
                if name in table.columns and column.kind == "number":
                    _check_percent(table, name, looks.get(name), column.percent)
        return table._replace(readings=readings)

    def _writing(self, kind: str, seen: Look) -> tuple[Writing, str]:
        return (seen.number, self.conventions.decimal) if kind == "number" else (seen.date, self.conventions.dates)

    def _inputs(self, table: Table) -> np.ndarray:
        gone = [f.name for f in self.features if f.name not in table.columns]
        require(not gone, f"{table.file} lacks the column {listing(gone)}, which the model was trained with")
        if self.features[0].kind == "array":
            return _array(table, self.features[0])
        columns = table.collect(*(_coded(table, f).alias(str(i)) for i, f in enumerate(self.features)))
        out = np.zeros((len(columns), len(self.inputs)), _default_float())
        start = 0
        for feature, column in zip(self.features, columns.iter_columns(), strict=True):
            stop = start + len(feature.inputs)
            _fill(out[:, start:stop], feature, column, table)
            start = stop
        return out

    def _labels(self, table: Table) -> np.ndarray:
        name, classes, mean, scale = self.target[:4]
        cells = table.cells(name)
        if self.task == "classification":
            code = label_names(cells).replace_strict(classes, range(len(classes)), default=-1, return_dtype=pl.Int32)
            labels = table.collect(code).to_series().to_numpy()
            bad, why = labels < 0, f"is not one of the classes {listing(classes)}"
        else:
            labels = ((table.collect(cells.number).to_series().to_numpy() - mean) / scale).astype(_default_float())
            bad, why = ~np.isfinite(labels), "is not a number"
        if bad.any():
            raise _bad_cell(table, name, int(bad.argmax()), why)
        return labels

    def decode(self, outputs: np.ndarray) -> pl.Series:
        """What a model's outputs [m, outputs] say in the label's own terms: a class each, or a value."""
        require(
            outputs.ndim == 2 and outputs.shape[1] == self.outputs,
            f"the outputs have shape {outputs.shape}; this encoding needs [rows, {self.outputs}]",
        )
        if self.task == "regression":
            return pl.Series("prediction", outputs[:, 0].astype(float) * self.target.scale + self.target.mean)
        classes = pl.Series("prediction", self.target.classes)
        if classes.str.contains(r"^-?\d{1,18}$").all():
            classes = classes.cast(pl.Int64)
        return classes.gather(outputs.argmax(1))

    def to_json(self) -> str:
        target, features = self.target._asdict(), [f._asdict() for f in self.features]
        return json.dumps({"version": 1, **self._asdict(), "target": target, "features": features}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Encoding":
        """Checks what it reads: a server or a file may hold anything."""
        what = "this is not an encoding"
        fields = read_json(dict[str, object], text, what)
        version = fields.pop("version", None)
        require(version == 1, f"{what} that is known here: its version is {version!r}; update equipoise")
        read = read_json(cls, json.dumps(fields), what)
        require(_fits_together(read), f"{what} (its fields contradict each other); send what `to_json` wrote")
        return read


def _fits_together(read: Encoding) -> bool:
    def different(values: Sequence[str]) -> bool:
        return len(set(values)) == len(values)

    target, features = read.target, read.features
    return (
        len(features) > 0
        and all(different(f.categories) and f.scale != 0 for f in features)
        and different([f.name for f in features])
        and (len(features) == 1 or all(f.kind != "array" for f in features))
        and different(target.classes)
        and read.task == ("classification" if target.classes else "regression")
        and target.scale != 0
    )


def _default_float() -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def _coded(table: Table, feature: Feature) -> pl.Expr:
    """A value (null: a missing cell, NaN: one that cannot be read), or the index of the input that is 1, if any is."""
    cells = table.cells(feature.name)
    if feature.kind == "text":
        names = feature.categories
        codes = cells.text.replace_strict(names, range(len(names)), default=None, return_dtype=pl.Int32)
        own = pl.lit(len(names) if feature.missing else None, pl.Int32)
        return pl.when(cells.present).then(codes).otherwise(own)
    value = cells.number if feature.kind == "number" else cells.date
    return pl.when(cells.present & value.is_null()).then(math.nan).otherwise(value)


def _fill(out: np.ndarray, feature: Feature, column: pl.Series, table: Table) -> None:
    if feature.kind == "text":
        rows = np.flatnonzero(column.is_not_null().to_numpy())
        out[rows, column.drop_nulls().to_numpy()] = 1
        return
    # In NumPy: how Polars rounds a quotient depends on how many cores share the column.
    with np.errstate(over="ignore"):  # a value too large for the dtype is reported as infinite below
        out[:, 0] = (column.fill_null(feature.mean).to_numpy() - feature.mean) / feature.scale
    if feature.missing:
        out[:, 1] = column.is_null().to_numpy()
    bad = ~np.isfinite(out[:, 0])
    if bad.any():
        row = int(bad.argmax())
        why = f"is not a {feature.kind}" if np.isnan(out[row, 0]) else "is infinite"
        raise _bad_cell(table, feature.name, row, why)


def _bad_cell(table: Table, name: str, row: int, why: str) -> InputError:
    return InputError(f"{table.cited(name, row + 1)} {why}; correct the cell")


def _check_percent(table: Table, name: str, seen: Look | None, percent: bool) -> None:
    if seen is None:  # numbers, not texts
        row = table.collect(first_row(table.cells(name).number != 0)).item() if percent else None
    else:
        row = seen.unsigned if percent else seen.signed
    if row is not None:
        here, there = ("no percent sign", "them") if percent else ("a percent sign", "none")
        raise InputError(
            f"{table.cited(name, row)} has {here}, and in training the column had {there}; write it in the same way"
        )


def _array(table: Table, feature: Feature) -> np.ndarray:
    safe, dtype = table.columns[feature.name]
    shape = getattr(dtype, "shape", ())
    require(
        tuple(shape) == feature.shape,
        f"{table.where(feature.name)} holds examples of shape {tuple(shape)}, not {feature.shape}",
    )
    column = table.collect(pl.col(safe)).to_series()
    gaps = column.is_null().arg_true()
    if len(gaps):
        raise _bad_cell(table, feature.name, gaps[0], "is not an array")
    array = column.to_numpy()
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array).reshape(len(array), -1).all(1)
        where = table.where(feature.name, int(bad.argmax()) + 1)
        require(not bad.any(), f"{where}: the array holds NaN or infinity")
    if (feature.mean, feature.scale) != (0.0, 1.0):  # such as pixels; tokens are left as they are
        return ((array - feature.mean) / feature.scale).astype(_default_float())
    return array
