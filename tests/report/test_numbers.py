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


@pytest.mark.parametrize("up", [True, False])
def test_the_standing_is_that_of_fairness(up):
    for n in (1, 4, 12):
        values = np.random.default_rng(n).uniform(size=n)
        expected = fairness.summary(values, higher_is_better=up)
        found = numbers.summarize(values, up)
        worst = "min" if up else "max"
        assert found["worst"] == pytest.approx(float(expected[worst]), abs=1e-15)
        for key in ("mean", "worst20", "best20", "std"):
            assert found[key] == pytest.approx(float(expected[key]), rel=1e-12, abs=1e-12), key


@given(SCORES, st.booleans(), st.randoms())
def test_the_standing_leaves_out_who_has_no_score(values, up, random):
    places = sorted(random.randrange(len(values) + 1) for _ in range(3))
    assert numbers.summarize(np.insert(values, places, np.nan), up) == numbers.summarize(values, up)


def test_nobody_has_a_score():
    assert all(math.isnan(v) for v in numbers.summarize(np.full(3, np.nan), True).values())


def test_an_entry_holds_what_the_records_hold(five):
    for record, run in zip(five, numbers.reported(five), strict=True):
        last = record.rows[-1]
        assert run.values.tolist() == list(last.scores["accuracy"])
        assert run.bytes_per_client == (last.bytes_up + last.bytes_down) / 12
        assert run.floats_per_client == run.bytes_per_client / 4
        if out := record.outcome:
            assert run.summary["worst20"] == out.summary["worst20"]
            assert run.summary["mean"] == out.summary["mean"]
            assert run.worst == (out.worst_low, out.worst_estimate, out.worst_high)


def trains_for_average(record):
    return numbers.reported([record])[0].trains_for_average


def test_methods_for_the_average(five, tmp_path):
    assert [e.trains_for_average for e in numbers.reported(five)] == [True, False, True, False, False, False]
    average = folders.write(tmp_path, "a", objective="average")
    assert trains_for_average(average)  # SCAFF-PD, but of the average
    assert not trains_for_average(folders.write(tmp_path, "b", algorithm="qfedavg", objective="average"))
    assert not trains_for_average(folders.write(tmp_path, "c", objective="no_longer:there"))
    assert trains_for_average(folders.write(tmp_path, "d", algorithm="fedavg", objective="no_longer:there"))


def test_a_method_that_is_no_longer_there_is_judged_by_its_weights(tmp_path):
    for label, weighted in (("a", False), ("b", True)):
        run = folders.write(tmp_path, label, algorithm="no_longer:there", weighted=weighted)
        assert trains_for_average(run) is not weighted


def test_without_a_configured_method_the_weights_tell(five):
    fedavg, scaffpd = (run._replace(config={}) for run in five[:2])
    assert trains_for_average(fedavg)
    assert not trains_for_average(scaffpd)


def test_runs_of_the_same_name_are_told_apart_by_their_settings(tmp_path):
    runs = [folders.write(tmp_path, "SCAFF-PD", rounds=r, seed=r) for r in (10, 20)]
    assert numbers.labels(runs) == ["SCAFF-PD, rounds 10", "SCAFF-PD, rounds 20"]
    assert numbers.labels([runs[0], runs[0]]) == ["SCAFF-PD #1", "SCAFF-PD #2"]


def test_an_unfinished_run_is_called_after_its_folder(five):
    assert numbers.labels(five)[-1] == five[-1].path.name


def test_runs_of_other_clients_do_not_stand_side_by_side(five, regression):
    groups = numbers.comparable(numbers.reported([five[0], regression[0], five[1]]))
    assert [[e.record for e in group] for group in groups] == [[five[0], five[1]], [regression[0]]]
    assert [[e.series for e in group] for group in groups] == [[0, 1], [0]]


def test_a_run_without_rows(tmp_path):
    (run,) = numbers.reported([folders.write(tmp_path, "new", finished=False)._replace(rows=[])])
    assert run.measure == "accuracy"
    assert run.higher_is_better
    assert run.rounds == 0
    assert math.isnan(run.bytes_per_client)
    assert numbers.curve(run, "mean", "rounds") == []


def test_an_unfinished_run_is_scored_as_it_asked_for(five):
    for asked, expected in (("loss", ("loss", False)), ("no_longer:there", ("accuracy", True))):
        (run,) = numbers.reported([five[-1]._replace(config={"run": {"score": asked}})])
        assert (run.measure, run.higher_is_better) == expected


def test_nothing_to_report():
    with pytest.raises(InputError, match="no runs to report"):
        numbers.reported([])


@pytest.mark.parametrize("against", ["rounds", "bytes"])
def test_curves_are_the_rows(five, against):
    run = numbers.reported(five)[1]
    for (x, y, at), row in zip(numbers.curve(run, "worst20", against), run.record.rows, strict=True):
        assert at == row.round
        assert x == (row.round if against == "rounds" else (row.bytes_up + row.bytes_down) / 12)
        assert y == pytest.approx(float(fairness.worst(list(row.scores["accuracy"]))))
    assert [y for _, y, _ in numbers.curve(run, "gap", "rounds")] == [row.gap for row in run.record.rows]


@given(st.integers(0, 500), st.integers(2, 60))
def test_thinning_keeps_the_ends(n, limit):
    rows = list(range(n))
    kept = numbers.thinned(rows, limit)
    assert len(kept) == min(n, limit)
    assert kept == sorted(set(kept))
    assert kept[:1] == rows[:1]
    assert kept[-1:] == rows[-1:]
