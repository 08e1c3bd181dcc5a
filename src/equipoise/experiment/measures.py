"""One number of a run, by name.

mean, worst20, best20, min, max, std, gini, jain, gap    of the score that the run is summed up by
objective, certificate, distance                         of its last row
rounds:mean:0.5                                          the first round whose mean is at least 0.5
rounds:distance:1e-6                                     the first round whose distance is at most 1e-6
"""

import math
from typing import NamedTuple

import numpy as np

from equipoise.errors import InputError, unknown
from equipoise.experiment.records import Row, Run

SUMMARY = ("mean", "worst20", "best20", "min", "max", "std", "gini", "jain", "gap")
LAST = {"objective": "objective", "certificate": "gap", "distance": "distance"}  # name -> field of a row
SPREAD = ("std", "gini", "gap")  # less is better whatever the score
PATHS = ("mean", "worst20", *LAST)  # what `rounds` may wait for


class Measure(NamedTuple):
    """What is read off a run."""

    name: str
    level: float | None = None  # of rounds:NAME:LEVEL

    @property
    def heading(self) -> str:
        words = {"mean": "average", "worst20": "worst 20%", "best20": "best 20%", "min": "worst client"}
        name = words.get(self.name, self.name)
        return name if self.level is None else f"rounds to {name} {self.level:g}"

    def of(self, run: Run) -> float:
        """NaN: the run does not know it; infinity: it never got there."""
        if self.level is not None:
            return self._rounds(run)
        if self.name in LAST:
            return _number(getattr(run.rows[-1], LAST[self.name]))
        summary = run.outcome.summary if run.outcome else {}
        up = run.outcome is None or run.outcome.higher_is_better
        return _number(summary.get("max" if self.name == "min" and not up else self.name))

    def more_is_better(self, run: Run) -> bool:
        if self.level is not None or self.name in LAST or self.name in SPREAD:
            return False
        return self.name == "jain" or run.outcome is None or run.outcome.higher_is_better

    def _rounds(self, run: Run) -> float:
        assert self.level is not None
        up = self.name not in LAST and (run.outcome is None or run.outcome.higher_is_better)
        for row in run.rows:
            value = self._along(row, run, up)
            if value >= self.level if up else value <= self.level:
                return row.round
        return math.inf

    def _along(self, row: Row, run: Run, up: bool) -> float:
        if self.name in LAST:
            return _number(getattr(row, LAST[self.name]))
        score = run.outcome.measure if run.outcome else "loss"
        values = np.array([_number(v) for v in row.scores[score]])
        known = np.sort(values[~np.isnan(values)])[:: 1 if up else -1]  # the worst first
        if not known.size:
            return math.nan
        return float(known.mean() if self.name == "mean" else known[: max(1, int(0.2 * known.size + 1e-9))].mean())


def measure(text: str) -> Measure:
    """`text` as above."""
    if text in SUMMARY or text in LAST:
        return Measure(text)
    kind, *rest = text.split(":")
    if kind != "rounds" or len(rest) != 2:
        raise unknown("measure", text, (*SUMMARY, *LAST, "rounds:mean:0.5"))
    name, level = rest
    if name not in PATHS:
        raise unknown(f"measure of {text!r}", name, PATHS)
    try:
        return Measure(name, float(level))
    except ValueError:
        raise InputError(f"the level of {text!r} is {level!r}; give a number, as in rounds:mean:0.5") from None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
