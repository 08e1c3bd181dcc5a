"""The content of each section of the page, for its template; None where there is nothing to show."""

import math
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equipoise.errors import not_none
from equipoise.evaluation.rules import worst_count
from equipoise.experiment.records import CONFIG
from equipoise.report import bars, formats, numbers, personal, plots, tables, wording
from equipoise.report.formats import capitalized
from equipoise.report.numbers import ReportedRun

CLIENTS_ACROSS = 20  # of the drawing across runs, where there are too many
OPEN_CHARTS = 4  # of the weights; more are folded away
MOST_NUMBERS = 60_000  # in the data of the script that shows single clients

Content = dict[str, object]


class Section(NamedTuple):
    """A section: the name of its anchor and of its template, and what the template shows."""

    name: str
    heading: str
    content: Content | None
    link_note: str = ""


def shown(runs: Sequence[ReportedRun]) -> list[Section]:
    """The sections that have something to show."""
    problems = [(run, sentences) for run in runs if (sentences := wording.problems(run))]
    broken, unbroken = len(problems), len(runs) - len(problems)
    every = (
        Section("joining", "Does joining pay, and for whom?", joining(runs)),
        Section("clients", "Who is served how", clients(runs)),
        Section("numbers", f"The run{'s' if len(runs) > 1 else ''} in numbers, and what they cost", table(runs)),
        Section("tradeoff", "Average against worst-served", tradeoff(runs)),
        Section("calibration", "Are the probabilities right?", calibration(runs)),
        Section("who", "What was trained, on whom", who(runs)),
        Section("chosen", "What was chosen", chosen(runs)),
        Section("personal", "The shared model against each owner's own", own_models(runs)),
        Section("convergence", "How training went", convergence(runs)),
        Section("weights", "Whose loss counted how much", weights(runs)),
        Section(
            "troubles", "What went wrong", {"problems": problems, "without": unbroken}, f" ({broken})" if broken else ""
        ),
        Section("again", "Reproduce this run", {"recipes": [_recipe(run) for run in runs]}),
    )
    return [section for section in every if section.content is not None]


def top(runs: Sequence[ReportedRun]) -> Content:
    """The cost of fairness in a sentence, and the numbers that matter most."""
    lead, reference = wording.leading(runs), wording.reference(runs)
    other = reference if reference is not lead else wording.fairest(runs)
    worst_client = lead.worst_first()[0]
    name = lead.members[worst_client].name if math.isfinite(lead.values[worst_client]) else ""
    bounds = formats.interval(lead.worst.low, lead.worst.high, lead.format)
    corrected = f"{lead.format(lead.worst.estimate)} corrected for chance, bounds {bounds}"
    measure = "" if lead.measure == "accuracy" else f" ({lead.score_name})"

    def score(heading: str, key: str, detail: str = "") -> tuple[str, str, str, str]:
        others = f"{other.label}: {other.format(other.summary[key])}" if other else ""
        return heading + measure, lead.format(lead.summary[key]), detail, others

    traffic = f"{other.label}: {formats.byte_size(other.bytes_per_client)}" if other else ""
    finished = sum(run.finished for run in runs)
    source = f"These are the numbers of {lead.title}"
    if finished > 1:
        source += f", which of {finished} finished runs serves the worst-served fifth best"
    cost = wording.cost_of_fairness(runs)
    alike = wording.alike(runs)
    return {
        "cost": alike or cost.sentence,
        "key_numbers": (  # heading, value, detail, the same of another run
            score("Worst-served fifth", "worst20", corrected if bounds != formats.MISSING else ""),
            score("Average client", "mean"),
            score("Worst-served client", "worst", name),
            ("Sent per client", formats.byte_size(lead.bytes_per_client), f"in {lead.rounds:,} rounds", traffic),
        ),
        "joining": wording.who_gains(runs),
        "offer": personal.offer(runs),
        "note": " ".join((*cost.remarks, source + ".")),
    }


def who(runs: Sequence[ReportedRun]) -> Content:
    rows = [member.train for member in runs[0].members]
    uneven = len(set(rows)) > 1
    return {
        "sentences": wording.federation(runs),
        "sizes": bars.sizes(runs[0].members) if uneven else "",
        "caption": f"Training rows of each client, from {max(rows):,} to {min(rows):,}.",
        "notes": [note for note in (wording.different_rows(runs), *wording.notes(runs)) if note],
    }


def chosen(runs: Sequence[ReportedRun]) -> Content | None:
    """What nobody has told a run, with all that was tried; runs that chose the same show it once."""
    by = {(choice.key, choice.value, choice.why): choice for run in runs for choice in run.record.chosen}
    shown = []
    for choice in by.values():
        headings = [choice.key, *(name for name in choice.tried[0] if name != "value")]
        texts = [[v if isinstance(v, str) else formats.shortest(v) for v in row.values()] for row in choice.tried]
        rows = [(row["value"] == choice.value, cells) for row, cells in zip(choice.tried, texts, strict=True)]
        curve = plots.price(choice) if choice.key == "objective.rho" else ""
        shown.append((choice.sentence, curve, headings, rows))
    return {"choices": shown} if shown else None


def table(runs: Sequence[ReportedRun]) -> Content:
    columns, cells = tables.cells(runs)
    sentences = [
        f"{capitalized(tables.measured(runs))}. A fifth of {runs[0].n:,} clients is {worst_count(runs[0].n):,}.",
        "Floats and bytes are what was sent to and from a client over all rounds, the mean over the clients.",
    ]
    if any(math.isfinite(run.worst.estimate) for run in runs):
        sentences += [wording.CORRECTED, wording.rests_on(runs[0])]
        sentences += [wording.FIXED] if runs[0].measure == "skill" else []
    if len(runs) > 1:
        sentences.append("The best of each column is bold; unfinished runs do not compete.")
    alone = numbers.alone(runs)
    last = tables.alone_cells(alone) if alone is not None else {}
    if last:
        sentences.append('"Each alone" is what clients get from models of their own rows, which send nothing.')
    alike = wording.alike(runs)
    rows = list(zip(runs, cells, strict=True))
    return {
        "alike": alike,
        "scores": tables.scores(runs),
        "columns": columns,
        "rows": [(runs[0]._replace(label=f"all {len(runs)} methods"), cells[0])] if alike else rows,
        "alone": [last.get(column.title, "") for column in columns] if last else [],
        "sentences": sentences,
        "csv": tables.runs_csv(runs),
    }


def tradeoff(runs: Sequence[ReportedRun]) -> Content | None:
    if len(runs) < 2 or not any(math.isfinite(run.summary["worst20"]) for run in runs):
        return None
    path = numbers.path(runs)
    if path is None:
        return {"path": None}
    rows, numeric = [], []
    for value, run in path.points:
        bounds = formats.with_interval(run.worst.estimate, run.worst.low, run.worst.high, run.format)
        mean, worst = run.summary["mean"], run.summary["worst20"]
        texts = [f"{value:g}", run.format(mean), run.format(worst), bounds, f"{run.rounds:,}"]
        rows.append((run is path.chosen, texts))
        corrected = run.worst.estimate, run.worst.low, run.worst.high
        numeric.append([value, mean, worst, *corrected, run.rounds])
    columns = [path.setting, "mean", "worst20", "worst20_corrected", "worst20_low", "worst20_high", "rounds"]
    headings = [path.setting, "average", "worst 20%", "corrected (bounds)", "rounds"]
    content = {"drawn": path, "note": wording.chosen_of(path), "headings": headings, "rows": rows}
    return {"path": content | {"csv": tables.csv_link(columns, numeric)}}


def joining(runs: Sequence[ReportedRun]) -> Content | None:
    """What a run gives each client against a model of its own rows, and against the model for the average."""
    run, average = wording.fairest(runs) or wording.leading(runs), wording.reference(runs)
    alone = numbers.alone(runs)
    against = [] if alone is None else [(wording.OWN_ROWS, alone)]
    against += [] if average is None or average is run else [(average.label, average)]
    pairs = [numbers.gains(run, other, name) for name, other in against]
    pairs = [gains for gains in pairs if any(map(math.isfinite, gains.values))]
    if not pairs:
        return None
    order = [int(i) for i in pairs[0].values.argsort(kind="stable")]
    shown = order[: tables.MOST_CLIENTS]
    headings = ["client", "rows", *(f"with {name}" for name, _ in against), f"with {run.label}"]
    headings += [f"gain against {gains.against}" for gains in pairs]

    models = [*(other for _, other in against), run]

    def cells(i: int) -> list[str]:
        own = [run.members[i].name, f"{run.members[i].train:,}"]
        return [*own, *(run.format(float(one.values[i])) for one in models), *(run.gain(g, i) for g in pairs)]

    def numeric(i: int) -> list[object]:
        values = [one.values for one in models] + [values for g in pairs for values in (g.values, g.low, g.high)]
        return [run.members[i].name, run.members[i].train, *(float(of_all[i]) for of_all in values)]

    columns = headings[: -len(pairs)]
    columns += [f"gain against {g.against}{end}" for g in pairs for end in ("", ": low", ": high")]

    many = f"the {len(shown)} that gain least of {run.n:,}" if len(order) > len(shown) else f"all {run.n:,} clients"
    sentences = [wording.JOINING] if alone is not None else [wording.sure_of(run, pairs[0]), wording.NOT_ALONE]
    every = []
    if alone is not None:
        every = [(other, numbers.gains(other, alone, wording.OWN_ROWS)) for other in runs if other.finished]
    drawn = [(run, pairs), *((other, [gains]) for other, gains in every if other is not run)]
    charts = [(one, bars.gains(one, *several), _gains_caption(one, several)) for one, several in drawn]
    return {
        "sentences": sentences,
        "by_method": bars.by_method(every) if len(every) > 1 else "",
        "charts": charts,
        "table_title": f"{capitalized(many)}, as a table",
        "headings": headings,
        "rows": [(i, cells(i)) for i in shown],
        "csv": tables.csv_link(columns, (numeric(i) for i in order)),
    }


def _gains_caption(run: ReportedRun, pairs: Sequence[numbers.Gains]) -> str:
    text = f"What each client gains with {run.label} against {pairs[0].against}, the largest loss first."
    named, bounded = run.n <= bars.NAMED, any(math.isfinite(v) for v in pairs[0].low)
    if bounded and named:
        text += " Thin lines are the bounds that its rows allow: a line that does not cross zero is more than chance."
    elif bounded:
        text += " The shade is the bounds that each client's rows allow, as far as the picture goes: where it does not "
        text += "reach zero, the gain or the loss is more than chance."
    if len(pairs) > 1:
        sign = "sign" if named else "dashed line, in its own order,"
        text += f" The {sign} is the gain against {pairs[1].against}."
    return text


def clients(runs: Sequence[ReportedRun]) -> Content:
    lead, reference = wording.leading(runs), wording.reference(runs)
    scale = bars.scale(runs)
    others = [reference if reference is not run else None for run in runs]
    order = lead.worst_first()
    across = f"Each client with every method, in the order of {lead.label}."
    if len(order) > bars.NAMED:
        order = order[:CLIENTS_ACROSS]
        across = f"The {CLIENTS_ACROSS} clients of {lead.n:,} that {lead.label} serves worst, with every method."
    columns, pairs = _leading_first(runs), list(zip(runs, others, strict=True))
    listed, note = tables.clients_shown(columns)
    return {
        "leading": lead,
        "note": wording.NO_SCORES if any(wording.masked(run) for run in runs) else "",
        "charts": [(bars.clients(run, scale, other), _bars_caption(run, other)) for run, other in pairs],
        "across": (bars.dots(runs, order), across),
        "table_title": f"{capitalized(note) or f'All {lead.n:,} clients'}, as a table",
        "headings": ["client", "rows", *(run.title for run in columns)],
        "rows": [(i, tables.client_cells(columns, i)) for i in listed],
        "csv": tables.clients_csv(columns),
    }


def _bars_caption(run: ReportedRun, other: ReportedRun | None) -> str:
    score, finite = capitalized(run.score_name), np.isfinite(run.low)
    if run.n <= bars.NAMED:
        text = f"{score} of each client with {run.label}, the worst served first."
        bounds, comparison = "thin lines are", "The sign is"
    else:
        each = math.ceil(sum(map(math.isfinite, run.values)) / bars.COLUMNS)
        steps = f"; each step is the mean of {each} neighbours" if each > 1 else ""
        text = f"{score} of {run.n:,} clients with {run.label}, the worst served first{steps}."
        bounds, comparison = "shade around the line is", "The dashed line is, in its own order,"
    text += f" The {bounds} the bounds that each client's rows allow." if finite.any() else " No bounds are known."
    if finite.any() and not finite[np.isfinite(run.values)].all():
        text += " Where there are none, the client has too few rows to say."
    return text + (f" {comparison} {other.label}." if other else "")


def calibration(runs: Sequence[ReportedRun]) -> Content | None:
    """Whether what the models expect is what came, of the leading run client by client."""
    calibrated = [run for run in _leading_first(runs) if run.finished and "predicted" in numbers.scored(run)]
    if not calibrated:
        return None
    return {"runs": calibrated, "chart": plots.calibration(calibrated), "sentences": wording.calibration(calibrated[0])}


def own_models(runs: Sequence[ReportedRun]) -> Content | None:
    parts = []
    chosen = personal.offered(runs)
    for run in _leading_first(runs):
        own = personal.with_own(run)
        if own is not None and chosen is not None and not_none(run.record.personal).kind == "best":
            own = own if run.series == chosen[0].series else None  # of one method, or they are too many
        if own is None or run.record.personal is None:
            continue
        shared = personal.with_shared(run)
        listed = shared.worst_first()[: tables.MOST_CLIENTS]
        caption = f"{capitalized(run.score_name)} of each client with its own model, the worst served first. "
        sign = "The sign is" if run.n <= bars.NAMED else "The dashed line is, in its own order,"
        one: Content = {"sentence": personal.sentence(shared, own), "caption": f"{caption}{sign} the shared model."}
        one["chart"] = bars.clients(own, bars.scale([shared, own]), shared)
        one["table_title"] = f"{len(listed):,} of {run.n:,} owners as a table, the worst served first"
        one["headings"] = personal.headings(run.record.personal)
        one["rows"] = [(i, personal.cells(shared, own, i)) for i in listed]
        parts.append(one)
    return {"parts": parts} if parts else None


def convergence(runs: Sequence[ReportedRun]) -> Content | None:
    quantities = [quantity for quantity in plots.QUANTITIES if plots.has_data(runs, quantity)]
    certified = [sentence for run in runs if (sentence := wording.certified(run))]
    return {"quantities": quantities, "certified": certified, "gaps": _gaps(runs)} if quantities else None


def _gaps(runs: Sequence[ReportedRun]) -> Content | None:
    """Rounds to the certified optimum; None where nothing was certified."""
    reached = [(run, [numbers.reached(run, runs, share).rounds for share in numbers.CERTIFIED]) for run in runs]
    reached = [(run, rounds) for run, rounds in reached if not all(map(math.isnan, rounds))]
    if not reached:
        return None
    headings = ["method", *(f"within {100 * share:g}%" for share in numbers.CERTIFIED)]
    rows = [(run, [numbers.rounds_text(run, r) for r in rounds]) for run, rounds in reached]
    return {"headings": headings, "rows": rows, "csv": tables.csv_link(headings, ([r.title, *n] for r, n in rows))}


def _leading_first(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    lead = wording.leading(runs)
    return [lead, *(run for run in runs if run is not lead)]


def weights(runs: Sequence[ReportedRun]) -> Content | None:
    weighted = [run for run in _leading_first(runs) if numbers.weights(run.record, limit=2)[0]]
    if not weighted:
        return None
    n = runs[0].n
    note = "The weight λ of each client: the more it suffers under the model, the more its loss counts."
    if n > plots.NAMED_LINES + plots.FAINT_LINES:
        note += f" The {plots.NAMED_LINES} heaviest of {n:,} have a line, the others lie in the band."
    elif n > plots.NAMED_LINES:
        note += f" The {plots.NAMED_LINES} heaviest at the end are named, the others faint."
    note += f" The dashed line across is the equal weight, 1/{n:,}."
    without = [run.label for run in runs if run.series not in {other.series for other in weighted}]
    if without:
        note += f" Without such weights: {'; '.join(without) if len(without) <= 6 else f'{len(without)} runs'}."
    return {"note": note, "first": weighted[:OPEN_CHARTS], "more": weighted[OPEN_CHARTS:]}


def _recipe(run: ReportedRun) -> tuple[str, str, str, dict[str, str]]:
    """What it takes to repeat a run: title, command, configuration, versions and device."""
    record, environment = run.record, run.record.environment
    facts = {
        "Equipoise": environment.equipoise,
        "source": environment.git or "not in a repository",
        "Python": environment.python,
        "JAX": environment.jax,
        "NumPy": environment.numpy,
        "device": f"{environment.devices} × {environment.device}",
        "platform": environment.platform,
        "precision": environment.precision,
        "started": environment.started,
        "exchanges": ", ".join(record.federation.exchanges),
    }
    if record.outcome is not None:
        facts["compiling"] = formats.duration(record.outcome.compile_seconds)
    config = record.path / CONFIG
    return run.title, f"equipoise run {shlex.quote(str(config))}", config.read_text("utf-8"), facts


def client_data(runs: Sequence[ReportedRun]) -> Content:
    """What the script needs to show one client across the runs."""
    lead = wording.leading(runs)
    order = lead.worst_first()[: max(1, MOST_NUMBERS // (4 * len(runs)))]
    axis = bars.scale(runs)

    def shown(values: np.ndarray) -> list[float | None]:
        return [float(f"{values[i]:.7g}") if math.isfinite(values[i]) else None for i in order]

    def of_run(run: ReportedRun) -> Content:
        scores = {"value": shown(run.values), "low": shown(run.low), "high": shown(run.high)}
        lam = numbers.weights(run.record, limit=2)[1]
        return {"label": run.label, **scores, "weight": shown(lam[-1]) if len(lam) else None}

    return {
        "share": lead.is_fraction,
        "ends": [axis.low, axis.high],
        "clients": order,
        "names": [lead.members[i].name for i in order],
        "rows": [lead.members[i].train for i in order],
        "left": lead.n - len(order),
        "runs": [of_run(run) for run in runs],
    }
