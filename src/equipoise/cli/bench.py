"""`equipoise bench`: methods over federations whose owners exist."""

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from equipoise.cli.plainly import say

Several = list[str] | None
WORKERS = 8  # at most, unless told: each takes one or two gigabytes


def bench(
    federation: Annotated[Several, Option("--federation", "-f", help="Only this one; repeatable.")] = None,
    method: Annotated[
        Several, Option("--method", "-m", help="Only this one, or module:name, a method of your own; repeatable.")
    ] = None,
    splits: Annotated[int, Option(min=1, help="How many times rows are held out anew.")] = 3,
    out: Annotated[Path, Option("--out", "-o", help="The folder to write.")] = Path("runs/bench"),
    with_: Annotated[
        list[Path] | None, Option("--with", help="Results of others, shown beside; a folder each, repeatable.")
    ] = None,
    list_: Annotated[bool, Option("--list", help="Only show which federations and methods there are.")] = False,
    workers: Annotated[
        int | None,
        Option(min=1, help="How many federations to run at a time; default: as many as there are cores."),
    ] = None,
    show: Annotated[bool, Option("--show", help="Run nothing; show what is there.")] = False,
    against: Annotated[
        str | None, Option(help="The method that all are compared with; default: fixed, where it is.")
    ] = None,
) -> None:
    """Compare methods over federations whose owners exist. A method of your own enters with one file.

    Stopped benchmarks go on where they were; docs/benchmark.md has the whole table.

    Example: equipoise bench --federation exam --method default --method FedAvg
    """
    # One thread each: on a few rows those of OpenBLAS and scikit-learn only wait for each other.
    os.environ |= {name: os.environ.get(name, "1") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    from equipoise._jax import compile_quickly, keep_programs, number_of_cores, use_all_cores

    compile_quickly()
    if federation is not None and len(federation) == 1:
        workers = 1
    workers = workers or min(number_of_cores(), WORKERS)
    if workers == 1:
        use_all_cores()  # before anything starts JAX
    keep_programs()
    from equipoise.bench import entering, entries, federations, page, run, standings
    from equipoise.bench.methods import METHODS

    if list_:
        page.print_list()
        return
    chosen = federations.chosen(federation)
    methods = {name: entering.method(name) for name in method or METHODS}
    if not show:
        look = entering.check
        run.run(out, chosen, methods, range(splits), _tell, check=look, workers=workers, begin=keep_programs)
    together = entries.together([out, *(with_ or [])])
    page.show(standings.standings(together, against), out)


def _tell(federation: str, what: str) -> None:
    say(f"{federation}: {what}")
