"""From a configuration to a model: the commands that train."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from equipoise import experiment
from equipoise._jax import keep_programs, use_all_cores
from equipoise.cli.plainly import say
from equipoise.cli.results import show
from equipoise.errors import FileError, require
from equipoise.files import write_whole

File = Annotated[
    Path | None,
    Argument(help="A TOML file (`equipoise config` prints one), or the name of a data set, such as exam."),
]
Set = Annotated[list[str] | None, Option("--set", "-s", help="section.key=value, over the file; repeatable.")]
Silos = Annotated[Path | None, Option(help="Your own data: a folder with one .csv, .parquet or .npz per owner.")]
Label = Annotated[str | None, Option(help="The column to predict, with --silos.")]
Out = Annotated[Path | None, Option("--out", "-o", help="The folder to write; default: below runs/.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what an earlier run left there.")]


def run(
    file: File = None,
    silos: Silos = None,
    label: Label = None,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Train one model, and say how it fares at every client. Without a file: SCAFF-PD on the digits.

    Example: equipoise run --set run.rounds=20 --set objective.rho=0.05
    """
    settings = experiment.choice.left_open(_settings(file, silos, label, set_, chosen=True))
    config = experiment.config.parse(settings, source=_source(file))
    experiment.plan.check_beside(settings, _source(file))
    folder = _folder(out, config.name)
    with _watched(folder, f"`equipoise resume {folder}` goes on") as tell:
        done = experiment.run.run(config, folder, overwrite=overwrite, watch=partial(tell, config.algorithm.name))
    show([done], folder)


def compare(
    file: File = None,
    silos: Silos = None,
    label: Label = None,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Train several methods on one federation, and say whether joining pays, for whom, and what it costs.

    Without a file: schools (exam). Stopped comparisons resume where they left off; finished ones are shown again.

    Example: equipoise compare exam --set run.rounds=100 --out runs/schools
    """
    settings = _settings(file, silos, label, set_, default="compare.toml")
    jobs = experiment.plan.compare(settings, source=_source(file))
    experiment.plan.check_beside(settings, _source(file))
    folder = _folder(out, jobs[0].config.name, "compare")
    with _watched(folder) as tell:
        watch = _by("label", tell)
        done = experiment.plan.run_all(jobs, folder, overwrite=overwrite, watch=watch, beside_alone=len(jobs) > 1)
    show(done, folder)


def path(
    file: File = None,
    rho: Annotated[
        list[float] | None,
        Option(help="A penalty of the path; repeatable. Default: 10, 3, 1, 0.3, 0.1, 0.03, 0.01."),
    ] = None,
    alpha: Annotated[
        list[float] | None,
        Option(help="Instead: shares of CVaR, from 1 (the average) to the worst share that counts; repeatable."),
    ] = None,
    silos: Silos = None,
    label: Label = None,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Fairness against average: a model for every penalty rho, each trained from the one before in a few rounds.

    A large rho is for the average client, a small one for the worst. With --alpha it tries the shares of CVaR
    instead. The page draws one against the other.

    Example: equipoise path --rho 1 --rho 0.1 --rho 0.01 --out runs/path
    """
    require(not (rho and alpha), "--rho and --alpha are of different objectives; give one of them")
    settings = _settings(file, silos, label, set_, default="path.toml")
    if alpha:
        settings["objective"] = {"name": "cvar"}
    jobs = experiment.plan.path(settings, rho or alpha, source=_source(file))
    experiment.plan.check_beside(settings, _source(file))
    folder = _folder(out, jobs[0].config.name, "path")
    with _watched(folder) as tell:
        done = experiment.plan.run_path(jobs, folder, overwrite=overwrite, watch=_by("label", tell))
    show(done, folder)


def sweep(
    file: File = None,
    silos: Silos = None,
    label: Label = None,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Try all settings of [sweep.grid] with several seeds, and show each method with its best.

    Stopped sweeps resume where they left off. Without a file: two step sizes of FedAvg on the digits.

    Example: equipoise sweep --set run.rounds=20 --set sweep.seeds=[0,1]
    """
    settings = _settings(file, silos, label, set_, default="sweep.toml")
    study = experiment.plan.sweep(settings, source=_source(file))
    _run_study(study, _folder(out, study.trials[0].config.name, "sweep"), overwrite)


def resume(folder: Annotated[Path, Argument(help="A run folder that was stopped.")]) -> None:
    """Resume a stopped run exactly where it left off.

    Example: equipoise resume runs/run
    """
    with _watched(folder) as tell:
        done = experiment.run.resume(folder, watch=partial(tell, folder.name))
    show([done], folder)


def config(file: File = None, set_: Set = None) -> None:
    """Print a file to begin with; or, of a given file, every setting of its runs.

    Example: equipoise config > mine.toml
    """
    if file is None and not set_:
        typer.echo(experiment.reading.template(), nl=False)
        return
    settings = _settings(file, None, None, set_)
    jobs = experiment.plan.compare(settings, source=_source(file))
    experiment.plan.sweep(settings, source=_source(file))  # checked, not shown: its runs may be many
    for job in jobs:
        if len(jobs) > 1:
            typer.echo(f"# {job.label}")
        typer.echo(job.config.toml())


def reproduce(
    name: Annotated[str | None, Argument(help="An experiment; without one, all are listed.")] = None,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Run an experiment of the papers and show its table; docs/results.md sets it beside the paper's.

    Example: equipoise reproduce
    """
    if name is None:
        Console().print(experiment.library.listing())
        return
    settings = experiment.library.settings(name, set_ or ())
    study = experiment.plan.sweep(settings, source=name)
    _run_study(study, _folder(out, name), overwrite)


def _folder(out: Path | None, name: str, command: str = "") -> Path:
    """Where a command writes unless told: one file or folder of silos can be compared, swept and run in turn."""
    return out or Path("runs") / (experiment.folders.name(name) + (f"-{command}" if command else ""))


def _run_study(study: "experiment.plan.Study", folder: Path, overwrite: bool) -> None:
    from equipoise.report import html, sweeps

    with _watched(folder, jobs=len(study.trials)) as tell:
        cells = experiment.plan.run_study(study, folder, overwrite=overwrite, watch=_by("place", tell))
    table, page = folder / experiment.folders.TABLE, folder / experiment.folders.PAGE
    write_whole(table, sweeps.markdown(cells, study.sweep.show))
    html.write([run for cell in cells for run in cell.runs[:1]], page)
    Console().print(sweeps.table(cells, study.sweep.show))
    say(f"table: {table}")
    say(f"page:  {page}")


def _settings(
    file: Path | None,
    silos: Path | None,
    label: str | None,
    set_: Sequence[str] | None,
    default: str | None = None,
    chosen: bool = False,  # model and objective of a data set whose owners exist
) -> dict[str, Any]:
    from equipoise.data.datasets.catalogue import CATALOGUE

    dataset = None if file is None or file.exists() else CATALOGUE.get(str(file))
    settings: dict[str, Any] = {}
    if dataset is not None:
        settings = _defaults("digits.toml" if dataset.natural is None else "compare.toml")
        if chosen and dataset.natural is not None:
            settings |= {"model": {}, "objective": {}}
        settings["name"] = str(file)
        settings["data"] |= {"name": str(file), "options": dataset.natural or {}}
    elif file is not None:
        settings = experiment.reading.read(file)
    elif default is not None:
        settings = _defaults(default)
    data = settings.get("data", {})
    if silos is not None:
        require(silos.is_dir(), f"{silos} is not a folder; give the one that holds a file per owner")
        settings.pop("partition", None)
        if file is None:
            settings.get("model", {}).pop("l2", None)  # it suits the default data
        require(isinstance(data, dict), f"{_source(file)}: data is not a table; give one, [data]")
        data = settings["data"] = {**data, "silos": str(silos)}
        settings["name"] = silos.resolve().name
    if label is not None:
        require(isinstance(data, dict) and "silos" in data, "--label is for silo files; give --silos too")
        data["label"] = label
    return experiment.reading.override(settings, set_ or ())


def _defaults(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("equipoise.experiment") / "defaults" / name).read_text())


def _source(file: Path | None) -> str:
    return "the configuration" if file is None else str(file)


Tell = Callable[[str, int, int, Any], None]  # where a run stands: its label, rounds done, rounds in all, the last row


@contextmanager
def _watched(folder: Path, then: str = "the same command goes on", jobs: int = 0) -> Iterator[Tell]:
    """A bar per run, with the average and the worst fifth so far; Ctrl-C and a full disk say how to go on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    use_all_cores()  # before anything starts JAX
    keep_programs()
    from equipoise.experiment.personal.baselines import watched

    columns = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[standing]}", markup=False),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # where no bar is shown, some versions of rich end it with an empty line
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=jobs > 8) as bar:
        rows: dict[str, TaskID] = {}
        waiting = bar.add_task("reading data", total=None, standing="and measuring step sizes")

        def tell(label: str, done: int, total: int, row: "experiment.records.Row | None") -> None:
            if bar.disable:  # no terminal
                return
            # Between two runs the next one's step sizes are measured and its program is compiled.
            visible, standing = done >= total, "measuring and compiling"
            bar.reset(waiting, total=None, visible=visible, description="next", standing=standing)
            if label not in rows:
                while len(rows) >= 12:  # a sweep has many: only the last ones stay in sight
                    bar.remove_task(rows.pop(next(iter(rows))))
                rows[label] = bar.add_task(label, total=total, standing="")
            # The first row is of the model before training; what follows it is compilation.
            standing = _standing(row) if done else "compiling"
            bar.update(rows[label], completed=done, total=total, standing=standing)

        try:
            with watched(lambda done, total: tell("each alone", done, total, None)):
                yield tell
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"{str(stop) or 'stopped'}; {_begun(folder, then)}") from None
        except FileError as error:
            raise FileError(f"{error}; then {_begun(folder, then)}") from error
        finally:
            bar.update(waiting, visible=False)


def _begun(folder: Path, then: str) -> str:

    single = (folder / experiment.records.CONFIG).is_file()
    ours = (folder / experiment.records.MARKER).is_file()  # or it may be all of somebody's disk
    several = ours and any(folder.rglob(experiment.records.CONFIG))
    return then if single or several else "nothing was begun"


def _by(name: str, tell: Tell) -> Callable[..., None]:
    """Of a plan's runs, each called by its label or its place."""
    return lambda job, *now: tell(getattr(job, name), *now)


def _standing(row: "experiment.records.Row | None") -> str:
    """The average and the worst fifth of the score that says most; nothing of models that are scored at the end."""
    if row is None:
        return ""
    import numpy as np

    from equipoise.evaluation.rules import higher_is_better, main_score
    from equipoise.report import numbers

    score = main_score(row.scores)
    if score is None:
        return ""
    values = np.array([np.nan if v is None else v for v in row.scores[score]])
    summary = numbers.summarize(values, higher_is_better(score))
    return f"{score} {summary['mean']:.3f}, worst fifth {summary['worst20']:.3f}"
