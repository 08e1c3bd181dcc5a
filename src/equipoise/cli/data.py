"""`equipoise data`: what there is, where it was found, and what a division among clients looks like."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from equipoise import experiment
from equipoise.cli.plainly import Commands, busy, say
from equipoise.errors import require
from equipoise.files import check_own, write_whole

if TYPE_CHECKING:
    from equipoise.data.dataset import Dataset
    from equipoise.data.partition import Summary

data_app = Commands(name="data", help="Data sets: list them, look into them, divide them.", no_args_is_help=True)

Name = Annotated[str, Argument(help="A name from `list`, a file of features, or a folder with a file per silo.")]
Folder = Annotated[Path | None, Option("--data-dir", envvar="EQUIPOISE_DATA", help="Where data sets lie.")]
Download = Annotated[bool, Option("--download", help="Fetch what is missing, if its checksum is known.")]
Options = Annotated[
    list[str] | None, Option("--option", "-o", help="An option of the set's loader, such as by=race; repeatable.")
]
Label = Annotated[str, Option(help="The label column of a silo folder.")]
How = Literal["iid", "dirichlet", "similarity", "k-classes", "one-class", "quantity", "natural"]


@data_app.command("list")
def list_(data_dir: Folder = None) -> None:
    """The data sets there are, and which of them were found.

    Example: equipoise data list
    """
    from equipoise.data.datasets import catalogue

    every = catalogue.CATALOGUE.items()
    places = {name: catalogue.where(name, data_dir) if entry.files else "inside Equipoise" for name, entry in every}
    table = Table("name", "what", "licence", "found")
    for name, entry in every:
        table.add_row(name, entry.what, entry.licence, "yes" if places[name] else "no")
    Console().print(table)
    for name in filter(places.get, places):
        say(f"{name}: {places[name]}")


@data_app.command()
def info(
    name: Name, data_dir: Folder = None, download: Download = False, option: Options = None, label: Label = "label"
) -> None:
    """What was found where, its sizes and its licence.

    Example: equipoise data info digits
    """
    table = Table(show_header=False)
    with busy(f"reading {name}"):
        for row in facts(name, data_dir, download, _parsed(option), label):
            table.add_row(*map(escape, row))
    Console().print(table)


@data_app.command("partition")
def partition_(
    name: Name,
    clients: Annotated[int | None, Option("--clients", "-n", help="Number of clients.")] = None,
    how: Annotated[How, Option(help="The way to divide; natural: the set's own owners.")] = "dirichlet",
    alpha: Annotated[float | None, Option(help="Of dirichlet and quantity: small is uneven.")] = None,
    similarity: Annotated[float | None, Option(help="Share of iid samples, for similarity.")] = None,
    classes: Annotated[int | None, Option(help="Classes per client, for k-classes.")] = None,
    min_size: Annotated[int | None, Option(help="Fewest samples of a client.")] = None,
    thin: Annotated[bool, Option("--thin", help="30% of the clients lose 70% of their training samples.")] = False,
    seed: int = 0,
    rows: Annotated[int, Option(help="Clients to show.")] = 50,
    out: Annotated[Path | None, Option(help="Write the heat-map to this .svg.")] = None,
    data_dir: Folder = None,
    download: Download = False,
    option: Options = None,
    label: Label = "label",
) -> None:
    """How the training samples and their labels spread over the clients; with --out, as a heat-map too.

    What is not given is as in [partition] of `equipoise config`.

    Example: equipoise data partition digits --clients 5 --alpha 0.3
    """
    from equipoise.data import partition
    from equipoise.data.datasets import catalogue
    from equipoise.report import pictures

    if out is not None:
        wrong = f"{out} cannot be written: heat-maps are SVG; give a name that ends in .svg"
        require(out.suffix.lower() == ".svg", wrong)
        check_own(out, lambda content: pictures.HEATMAP_TITLE.encode() in content, "a heat-map that Equipoise drew")
    if Path(name).is_dir():
        with busy(f"reading {name}"):
            summary = _of_silos(name, label)[0]
    else:
        division: dict[str, object] = {"kind": how.replace("-", "_"), "thin": [0.3, 0.7] if thin else None}
        division |= {"clients": clients, "alpha": alpha, "similarity": similarity}
        division |= {"classes": classes, "min_size": min_size}
        given = {name: value for name, value in division.items() if value is not None}
        config = experiment.config.parse({"partition": given, "run": {"seed": seed}}, source="the options")
        with busy(f"dividing {name}"):
            dataset = catalogue.load(name, data_dir=data_dir, download=download, **_parsed(option))
            summary = preview(config, dataset)
    Console().print(partition.table(summary, rows=rows))
    if out is not None:
        write_whole(out, pictures.heatmap(summary))
        say(f"heat-map written to {out}")


def preview(config: "experiment.config.Config", dataset: "Dataset") -> "Summary":
    """The training part of each client, as `equipoise run` divides them."""
    from equipoise.data import partition, pool
    from equipoise.experiment.problems import divide, division_seed

    divided, test_parts = divide(config, dataset)
    key, thin = division_seed(config), config.partition.thin
    parts, _ = pool.hold_out(dataset, divided.parts, key=key, test=config.data.test, test_parts=test_parts, thin=thin)
    names = divided.summary.clients if config.partition.kind == "natural" else None
    return partition.summarize(parts, dataset.labels, clients=names, names=dataset.classes or None)


def facts(
    name: str, data_dir: Path | None, download: bool, options: dict[str, str], label: str
) -> list[tuple[str, str]]:
    """(what, value) pairs about a data set that is there."""
    from equipoise.data.datasets import catalogue

    if Path(name).is_dir():
        summary, facts_of_silos = _of_silos(name, label)
        return [("silos", f"{len(summary.clients)}: {', '.join(summary.clients)}"), *facts_of_silos]
    data = catalogue.load(name, data_dir=data_dir, download=download, **options)
    own = "none; each client holds some of its own samples out"
    tested = own if data.test_inputs is None else f"{len(data.test_inputs):,} examples"
    rows = [
        ("name", data.name),
        ("training set", f"{len(data.inputs):,} examples"),
        ("test set", tested),
        ("an example", f"{' x '.join(map(str, data.inputs.shape[1:]))}, {data.inputs.dtype}"),
        ("memory", f"{data.inputs.nbytes / 1e6:,.1f} MB as stored, {data.inputs.size * 4 / 1e6:,.1f} MB as float32"),
        ("labels", f"{len(data.classes)} classes: {_few(data.classes)}" if data.classes else "a number"),
        ("owners", f"{len(data.group_names):,}: {_few(data.group_names)}" if data.groups is not None else "none named"),
    ]
    if data.groups is not None:
        rows += _by_owner(data.groups, data.labels, data.classes)
    if name in catalogue.CATALOGUE:
        entry = catalogue.entry(name)
        rows += [("what differs", entry.differs)] if entry.differs else []
        place = catalogue.where(name, data_dir) if entry.files else "Equipoise"
        rows[1:1] = [("what", entry.what), ("licence", entry.licence), ("found in", str(place))]
    return rows


def _by_owner(groups: Any, labels: Any, classes: tuple[str, ...], least: int = 20) -> list[tuple[str, str]]:
    """How many rows owners have, and how their labels differ, of owners with enough rows to say so."""
    import numpy as np

    sizes = np.bincount(groups)
    rows = [("rows of an owner", f"{sizes.min():,} to {sizes.max():,}, half of them at most {np.median(sizes):,.0f}")]
    if (many := sizes >= least).any() and np.asarray(labels).ndim == 1:
        each = [labels == k for k in range(len(classes))] or [labels]
        names = [f"share of {name!r}" for name in classes] or ["mean label"]
        for name, values in list(zip(names, each, strict=True))[-6:]:
            means = np.bincount(groups, values)[many] / sizes[many]
            spread = f"{means.min():.2f} to {means.max():.2f} by owner (of {least} rows or more)"
            rows.append((name, f"{np.mean(values):.2f}, {spread}"))
    return rows


def _of_silos(folder: str, label: str) -> tuple["Summary", list[tuple[str, str]]]:
    import numpy as np

    from equipoise.data import partition, silos

    with warnings.catch_warnings(action="ignore", category=silos.SiloWarning):  # said below
        federation = silos.read(folder, label)
    sizes, labels = np.asarray(federation.train.sizes), np.asarray(federation.train.labels)
    parts = [np.arange(a, a + s) for a, s in zip(np.cumsum(sizes) - sizes, sizes, strict=True)]
    rows = np.concatenate([row[:s] for row, s in zip(labels, sizes, strict=True)])
    facts = [
        ("task", federation.task),
        ("training rows", f"{sizes.sum():,} ({sizes.min():,} to {sizes.max():,} per silo)"),
        ("test rows", "none" if federation.test is None else f"{int(np.asarray(federation.test.sizes).sum()):,}"),
        ("inputs", f"{federation.train.inputs.shape[-1]} after encoding"),
        *(("note", sentence) for sentence in federation.warnings),
    ]
    return partition.summarize(parts, rows.reshape(len(rows), -1)[:, 0], clients=federation.names), facts


def _few(names: tuple[str, ...], most: int = 10) -> str:
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def _parsed(options: list[str] | None) -> dict[str, str]:
    """by=race stride=1 -> {"by": "race", "stride": "1"}; the loader's own types say what a text means."""
    out = {}
    for text in options or []:
        key, equals, value = text.partition("=")
        require(equals and key, f"the option is '{text}'; write it as name=value")
        out[key] = value
    return out
