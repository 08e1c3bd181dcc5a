"""One page that holds everything: no network, no fonts or scripts from elsewhere, correct without scripts."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from equipoise.experiment.records import Run
from equipoise.files import write_whole
from equipoise.report import numbers, sections, wording
from equipoise.report.markup import Safe, prose, tag
from equipoise.report.numbers import Entry


def write(runs: Sequence[Run], path: str | Path) -> Path:
    """The page of some runs, as a file."""
    path = Path(path)
    write_whole(path, page(runs))
    return path


def page(runs: Sequence[Run], *, title: str | None = None) -> str:
    """The page of some runs; runs of other clients get a part of their own."""
    groups = numbers.together(numbers.entries(runs))
    title = title or _title(groups)
    body = [_part(group, f"p{k}", len(groups)) for k, group in enumerate(groups)]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _asset("page.css"), Safe(_tab_rules(max(len(group) for group in groups)))),
    )
    brand = tag("p", "Equipoise report", class_="brand")
    header = tag("header", brand, tag("h1", title), class_="top")
    footer = tag("footer", tag("p", prose(_made_by(runs))))
    script = tag("script", _asset("page.js"))
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', header, tag('main', *body), footer, script), lang='en')}\n"


def _asset(name: str) -> Safe:
    return Safe((files("equipoise.report") / name).read_text("utf-8"))


def _title(groups: Sequence[Sequence[Entry]]) -> str:
    if len(groups) > 1:
        return f"{len(groups)} federations"
    n = groups[0][0].n
    return f"One model for {n:,} clients" if n != 1 else "One model for one client"


def _made_by(runs: Sequence[Run]) -> str:
    versions = sorted({run.environment.equipoise for run in runs})
    told = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"Made by `equipoise report` from {told} of Equipoise {', '.join(versions)}."


def _tab_rules(most: int) -> str:
    """The pane of the chosen tab is shown, without scripts."""
    shown = ",".join(f".tabs>input:nth-of-type({k}):checked~.pane:nth-of-type({k})" for k in range(1, max(most, 2) + 1))
    return f"{shown}{{display:block}}"


def _part(entries: Sequence[Entry], id_: str, parts: int) -> Safe:
    """Everything about runs of the same clients."""
    broken = sum(bool(wording.troubles(e)) for e in entries)
    told = [  # anchor, heading, what its link adds, content
        ("who", "What was trained, on whom", "", sections.whom(entries)),
        ("numbers", f"The run{'s' if len(entries) > 1 else ''} in numbers", "", sections.table(entries)),
        ("tradeoff", "Average against worst-served", "", sections.tradeoff(entries)),
        ("clients", "Who is served how", "", sections.clients(entries, id_)),
        ("convergence", "How training went", "", sections.convergence(entries, id_)),
        ("weights", "Whose loss counted how much", "", sections.weights(entries)),
        ("troubles", "What went wrong", f" ({broken})" if broken else "", sections.troubles(entries)),
        ("again", "To do it again", "", sections.again(entries)),
    ]
    known = [(f"{id_}-{name}", heading, more, content) for name, heading, more, content in told if content]
    nav = tag("nav", *(tag("a", name + more, href=f"#{at}") for at, name, more, _ in known), aria_label="Sections")
    shown = [tag("section", tag("h2", heading), content, id=at) for at, heading, _, content in known]
    data = tag("script", sections.choices(entries), type="application/json", class_="data")
    what = f"{entries[0].n:,} clients: {entries[0].run.federation.what}"
    title = tag("h2", what, class_="part") if parts > 1 else ""
    return tag("article", title, sections.top(entries), nav, *shown, data, id=id_)
