"""The command line: each command a few lines over the library."""

import sys

import typer
from rich.console import Console
from rich.table import Table

from equipoise import cores
from equipoise.cli.data import data_app
from equipoise.cli.experiments import compare, config, predict, report, reproduce, resume, run, sweep
from equipoise.cli.flower import flower_app

app = typer.Typer(
    name="equipoise",
    help="One model that works for every data owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    callback=cores.use_all,  # before any command starts JAX
)
for command in (run, compare, sweep, resume, report, predict, config, reproduce):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


@app.command()
def algorithms() -> None:
    """Every method: its objective, what crosses, what is kept, what the server sees.

    Example: equipoise algorithms
    """
    from equipoise.algorithms.overview import overview

    console = Console()
    table = Table(title="d: numbers of a model; n: clients; per client and round")
    for column in ("name", "objective", "exchanges", "down", "up", "client keeps", "server keeps", "seen", "paper"):
        table.add_column(column, overflow="fold")
    for row in overview():
        table.add_row(row.name, row.objective, " → ".join(row.exchanges), *row[3:])
    console.print(table)
    console.print(
        "seen: numbers of a single client that the server sees in the clear; all else may reach it as a sum over the "
        "cohort (secure aggregation). 0 needs sums only.",
        soft_wrap=True,
    )


def main() -> None:
    app(prog_name="equipoise" if sys.argv[0].endswith("__main__.py") else None)
