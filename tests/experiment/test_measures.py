import math

import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.evaluation import fairness
from equipoise.experiment.measures import measure
from tests.report import folders


@pytest.fixture
def run(tmp_path):
    return folders.write(tmp_path, "run")


def test_summaries_and_last_values(run):
    for name in ("mean", "worst20", "std"):
        assert measure(name).value(run) == run.outcome.summary[name]
    assert measure("objective").value(run) == run.rows[-1].objective
    assert measure("certificate").value(run) == run.rows[-1].gap


def test_rounds_are_those_of_the_first_row_that_gets_there(run):
    score = run.outcome.measure
    for name in ("mean", "worst20"):
        along = [float(fairness.summary(np.array(row.scores[score]))[name]) for row in run.rows]
        level = along[len(along) // 2]
        first = next(row.round for row, value in zip(run.rows, along, strict=True) if value >= level)
        assert measure(f"rounds:{name}:{level!r}").value(run) == first
    assert measure("rounds:mean:2").value(run) == math.inf
    assert measure("rounds:distance:1").value(run) in (math.inf, *(row.round for row in run.rows))


def test_what_is_better(run):
    assert measure("mean").more_is_better(run)
    assert not measure("std").more_is_better(run)
    assert not measure("rounds:mean:0.5").more_is_better(run)
    assert not measure("objective").more_is_better(run)


WRONG = ["wrst20", "rounds", "rounds:mean", "rounds:mean:x", "rounds:gini:1", "last:0.5:min", ""]


@pytest.mark.parametrize("text", WRONG)
def test_unknown_ones_are_sentences(text):
    with pytest.raises(InputError, match=r"there is no measure|the number in|is of 0.5 rounds"):
        measure(text)
