"""Runs every benchmark and prints one table; `python -m benchmarks NAME...` runs some.

Times are the median of several repeats of the same work in one process on one machine, so only the ratios mean
something elsewhere. "First" is a whole run from nothing: compilation and all its rounds.
"""

import os
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import clients, federated_averaging, gram, robust_regression
from equipoise import use_all_cores

BENCHMARKS = {
    "robust_regression": robust_regression.run,
    "federated_averaging": federated_averaging.run,
    "gram": gram.more_examples_than_features,
    "kernel": gram.more_features_than_examples,
    "clients": clients.run,
}


def main() -> None:
    use_all_cores()
    console = Console(width=max(Console().width, 120))
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        console.print(f"there is no benchmark {', '.join(unknown)} (known: {', '.join(BENCHMARKS)})")
        raise SystemExit(2)
    table = Table(title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for column in ("benchmark", "what", "ms/round", "rounds/s", "first run, s", "times ours"):
        table.add_column(column, justify="left" if column in ("benchmark", "what") else "right")
    for name in names:
        with console.status(f"{name} ..."):
            rows = BENCHMARKS[name]()
        ours = rows[0].per_round
        for row in rows:
            table.add_row(
                name,
                row.what,
                f"{row.per_round * 1e3:.3g}",
                f"{1 / row.per_round:.4g}",
                "" if row.first is None else f"{row.first:.2f}",
                f"{row.per_round / ours:.3g}",
            )
            name = ""
        table.add_section()
    console.print(table)


main()
