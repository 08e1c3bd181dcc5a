"""UCI's Adult: numbers standardised, categories one-hot, clients by any column."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.datasets import catalogue
from equipoise.data.datasets.catalogue import Where, damaged, reading
from equipoise.errors import require, unknown

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
INCOME = ("<=50K", ">50K")


def adult(
    *,
    by: str = "education",
    exclude: Sequence[str] = (),
    missing: bool = True,
    data_dir: Where = None,
    download: bool = False,
) -> Dataset:
    """Owners are the values of the column `by`, or those with a doctorate and the others: by="doctorate".

    Means, deviations and categories come from the training file alone; a category that only the test file has
    is all zeros. "?" is a category of its own; missing=False leaves such rows out. Columns in `exclude` are
    no inputs (the owner's column is one unless it stands there).
    """
    for name in (*exclude, *([] if by == "doctorate" else [by])):
        if name not in COLUMNS:
            raise unknown("column of Adult", name, [*COLUMNS, "doctorate"])
    train, test = (
        _table(catalogue.find("adult", file, data_dir=data_dir, download=download), missing)
        for file in ("adult.data", "adult.test")
    )
    inputs, test_inputs = [], []
    for name in COLUMNS:
        if name in exclude:
            continue
        a, b = train[name], test[name]
        if name in NUMBERS:
            centre, spread = a.mean(), a.std()
            pair = [((v - centre) / (spread or 1.0))[:, None] for v in (a, b)]
        else:
            pair = [v[:, None] == np.unique(a)[None] for v in (a, b)]
        inputs.append(pair[0].astype(np.float32))
        test_inputs.append(pair[1].astype(np.float32))
    require(inputs, "every column of Adult is excluded; leave at least one as an input")
    owners = [t["education"] == "Doctorate" if by == "doctorate" else t[by] for t in (train, test)]
    names, codes = np.unique(np.concatenate(owners), return_inverse=True)
    groups, test_groups = np.split(codes.astype(np.int32), [len(owners[0])])
    called = ("others", "Doctorate") if by == "doctorate" and len(names) == 2 else tuple(map(str, names.tolist()))
    x, test_x = (np.concatenate(some, axis=1) for some in (inputs, test_inputs))
    y, test_y = train["income"], test["income"]
    return Dataset("adult", x, y, INCOME, test_x, test_y, groups, test_groups, called)


def _table(path: Path, missing: bool) -> dict[str, np.ndarray]:
    """The columns of adult.data or adult.test, whose first line is a remark and whose labels end in a dot."""
    rows = []
    with reading(path, OSError, UnicodeDecodeError):
        lines = path.read_text("ascii").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("|"):
            continue
        row = [cell.strip() for cell in line.split(",")]
        if len(row) != len(COLUMNS) + 1:
            raise damaged(path, f"line {number} has {len(row)} cells instead of {len(COLUMNS) + 1}")
        if row[-1].rstrip(".") not in INCOME:
            raise damaged(path, f"line {number} ends in '{row[-1]}' instead of an income")
        if missing or "?" not in row:
            rows.append(row)
    require(rows, f"{path} has no rows; replace it")
    cells = np.array(rows)
    table = {name: cells[:, i] for i, name in enumerate(COLUMNS)}
    for name in NUMBERS:
        try:
            table[name] = table[name].astype(np.float64)
        except ValueError as error:
            raise damaged(path, f"column {name}: {error}") from error
    table["income"] = (np.char.rstrip(cells[:, -1], ".") == INCOME[1]).astype(np.int32)
    return table
