import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from equipoise.bench import entries
from equipoise.bench.federations import problem_of, split_of
from equipoise.errors import InputError


@pytest.fixture(scope="module")
def split():
    return split_of("coins", problem_of("tests.bench.owners:coins", 0))


def guesses(split, seed=0):
    rng = np.random.default_rng(seed)
    chances = [rng.uniform(0.05, 0.95, len(y)) for y in split.test_labels]
    return tuple(np.column_stack([1 - p, p]) for p in chances)


def test_scores_are_those_of_scikit_learn(split):
    outputs = guesses(split)
    found = entries.scores(outputs, split, entries.losses_of(guesses(split, 1), split))
    losses = [log_loss(y, p[:, 1]) for p, y in zip(outputs, split.test_labels, strict=True)]
    areas = [roc_auc_score(y, p[:, 1]) for p, y in zip(outputs, split.test_labels, strict=True)]
    assert found["loss"] == pytest.approx(losses)
    assert found["auroc"] == pytest.approx(areas)
    assert found["mean"][1] == pytest.approx(1 - np.mean(losses) / found["unit"])
    assert found["skill"] == pytest.approx((np.array(found["base"]) - losses) / found["unit"])
    for name in ("mean", "worst", "worst_gain"):
        assert found[name][0] <= found[name][1] <= found[name][2]
    assert found["worst"][1] <= found["mean"][1]


def test_of_numbers_skills_follow_from_losses_to_the_last_digits():
    """Also where labels are single numbers far from zero: who reads the file makes one of the other."""
    lengths = split_of("lengths", problem_of("tests.bench.owners:lengths", 0))
    far = [tuple(y + np.float32(1000) for y in labels) for labels in (lengths.federation.labels, lengths.test_labels)]
    moved = lengths._replace(federation=lengths.federation._replace(labels=far[0]), test_labels=far[1])
    found = entries.scores(tuple(np.full(len(y), 1000.7) for y in far[1]), moved, None)
    by_hand = (np.array(found["base"]) - found["loss"]) / found["unit"]
    np.testing.assert_allclose(found["skill"], by_hand, rtol=0, atol=1e-12)


def test_the_base_rate_has_no_skill(split):
    rates = [(np.bincount(y, minlength=2) + 0.5) / (len(y) + 1) for y in split.federation.labels]
    outputs = tuple(np.tile(rate, (len(y), 1)) for rate, y in zip(rates, split.test_labels, strict=True))
    found = entries.scores(outputs, split, None)
    assert found["skill"] == pytest.approx([0] * 4, abs=1e-12)
    assert found["gain"] == pytest.approx([0] * 4)


def test_a_calibrated_model_is_calibrated(split):
    rng = np.random.default_rng(0)
    p = rng.uniform(size=4000)
    y = (rng.random(4000) < p).astype(int)
    of = split._replace(test_labels=(y,), test_inputs=(p[:, None],))
    right, wrong = (np.column_stack([1 - q, q]) for q in (p, np.clip(p + 0.2, 0, 1)))
    assert entries._calibration((right,), of)[1] < 0.03
    assert entries._calibration((wrong,), of)[1] > 0.12


def test_the_error_of_calibration_is_bounded_over_owners(split):
    """It is the same for all rows at once, and certain only as far as owners agree."""
    p = np.full(400, 0.5)
    for shares, certain in (((0.8,) * 4, True), ((0.5, 0.5, 0.9, 0.9), False)):
        came = tuple((np.arange(100) % 10 < 10 * share).astype(int) for share in shares)
        of = split._replace(test_labels=came, test_inputs=tuple(np.split(p[:, None], 4)))
        low, found, high = entries._calibration(tuple(np.split(np.column_stack([1 - p, p]), 4)), of)
        assert found == pytest.approx(np.mean([abs(0.5 - part.mean()) for part in np.split(np.concatenate(came), 10)]))
        assert (high - low < 0.01) == certain
        assert low <= found <= high


def test_entries_of_other_rows_are_not_merged(split, tmp_path):
    fields = entries.scores(guesses(split), split, None)
    more = {"about": "", "kind": "method", "split": 0, "cores": 1, "equipoise": "0"}
    one = entries.Entry(method="a", source="1", **more, **fields)
    write(tmp_path / "x", one)
    write(tmp_path / "y", one.model_copy(update={"method": "b", "rows": "others"}))
    assert len(entries.together([tmp_path / "x", tmp_path / "x"])) == 1
    with pytest.raises(InputError, match="split 0 of coins has other rows for 'b' than for 'a'"):
        entries.together([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(InputError, match="has no results"):
        entries.read(_empty(tmp_path))


def test_what_was_changed_by_hand_or_is_of_two_methods_is_not_merged(split, tmp_path):
    fields = entries.scores(guesses(split), split, None)
    more = {"about": "", "kind": "entered", "split": 0, "cores": 1, "equipoise": "0"}
    one = entries.Entry(method="mine:model", source="1", **more, **fields)
    write(tmp_path / "x", one)
    better = one.model_copy(update={"skill": tuple(value + 0.1 for value in one.skill)})
    path = write(tmp_path / "better", better)
    with pytest.raises(InputError, match=f"{path} contradicts itself: its skills are not what its losses make"):
        entries.read(tmp_path / "better")
    write(tmp_path / "shorter", one.model_copy(update={"gain": one.gain[:-1]}))
    with pytest.raises(InputError, match="contradicts itself"):
        entries.read(tmp_path / "shorter")
    write(tmp_path / "another", one.model_copy(update={"source": "2"}))
    with pytest.raises(InputError, match="two different methods are called 'mine:model'"):
        entries.together([tmp_path / "x", tmp_path / "another"])


def write(place, entry):
    path = entries.path_of(place, entry.federation, entry.method, entry.split)
    path.parent.mkdir(parents=True)
    entries.records.write_record(path, entry)
    return path


def _empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"
