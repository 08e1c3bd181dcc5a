"""Tables, a picture and a page of the standings. No number but a cost stands there without its bounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equipoise.bench.federations import FEDERATIONS, available
from equipoise.bench.methods import METHODS
from equipoise.bench.standings import Against, Standings
from equipoise.data.datasets import catalogue
from equipoise.evaluation.intervals import Bounds
from equipoise.files import write_whole
from equipoise.report import pictures, svg
from equipoise.report.markup import printable, tag
from equipoise.report.pictures import text

LEFT, WIDTH, LINE, TOP = 170.0, 330.0, 24.0, 64.0  # of the picture: of names, of a panel, of a method, of the title
TABLE, PICTURE, PAGE = "table.md", "picture.svg", "bench.html"
OVERALL = (
    "method", "rank", "rank by the worst fifth", "average skill, less {}'s", "wins, ties, losses",
    "worst fifth, less {}'s", "wins, ties, losses", "owners better off alone", "federations",
)  # fmt: skip
ONE = (
    "method", "average skill", "worst fifth", "gain over alone, worst fifth", "owners better off alone", "AUC",
    "calibration error", "rounds", "MB", "seconds",
)  # fmt: skip
WORDS = (
    "Skill is by how much the loss on held-out rows (log loss; squared error, where a number is predicted) is below "
    "that of each owner's own base rate, in per cent of the owners' mean base-rate loss: 0 is no better than the base "
    "rate, 100 is perfect. The worst fifth of the owners is corrected for the bad luck of few rows. The gain is the "
    "same difference from the owner's own model. In brackets are 95% bounds: of one federation, for what its held-out "
    "rows leave open; of differences, ranks and shares, for the owners that could have been others, and over all "
    "federations for these too. A win or a loss is a difference whose bounds leave zero out."
)


def show(standings: Standings, folder: Path) -> None:
    """Writes all of it into the folder, and prints the first table."""
    write_whole(folder / TABLE, markdown(standings))
    write_whole(folder / PICTURE, picture(standings))
    write_whole(folder / PAGE, page(standings))
    table = Table("method")
    for head in ("average", "worst fifth", "better off alone"):
        table.add_column(head, justify="right")
    for row in overall(standings)[1]:  # what fits a terminal; the rest is in the files
        table.add_row(*(escape(row[k]) for k in (0, 3, 5, 7)))
    table.title = f"skill over {len(standings.federations)} federations, less {standings.against}'s, in points"
    console = Console()
    console.print(table)
    for name in (TABLE, PICTURE, PAGE):
        console.print(f"{folder / name}", markup=False, highlight=False, soft_wrap=True)


def print_list() -> None:
    console, here = Console(), available()
    table = Table("federation", "what", "here")
    for name in FEDERATIONS:
        table.add_row(name, escape(catalogue.entry(name).what), "yes" if name in here else "no")
    console.print(table)
    table = Table("method", "what", "kind")
    for name, method in METHODS.items():
        table.add_row(escape(name), escape(method.about), method.kind)
    console.print(table)


Rows = list[list[str]]


def overall(standings: Standings) -> tuple[list[str], Rows]:
    heads = [head.format(standings.against) for head in OVERALL]
    rows = []
    for method in standings.methods:
        verdict = standings.overall[method]
        row = [method, _number(verdict.rank, 1), _number(verdict.worst_rank, 1), *_differences(verdict.against_it)]
        rows.append([*row, _percent(verdict.losers, 0), str(verdict.federations)])
    return heads, rows


def _differences(against: Against | None) -> list[str]:
    if against is None:
        return [""] * 4
    pairs = (against.average, against.counts), (against.worst, against.worst_counts)
    return [text for bounds, c in pairs for text in (_percent(bounds, signed=True), ", ".join(map(str, c)))]


def one(standings: Standings, federation: str) -> tuple[list[str], Rows]:
    """The methods on one federation, the best average first."""
    here = [m for m in standings.methods if (federation, m) in standings.on]
    here.sort(key=lambda m: -standings.on[federation, m].mean.estimate)
    rows = []
    for method in here:
        on = standings.on[federation, method]
        numbers = [_percent(on.mean), _percent(on.worst), _percent(on.worst_gain, signed=True), _percent(on.losers, 0)]
        calibration = "" if on.calibration is None else _percent(on.calibration)
        costs = ((on.rounds, 0), (on.megabytes, 2), (on.seconds, 1))
        written = ["" if v is None else f"{v:.{digits}f}" for v, digits in costs]
        rows.append([method, *numbers, _number(on.auroc, 3), calibration, *written])
    return list(ONE), rows


def _number(bounds: Bounds | None, digits: int) -> str:
    if bounds is None:
        return ""
    low, middle, high = (f"{v:.{digits}f}" for v in bounds)
    return f"{middle} ({low} to {high})"


def _percent(bounds: Bounds, digits: int = 1, signed: bool = False) -> str:
    """In points of a hundred."""
    if not all(map(math.isfinite, bounds)):
        return "" if not math.isfinite(bounds.estimate) else f"{100 * bounds.estimate:.{digits}f} (not known)"
    low, middle, high = (f"{100 * v:{'+' if signed else ''}.{digits}f}" for v in bounds)
    return f"{middle} ({low} to {high})"


def cards(standings: Standings) -> tuple[list[str], Rows]:
    heads = ["federation", "what", "owners", "test rows of an owner", "base-rate loss of the owners, per row"]
    rows = []
    for name, entries in standings.federations.items():
        entry, sizes = entries[0], sorted(entries[0].tested)
        base = sorted(v for v in entry.base if v is not None)
        what = catalogue.entry(name).what if name in catalogue.CATALOGUE else ""
        spread = f"{base[0]:.2f} to {base[-1]:.2f}, mean {entry.unit:.2f}"
        rows.append([name, what, str(len(entry.owners)), f"{sizes[0]} to {sizes[-1]}", spread])
    return heads, rows


def markdown(standings: Standings) -> str:
    parts = [WORDS, _markdown(*overall(standings)), "### The federations", _markdown(*cards(standings))]
    for name in standings.federations:
        parts += [f"### {name}", _markdown(*one(standings, name))]
    return "\n\n".join(parts) + "\n"


def _markdown(heads: Sequence[str], rows: Rows) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def picture(standings: Standings) -> str:
    """A line per method: by how much its average and its worst fifth differ from the default's, with bounds.

    The faint dots are federations.
    """
    rows = {m: against for m in standings.methods if (against := standings.overall[m].against_it) is not None}
    names = [text(m, LEFT - 12, TOP + LINE * (row + 0.5) + 4, "end") for row, m in enumerate(rows)]
    panels = [*_panel(rows, 0, "average skill", LEFT), *_panel(rows, 1, "skill of the worst fifth", LEFT + WIDTH + 40)]
    title = f"Skill over {len(standings.federations)} federations, less that of {standings.against}"
    bottom = TOP + LINE * len(rows) + 76
    lines = (
        f"Points of skill; to the right is better than {standings.against}. Grey dots: federations; those beyond the "
        "edge stand on it.",
        "Bars: 95% bounds; orange, where they are all below zero, and green, where they are all above.",
    )
    head = text(title, 12, 22, "start", style="font-size:15px;font-weight:bold")
    foot = [text(line, 12, bottom - 28 + 17 * k) for k, line in enumerate(lines)]
    return pictures.document(title, LEFT + 2 * WIDTH + 70, bottom, head, *names, *panels, *foot)


def _panel(rows: Mapping[str, Against], k: int, heading: str, left: float) -> Iterator[Markup]:
    """The k-th difference of every method, with those of the single federations."""
    bounds = [(against.average, against.worst)[k] for against in rows.values()]
    axis = svg.axis([100 * v for b in bounds for v in b] + [0.0], margin=0.08)

    def x(value: float) -> float:
        return left + WIDTH * min(max(axis.fraction(100 * value), 0.0), 1.0)

    def dot(name: str, number: Bounds, y: float, **look: object) -> Markup:
        hint = tag("title", f"{name}: {_percent(number, signed=True)}")
        return tag("circle", hint, cx=x(number.estimate), cy=y, **look)

    bottom = TOP + LINE * len(rows)
    yield text(heading, left + WIDTH / 2, TOP - 14, "middle", style="font-weight:bold")
    for tick in axis.ticks:
        at_tick = x(tick / 100)
        yield tag("line", x1=at_tick, y1=TOP, x2=at_tick, y2=bottom, class_="base" if tick == 0 else "grid")
        yield text(f"{tick:+g}" if tick else "0", at_tick, bottom + 18, "middle")
    for row, ((method, against), whole) in enumerate(zip(rows.items(), bounds, strict=True)):
        y = TOP + LINE * (row + 0.5)
        for name, pair in against.by_federation.items():
            yield dot(name, pair[k], y, r=2.5, class_="s6", fill="currentColor", opacity="0.35")
        sure = "s1" if whole.high < 0 else "s2" if whole.low > 0 else "s0"
        ends = {"x1": x(whole.low), "y1": y, "x2": x(whole.high), "y2": y}
        yield tag("line", **ends, class_=sure, stroke="currentColor", stroke_width="2.5")
        yield dot(method, whole, y, r=5.0, class_=sure, fill="currentColor")


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1150px;margin:2rem auto;padding:0 1rem;color:#1b1d21}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
th,td{padding:4px 10px;border-bottom:1px solid #e8e6df;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left} td.wide{white-space:normal;text-align:left;min-width:22rem}
svg{max-width:100%;height:auto}"""


def page(standings: Standings) -> str:
    drawing = Markup(picture(standings).split("?>\n", 1)[1])
    parts = [tag("h1", f"Methods on federations: {len(standings.methods)} on {len(standings.federations)}"), drawing]
    parts += [tag("p", WORDS), _html(*overall(standings)), tag("h2", "The federations"), _html(*cards(standings))]
    for name in standings.federations:
        parts += [tag("h2", name), _html(*one(standings, name))]
    title, style = tag("title", "Equipoise benchmark"), tag("style", Markup(STYLE))
    head = tag("head", Markup('<meta charset="utf-8">'), title, style)
    return printable(f"<!doctype html>\n{tag('html', head, tag('body', *parts), lang='en')}\n")


def _html(heads: Sequence[str], rows: Rows) -> Markup:
    head = tag("tr", *(tag("th", head) for head in heads))
    cells = [[tag("td", cell, class_="wide" if len(cell) > 60 else None) for cell in row] for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *(tag("tr", *row) for row in cells)))
