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
    assert entries._calibration((right,), of) < 0.03
    assert entries._calibration((wrong,), of) > 0.12


def test_entries_of_other_rows_are_not_merged(split, tmp_path):
    fields = entries.scores(guesses(split), split, None)
    more = {"about": "", "kind": "method", "split": 0, "cores": 1, "equipoise": "0"}
    one = entries.Entry(method="a", **more, **fields)
    for place, entry in (("x", one), ("y", one.model_copy(update={"method": "b", "rows": "others"}))):
        path = entries.path_of(tmp_path / place, "coins", entry.method, 0)
        path.parent.mkdir(parents=True)
        entries.records.write_record(path, entry)
    assert len(entries.together([tmp_path / "x", tmp_path / "x"])) == 1
    with pytest.raises(InputError, match="split 0 of coins has other rows for 'b' than for 'a'"):
        entries.together([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(InputError, match="has no results"):
        entries.read(_empty(tmp_path))


def _empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"
