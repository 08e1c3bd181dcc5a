"""Small federations whose owners exist: schools, districts, departments. Their tables are part of the package.

`shipped/` has one Parquet file each, made by `experiments/natural_federations.py`: data of the R packages mlmRev (Exam,
Contraception) and lme4 (InstEval), GPL (>= 2). Numbers are standardised, other columns one-hot.
"""

from importlib import resources
from typing import Any

import numpy as np

from equipoise.data.dataset import Dataset


def exam() -> Dataset:
    """Pupils by school: whether the exam at sixteen is above the average of all, from a reading test at eleven."""
    table = _table("exam")
    return _of(
        "exam",
        table,
        table["normexam"] > 0,
        ("at most average", "above average"),
        owner="school",
        numbers=("standLRT", "schavg"),
        names=("sex", "vr", "intake", "type"),
    )


def contraception() -> Dataset:
    """Women by district: whether contraception is used."""
    table = _table("contraception")
    used = table["use"] == "Y"
    names = ("livch", "urban")
    return _of("contraception", table, used, ("no", "yes"), owner="district", numbers=("age",), names=names)


def insteval() -> Dataset:
    """Ratings of lectures by department: whether it is one of the two best of five."""
    table = _table("insteval")
    names = ("studage", "lectage", "service")
    return _of("insteval", table, table["y"] >= 4, ("1 to 3", "4 or 5"), owner="department", numbers=(), names=names)


def _table(name: str) -> dict[str, np.ndarray]:
    import polars as pl

    with resources.as_file(resources.files("equipoise.data.datasets") / "shipped" / f"{name}.parquet") as path:
        return {column.name: column.to_numpy() for column in pl.read_parquet(path)}


def _of(
    name: str,
    table: dict[str, np.ndarray],
    label: Any,
    classes: tuple[str, str],
    *,
    owner: str,
    numbers: tuple[str, ...],
    names: tuple[str, ...],
) -> Dataset:
    parts = [((table[c] - table[c].mean()) / table[c].std())[:, None] for c in numbers]
    parts += [table[c][:, None] == np.unique(table[c])[None] for c in names]
    owners, groups = np.unique(table["owner"], return_inverse=True)
    return Dataset(
        name,
        np.concatenate(parts, axis=1).astype(np.float32),
        np.asarray(label).astype(np.int32),
        classes,
        groups=groups.astype(np.int32),
        group_names=tuple(f"{owner} {which}" for which in owners),
    )
