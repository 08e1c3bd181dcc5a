"""The command line: each command a few lines over the library."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from equipoise.cli_data import data_app
from equipoise.cli_fit import fit, predict
from equipoise.plainly import in_sentences

app = typer.Typer(
    name="equipoise",
    help="One model that works for every data owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.command()(fit)
app.command()(predict)


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the plot goes.")] = Path("out"),
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds of every method.")] = 200,
    seed: Annotated[int, typer.Option(help="Which random problem.")] = 0,
) -> None:
    """SCAFF-PD, DRFA, SCAFFOLD and FedAvg on the robust regression of the SCAFF-PD paper (Figure 2).

    Example: equipoise demo --rounds 100
    """
    from equipoise.experiment import robust_regression as experiment

    console = Console()
    curves: list[experiment.Curve] = []
    with in_sentences():
        try:
            with progress_bar(console) as bar:
                job = bar.add_task("preparing", total=rounds)

                def watch(label: str, done: int, of: int) -> None:
                    bar.update(job, description=label, completed=done, total=of)

                curves.extend(experiment.run(rounds=rounds, seed=seed, progress=watch))
        finally:
            if curves:
                console.print(demo_table(curves))
                path = out / "robust_regression.png"
                experiment.plot(curves, path)
                for method, settings in {c.method: c.settings for c in curves}.items():
                    console.print(f"[dim]{method}: {settings}[/dim]", soft_wrap=True)
                console.print(f"Plot: {path}", soft_wrap=True)
    console.print(
        "SCAFF-PD falls to the saddle point in a straight line. DRFA stops where its local steps drift apart. "
        "SCAFFOLD and FedAvg solve another problem, the average: compare their worst client."
    )


def demo_table(curves: list) -> Table:
    from equipoise.experiment import robust_regression as experiment

    table = Table(title="Rounds until the distance ‖x − x*‖² to the saddle point stays below a level")
    for column in ("ρ", "method", *(f"{level:.0e}" for level in experiment.LEVELS), "at the end", "worst client"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for k, curve in enumerate(curves):
        if k and curve.rho != curves[k - 1].rho:
            table.add_section()
        rounds = [curve.rounds_to(level) for level in experiment.LEVELS]
        table.add_row(
            f"{curve.rho:g}",
            curve.method,
            *("—" if r is None else str(r) for r in rounds),
            f"{curve.distances[-1]:.1e}",
            f"{curve.losses.max():.4f}",
        )
    return table


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
