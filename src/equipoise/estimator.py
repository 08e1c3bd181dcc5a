"""From tables in memory to a model that predicts, for those who want no files.

    fitted = equipoise.fit([north, south], label="readmitted")
    fitted.predict(new)          # as scikit-learn's estimators
    fitted.report()              # how it serves every owner

What becomes of columns, missing cells and labels is what `docs/silos.md` says of files.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equipoise.errors import InputError, not_none, require

if TYPE_CHECKING:
    import polars as pl

    from equipoise.artifact import Artifact
    from equipoise.experiment.records import Run

Table = Any  # a polars or pandas table, a mapping of columns, or arrays (inputs [rows, columns], labels [rows])


class Fitted(NamedTuple):
    """A trained model, and how it serves the owners that it was trained for."""

    model: "Artifact"
    run: "Run"  # its history and result; its folder is gone unless `fit` was given one
    owners: tuple[str, ...]
    own: Mapping[str, "Artifact"] = {}  # what each owner should use, with its own part; empty: owners have nothing own

    def predict(self, table: Table, owner: str | None = None) -> np.ndarray:
        """A class or a number for each row: of that owner's with what it should use, or of a new one's."""
        return self._predicted(table, owner)["prediction"].to_numpy()

    def predict_proba(self, table: Table, owner: str | None = None) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        probabilities = self._predicted(table, owner)
        chances = [column for column in probabilities.columns if column.startswith("probability of ")]
        require(chances, "this model gives no probabilities; a classifier trained with the cross-entropy does")
        return probabilities.select(chances).to_numpy()

    @property
    def classes_(self) -> tuple[Any, ...]:
        """What is told apart, as `predict` gives it; empty for a regression."""
        encoding = not_none(self.model.encoding)
        count = len(encoding.target.classes)
        return tuple(encoding.decode(np.eye(count))) if count else ()

    def report(self) -> "pl.DataFrame":
        """A row for every owner, the worst served first: its rows, its score with bounds, and what it counted."""
        import polars as pl

        last, result = self.run.rows[-1], not_none(self.run.outcome)
        members, unknown = self.run.federation.members, [None] * len(self.owners)
        names = dict(zip(_file_names(self.owners), self.owners, strict=True))
        table = pl.DataFrame(
            {
                "owner": [names[member.name] for member in members],
                "train_rows": [member.train for member in members],
                "test_rows": [member.test for member in members],
                result.measure: pl.Series(last.scores[result.measure], dtype=pl.Float64),
                "low": pl.Series(result.low, dtype=pl.Float64),
                "high": pl.Series(result.high, dtype=pl.Float64),
                "weight": pl.Series(last.lam or unknown, dtype=pl.Float64),
            }
        )
        return table.sort(result.measure, descending=not result.higher_is_better, nulls_last=True)

    def _predicted(self, table: Table, owner: str | None) -> "pl.DataFrame":
        some = f"{', '.join(self.owners[:5])}{' and others' if len(self.owners) > 5 else ''}"
        wrong = f"owner is {owner!r}, of whom there was no table; give {some}, or leave it out for a new one"
        require(owner is None or owner in self.owners, wrong)
        model = self.model if owner is None else self.own.get(owner, self.model)
        return model.predict(_frame(table[0] if _is_pair(table) else table, "the table"))


def fit(
    tables: Sequence[Table] | Mapping[str, Table],
    label: str = "label",
    *,
    settings: Mapping[str, Any] | None = None,
    out: str | PathLike[str] | None = None,
) -> Fitted:
    """One model for the owners of `tables`, each of whom counts more the worse it is served.

    Args:
        tables: a table for each owner, or a mapping of names to tables. A table is polars' or pandas', a mapping of
            columns, or a pair of arrays (inputs [rows, columns], labels [rows]).
        label: the column to predict; of pairs of arrays it is the second.
        settings: those of a configuration file, such as {"objective": {"name": "cvar", "alpha": 0.2}}.
        out: a folder for the run, which must not hold one yet; None: nothing is kept but what is returned.
    """
    from equipoise import artifact
    from equipoise.experiment import records, train
    from equipoise.experiment.personal import models as personal

    given = tables if isinstance(tables, Mapping) else {f"owner {i}": table for i, table in enumerate(tables)}
    require(given, "there are no tables; give one for each owner")
    wrong = f"settings is {settings!r}; give a mapping of sections, such as {{'objective': {{'name': 'cvar'}}}}"
    require(isinstance(settings, Mapping | None), wrong)
    with tempfile.TemporaryDirectory() as place:
        silos = Path(place) / "silos"
        silos.mkdir()
        owners = tuple(map(str, given))
        files = _file_names(owners)
        for file, name, table in zip(files, owners, given.values(), strict=True):
            _with_label(name, table, label).write_parquet(silos / f"{file}.parquet")
        mine = {key: dict(value) if isinstance(value, Mapping) else value for key, value in (settings or {}).items()}
        data = mine.get("data", {})
        wrong = f"the settings say data is {data!r}; give a mapping, such as {{'decimal': ','}}"
        require(isinstance(data, dict), wrong)
        mine["data"] = {**data, "silos": str(silos), "label": label}
        folder = Path(place) / "run" if out is None else Path(out)
        try:
            done = train(mine, folder)
        except InputError as error:  # nobody gave files
            sentence = str(error)
            for file, name in zip(files, owners, strict=True):
                sentence = sentence.replace(f"{file}.parquet", name)
            raise InputError(sentence) from None
        finite = (folder / records.MODEL).is_file()
        require(finite, "the training did not end in a finite model; its step sizes are too large")
        there = any((folder / name).is_file() for name in (records.OWN_PARTS, records.OWN_MODELS))
        pairs = zip(owners, files, strict=True)
        own = {owner: personal.own_model(folder, file) for owner, file in pairs} if there else {}
        return Fitted(artifact.load(folder / records.MODEL), done, owners, own)


def _file_names(owners: Sequence[str]) -> list[str]:
    """A file name for each owner, by which pages call it: its own name, where that can be one."""
    names: list[str] = []
    for owner in owners:
        plain = re.sub(r'[\x00-\x1f/\\:*?"<>|]|^\.|^$', "_", owner)
        short = name = plain.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")
        taken = {other.casefold() for other in names}
        for k in range(2, len(owners) + 2):
            if name.casefold() not in taken:
                break
            name = f"{short} {k}"
        names.append(name)
    return names


def _is_pair(table: Table) -> bool:
    return isinstance(table, tuple) and len(table) == 2 and not hasattr(table, "columns")


def _with_label(name: str, table: Table, label: str) -> "pl.DataFrame":
    what = f"the table of {name}"
    if not _is_pair(table):
        frame = _frame(table, what)
        require(label in frame.columns, f"{what} has no column '{label}', the label; it has {frame.columns}")
        return frame
    inputs, labels = _frame(table[0], what), np.asarray(table[1])
    twice = f"the label of {name} would be called '{label}' as one of its columns is; give the label another name"
    require(label not in inputs.columns, twice)
    rows = f"{name} has {len(inputs)} rows and labels of shape {labels.shape}; give a label for each row"
    require(labels.shape == (len(inputs),), rows)
    return inputs.with_columns(_series(label, labels, what))


def _frame(table: Table, what: str) -> "pl.DataFrame":
    """Anything that a table may be given as, as polars has it; `what` is what messages call it."""
    import polars as pl

    if isinstance(table, pl.DataFrame | pl.LazyFrame):
        return table.lazy().collect()
    if isinstance(table, Mapping):
        columns = [_series(str(name), table[name], what) for name in table]
    elif hasattr(table, "columns") and hasattr(table, "dtypes"):  # pandas', without its Arrow bridge
        columns = [_series(str(name), table[name], what) for name in table.columns]
    else:
        array = np.asarray(table)
        wrong = f"{what} is an array of shape {array.shape} and type {array.dtype}"
        numbers = array.ndim == 2 and array.dtype.kind in "fiub"
        require(numbers, f"{wrong}; give numbers [rows, columns], or a polars or pandas table")
        columns = [pl.Series(f"x{j}", array[:, j]) for j in range(array.shape[1])]
    rows = {column.name: len(column) for column in columns}
    require(len(set(rows.values())) < 2, f"the columns of {what} are of different lengths: {rows}")
    require(len(rows) == len(columns), f"{what} has a column more than once; rename or remove one")
    return pl.DataFrame(columns)


def _series(name: str, column: object, what: str) -> "pl.Series":
    """A column; what pandas calls missing (NA, NaT, NaN) is null."""
    import polars as pl

    try:
        if isinstance(column, pl.Series):
            return column.alias(name)
        values = column if isinstance(column, list | tuple) else np.asarray(column)
        if isinstance(values, np.ndarray) and (values.dtype.kind in "fiubM" or values.ndim > 1):
            return pl.Series(name, values)
        missing = np.asarray(column.isna()) if hasattr(column, "isna") else np.zeros(len(values), bool)
        cells = values.tolist() if isinstance(values, np.ndarray) else values
        nan = [isinstance(value, float) and value != value for value in cells]
        cells = [None if any(lost) else value for value, *lost in zip(cells, missing, nan, strict=True)]
        kinds = {type(value) for value in cells if value is not None}
        if kinds == {int, float}:
            cells = [None if value is None else float(value) for value in cells]
        made = pl.Series(name, cells)
        if made.dtype == pl.Object:
            raise TypeError(f"a {min(kind.__name__ for kind in kinds)}")
        return made
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        why = f"values of several kinds, or of one that no table has ({str(error).splitlines()[0]})"
        raise InputError(f"{what}, column '{name}' holds {why}; give numbers, texts or dates") from error
