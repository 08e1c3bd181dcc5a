"""What stands under each heading of the page; nothing where there is nothing to say."""

import json
import math
import shlex
from collections.abc import Sequence

from equipoise.evaluation.rules import worst_count
from equipoise.experiment.records import CONFIG
from equipoise.report import bars, numbers, plots, svg, tables, wording
from equipoise.report.markup import Safe, joined, prose, tag
from equipoise.report.numbers import Entry

COMPARED = 20  # clients of the drawing across runs, where there are too many
PANELS = 4  # drawings of weights that are open
CHOICES = 60_000  # numbers that choosing a client may cost the page
CURVES = ("mean", "worst20", "objective", "gap", "distance")


def top(entries: Sequence[Entry]) -> Safe:
    """The cost of fairness in a sentence, and the numbers that matter most."""
    lead, old = wording.leading(entries), wording.reference(entries)
    beside = old if old is not lead else wording.fairest(entries)
    worst = lead.summary["worst"]
    who = lead.worse_first()[0]
    name = lead.run.federation.members[who].name if math.isfinite(lead.values[who]) else ""
    span = numbers.bounds(lead.worst.low, lead.worst.high, lead.written)
    measure = "" if lead.measure == "accuracy" else f" ({lead.score})"

    def against(text: str) -> list[str]:
        return [f"{beside.label}: {text}"] if beside is not None else []

    def other(key: str) -> list[str]:
        return against(beside.written(beside.summary[key])) if beside is not None else []

    keys = [
        _key(
            f"Worst-served fifth{measure}",
            lead.written(lead.summary["worst20"]),
            [f"{lead.written(lead.worst.estimate)} corrected for chance, bounds {span}"]
            if span != numbers.NONE
            else [],
            other("worst20"),
        ),
        _key(f"Average client{measure}", lead.written(lead.summary["mean"]), [], other("mean")),
        _key(f"Worst-served client{measure}", lead.written(worst), [name] if name else [], other("worst")),
        _key(
            "Sent per client",
            numbers.size(lead.bytes_each),
            [f"in {lead.rounds:,} rounds"],
            against(numbers.size(beside.bytes_each)) if beside is not None else [],
        ),
    ]
    whose = f"These are the numbers of {tables.named(lead)}"
    finished = sum(e.finished for e in entries)
    if finished > 1:
        whose += f", which of {finished} finished runs serves the worst-served fifth best"
    cost = wording.cost_of_fairness(entries)
    note = " ".join((*cost.remarks, whose + "."))
    return joined(
        tag("p", prose(cost.sentence), class_="lead"),
        tag("dl", *keys, class_="keys"),
        tag("p", prose(note), class_="note"),
    )


def _key(name: str, value: str, under: list[str], beside: list[str]) -> Safe:
    small = [tag("dd", text, class_="under") for text in under] + [tag("dd", text, class_="beside") for text in beside]
    return tag("div", tag("dt", name), tag("dd", value, class_="value"), *small)


def whom(entries: Sequence[Entry]) -> Safe:
    members = entries[0].run.federation.members
    out: list[object] = [tag("p", " ".join(wording.whom(entries)))]
    if len({m.train for m in members}) > 1:
        rows = sorted((m.train for m in members), reverse=True)
        told = f"Training rows of each client, from {rows[0]:,} to {rows[-1]:,}."
        drawing = tag("div", bars.sizes(members), style=f"max-width:{28 * len(rows)}px")
        out.append(tag("figure", drawing, tag("figcaption", told), class_="small"))
    notes = [note for note in (wording.differing(entries), *wording.notes(entries)) if note]
    if notes:
        out.append(tag("ul", *(tag("li", prose(note)) for note in notes), class_="notes"))
    return joined(*out)


def table(entries: Sequence[Entry]) -> Safe:
    heads, grid = tables.cells(entries)
    head = tag("tr", tag("th", "method", scope="col"), *(tag("th", h.title, scope="col") for h in heads))
    rows = []
    for entry, row in zip(entries, grid, strict=True):
        name = tag("th", svg.key(entry.kind), tables.named(entry), scope="row")
        cells = [
            tag("td", tag("strong", _small(c.text)) if c.best else _small(c.text), data_value=f"{c.value:.9g}")
            for c in row
        ]
        rows.append(tag("tr", name, *cells, data_run=entry.kind))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="sortable")
    fifth = worst_count(entries[0].n)
    told = (
        f"{_upper(tables.measured(entries))}. A fifth of {entries[0].n:,} clients is {fifth:,}. Floats and bytes are "
        "what was sent to and from a client over all rounds, the mean over the clients."
    )
    if any(math.isfinite(e.worst.estimate) for e in entries):
        told += f" {wording.CORRECTED}"
    if len(entries) > 1:
        told += " The best of each column is bold; unfinished runs do not compete."
    return joined(tag("div", table, class_="wide"), tag("p", told, class_="note"))


def _small(text: str) -> Safe:
    """Bounds in small print."""
    value, bracket, rest = text.partition(" (")
    return joined(value, tag("small", bracket + rest)) if bracket else joined(value)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _legend(entries: Sequence[Entry], only: str = "") -> Safe:
    """What each sign is; `only` on paper, where there are tabs on a screen."""
    items = [tag("li", svg.key(e.kind), tables.named(e), data_run=e.kind) for e in entries]
    return tag("ul", *items, class_=f"legend {'many' if len(items) > 10 else ''} {only}".strip())


def tradeoff(entries: Sequence[Entry]) -> Safe:
    if len(entries) < 2 or not any(math.isfinite(e.summary["worst20"]) for e in entries):
        return Safe()
    up, right = ("Higher", "right") if entries[0].up else ("Lower", "left")
    told = (
        f"Each sign is a run: its worst-served fifth, corrected for chance, with its bounds. {up} is better for the "
        f"worst-served; further {right} is better for the average client, or for the best-served fifth."
    )
    figures = [tag("figure", plots.tradeoff(entries, other)) for other in ("mean", "best20")]
    return joined(_legend(entries), tag("div", *figures, class_="grid"), tag("p", told, class_="note"))


def clients(entries: Sequence[Entry], id_: str) -> Safe:
    lead, old = wording.leading(entries), wording.reference(entries)
    axis = bars.scale(entries)
    tabs: list[object] = []
    panes = []
    for entry in entries:
        tab = f"{id_}-run{entry.kind}"
        if len(entries) > 1:
            tabs.append(tag("input", type="radio", name=f"{id_}-run", id=tab, checked=entry is lead))
            tabs.append(tag("label", svg.key(entry.kind), entry.label, for_=tab))
        beside = old if old is not entry else None
        caption = tag("figcaption", _served(entry, beside))
        panes.append(tag("div", tag("figure", bars.clients(entry, axis, beside), caption), class_="pane"))
    out: list[object] = [tag("div", class_="chooser", hidden=True)]  # filled by the script
    out.append(tag("div", *tabs, *panes, class_="tabs") if len(entries) > 1 else panes[0])
    if len(entries) > 1:
        out.append(_across(entries, lead))
    out.append(_client_table([lead, *(e for e in entries if e is not lead)]))
    return joined(*out)


def _served(entry: Entry, beside: Entry | None) -> str:
    if entry.n <= bars.NAMED:
        told = f"{_upper(entry.score)} of each client with {entry.label}, the worst served first."
        other = "The sign is" if beside else ""
    else:
        each = math.ceil(sum(map(math.isfinite, entry.values)) / bars.COLUMNS)
        several = f"; each step is the mean of {each} neighbours" if each > 1 else ""
        told = f"{_upper(entry.score)} of {entry.n:,} clients with {entry.label}, the worst served first{several}."
        other = "The dashed line is, in its own order," if beside else ""
    drawn = "thin lines are" if entry.n <= bars.NAMED else "shade around the line is"
    known = any(math.isfinite(v) for v in entry.low)
    told += f" The {drawn} the bounds that each client's rows allow." if known else " No bounds are known."
    return told + (f" {other} {beside.label}." if beside else "")


def _across(entries: Sequence[Entry], lead: Entry) -> Safe:
    order = lead.worse_first()
    told = f"Each client with every method, in the order of {lead.label}."
    if len(order) > bars.NAMED:
        order = order[:COMPARED]
        told = f"The {COMPARED} clients of {lead.n:,} that {lead.label} serves worst, with every method."
    figure = tag("figure", bars.dots(entries, order), tag("figcaption", told))
    return joined(tag("h3", "Client by client, across methods"), _legend(entries, "paper"), figure)


def _client_table(entries: Sequence[Entry]) -> Safe:
    shown = tables.clients_shown(entries)
    headings = ["client", "rows", *(tables.named(e) for e in entries)]
    head = tag("tr", *(tag("th", heading, scope="col") for heading in headings))
    rows = []
    for i in shown.order:
        name, *cells = tables.client_cells(entries, i)
        rows.append(tag("tr", tag("th", name, scope="row"), *(tag("td", c) for c in cells), data_client=i))
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="wide")
    what = _upper(shown.note) if shown.note else f"All {entries[0].n:,} clients"
    return tag("details", tag("summary", f"{what}, as a table"), table)


def convergence(entries: Sequence[Entry], id_: str) -> Safe:
    shown = [of for of in CURVES if plots.drawn(entries, of)]
    if not shown:
        return Safe()
    tabs: list[object] = []
    panes = []
    axes: tuple[tuple[numbers.Against, str], ...] = (("rounds", "against rounds"), ("bytes", "against bytes"))
    for against, name in axes:
        tab = f"{id_}-{against}"
        tabs.append(tag("input", type="radio", name=f"{id_}-axis", id=tab, checked=against == "rounds"))
        tabs.append(tag("label", name, for_=tab))
        figures = [
            tag("figure", tag("figcaption", plots.WORDS[of], class_="head"), plots.convergence(entries, of, against))
            for of in shown
        ]
        panes.append(tag("div", tag("div", *figures, class_="grid"), class_="pane"))
    told = ["A gap in a line: a number that was not finite, or not recorded."]
    if {"gap", "distance"} & set(shown):
        told.append("What is too small for a logarithmic axis lies on its lowest line.")
    if "objective" in shown and len(entries) > 1:
        told.append(
            "The robust objective and its gap are each run's own: of other objectives, they cannot be compared."
        )
    told.extend(filter(None, map(wording.certified, entries)))
    note = tag("p", " ".join(told), class_="note")
    return joined(_legend(entries) if len(entries) > 1 else "", tag("div", *tabs, *panes, class_="tabs both"), note)


def weights(entries: Sequence[Entry]) -> Safe:
    lead = wording.leading(entries)
    first = [lead, *(e for e in entries if e is not lead)]
    weighing = [e for e in first if numbers.weights(e.run)[0]]
    if not weighing:
        return Safe()
    figures = [tag("figure", tag("figcaption", tables.named(e), class_="head"), plots.weights(e)) for e in weighing]
    n = entries[0].n
    told = "The weight λ of each client: the more it suffers under the model, the more its loss counts."
    if n > plots.LINES + plots.FAINT:
        told += f" The {plots.LINES} heaviest of {n:,} have a line, the others lie in the band."
    elif n > plots.LINES:
        told += f" The {plots.LINES} heaviest at the end are named, the others faint."
    told += f" The dashed line across is the equal weight, 1/{n:,}."
    silent = [e.label for e in entries if e.kind not in {w.kind for w in weighing}]
    if silent:
        told += f" Without such weights: {'; '.join(silent) if len(silent) <= 6 else f'{len(silent)} runs'}."
    out: list[object] = [tag("p", told, class_="note"), tag("div", *figures[:PANELS], class_="grid")]
    if len(figures) > PANELS:
        more = tag("summary", f"The weights of {len(figures) - PANELS} more runs")
        out.append(tag("details", more, tag("div", *figures[PANELS:], class_="grid")))
    return joined(*out)


def troubles(entries: Sequence[Entry]) -> Safe:
    told = [(entry, wording.troubles(entry)) for entry in entries]
    if not any(sentences for _, sentences in told):
        return tag("p", "Nothing was reported: every run is finished, and every reply was finite and counted.")
    items = [
        tag("li", tag("strong", entry.label), tag("ul", *(tag("li", prose(sentence)) for sentence in sentences)))
        for entry, sentences in told
        if sentences
    ]
    clean = sum(not sentences for _, sentences in told)
    rest = tag("p", f"The other {clean} had no trouble.") if clean > 1 else ""
    return joined(tag("ul", *items, class_="troubles"), rest)


def again(entries: Sequence[Entry]) -> Safe:
    return joined(*(_recipe(entry, len(entries) == 1) for entry in entries))


def _recipe(entry: Entry, alone: bool) -> Safe:
    run, where = entry.run, entry.run.environment
    toml = (run.path / CONFIG).read_text("utf-8")
    command = f"equipoise run {shlex.quote(str(run.path / CONFIG))}"
    facts = {
        "Equipoise": where.equipoise,
        "source": where.git or "not in a repository",
        "Python": where.python,
        "JAX": where.jax,
        "NumPy": where.numpy,
        "device": f"{where.devices} × {where.device}",
        "platform": where.platform,
        "precision": where.precision,
        "started": where.started,
        "exchanges": ", ".join(run.federation.exchanges),
    }
    if run.outcome is not None:
        facts["compiling"] = numbers.duration(run.outcome.compile_seconds)
    listed = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return tag(
        "details",
        tag("summary", tables.named(entry)),
        tag("pre", tag("code", command), class_="command"),
        tag("pre", tag("code", toml)),
        tag("dl", *listed, class_="facts"),
        open=alone,
        class_="recipe",
    )


def choices(entries: Sequence[Entry]) -> Safe:
    """What the script needs to show one client across the runs."""
    lead = wording.leading(entries)
    order = lead.worse_first()[: max(1, CHOICES // (4 * len(entries)))]
    axis = bars.scale(entries)

    def some(values: Sequence[float]) -> list[float | None]:
        return [float(f"{values[i]:.7g}") if math.isfinite(values[i]) else None for i in order]

    def final(entry: Entry) -> list[float | None] | None:
        lam = numbers.weights(entry.run, limit=2)[1]
        return some(lam[-1].tolist()) if len(lam) else None

    members = lead.run.federation.members
    data = {
        "share": lead.measure == "accuracy",
        "ends": [axis.low, axis.high],
        "clients": order,
        "names": [members[i].name for i in order],
        "rows": [members[i].train for i in order],
        "left": lead.n - len(order),
        "runs": [
            {
                "label": e.label,
                "value": some(e.values.tolist()),
                "low": some(e.low.tolist()),
                "high": some(e.high.tolist()),
                "weight": final(e),
            }
            for e in entries
        ],
    }
    text = json.dumps(data, separators=(",", ":"))  # ASCII only; nothing in it may end the script element
    return Safe(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
