"""Sentences made of the records' numbers: whom a model was trained on, what fairness cost, what went wrong."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equipoise.evaluation import Bounds, intervals
from equipoise.evaluation.intervals import Paired
from equipoise.report import numbers
from equipoise.report.numbers import Entry

CORRECTED = (
    "Some clients are in the worst-served fifth only because the few rows they were judged by happened to be hard, so "
    "the number as measured looks worse than what they will see; the corrected number takes this bad luck out, and the "
    "truth lies between its bounds 19 times in 20."
)


class Change(NamedTuple):
    """From one run to another: how far towards better, corrected for chance, and between which bounds."""

    gain: float  # above zero: better
    low: float  # what finite test sets leave open; NaN: not known
    high: float

    @property
    def clear(self) -> bool:
        return not self.low <= 0 <= self.high  # of an unknown interval nothing can be said against it


def leading(entries: Sequence[Entry]) -> Entry:
    """The run that serves the worst-served fifth best, finished ones first."""
    return max(entries, key=lambda e: (e.finished, _merit(e, "worst20")))


def reference(entries: Sequence[Entry]) -> Entry | None:
    """Of the runs that train for the average client, the one with the best average."""
    plain = [e for e in entries if e.averages and e.finished and math.isfinite(e.summary["mean"])]
    return max(plain, key=lambda e: _merit(e, "mean")) if plain else None


def fairest(entries: Sequence[Entry]) -> Entry | None:
    """Of the runs that do not, the one that serves the worst-served fifth best."""
    fair = [e for e in entries if not e.averages and e.finished and math.isfinite(e.summary["worst20"])]
    return max(fair, key=lambda e: _merit(e, "worst20")) if fair else None


def _merit(entry: Entry, key: str) -> float:
    value = entry.summary[key]
    return -math.inf if not math.isfinite(value) else value if entry.up else -value


def changes(old: Entry, new: Entry, paired: Paired | None) -> tuple[Change, Change]:
    """For the worst-served fifth, and for the average client.

    `paired` says how far the errors of the two go together, having been scored on the same rows; without, they are
    taken for independent.
    """
    together = paired or Paired(0.0, 0.0)
    worst = intervals.difference(old.worst, new.worst, together.worst)
    mean = intervals.difference(old.mean, new.mean, together.mean)
    return _towards_better(worst, new.up), _towards_better(mean, new.up)


def _towards_better(change: Bounds, up: bool) -> Change:
    low, found, high = change
    return Change(found, low, high) if up else Change(-found, -high, -low)


class Cost(NamedTuple):
    """One sentence, and what has to be kept in mind."""

    sentence: str
    remarks: tuple[str, ...] = ()


def cost_of_fairness(entries: Sequence[Entry]) -> Cost:
    """What the fairest run does for the worst-served fifth, for the average client, and for how many bytes."""
    old, new = reference(entries), fairest(entries)
    if old is None or new is None:
        return _no_comparison(entries, new)
    paired = numbers.paired(old, new)
    worst, mean = changes(old, new, paired)
    first = _moved("the worst-served fifth", old, new, "worst20", "loses")
    second = _moved("the average client", old, new, "mean", "gives up")
    told = f"With {new.label} instead of {old.label}, {first}; {second}; {_price(old, new)}."
    doubt = (_doubt(worst, mean), _basis(worst, mean, paired is not None, new))
    return Cost(told, tuple(filter(None, (*doubt, _chosen(entries, old, new)))))


def _moved(who: str, old: Entry, new: Entry, key: str, down: str) -> str:
    """By how much, as the two numbers read when they are written."""
    a, b = (e.rounded(e.summary[key]) for e in (old, new))
    if a == b:
        return f"{who} stays at {new.written(b)}"
    verb = "gains" if (b > a) == new.up else down
    return f"{who} {verb} {new.difference(b - a)} (from {old.written(a)} to {new.written(b)})"


def _price(old: Entry, new: Entry) -> str:
    ratio = new.bytes_each / old.bytes_each if old.bytes_each > 0 else math.nan
    if not math.isfinite(ratio):
        return "what it cost in bytes is not known"
    return "it cost the same bytes" if f"{ratio:.2g}" == "1" else f"it cost {ratio:.2g}\u00d7 the bytes"


def _doubt(worst: Change, mean: Change) -> str:
    """What the test rows cannot tell."""
    if math.isnan(worst.low + worst.high):
        return "How much of this is chance is not known: the runs have no bounds."
    if worst.gain <= 0 and worst.clear:
        return "Fairness did not help here: the worst-served clients are no better off."
    if not worst.clear and not mean.clear:
        return "Both differences lie within what the scored rows leave open: they may be chance."
    if not worst.clear:
        return (
            "The difference for the worst-served fifth lies within what the scored rows leave open: it may be chance."
        )
    if not mean.clear:
        return "The difference of the averages lies within what the scored rows leave open."
    return ""


def _basis(worst: Change, mean: Change, paired: bool, entry: Entry) -> str:
    """By which bounds that was judged."""
    if math.isnan(worst.low + worst.high + mean.low + mean.high):
        return ""
    rows = (
        "both models were compared on the same rows"
        if paired
        else "what both models make of the same rows was not kept, so they count as scored on different rows, and the "
        "bounds are rather too wide"
    )
    return (
        f"Judged by the difference, corrected for chance ({rows}): the worst-served fifth gains "
        f"{_between(worst, entry)}, the average client {_between(mean, entry)}, 19 times in 20."
    )


def _between(change: Change, entry: Entry) -> str:
    share = entry.measure == "accuracy"
    low, high = (f"{100 * v:+.1f}" if share else f"{v:+.3g}" for v in (change.low, change.high))
    return f"between {low} and {high}{' points' if share else ''}".replace("-", "\u2212")


def _chosen(entries: Sequence[Entry], old: Entry, new: Entry) -> str:
    """Which of several were compared: the best of many looks better than it is."""
    fair = sum(not e.averages and e.finished for e in entries)
    plain = sum(e.averages and e.finished for e in entries)
    if fair < 2 and plain < 2:
        return ""
    sides = []
    if fair > 1:
        sides.append(f"{new.label} is the best of {fair} fair runs by its worst-served fifth")
    if plain > 1:
        sides.append(f"{old.label} the best of {plain} runs for the average by its average")
    text = ", ".join(sides)
    return text[0].upper() + text[1:] + "; the best of several looks a little better than it is."


def _no_comparison(entries: Sequence[Entry], new: Entry | None) -> Cost:
    lead = leading(entries)
    low, mean = lead.summary["worst20"], lead.summary["mean"]
    if not (math.isfinite(low) and math.isfinite(mean)):
        return Cost("No run has scores yet, so nothing can be said about fairness.")
    apart = lead.difference(lead.rounded(mean) - lead.rounded(low))
    where = "below" if lead.up else "above"
    lag = f"With {lead.label} the worst-served fifth stands at {lead.written(low)}, {apart} {where} the average client."
    missing = (
        "no finished run here trains for the average client" if new is not None else "no finished fair run is here"
    )
    return Cost(lag, (f"What fairness costs cannot be said: {missing}; `equipoise compare` trains both.",))


def sentence(text: str) -> str:
    """With a capital, unless it begins with the name of a setting, and a full stop."""
    text = text.strip()
    word = text.partition(" ")[0]
    start = text[:1].upper() + text[1:] if word.isalpha() else text
    return start + ("" if text.endswith((".", "!", "?")) else ".")


def whom(entries: Sequence[Entry]) -> list[str]:
    """What was trained on whom, in plain words: sentences."""
    federation = entries[0].run.federation
    members, n = federation.members, len(federation.members)
    train = sorted(m.train for m in members)
    test = sum(m.test for m in members)
    out = [sentence(federation.what)] if federation.what.strip() else []
    if federation.task == "classification":
        goal = f"tells {len(federation.classes)} classes apart{_listed(federation.classes)}"
    else:
        goal = "predicts a number"
    for_whom = f"trained for {n:,} clients together" if n > 1 else "trained for one client"
    size = f"{federation.parameters:,} parameters"
    if len(entries) == 1:
        out.append(f"One model of {size} was {for_whom}, each of whom keeps its rows to itself; it {goal}.")
    else:
        out.append(
            f"{len(entries)} models of {size} each were {for_whom}, each of whom keeps its rows to itself; "
            f"the model {goal}."
        )
    out.append(f"They hold {sum(train):,} training rows{_spread(train)}." if n > 1 else f"It holds {train[0]:,} rows.")
    if federation.held_out:
        out.append(f"All scores here are of {test:,} held-out rows, which no training saw.")
    else:
        out.append("No rows were held out: the scores are of the training rows, and flatter the model.")
    return out


def _spread(rows: Sequence[int]) -> str:
    if rows[0] == rows[-1]:
        return f", {rows[0]:,} each"
    return f"; the smallest has {rows[0]:,}, the largest {rows[-1]:,}, the median {round(float(np.median(rows))):,}"


def _listed(classes: Sequence[str], most: int = 6) -> str:
    if not classes:
        return ""
    return f" ({', '.join(classes[:most])}{', …' if len(classes) > most else ''})"


def notes(entries: Sequence[Entry]) -> list[str]:
    """What the federations' records say was left out or measured, each once."""
    return list(dict.fromkeys(sentence(note) for entry in entries for note in entry.run.federation.notes))


def certified(entry: Entry) -> str:
    """How far a run's objective is from the best possible one, at most; nothing where that is not certified."""
    last = entry.run.rows[-1] if entry.run.rows else None
    if last is None or last.gap is None or last.objective is None or not 0 <= last.gap < abs(last.objective):
        return ""
    return sentence(
        f"{entry.label} is certified after {last.round:,} rounds: no model has a robust objective more than "
        f"{last.gap / abs(last.objective):.2g} times this one's below it"
    )


def differing(entries: Sequence[Entry]) -> str:
    """A warning where runs stand side by side that were not given the same rows."""
    rows = {tuple((m.train, m.test) for m in e.run.federation.members) for e in entries}
    if len(rows) < 2:
        return ""
    return "The runs did not divide the rows alike: a client of the same name has other rows in other runs."


def troubles(entry: Entry) -> list[str]:
    """What went wrong in a run, a sentence each."""
    run, out = entry.run, []
    planned = numbers.setting(run, "run", "rounds")
    if run.outcome is None:
        of = f" of {int(planned):,}" if planned and planned.isdigit() else ""
        out.append(
            f"It is not finished: its last record is of round {entry.rounds:,}{of}. "
            f"`equipoise resume {run.path}` goes on."
            if run.rows
            else "It is not finished, and no round was recorded."
        )
    else:
        out.extend(map(sentence, run.outcome.events))
    if run.rows:
        last = run.rows[-1]
        if last.broken:
            out.append(f"{_replies(last.broken)} not finite and {'was' if last.broken == 1 else 'were'} left out.")
        lost = sum(last.asked) - sum(last.answered) - last.broken
        if lost > 0:
            out.append(f"{lost:,} of {sum(last.asked):,} messages had no answer that counted.")
        silent = int(np.sum(~np.isfinite(entry.values)))
        if silent:
            who = "client has" if silent == 1 else "clients have"
            out.append(f"{silent:,} {who} no {entry.score} at the end; the averages are over the others.")
    return out


def _replies(n: int) -> str:
    return "1 reply was" if n == 1 else f"{n:,} replies were"
