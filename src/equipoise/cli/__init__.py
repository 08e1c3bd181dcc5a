"""The command line: each command a few lines over the library."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equipoise.cli.bench import bench
from equipoise.cli.data import data_app
from equipoise.cli.doctor import doctor
from equipoise.cli.experiments import compare, config, path, reproduce, resume, run, sweep
from equipoise.cli.flower import flower_app
from equipoise.cli.plainly import Commands, say, show_any_letter
from equipoise.cli.results import predict, report

FIRST = """\
Equipoise trains one model for many data owners, and says how it serves each.

To see it:
  equipoise compare                     six methods on handwritten digits

With your own data, a folder with one CSV, Parquet or NPZ file per owner:
  equipoise compare --silos FOLDER --label COLUMN   who gains, what it costs
  equipoise path --silos FOLDER --label COLUMN      how fair should it be?
  equipoise run --silos FOLDER --label COLUMN       one model
  equipoise predict runs/FOLDER new.csv             the model on new rows

Each ends with the path of a page to open in a browser.
`equipoise --help` lists all commands, `equipoise doctor` what is installed.\
"""


def begin(context: typer.Context) -> None:
    """One model that works for every data owner."""
    show_any_letter()
    if context.invoked_subcommand is None:
        say(FIRST)


app = Commands(
    name="equipoise",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    callback=begin,
)
for command in (run, compare, sweep, path, resume, report, predict, bench, config, reproduce, doctor):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One of them: what crosses, what is kept, its settings.")] = None,
) -> None:
    """Every method, or all about one: its objective, what crosses, what is kept, what the server sees.

    Example: equipoise algorithms scaffpd
    """
    from equipoise.algorithms import named
    from equipoise.algorithms.overview import details, entry, overview

    console = Console()
    if name is not None:
        table = Table(show_header=False, title=f"{name}  (d: numbers of a model; n: clients)")
        for what, said in details(entry(named(name)), named(name)):
            table.add_row(what, escape(said))
        console.print(table)
        return
    table = Table()
    for column in ("name", "objective", "down", "up"):
        table.add_column(column, no_wrap=True)
    for row in overview():
        table.add_row(row.name, row.objective, row.down, row.up)
    console.print(table)
    console.print(
        "down, up: numbers per client and round, d of them in a model, for n clients.\n"
        "`equipoise algorithms scaffpd` says all about one of them."
    )
