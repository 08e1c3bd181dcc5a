"""`equipoise fit` and `equipoise predict`: from a folder of silo files to a model, and from it to predictions."""

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from equipoise.errors import InputError, require
from equipoise.plainly import in_sentences

Objective = Literal["chi2", "kl", "tv", "cvar", "chi2_ball", "agnostic", "average"]
Method = Literal["scaffpd", "scaffpd_secure", "scaffold", "fedavg"]
Columns = list[str] | None
ENOUGH = 0.01  # a gap up to here is not worth more rounds


def fit(
    folder: Annotated[Path, typer.Argument(help="A folder with one .csv, .parquet or .npz file per silo.")],
    label: Annotated[str, typer.Option(help="The column to predict.")] = "label",
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the model.")] = Path("model.safetensors"),
    objective: Annotated[Objective, typer.Option(help="What to be good at; average: no fairness.")] = "chi2",
    rho: Annotated[
        float | None,
        typer.Option(help="Its parameter: rho (small: robust), alpha of cvar, radius of chi2_ball."),
    ] = None,
    algorithm: Annotated[Method, typer.Option(help="scaffold and fedavg are for the average.")] = "scaffpd",
    rounds: Annotated[int, typer.Option(help="Rounds of communication.")] = 100,
    local_steps: Annotated[int, typer.Option(help="Gradient steps at a silo in every round.")] = 10,
    l2: Annotated[float, typer.Option(help="Coefficient of the l2 penalty.")] = 1e-2,
    task: Annotated[Literal["classification", "regression"] | None, typer.Option(help="Inferred unless given.")] = None,
    drop: Annotated[Columns, typer.Option(help="A column to leave out; repeatable.")] = None,
    categorical: Annotated[Columns, typer.Option(help="A column of names that look like numbers; repeatable.")] = None,
    separator: Annotated[str, typer.Option(help="Between the cells of a CSV.")] = ",",
    test: Annotated[float, typer.Option(help="Share of each silo's rows held out.")] = 0.2,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train the average as well, and say what it costs.")
    ] = False,
    seed: int = 0,
) -> None:
    """Train one model for all silos of a folder, and say how each of them fares."""
    with in_sentences():
        from equipoise import training
        from equipoise.data import silos

        require(out.parent.is_dir(), f"{out} cannot be written: there is no folder {out.parent}; give another --out")
        console = Console()
        with warnings.catch_warnings(action="ignore", category=silos.SiloWarning):  # printed below
            found = silos.read(
                folder,
                label,
                task=task,
                drop=drop or (),
                categorical=categorical or (),
                separator=separator,
                test=test,
                seed=seed,
            )
        for sentence in found.warnings:
            console.print(f"note: {sentence}", markup=False, highlight=False, soft_wrap=True)
        how: dict[str, Any] = {"rounds": rounds, "local_steps": local_steps, "l2": l2, "seed": seed}
        fitted = _shown(training, found, objective=objective, rho=rho, algorithm=algorithm, **how)
        where = "its own held-out rows" if found.test is not None else "its training rows: none were held out"
        console.print(fitted.report(title=f"each silo, on {where}"))
        if compare and objective != "average":
            plain = _shown(training, found, objective="average", rho=None, algorithm="scaffpd", **how)
            console.print(_beside({objective: fitted, "average": plain}))
        if fitted.gap > ENOUGH:
            console.print(f"the objective may still fall by {fitted.gap:.3g}; more --rounds would tell")
        try:
            fitted.save(out)
        except OSError as error:
            raise InputError(f"{out} cannot be written ({error.strerror}); give another --out") from error
        console.print(f"model written to {out}", highlight=False, soft_wrap=True)


def predict(
    model: Annotated[Path, typer.Argument(help="What `fit` wrote.")],
    file: Annotated[Path, typer.Argument(help="New rows: .csv, .parquet or .npz.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a CSV there, not to the terminal.")] = None,
    separator: Annotated[str, typer.Option(help="Between the cells of a CSV.")] = ",",
) -> None:
    """Apply a trained model to new rows: a prediction, and the probability of each class."""
    with in_sentences():
        from equipoise import artifact

        predicted = artifact.predict(model, file, separator=separator)
        if out is None:
            typer.echo(predicted.write_csv(), nl=False)
            return
        try:
            predicted.write_csv(out)
        except OSError as error:
            raise InputError(f"{out} cannot be written ({error.strerror}); give another --out") from error


def _shown(training: Any, found: Any, **how: Any) -> Any:
    """`training.fit` under a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task(f"measuring step sizes ({how['objective']})", total=how["rounds"])

        def progress(done: int, total: int, gap: Any) -> None:
            bar.update(row, completed=done, description=f"training ({how['objective']}), gap {float(gap):.2g}")

        return training.fit(found, progress=progress, **how)


def _beside(fits: dict[str, Any]) -> Table:
    """The summaries side by side: what fairness brings the worst, and what it costs on average."""
    from equipoise.evaluation import chosen, standing

    table = Table("", *fits, title="over the silos")
    for score in (chosen(next(iter(fits.values())).table, None), "loss"):  # the loss is what training sees
        found = [standing(fitted.table, score).summary for fitted in fits.values()]
        for name in found[0]:
            table.add_row(f"{score}: {name}", *(f"{summary[name]:.4f}" for summary in found))
        table.add_section()
    return table
