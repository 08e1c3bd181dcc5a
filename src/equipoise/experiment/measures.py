"""One number of a run, by name.

mean, worst20, best20, min, max, std, gini, jain, gap    of the score that the run is summed up by
objective, certificate, distance                         of its last row
rounds:mean:0.5                                          the first round whose mean is at least 0.5
rounds:distance:1e-6                                     the first round whose distance is at most 1e-6
last:50:min                                              mean over what was recorded of the last 50 rounds, for
                                                         methods that swing
"""

import math
from typing import NamedTuple

import numpy as np

from equipoise.errors import InputError, one_of, require, unknown
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment.records import Row, Run

SUMMARY = ("mean", "worst20", "best20", "min", "max", "std", "gini", "jain", "gap")
LAST = {"objective": "objective", "certificate": "gap", "distance": "distance"}  # name -> field of a row
SPREAD = ("std", "gini", "gap")  # less is better whatever the score
PATHS = ("mean", "worst20", "min", "std", *LAST)  # what `rounds` may wait for and `last` may average


class Measure(NamedTuple):
    """What is read off a run."""

    name: str
    level: float | None = None  # of rounds:NAME:LEVEL
    last: int | None = None  # of last:ROUNDS:NAME

    @property
    def heading(self) -> str:
        words = {"mean": "average", "worst20": "worst 20%", "best20": "best 20%", "min": "worst client"}
        name = words.get(self.name, self.name)
        if self.last is not None:
            return f"{name}, last {self.last} rounds"
        return name if self.level is None else f"rounds to {name} {self.level:g}"

    def value(self, run: Run) -> float:
        """NaN: the run does not know it; infinity: it never got there."""
        if self.level is not None:
            up = self._up(run) and self.name not in (*LAST, *SPREAD)
            values = ((row.round, self._along(row, run)) for row in run.rows)
            reached = (round for round, value in values if (value >= self.level if up else value <= self.level))
            return next(reached, math.inf)
        if self.last is not None:
            late = [row for row in run.rows if row.round > run.rows[-1].round - self.last]
            return float(np.mean([self._along(row, run) for row in late]))
        if self.name in LAST:
            return _number(getattr(run.final, LAST[self.name]))
        summary = run.outcome.summary if run.outcome else {}
        return _number(summary.get("max" if self.name == "min" and not self._up(run) else self.name))

    def more_is_better(self, run: Run) -> bool:
        if self.level is not None or self.name in LAST or self.name in SPREAD:
            return False
        return self.name == "jain" or self._up(run)

    def _up(self, run: Run) -> bool:
        return run.outcome is None or run.outcome.higher_is_better

    def _along(self, row: Row, run: Run) -> float:
        if self.name in LAST:
            return _number(getattr(row, LAST[self.name]))
        score = run.outcome.measure if run.outcome else "loss"
        values = np.array([_number(v) for v in row.scores[score]])
        heard, up = values[~np.isnan(values)], self._up(run)
        if not heard.size:
            return math.nan
        if self.name == "min":
            return float(heard.min() if up else heard.max())
        return float({"std": heard.std, "mean": heard.mean}.get(self.name, lambda: worst_mean(heard, up))())


def measure(text: str) -> Measure:
    """`text` as above."""
    if text in SUMMARY or text in LAST:
        return Measure(text)
    kind, *rest = text.split(":")
    if kind not in ("rounds", "last") or len(rest) != 2:
        raise unknown("measure", text, (*SUMMARY, *LAST, "rounds:mean:0.5", "last:50:min"))
    name, number = rest if kind == "rounds" else reversed(rest)
    one_of(f"measure of {text!r}", name, PATHS)
    try:
        value = float(number)
    except ValueError:
        wrong = f"the number in {text!r} is {number!r}; give one, as in rounds:mean:0.5 or last:50:min"
        raise InputError(wrong) from None
    if kind == "rounds":
        return Measure(name, level=value)
    require(value >= 1 and value.is_integer(), f"{text!r} is of {number} rounds; give a whole number from 1 up")
    return Measure(name, last=int(value))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
