"""Sentences made of numbers: whom a model was trained on, what fairness cost, what went wrong."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equipoise.evaluation import Bounds
from equipoise.evaluation.differences import difference
from equipoise.experiment.records import Run
from equipoise.report import numbers
from equipoise.report.formats import capitalized
from equipoise.report.numbers import Paired, ReportedRun

CORRECTED = (
    "Some clients are in the worst-served fifth only because the few rows they were judged by happened to be hard, so "
    "the number as measured looks worse than what they will see; the corrected number takes this bad luck out, and the "
    "truth lies between its bounds 19 times in 20."
)


SKILL = (
    "by how much the log loss is below that of predicting each client's own base rate: 100% is certain and right, 0% "
    "no better than the base rate; one class is so common at some client that an accuracy says little"
)
FIXED = (
    "A skill is bounded at the mixture of classes that a client's scored rows have, with its base rate, of its "
    "training rows, held fixed."
)
MEANS = ("loss", "skill", "rmse", "brier")  # scores that a rare large number can make


def alike(runs: Sequence[ReportedRun]) -> str:
    """One sentence where several methods have the same scores to the digit at every client; else empty."""
    if len(runs) < 3 or not all(run.finished and np.isfinite(run.values).any() for run in runs):
        return ""
    written = [[run.format(float(v)) for v in run.values] for run in runs]
    if any(row != written[0] for row in written):
        return ""
    advice = 'run.score = "skill" compares their probabilities' if runs[0].measure == "accuracy" else ""
    how = "the same predictions are right" if runs[0].measure == "accuracy" else "the scores are the same"
    first = f"All {len(runs)} methods serve every client alike: {how} to the digit, and nothing here tells them apart"
    return f"{first}; {advice}." if advice else f"{first}."


def calibration(run: ReportedRun) -> list[str]:
    """Where a model expects what does not come, most of all."""
    scores = numbers.scored(run)
    expected, came = scores["predicted"], scores["observed"]
    what = "the class " + run.record.federation.classes[1] if len(run.record.federation.classes) == 2 else "its choice"
    lines = [f"Dots are the clients with {run.label}: how often it expects {what} there, and how often that came."]
    far = np.where(np.isfinite(expected + came), np.abs(expected - came), -1)
    if (far >= 0).any():
        i = int(np.argmax(far))
        more = "more" if expected[i] > came[i] else "less"
        lines.append(
            f"It is furthest off at {run.members[i].name}, where it expects {expected[i]:.1%} and {came[i]:.1%} came: "
            f"{more} than there is; few rows alone make such differences too."
        )
    if any(run.record.outcome.calibration if run.record.outcome else ()):
        lines.append("Curves are of all clients' rows together, in tenths from the least likely to the likeliest.")
    return lines


def rests_on(run: ReportedRun) -> str:
    """What a reader has to grant for the bounds to hold."""
    unit = numbers.setting(run.record, "data", "unit")
    rows = f"that clients' scored rows are a fair sample of what they will have, of each {unit} apart from the others"
    if not unit:
        rows = (
            "that every scored row is drawn by itself from what its client will have (several rows of one person are "
            "not: then data.unit has to name the column that says whose they are)"
        )
    rare = "; that no client has rare large errors of which the other clients show none" if run.measure in MEANS else ""
    return (
        "The bounds hold whatever the number of a client's rows has to do with its score, and those of single clients "
        f"hold for all of them together. They rest on this: {rows}; that no scored row had a say in the model{rare}."
    )


def leading(runs: Sequence[ReportedRun]) -> ReportedRun:
    """The run that serves the worst-served fifth best, finished ones first."""
    return max(runs, key=lambda run: (run.finished, _merit(run, "worst20")))


def reference(runs: Sequence[ReportedRun]) -> ReportedRun | None:
    """Of the runs that train for the average client, the one with the best average."""
    return _best([run for run in runs if run.trains_for_average], "mean")


def fairest(runs: Sequence[ReportedRun]) -> ReportedRun | None:
    """Of the other runs, the one that serves the worst-served fifth best."""
    return _best([run for run in runs if not run.trains_for_average], "worst20")


def compared(runs: Sequence[ReportedRun]) -> tuple[ReportedRun | None, ReportedRun | None]:
    """The run for the average and the fair one; of a path, its beginning and the point that is chosen."""
    path = numbers.path(runs)
    if path is not None and path.chosen is not None and path.points[0][1] is not path.chosen:
        return path.points[0][1], path.chosen
    return reference(runs), fairest(runs)


def _best(runs: Sequence[ReportedRun], key: str) -> ReportedRun | None:
    finished = [run for run in runs if run.finished and math.isfinite(run.summary[key])]
    return max(finished, key=lambda run: _merit(run, key), default=None)


def _merit(run: ReportedRun, key: str) -> float:
    value = run.summary[key]
    return -math.inf if not math.isfinite(value) else value if run.higher_is_better else -value


def changes(old: ReportedRun, new: ReportedRun, paired: Paired | None) -> tuple[Bounds, Bounds]:
    """For the worst-served fifth, and for the average client, corrected for chance; above zero is better.

    `paired` says what the same rows tell of the difference, if the two were scored on the same; without it they count
    as scored on different rows.
    """
    worst = difference(old.worst, new.worst, 0.0 if paired is None else paired.worst)
    mean = difference(old.mean, new.mean, 0.0)
    if paired is not None and math.isfinite(paired.mean.low):
        mean = paired.mean
    if new.higher_is_better:
        return worst, mean
    return Bounds(*(-v for v in reversed(worst))), Bounds(*(-v for v in reversed(mean)))


def _may_be_chance(change: Bounds) -> bool:
    """Whether zero lies within the bounds; not where these are not known."""
    return change.low <= 0 <= change.high


class Cost(NamedTuple):
    """One sentence, and remarks on how far to trust it."""

    sentence: str
    remarks: tuple[str, ...] = ()


def cost_of_fairness(runs: Sequence[ReportedRun]) -> Cost:
    """What the fairest run does for the worst-served fifth, for the average client, and for how many bytes."""
    old, new = compared(runs)
    if old is None or new is None:
        return _no_comparison(runs, new)
    paired = numbers.paired(old, new)
    worst, mean = changes(old, new, paired)
    text = f"With {new.label} instead of {old.label}, {'; '.join(_both_changes(old, new))}; {_price(old, new)}."
    doubt = (_doubt(worst, mean), _basis(worst, mean, paired is not None, new))
    return Cost(text, tuple(filter(None, (*doubt, _chosen(runs, old, new)))))


def conclusion(runs: Sequence[ReportedRun]) -> str:
    """What to conclude from a comparison, and how sure that is, in one sentence."""
    old, new = compared(runs)
    if old is None or new is None:
        cost = _no_comparison(runs, new)
        why = cost.remarks[0].partition(";")[0] if cost.remarks else ""
        return f"{cost.sentence.removesuffix('.')}; {why[:1].lower()}{why[1:]}." if why else cost.sentence
    worst, mean = changes(old, new, numbers.paired(old, new))
    if math.isnan(worst.low + worst.high):
        verdict = f"{new.label} instead of {old.label}, how surely is not known"
    elif _may_be_chance(worst):
        verdict = f"For the worst-served fifth {new.label} and {old.label} cannot be told apart on these rows"
    elif worst.estimate <= 0:
        verdict = f"Fairness did not help here: stay with {old.label} instead of {new.label}"
    elif mean.estimate < 0 and not _may_be_chance(mean):
        verdict = f"{new.label} instead of {old.label} is a trade"
    else:
        verdict = f"Take {new.label} instead of {old.label}"
    sure = "" if math.isnan(worst.low + worst.high) else ", 19 times in 20"
    return f"{verdict}: {'; '.join(_both_changes(old, new, (worst, mean)))}{sure}; {_price(old, new)}."


def _both_changes(old: ReportedRun, new: ReportedRun, bounds: tuple[Bounds, Bounds] | None = None) -> list[str]:
    """For the worst-served fifth and the average client, by how much the number changed, as it is written.

    Without bounds of the differences, from what to what.
    """
    texts = []
    groups = ("the worst-served fifth", "worst20", "loses"), ("the average client", "mean", "gives up")
    for k, (who, key, down) in enumerate(groups):
        before, after = (run.rounded(run.summary[key]) for run in (old, new))
        verb = "gains" if (after > before) == new.higher_is_better else down
        text = f"{who} stays" if before == after else f"{who} {verb} {new.format_difference(after - before)}"
        if bounds is None and before == after:
            text += f" at {new.format(after)}"
        elif bounds is None:
            text += f" (from {old.format(before)} to {new.format(after)})"
        elif not math.isnan(bounds[k].low + bounds[k].high):
            text += f" (corrected for chance {_between(bounds[k], new)})"
        texts.append(text)
    return texts


JOINING = (
    "A model of its own rows is the same kind of model, trained by the client alone and scored on the same held-out "
    "rows; it is made for that client's mixture of labels and for no other."
)
NOT_ALONE = "What clients would get from models of their own rows is not known here; `equipoise compare` finds out."


def chosen_of(path: numbers.Path) -> str:
    """Which point of a path is marked, and why."""
    if path.chosen is None:
        return "No run of the path is finished yet."
    value = next(value for value, run in path.points if run is path.chosen)
    reason = "of those whose average is within the bounds of the best one, it serves the worst-served fifth best"
    return f"Chosen: {path.setting} = {value:g}; {reason}. Another price of fairness is another point of the curve."


OWN_ROWS = "a model of its own rows"


def who_gains(runs: Sequence[ReportedRun]) -> str:
    """Whether joining pays for each client, and how sure that is; empty where it is not known what they get alone."""
    run, alone = fairest(runs) or leading(runs), numbers.alone(runs)
    if alone is None:
        return ""
    gains = numbers.gains(run, alone, OWN_ROWS)
    return f"{joining(run, gains)} {sure_of(run, gains)}"


def joining(run: ReportedRun, against_alone: numbers.Gains) -> str:
    """Who is better served by the run than by a model of its own, and who is not."""
    gains = against_alone.values
    finite = np.flatnonzero(np.isfinite(gains))
    if not finite.size:
        return ""
    better, worse = [i for i in finite if gains[i] > 0], [i for i in finite if gains[i] < 0]
    text = f"Against a model of its own rows alone, {len(better):,} of {finite.size:,} clients gain by {run.label}"
    if better:
        most = max(better, key=lambda i: gains[i])
        text += f" ({run.members[most].name} most: {run.format_difference(gains[most])})"
    if not worse:
        return f"{text} and none loses."
    least = min(worse, key=lambda i: gains[i])
    name = run.members[least].name
    verb = "loses" if len(worse) == 1 else f"lose, most of all {name}"
    who = f"{name} {verb}" if len(worse) == 1 else f"{len(worse):,} {verb}"
    return f"{text}, and {who} ({run.format_difference(gains[least])})."


MOST_NAMES = 5  # of those who lose


def sure_of(run: ReportedRun, gains: numbers.Gains) -> str:
    """For how many clients the gain or loss is more than chance, by the bounds of each."""
    bounded = int(np.isfinite(gains.low).sum())
    if not bounded:
        return "How sure that is for a single client is not known."
    up, down = (np.flatnonzero(gains.sure == sign) for sign in (1, -1))
    who = f" ({', '.join(run.members[i].name for i in down)})" if 0 < len(down) <= MOST_NAMES else ""
    rows = "" if gains.paired else " The two models were not compared row by row, so that the bounds are wider."
    if not len(up) and not len(down):
        return f"For none of them is that more than chance: their rows leave both a gain and a loss possible.{rows}"
    text = f"The gain is more than chance for {_clients(len(up))}, the loss for {_clients(len(down))}{who}"
    left = bounded - len(up) - len(down)
    rest = f"; for the other {left:,} their rows leave both possible" if left else ""
    return f"{text}, 19 times in 20 for all of them together{rest}.{rows}"


def _clients(count: int) -> str:
    return {0: "no client", 1: "1 client"}.get(count, f"{count:,} clients")


def _price(old: ReportedRun, new: ReportedRun) -> str:
    ratio = new.bytes_per_client / old.bytes_per_client if old.bytes_per_client > 0 else math.nan
    if not math.isfinite(ratio):
        return "what it cost in bytes is not known"
    return "it cost the same bytes" if f"{ratio:.2g}" == "1" else f"it cost {ratio:.2g}\u00d7 the bytes"


def _doubt(worst: Bounds, mean: Bounds) -> str:
    """Which differences may be chance."""
    open_range = "within what the scored rows leave open"
    if math.isnan(worst.low + worst.high):
        return "How much of this is chance is not known: the runs have no bounds."
    if worst.estimate <= 0 and not _may_be_chance(worst):
        return "Fairness did not help here: the worst-served clients are no better off."
    if _may_be_chance(worst) and _may_be_chance(mean):
        return f"Both differences lie {open_range}: they may be chance."
    if _may_be_chance(worst):
        return f"The difference for the worst-served fifth lies {open_range}: it may be chance."
    if math.isnan(mean.low + mean.high):
        return "How much of the difference of the averages is chance is not known."
    return f"The difference of the averages lies {open_range}." if _may_be_chance(mean) else ""


def _basis(worst: Bounds, mean: Bounds, paired: bool, run: ReportedRun) -> str:
    """The bounds by which chance was judged."""
    if math.isnan(worst.low + worst.high + mean.low + mean.high):
        return ""
    rows = "both models were compared on the same rows"
    if not paired:
        rows = "their scores row by row were not kept, so they count as scored on different rows, with wider bounds"
    return (
        f"Judged by the difference, corrected for chance ({rows}): the worst-served fifth gains "
        f"{_between(worst, run)}, the average client {_between(mean, run)}, 19 times in 20."
    )


def _between(change: Bounds, run: ReportedRun) -> str:
    low, high = (f"{100 * v:+.1f}" if run.is_fraction else f"{v:+.3g}" for v in (change.low, change.high))
    return f"between {low} and {high}{' points' if run.is_fraction else ''}".replace("-", "\u2212")


def _chosen(runs: Sequence[ReportedRun], old: ReportedRun, new: ReportedRun) -> str:
    """Which of several runs were compared: the best of several looks better than it is."""
    if numbers.path(runs) is not None:
        return ""  # the caption of the path says how it was chosen
    fair = sum(not run.trains_for_average and run.finished for run in runs)
    average = sum(run.trains_for_average and run.finished for run in runs)
    sides = []
    if fair > 1:
        sides.append(f"{new.label} is the best of {fair} fair runs by its worst-served fifth")
    if average > 1:
        sides.append(f"{old.label} the best of {average} runs for the average by its average")
    return capitalized(", ".join(sides)) + "; the best of several looks a little better than it is." if sides else ""


def _no_comparison(runs: Sequence[ReportedRun], new: ReportedRun | None) -> Cost:
    lead = leading(runs)
    low, mean = lead.summary["worst20"], lead.summary["mean"]
    if not (math.isfinite(low) and math.isfinite(mean)):
        return Cost("No run has scores yet, so nothing can be said about fairness.")
    apart = lead.format_difference(lead.rounded(mean) - lead.rounded(low))
    where = "below" if lead.higher_is_better else "above"
    lag = f"With {lead.label} the worst-served fifth stands at {lead.format(low)}, {apart} {where} the average client."
    missing = "no finished run here trains for the average client" if new else "no finished fair run is here"
    return Cost(lag, (f"What fairness costs cannot be said: {missing}; `equipoise compare` trains both.",))


def sentence(text: str) -> str:
    """With a full stop and a capital, unless it begins with the name of a setting."""
    text = text.strip()
    word = text.partition(" ")[0]
    start = capitalized(text) if word.isalpha() else text
    return start + ("" if text.endswith((".", "!", "?")) else ".")


def federation(runs: Sequence[ReportedRun]) -> list[str]:
    """What was trained, on whom: a few sentences."""
    record = runs[0].record.federation
    members, n = record.members, len(record.members)
    train = sorted(m.train for m in members)
    test = sum(m.test for m in members)
    out = [sentence(record.what)] if record.what.strip() else []
    goal = "predicts a number"
    if record.task == "classification":
        goal = f"tells {len(record.classes)} classes apart"
        first = ", ".join(record.classes[:6]) + (", …" if len(record.classes) > 6 else "")
        goal += f" ({first})" if record.classes else ""
    size = f"{record.parameters:,} parameters"
    models = f"One model of {size} was" if len(runs) == 1 else f"{len(runs)} models of {size} each were"
    for_whom = f"{n:,} clients together" if n > 1 else "one client"
    model = "it" if len(runs) == 1 else "the model"
    out.append(f"{models} trained for {for_whom}, each of whom keeps its rows to itself; {model} {goal}.")
    out.append(f"They hold {sum(train):,} training rows{_spread(train)}." if n > 1 else f"It holds {train[0]:,} rows.")
    if record.held_out:
        return [*out, f"All scores here are of {test:,} held-out rows, which no training saw."]
    return [*out, "No rows were held out: the scores are of the training rows, and flatter the model."]


def _spread(rows: Sequence[int]) -> str:
    if rows[0] == rows[-1]:
        return f", {rows[0]:,} each"
    return f"; the smallest has {rows[0]:,}, the largest {rows[-1]:,}, the median {round(float(np.median(rows))):,}"


def notes(runs: Sequence[ReportedRun]) -> list[str]:
    """What the records say was left out or measured, each once, and of which runs if not of all."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for note in run.record.federation.notes:
            said.setdefault(note, []).append(run.label)
    sentences = []
    for note, labels in said.items():
        more = f" and {len(labels) - 4:,} more" if len(labels) > 4 else ""
        sentences.append(note if len(labels) == len(runs) else f"{', '.join(labels[:4])}{more}: {note}")
    sentences += [note for run in runs for note in kept(run.record)]
    sentences += [price_of_privacy(run, runs) for run in runs if run.record.config.get("privacy")]
    return list(dict.fromkeys(sentence(note) for note in sentences))


def price_of_privacy(private: ReportedRun, runs: Sequence[ReportedRun]) -> str:
    """What the noise of a run costs, where the same method without it stands beside it."""

    def method(run: ReportedRun) -> list[str | None]:
        keys = (("algorithm", "name"), ("objective", "name"), ("model", "name"))
        return [numbers.setting(run.record, *key) for key in keys]

    what = f"epsilon {numbers.setting(private.record, 'privacy', 'epsilon')}"
    plain = next((run for run in runs if method(run) == method(private) and not run.record.config.get("privacy")), None)
    if plain is None:
        return (
            f"what {what} costs {private.label} in accuracy is not known: nothing here is the same without noise; "
            "privacy = false in a [compare] method is"
        )
    worst, mean = _both_changes(plain, private)
    return f"the price of {what}, {private.label} instead of {plain.label}: {mean}; {worst}"


def kept(run: Run) -> tuple[str, ...]:
    """Which round the model is of, where it need not be the last."""
    if run.outcome is None or run.outcome.best_round is None:
        return ()
    label, best, rounds = run.outcome.label, run.outcome.best_round, run.outcome.rounds
    return (f"the model of {label} is that of round {best:,} of {rounds:,}, the best on validation rows",)


def certified(run: ReportedRun) -> str:
    """The most by which a run's objective can be above the optimum; empty where that is not certified."""
    last = run.record.final if run.record.rows else None
    if last is None or last.gap is None or last.objective is None or not 0 <= last.gap < abs(last.objective):
        return ""
    share = f"{last.gap / abs(last.objective):.2g}"
    best = f"the best possible robust objective is lower by at most {share} times this one"
    return sentence(f"{run.label} is certified after {last.round:,} rounds: {best}")


def masked(run: ReportedRun) -> bool:
    """Whether its sites told sums only, so that no client's score can be shown."""
    return numbers.setting(run.record, "federation", "secure") == "True"


NO_SCORES = (
    "The scores of single clients are not shown, because nobody but they themselves knows them: federation.secure "
    "masks evaluations too, so that the server learned sums over the sites. Their mean stands above, with what was "
    "trained."
)


def different_rows(runs: Sequence[ReportedRun]) -> str:
    """A warning where the runs that are compared were not given the same rows."""
    rows = {tuple((m.train, m.test) for m in run.members) for run in runs}
    warning = "The runs divided the rows differently: a client of the same name has different rows in different runs."
    return warning if len(rows) > 1 else ""


def problems(run: ReportedRun) -> list[str]:
    """What went wrong in a run, a sentence each."""
    record = run.record
    out = [sentence(event) for event in record.outcome.events] if record.outcome else []
    if not run.finished and not record.rows:
        out.append("It is not finished, and no round was recorded.")
    elif not run.finished:
        planned = numbers.setting(record, "run", "rounds") or ""
        planned_rounds = f" of {int(planned):,}" if planned.isdigit() else ""
        command = f"`equipoise resume {record.path}`"
        where = f"its last record is of round {run.rounds:,}{planned_rounds}"
        out.append(f"It is not finished: {where}. {command} continues it.")
    if record.rows:
        last = record.rows[-1]
        if last.broken:
            replies = "1 reply was" if last.broken == 1 else f"{last.broken:,} replies were"
            out.append(f"{replies} not finite and {'was' if last.broken == 1 else 'were'} left out.")
        lost = sum(last.asked) - sum(last.answered) - last.broken
        if lost > 0:
            out.append(f"{lost:,} of {sum(last.asked):,} messages had no answer that counted.")
        missing = int(np.sum(~np.isfinite(run.values)))
        if missing and not masked(run):
            who = "client has" if missing == 1 else "clients have"
            out.append(f"{missing:,} {who} no {run.score_name} at the end; the averages are over the others.")
    return out
