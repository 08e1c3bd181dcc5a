"""Small federations whose owners exist: schools, districts, clinics, states. Their tables are part of the package.

`shipped/` has one Parquet file each, made by `experiments/natural_federations.py` of data of R packages, whose licences
`catalogue.py` has. Numbers are standardised, labels that are numbers too; texts are one-hot.
"""

from importlib import resources

import numpy as np

from equipoise.data.dataset import Dataset

# Of each, what an owner is, and the names of its classes in their order; without any a number is predicted.
OWNERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "exam": ("school", ("at most average", "above average")),
    "contraception": ("district", ("no", "yes")),
    "insteval": ("department", ("1 to 3", "4 or 5")),
    "mathachieve": ("school", ()),
    "language": ("school", ()),
    "star": ("school", ()),
    "chemistry": ("authority", ("none", "E", "D", "C", "B", "A")),
    "poverty": ("", ("Too Little", "About Right", "Too Much")),
    "pharmacy": ("commune", ("no", "yes")),
    "covid": ("", ("negative", "positive")),
    "stays": ("hospital", ("no", "yes")),
    "lending": ("", ("good", "bad")),
    "loans": ("", ("A", "B", "C", "D to G")),
    "flights": ("", ("no", "yes")),
    "counties": ("state", ("no", "yes")),
    "voters": ("", ("no", "yes")),
    "wages": ("", ()),
}


def shipped(name: str) -> Dataset:
    import polars as pl

    owner, classes = OWNERS[name]
    with resources.as_file(resources.files("equipoise.data.datasets") / "shipped" / f"{name}.parquet") as path:
        table = pl.read_parquet(path)
    numbers = [c.name for c in table if c.dtype != pl.String and c.name not in ("owner", "label")]
    texts = [c.name for c in table if c.dtype == pl.String and c.name not in ("owner", "label")]
    parts = [_standard(table[c].to_numpy())[:, None] for c in numbers]
    parts += [table[c].to_numpy()[:, None] == np.unique(table[c].to_numpy())[None] for c in texts]
    label = table["label"].to_numpy()
    if classes:
        label = np.array([classes.index(name) for name in label.tolist()], np.int32)
    else:
        label = _standard(label).astype(np.float32)
    names, groups = np.unique(table["owner"].to_numpy(), return_inverse=True)
    return Dataset(
        name,
        np.concatenate(parts, axis=1).astype(np.float32),
        label,
        classes,
        groups=groups.astype(np.int32),
        group_names=tuple(f"{owner} {which}".strip() for which in names),
    )


def _standard(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    return (values - values.mean()) / values.std()
