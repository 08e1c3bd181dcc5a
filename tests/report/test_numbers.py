import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from equipoise.errors import InputError
from equipoise.evaluation import fairness
from equipoise.report import numbers
from tests.report import folders

SCORES = arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))
ANY = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("up", [True, False])
def test_the_standing_is_that_of_fairness(up):
    for n in (1, 4, 12):
        values = np.random.default_rng(n).uniform(size=n)
        expected = fairness.summary(values, higher_is_better=up)
        found = numbers.standing(values, up)
        worst = "min" if up else "max"
        assert found["worst"] == pytest.approx(float(expected[worst]), abs=1e-15)
        for key in ("mean", "worst20", "best20", "std"):
            assert found[key] == pytest.approx(float(expected[key]), rel=1e-12, abs=1e-12), key


@given(SCORES, st.booleans(), st.randoms())
def test_the_standing_leaves_out_who_has_no_score(values, up, random):
    places = sorted(random.randrange(len(values) + 1) for _ in range(3))
    assert numbers.standing(np.insert(values, places, np.nan), up) == numbers.standing(values, up)


def test_nobody_has_a_score():
    assert all(math.isnan(v) for v in numbers.standing(np.full(3, np.nan), True).values())


def test_an_entry_holds_what_the_records_hold(five):
    for run, entry in zip(five, numbers.entries(five), strict=True):
        last = run.rows[-1]
        assert entry.values.tolist() == list(last.scores["accuracy"])
        assert entry.bytes_each == (last.bytes_up + last.bytes_down) / 12
        assert entry.floats_each == entry.bytes_each / 4
        if run.outcome:
            assert entry.summary["worst20"] == run.outcome.summary["worst20"]
            assert entry.summary["mean"] == run.outcome.summary["mean"]
            assert entry.worst == (run.outcome.worst_low, run.outcome.worst_estimate, run.outcome.worst_high)


def test_methods_for_the_average(five, tmp_path):
    assert [e.averages for e in numbers.entries(five)] == [True, False, True, False, False, False]
    average = folders.write(tmp_path, "a", objective="average")
    assert numbers.averages(average)  # SCAFF-PD, but of the average
    assert not numbers.averages(folders.write(tmp_path, "b", algorithm="qfedavg", objective="average"))


def test_without_a_configured_method_the_weights_tell(five):
    fedavg, scaffpd = (run._replace(config={}) for run in five[:2])
    assert numbers.averages(fedavg)
    assert not numbers.averages(scaffpd)


def test_runs_of_the_same_name_are_told_apart_by_their_settings(tmp_path):
    runs = [folders.write(tmp_path, "SCAFF-PD", rounds=r, seed=r) for r in (10, 20)]
    assert numbers.labels(runs) == ["SCAFF-PD, rounds 10", "SCAFF-PD, rounds 20"]
    assert numbers.labels([runs[0], runs[0]]) == ["SCAFF-PD #1", "SCAFF-PD #2"]


def test_an_unfinished_run_is_called_after_its_folder(five):
    assert numbers.labels(five)[-1] == five[-1].path.name


def test_runs_of_other_clients_do_not_stand_side_by_side(five, regression):
    groups = numbers.together(numbers.entries([five[0], regression[0], five[1]]))
    assert [[e.run for e in group] for group in groups] == [[five[0], five[1]], [regression[0]]]
    assert [[e.kind for e in group] for group in groups] == [[0, 1], [0]]


def test_a_run_without_rows(tmp_path):
    run = folders.write(tmp_path, "new", finished=False)._replace(rows=[])
    (entry,) = numbers.entries([run])
    assert entry.measure == "accuracy"
    assert entry.up
    assert entry.rounds == 0
    assert math.isnan(entry.bytes_each)
    assert numbers.curve(entry, "mean", "rounds") == []


def test_nothing_to_report():
    with pytest.raises(InputError, match="no runs to report"):
        numbers.entries([])


@pytest.mark.parametrize("against", ["rounds", "bytes"])
def test_curves_are_the_rows(five, against):
    entry = numbers.entries(five)[1]
    for (x, y, at), row in zip(numbers.curve(entry, "worst20", against), entry.run.rows, strict=True):
        assert at == row.round
        assert x == (row.round if against == "rounds" else (row.bytes_up + row.bytes_down) / 12)
        assert y == pytest.approx(float(fairness.worst(list(row.scores["accuracy"]))))
    assert [y for _, y, _ in numbers.curve(entry, "gap", "rounds")] == [row.gap for row in entry.run.rows]


@given(st.integers(0, 500), st.integers(2, 60))
def test_thinning_keeps_the_ends(n, limit):
    rows = list(range(n))
    kept = numbers.thinned(rows, limit)
    assert len(kept) == min(n, limit)
    assert kept == sorted(set(kept))
    assert kept[:1] == rows[:1]
    assert kept[-1:] == rows[-1:]


@given(ANY)
def test_every_number_can_be_written(value):
    for write in (numbers.percent, numbers.plain, numbers.count, numbers.many, numbers.size, numbers.duration):
        assert write(value) == numbers.NONE if not math.isfinite(value) else write(value)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (numbers.percent, 0.6123, "61.2%"),
        (numbers.points, -0.0412, "4.1 points"),
        (numbers.points, 0.01, "1.0 point"),
        (numbers.plain, 4.65, "4.650"),
        (numbers.plain, 123456.7, "123,457"),
        (numbers.plain, 1.5e-7, "1.50e-07"),
        (numbers.plain, 0, "0"),
        (numbers.compact, 1e-16, "1e-16"),
        (numbers.compact, 12500, "12,500"),
        (numbers.size, 999, "999 B"),
        (numbers.size, 1_040_000, "1.0 MB"),
        (numbers.size, 999_960, "1.0 MB"),
        (numbers.many, 130_000, "130k"),
        (numbers.duration, 3.21, "3.2 s"),
        (numbers.duration, 7500, "2 h 05 min"),
    ],
)
def test_how_numbers_are_written(write, value, text):
    assert write(value) == text


def test_how_bounds_are_written():
    assert numbers.bounds(0.6, 0.7, numbers.percent) == "60.0–70.0%"
    assert numbers.bounds(-0.5, 0.25, numbers.plain) == "-0.5000 to 0.2500"
    assert numbers.bounds(math.nan, 0.7, numbers.percent) == numbers.NONE
