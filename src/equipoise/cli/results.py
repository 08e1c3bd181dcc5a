"""What runs have left: in the terminal, as a page, and applied to new rows."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from equipoise import experiment
from equipoise._jax import use_all_cores
from equipoise.cli.plainly import busy, say, sentence
from equipoise.errors import InputError, require
from equipoise.files import check_own, write_whole


def report(
    folders: Annotated[list[Path], Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one page about one or more runs: who is served how, what it cost, how it went. No network is needed.

    Example: equipoise report runs/exam-compare --out page.html
    """
    experiment.folders.check_page(out)
    with busy("reading run folders"):
        runs = [experiment.records.read(path) for folder in folders for path in experiment.records.find(folder)]
    for run in runs:
        if not run.rows:
            say(f"note: {run.path} was stopped before its first model; it is left out", error=True)
    begun = [run for run in runs if run.rows]
    require(begun, f"{', '.join(map(str, folders))}: nothing was trained there yet; `equipoise resume` goes on")
    from equipoise.report import html

    with busy("writing the page"):
        html.write(begun, out)
    say(f"page:  {out}")


def predict(
    model: Annotated[Path, Argument(help="A run folder, or its model.safetensors.")],
    file: Annotated[Path, Argument(help="New rows: .csv, .parquet or .npz.")],
    out: Annotated[Path | None, Option("--out", "-o", help="Write a CSV there, not to the terminal.")] = None,
    separator: Annotated[str, Option(help="Between the cells of a CSV; auto: found in the file.")] = "auto",
    decimal: Annotated[str | None, Option(help="Of numbers in texts: '.' or ','; default: as found.")] = None,
    dates: Annotated[str | None, Option(help="day-first or month-first; default: as found.")] = None,
    owner: Annotated[str | None, Option(help="With this owner's own model, of a run folder with [personal].")] = None,
) -> None:
    """Apply a trained model to new rows: a prediction each, and the probability of each class.

    Example: equipoise predict runs/hospitals new.csv --out predictions.csv
    """
    from equipoise import artifact

    use_all_cores()
    where = _model_of(model)
    same = out is not None and any(p.exists() and out.exists() and out.samefile(p) for p in (file, where))
    require(not same, f"{out} is what is read; give another --out")
    if out is not None:
        check_own(out, lambda content: content.startswith(b"prediction"), "a file of predictions")
    chosen: Any = where
    if owner is not None:
        from equipoise.experiment.personal import models as personal

        require(model.is_dir(), f"--owner is for a run folder, which {model} is not")
        chosen = personal.own_model(model, owner)
    with busy(f"predicting the rows of {file.name}"):
        predicted = artifact.predict(chosen, file, separator=separator, decimal=decimal, dates=dates).write_csv()
    if out is None:
        typer.echo(predicted, nl=False)
    else:
        write_whole(out, predicted)


def _model_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / experiment.records.MODEL).is_file():
        return path / experiment.records.MODEL
    require(
        not (path / experiment.records.CONFIG).is_file(),
        f"{path} has no model yet: the run was stopped (`equipoise resume {path}`) or did not end with one",
    )
    inside = experiment.records.find(path)
    raise InputError(f"{path} holds {len(inside)} runs; choose one, such as {inside[-1]}")


def show(done: list, folder: Path) -> None:
    """The table of runs that have ended, what to conclude, and their page."""
    from equipoise.report import html, numbers, personal, tables, wording

    html.write(done, folder / experiment.folders.PAGE)  # whatever becomes of the terminal
    console = Console()
    for note in dict.fromkeys(note for run in done for note in run.federation.notes if "measured" not in note):
        say(f"note: {note}")
    with busy("comparing"):
        table = tables.comparison(done, console.width) if len(done) > 1 else tables.per_client(done[0])
    console.print(table)
    if len(done) > 1 and (scores := tables.scores_table(done, console.width)) is not None:
        console.print(scores)
    for run in done:
        chosen = run.personal is not None and run.personal.kind == "best"  # of several, in a sentence and on the page
        if (len(done) == 1 or not chosen) and (own := tables.own_models(run)) is not None:
            console.print(own)
    for group in numbers.comparable(numbers.reported(done)):
        if gains := wording.who_gains(group):
            sentence(gains)
        if len(done) > 1:
            sentence(wording.alike(group) or wording.conclusion(group))
        if offer := personal.offer(group):
            sentence(offer)
    for run in done:
        for note in wording.kept(run):
            say(f"note: {note}")
        for event in run.outcome.events if run.outcome else ():
            say(f"note: {run.outcome.label}: {event}")
    if len(done) == 1:
        say(f"model: {folder / experiment.records.MODEL}")
    say(f"page:  {folder / experiment.folders.PAGE}")
