"""One page that holds everything: no network, no fonts or scripts from elsewhere, complete without scripts."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise.experiment.records import Run
from equipoise.files import write_whole
from equipoise.report import numbers, plots, sections, svg
from equipoise.report.markup import printable, prose
from equipoise.report.numbers import ReportedRun

LOADER = PackageLoader("equipoise.report")
TEMPLATES = Environment(
    loader=LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)
TEMPLATES.filters["prose"] = prose
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
TEMPLATES.globals |= {
    "asset": lambda name: Markup(LOADER.get_source(TEMPLATES, name)[0]),  # as it is: its braces are not a template's
    "legend_key": svg.legend_key,
    "plots": plots,
    "sections": sections,
}


def write(runs: Sequence[Run], path: str | Path) -> Path:
    """The page of some runs, as a file."""
    path = Path(path)
    write_whole(path, page(runs))
    return path


def page(runs: Sequence[Run], *, title: str | None = None) -> str:
    """The page of some runs; runs that cannot be compared get parts of their own."""
    groups = numbers.comparable(numbers.reported(runs))
    versions = ", ".join(sorted({run.environment.equipoise for run in runs}))
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    text = TEMPLATES.get_template("page.html").render(
        title=title or _title(groups),
        groups=groups,
        most_tabs=max(2, *map(len, groups)),
        made_by=f"Made by `equipoise report` from {count} of Equipoise {versions}.",
    )
    return printable(text)


def _title(groups: Sequence[Sequence[ReportedRun]]) -> str:
    if len(groups) > 1:
        return f"{len(groups)} federations"
    n = groups[0][0].n
    return f"One model for {n:,} clients" if n != 1 else "One model for one client"
