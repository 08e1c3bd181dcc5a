import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.experiment import records
from equipoise.report import numbers, wording
from tests.report import folders


def runs_of(tmp_path, plain, fair, **fair_more):
    """Entries of FedAvg and SCAFF-PD, whose clients' scores are around `plain` and `fair`, all alike."""
    return numbers.reported(
        [
            folders.write(tmp_path, "FedAvg", algorithm="fedavg", end=plain, weighted=False, exchanges=1),
            folders.write(tmp_path, "SCAFF-PD", end=fair, **fair_more),
        ]
    )


def test_what_the_bounds_rest_on_is_said(five, regression):
    rare = "no client has rare large errors of which the other clients show none"
    assert rare in wording.rests_on(numbers.reported(regression)[0])
    assert rare not in wording.rests_on(numbers.reported(five)[0])
    for runs in (five, regression):
        assert "no scored row had a say in the model" in wording.rests_on(numbers.reported(runs)[0])


def test_the_cost_is_made_of_the_records_numbers(five):
    old, new = five[2].outcome.summary, five[1].outcome.summary  # the best average, the best worst fifth
    cost = wording.cost_of_fairness(numbers.reported(five))
    worst = [round(100 * s["worst20"], 1) for s in (old, new)]
    mean = [round(100 * s["mean"], 1) for s in (old, new)]
    assert cost.sentence == (
        f"With SCAFF-PD instead of SCAFFOLD, the worst-served fifth gains {worst[1] - worst[0]:.1f} points "
        f"(from {worst[0]}% to {worst[1]}%); the average client gives up {mean[0] - mean[1]:.1f} points "
        f"(from {mean[0]}% to {mean[1]}%); it cost the same bytes."
    )
    assert "best of 3 fair runs" in cost.remarks[-1]
    assert "best of 2 runs for the average" in cost.remarks[-1]


def test_the_price_in_bytes(tmp_path):
    cost = wording.cost_of_fairness(runs_of(tmp_path, (0.8, 0.1), (0.79, 0.03)))
    assert "; it cost 2× the bytes." in cost.sentence


def test_when_fairness_did_not_help(tmp_path):
    cost = wording.cost_of_fairness(runs_of(tmp_path, (0.8, 0.01), (0.7, 0.05)))
    assert "the worst-served fifth loses" in cost.sentence
    assert cost.remarks[0] == "Fairness did not help here: the worst-served clients are no better off."


def test_when_it_may_be_chance(tmp_path):
    cost = wording.cost_of_fairness(runs_of(tmp_path, (0.8, 0.05), (0.8, 0.045)))
    verdict, basis = cost.remarks
    assert verdict == "Both differences lie within what the scored rows leave open: they may be chance."
    assert "count as scored on different rows" in basis


def test_when_nothing_changed(tmp_path):
    cost = wording.cost_of_fairness(runs_of(tmp_path, (0.8, 0.05), (0.8, 0.05)))
    assert "the worst-served fifth stays at" in cost.sentence
    assert "the average client stays at" in cost.sentence


def test_without_bounds_chance_is_not_ruled_out(tmp_path):
    runs = [e._replace(worst=numbers.UNKNOWN) for e in runs_of(tmp_path, (0.8, 0.1), (0.79, 0.03))]
    assert "is not known" in wording.cost_of_fairness(runs).remarks[0]


def test_less_is_better(regression):
    sentence = wording.cost_of_fairness(numbers.reported(regression)).sentence
    assert "the worst-served fifth gains" in sentence  # 5.3 to 4.9: the error falls
    assert "the average client gives up" in sentence


def test_without_a_run_for_the_average(alone):
    cost = wording.cost_of_fairness(numbers.reported(alone))
    assert "cannot be said: no finished run here trains for the average client" in cost.remarks[0]
    summary = alone[0].outcome.summary
    assert f"stands at {100 * summary['worst20']:.1f}%" in cost.sentence


def test_without_a_fair_run(five):
    assert "no finished fair run is here" in wording.cost_of_fairness(numbers.reported([five[0]])).remarks[0]


def test_without_scores(five):
    cost = wording.cost_of_fairness(numbers.reported([five[-1]._replace(rows=[])]))
    assert cost.sentence == "No run has scores yet, so nothing can be said about fairness."


def test_without_rows_in_common_errors_are_independent(five):
    old, new = numbers.reported(five)[2], numbers.reported(five)[1]
    assert numbers.paired(old, new) is None
    worst, mean = wording.changes(old, new, None)
    assert worst.estimate == pytest.approx(new.summary["worst20"] - old.summary["worst20"])
    assert worst.estimate - worst.low == pytest.approx((0.024**2 + 0.016**2) ** 0.5)  # the halves that face each other
    assert mean.high - mean.estimate == pytest.approx(0.01 * 2**0.5)
    less, _ = wording.changes(old, new, numbers.Paired(numbers.UNKNOWN, 0.9))
    assert less.high - less.low < 0.5 * (worst.high - worst.low)


def rows_of(run, values, rows="the same"):
    records.write_row_scores(run.path / records.ROW_SCORES, records.RowScores("accuracy", rows, values))


def test_two_runs_on_the_same_rows_are_compared_row_by_row(tmp_path):
    old, new = runs_of(tmp_path, (0.8, 0.05), (0.83, 0.045))
    sizes = [m.test for m in old.members]
    luck = np.random.default_rng(0).random(sum(sizes))
    rows_of(old.record, luck < np.repeat(old.values, sizes))
    rows_of(new.record, luck < np.repeat(new.values, sizes))
    found = numbers.paired(old, new)
    assert found is not None
    assert 0.1 < found.worst <= 1
    assert found.mean.low < 0.03 < found.mean.high
    assert found.mean.high - found.mean.low < 0.07
    cost = wording.cost_of_fairness([old, new])
    assert "compared on the same rows" in " ".join(cost.remarks)
    rows_of(new.record, luck < np.repeat(new.values, sizes), rows="others")
    assert numbers.paired(old, new) is None
    rows_of(new.record, luck[1:] < 0.5)
    assert numbers.paired(old, new) is None
    (new.record.path / records.ROW_SCORES).write_bytes(b"damaged")
    with pytest.raises(InputError, match="remove it to report without it"):
        numbers.paired(old, new)


def test_how_sure_a_gain_is_for_a_single_client(tmp_path):
    """Against a model of its own rows: compared row by row where both kept them."""
    plain, fair = runs_of(tmp_path, (0.8, 0.05), (0.83, 0.045))
    sizes = [m.test for m in fair.members]
    half = 0.06
    mine = fair.values - np.where(np.arange(fair.n) == 2, 0.4, 0.0) + np.where(np.arange(fair.n) == 3, 0.01, 0.0)
    record = records.AloneRecord(
        measure="accuracy", scores={"accuracy": tuple(mine)}, low=tuple(mine - half), high=tuple(mine + half)
    )
    records.write_record(fair.record.path / records.ALONE, record)
    runs = [plain, fair]
    apart = numbers.gains(fair, numbers.alone(runs), "alone")
    assert not apart.paired
    assert "not compared row by row" in wording.who_gains(runs)
    luck = np.random.default_rng(0).random(sum(sizes))
    rows_of(fair.record, luck < np.repeat(fair.values, sizes))
    alone_rows = records.RowScores("accuracy", "the same", luck < np.repeat(mine, sizes))
    records.write_row_scores(fair.record.path / records.ALONE_ROWS, alone_rows)
    gains = numbers.gains(fair, numbers.alone(runs), "alone")
    assert gains.paired
    np.testing.assert_allclose(gains.values, fair.values - mine)
    assert (gains.low <= gains.values).all()
    assert (gains.high >= gains.values).all()
    assert list(np.flatnonzero(gains.sure)) == [2]
    said = wording.who_gains(runs)
    assert (
        "The gain is more than chance for 1 client, the loss for no client, 19 times in 20 for all of them together;"
        in said
    )
    assert said.endswith(f"for the other {fair.n - 1} their rows leave both possible.")


def test_bounds_of_an_earlier_version_are_stretched_to_the_number_they_are_of(five):
    """They were given without an estimate, and might lie above what was measured."""
    run = five[1]
    out = run.outcome
    worst = out.summary["worst20"]
    away = {"worst_low": worst + 0.02, "worst_high": worst + 0.06, "worst_estimate": None, "mean_low": None}
    (stretched,) = numbers.reported([run._replace(outcome=out.model_copy(update=away))])
    assert stretched.worst == (worst, worst, worst + 0.06)
    halves = (stretched.high - stretched.low) / 2
    assert stretched.mean.high - stretched.mean.estimate == pytest.approx(np.sqrt((halves**2).sum()) / 12)


def test_what_was_trained_on_whom(five, regression, tmp_path):
    text = " ".join(wording.federation(numbers.reported(five)))
    members = five[0].federation.members
    assert "6 models of 650 parameters each were trained for 12 clients together" in text
    assert f"{sum(m.train for m in members):,} training rows" in text
    assert f"{sum(m.test for m in members):,} held-out rows" in text
    assert "(home, readmitted)" in text
    assert "predicts a number" in " ".join(wording.federation(numbers.reported(regression)))
    seen = folders.write(tmp_path, held_out=False)
    assert "flatter the model" in " ".join(wording.federation(numbers.reported([seen])))


def test_other_rows_under_the_same_names(five):
    federation = five[0].federation
    moved = tuple(m.model_copy(update={"train": m.train + 1}) for m in federation.members)
    other = five[1]._replace(federation=federation.model_copy(update={"members": moved}))
    assert wording.different_rows(numbers.reported([five[0], other]))
    assert not wording.different_rows(numbers.reported(five))


def test_what_went_wrong(five, regression, tmp_path):
    runs = numbers.reported(five)
    assert [wording.problems(e) for e in runs[:3]] == [[], [], []]
    assert wording.problems(runs[3]) == ["3 replies were not finite and were left out."]
    (unfinished,) = wording.problems(runs[5])
    assert unfinished.startswith("It is not finished: its last record is of round 40 of 100. `equipoise resume ")
    (missing,) = wording.problems(numbers.reported(regression)[0])
    assert missing == "1 client has no RMSE at the end; the averages are over the others."
    diverged = folders.write(tmp_path, events=["the run diverged at round 3"])
    assert wording.problems(numbers.reported([diverged])[0]) == ["The run diverged at round 3."]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("it broke", "It broke."), ("local_lr was measured", "local_lr was measured."), ("Why?", "Why?")],
)
def test_sentences(given, expected):
    assert wording.sentence(given) == expected


def test_messages_without_an_answer(five):
    rows = list(five[0].rows)
    rows[-1] = rows[-1].model_copy(update={"answered": (rows[-1].asked[0] - 7,)})
    (text,) = wording.problems(numbers.reported([five[0]._replace(rows=rows)])[0])
    assert text == "7 of 1,200 messages had no answer that counted."


def test_along_a_path_the_chosen_point_is_compared_with_its_beginning(tmp_path):
    runs = []
    for k, (rho, end) in enumerate(((10, (0.8, 0.12)), (1, (0.797, 0.06)), (0.1, (0.75, 0.04)))):
        run = folders.write(tmp_path, f"rho {rho:g}", end=end, seed=k)
        text = (run.path / records.CONFIG).read_text().replace("rho = 0.1", f"rho = {rho}")
        (run.path / records.CONFIG).write_text(text)
        runs.append(records.read(run.path))
    found = numbers.reported(runs)
    assert wording.cost_of_fairness(found).sentence.startswith("With rho 1 instead of rho 10, the worst-served fifth")
    assert wording.conclusion(found).startswith("Take rho 1 instead of rho 10: the worst-served fifth gains")


def test_what_privacy_costs_is_said_where_the_same_method_without_noise_stands_beside_it(tmp_path):
    plain = folders.write(tmp_path, "open", end=(0.8, 0.05))
    noisy = folders.write(tmp_path, "private", end=(0.7, 0.05), seed=1)
    file = noisy.path / records.CONFIG
    file.write_text(file.read_text() + "\n[privacy]\nepsilon = 3.0\n")
    both = numbers.reported([plain, records.read(noisy.path)])
    (price,) = [note for note in wording.notes(both) if "epsilon" in note]
    mean = [round(100 * run.outcome.summary["mean"], 1) for run in (plain, noisy)]
    assert price.startswith(
        "The price of epsilon 3.0, private instead of open: the average client gives up "
        f"{mean[0] - mean[1]:.1f} points (from {mean[0]}% to {mean[1]}%); the worst-served fifth loses "
    )
    (unknown,) = [note for note in wording.notes(both[1:]) if "epsilon" in note]
    assert "is not known" in unknown
