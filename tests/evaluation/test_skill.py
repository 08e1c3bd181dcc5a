"""Skill, calibration and the other scores of probabilities against scikit-learn and plain NumPy."""

import numpy as np
import pytest
import sklearn.metrics as metrics

import equipoise as eq
from equipoise.evaluation import PerClient, evaluate, predictions, standing, with_skill
from equipoise.evaluation.skill import bases, common_in_all

RNG = np.random.default_rng(0)
OWNERS = [  # (labels of training, labels that are scored)
    (np.r_[np.ones(3), np.zeros(57)], np.r_[np.ones(2), np.zeros(18)]),
    (np.r_[np.ones(20), np.zeros(10)], np.r_[np.ones(4), np.zeros(6)]),
    (np.zeros(30), np.r_[np.ones(1), np.zeros(9)]),  # one class only
]


def shards(column):
    labels = [owner[column].astype(np.int32) for owner in OWNERS]
    return eq.data.stack([(RNG.normal(size=(len(y), 2)), y) for y in labels])


TRAIN, TEST = shards(0), shards(1)
MODEL = np.array([[0.3, -0.2], [0.1, 0.4]])


def predict(x, inputs):
    return inputs @ x.reshape(2, 2)


@pytest.fixture(scope="module")
def table():
    scores = predictions.suited(predict, MODEL.reshape(-1), TEST.client(0), "cross_entropy")
    return evaluate(predict, MODEL.reshape(-1), TEST, scores=scores)


def outputs(i):
    z = np.asarray(TEST.inputs[i, : int(TEST.sizes[i])]) @ MODEL
    chances = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return chances, np.asarray(TEST.labels[i, : int(TEST.sizes[i])])


@pytest.mark.parametrize("i", range(3))
def test_the_scores_of_probabilities(table, i):
    chances, labels = outputs(i)
    found = {name: float(values[i]) for name, values in table.scores.items()}
    right = np.log(chances[np.arange(len(labels)), labels])
    assert found["loss"] == pytest.approx(metrics.log_loss(labels, chances), rel=1e-5)
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(labels, chances[:, 1]), rel=1e-5)
    assert found["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(labels, chances.argmax(1)), rel=1e-5
    )
    assert found["predicted"] == pytest.approx(chances[:, 1].mean(), rel=1e-5)
    assert found["observed"] == pytest.approx(labels.mean(), rel=1e-5)
    assert float(table.squares["loss"][i]) == pytest.approx(np.mean(right**2), rel=1e-5)


def test_the_base_rate_is_that_of_an_owners_training_rows(table):
    base = bases(TRAIN, TEST, 2)
    for i, (seen, scored) in enumerate(OWNERS[:2]):
        rate = (seen.sum() + 0.5) / (len(seen) + 1)
        expected = -np.mean(np.where(scored == 1, np.log(rate), np.log(1 - rate)))
        assert base.loss[i] == pytest.approx(expected, rel=1e-5)
        assert base.common[i] == pytest.approx(max(seen.mean(), 1 - seen.mean()))
    assert np.isnan(base.loss[2])  # nothing to be better than
    assert base.common[2] == 1
    assert common_in_all(TRAIN, 2) == pytest.approx(97 / 120)
    found = with_skill(table, base.loss)
    np.testing.assert_allclose(found.scores["skill"][:2], 1 - table.scores["loss"][:2] / base.loss[:2], rtol=1e-6)
    assert standing(found, "skill").left_out == (2,)


def test_the_bounds_of_a_skill_are_those_of_its_log_loss():
    """One less them, in units of the base rate's loss; the worst fifth is where the loss is largest."""
    losses = RNG.exponential(0.5, (10, 60))
    base = np.full(10, 0.7)
    plain = PerClient(np.full(10, 60), {"loss": losses.mean(1)}, {}, {"loss": (losses**2).mean(1)})
    skill = standing(with_skill(plain, base), "skill")
    scaled = plain._replace(scores={"loss": plain.scores["loss"] / 0.7}, squares={"loss": plain.squares["loss"] / 0.49})
    loss = standing(scaled, "loss")
    np.testing.assert_allclose(skill.low, 1 - loss.high, rtol=1e-9)
    np.testing.assert_allclose(skill.high, 1 - loss.low, rtol=1e-9)
    assert skill.worst.low == pytest.approx(1 - loss.worst.high)
    assert skill.mean.high == pytest.approx(1 - loss.mean.low)
    assert skill.summary["worst20"] == pytest.approx(1 - loss.summary["worst20"], rel=1e-5)


def test_outputs_that_are_no_logits_have_no_log_loss():
    assert "loss" not in predictions.suited(predict, MODEL.reshape(-1), TEST.client(0), "squared")
