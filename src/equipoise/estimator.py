"""From tables in memory to a model that predicts, for those who want no files.

    fitted = equipoise.fit([north, south], label="readmitted")
    fitted.predict(new)          # as scikit-learn's estimators
    fitted.report()              # how it serves every owner

What becomes of columns, missing cells and labels is what `docs/silos.md` says of files.
"""

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

    def predict(self, table: Table) -> np.ndarray:
        """A class or a number for each row."""
        return self._predicted(table)["prediction"].to_numpy()

    def predict_proba(self, table: Table) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        found = self._predicted(table)
        chances = [column for column in found.columns if column.startswith("probability of ")]
        require(chances, "this model gives no probabilities; a classifier trained with the cross-entropy does")
        return found.select(chances).to_numpy()

    @property
    def classes_(self) -> tuple[str, ...]:
        """What is told apart; empty for a regression."""
        return self.run.federation.classes

    def report(self) -> "pl.DataFrame":
        """A row for every owner, the worst served first: its rows, its score with bounds, and what it counted."""
        import polars as pl

        last, result = self.run.rows[-1], not_none(self.run.outcome)
        members, unknown = self.run.federation.members, [None] * len(self.owners)
        table = pl.DataFrame(
            {
                "owner": self.owners,
                "train_rows": [member.train for member in members],
                "test_rows": [member.test for member in members],
                result.measure: pl.Series(last.scores[result.measure], dtype=pl.Float64),
                "low": pl.Series(result.low, dtype=pl.Float64),
                "high": pl.Series(result.high, dtype=pl.Float64),
                "weight": pl.Series(last.lam or unknown, dtype=pl.Float64),
            }
        )
        return table.sort(result.measure, descending=not result.higher_is_better, nulls_last=True)

    def _predicted(self, table: Table) -> "pl.DataFrame":
        return self.model.predict(_frame(table[0] if _is_pair(table) else table))


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

    given = tables if isinstance(tables, Mapping) else {f"owner {i}": table for i, table in enumerate(tables)}
    require(given, "there are no tables; give one for each owner")
    require(
        settings is None or isinstance(settings, Mapping),
        f"settings is {settings!r}; give a mapping of sections, such as {{'objective': {{'name': 'cvar'}}}}",
    )
    with tempfile.TemporaryDirectory() as place:
        silos = Path(place) / "silos"
        silos.mkdir()
        for i, (name, table) in enumerate(given.items()):
            _with_label(name, table, label).write_parquet(silos / f"{i:06d}.parquet")
        mine = {key: dict(value) if isinstance(value, Mapping) else value for key, value in (settings or {}).items()}
        mine["data"] = {**mine.get("data", {}), "silos": str(silos), "label": label}
        folder = Path(place) / "run" if out is None else Path(out)
        done = train(mine, folder)
        require(
            (folder / records.MODEL).is_file(),
            "the training did not end in a finite model; its step sizes are too large",
        )
        return Fitted(artifact.load(folder / records.MODEL), done, tuple(map(str, given)))


def _is_pair(table: Table) -> bool:
    return isinstance(table, tuple) and len(table) == 2 and not hasattr(table, "columns")


def _with_label(name: str, table: Table, label: str) -> "pl.DataFrame":
    import polars as pl

    if not _is_pair(table):
        frame = _frame(table)
        require(
            label in frame.columns, f"the table of {name} has no column '{label}', the label; it has {frame.columns}"
        )
        return frame
    inputs, labels = _frame(table[0]), np.asarray(table[1])
    require(
        labels.shape == (len(inputs),),
        f"{name} has {len(inputs)} rows and labels of shape {labels.shape}; give a label for each row",
    )
    return inputs.with_columns(pl.Series(label, labels.tolist()))


def _frame(table: Table) -> "pl.DataFrame":
    """Anything that a table may be given as, as polars has it."""
    import polars as pl

    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    if isinstance(table, Mapping):
        return pl.DataFrame(table)
    if hasattr(table, "columns") and hasattr(table, "dtypes"):  # pandas', without its Arrow bridge
        return pl.DataFrame([_series(str(name), table[name]) for name in table.columns])
    array = np.asarray(table)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InputError(
            f"a table is an array of shape {array.shape} and type {array.dtype}; give numbers [rows, columns], or a "
            "polars or pandas table"
        )
    return pl.DataFrame({f"x{j}": array[:, j] for j in range(array.shape[1])})


def _series(name: str, column: Any) -> "pl.Series":
    import polars as pl

    values = column.to_numpy()
    if values.dtype.kind in "fiubM":
        return pl.Series(name, values)
    return pl.Series(name, [None if value is None or value != value else value for value in values.tolist()])
