"""The best round is chosen on rows that are neither trained nor tested on, and survives a stop."""

import os
import signal

import jax
import numpy as np
import pytest
import safetensors.numpy

from equipoise import artifact, evaluation
from equipoise.data import pool
from equipoise.data.shards import stack
from equipoise.errors import InputError, Stopped
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment import config, reading, records, run
from equipoise.experiment.problems import build_problem
from equipoise.experiment.writer import validator
from equipoise.report import numbers, wording

SETTINGS = {
    "data": {"name": "digits", "test": 0.3},
    "partition": {"clients": 5},
    "model": {"l2": 0.0, "metric": "none"},
    # Far too large steps: the model swings, so that its last round is not its best.
    "algorithm": {"name": "fedavg", "steps": 3, "local_lr": 3.0},
    "run": {"rounds": 12, "evaluate_every": 1, "checkpoint_seconds": 0.0, "precision": "float64", "keep_best": True},
}


def parsed(*assignments):
    return config.parse(reading.override(SETTINGS, assignments))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run.run(parsed(), tmp_path_factory.mktemp("runs") / "best")


def flat_rows(data):
    """Every client's rows, as texts that can be compared."""
    shards = [data.client(i) for i in range(data.n)]
    return [[a.tobytes() for a in np.asarray(s.inputs)[: int(s.sizes)]] for s in shards]


def test_rounds_that_are_chosen_are_judged_by_the_mean_loss():
    """With eight rows of an owner, the worst fifth are those with the worst luck, and no model is ever the best."""
    config_ = parsed()
    problem = build_problem(config_)
    value, up = validator(problem, "loss")(problem.x)
    scorer = evaluation.evaluator(problem.plain_task, problem.validation, scores=problem.scores)
    assert value == pytest.approx(np.mean(scorer(problem.x).scores["loss"]))
    assert not up


def test_validation_rows_come_from_training_rows_and_from_no_others():
    alone, problem = build_problem(parsed("run.keep_best=false")), build_problem(parsed())
    before, train, aside = (flat_rows(data) for data in (alone.train, problem.train, problem.validation))
    for old, kept, held in zip(before, train, aside, strict=True):
        assert sorted(kept + held) == sorted(old)
        assert abs(len(held) - 0.2 * len(old)) <= 1
    jax.tree.map(np.testing.assert_array_equal, problem.test, alone.test)


def test_shards_are_set_aside_alike():
    rng = np.random.default_rng(0)
    data = stack([(rng.normal(size=(m, 2)), rng.normal(size=m)) for m in (5, 12)])
    rest, aside = pool.set_aside(data, share=0.25, key=0)
    assert np.asarray(rest.sizes).tolist() == [4, 9]
    assert np.asarray(aside.sizes).tolist() == [1, 3]
    for old, kept, held in zip(*(flat_rows(d) for d in (data, rest, aside)), strict=True):
        assert sorted(kept + held) == sorted(old)
    with pytest.raises(InputError, match="some client has one row"):
        pool.set_aside(stack([(np.ones((1, 2)), np.ones(1))]), share=0.5, key=0)


def test_the_model_is_that_of_the_best_round(finished):
    values = [row.validation for row in finished.rows]
    best = int(np.argmax(values))
    assert 0 < best < 12  # it was not the last
    assert finished.outcome.best_round == finished.rows[best].round
    assert finished.outcome.rounds == 12
    settings = parsed(f"run.rounds={best}", "run.keep_best=true")
    problem = build_problem(settings)
    x = np.concatenate(
        [np.asarray(a).ravel() for a in jax.tree.leaves(artifact.load(finished.path / records.MODEL).params)]
    )
    table = evaluation.evaluate(problem.task, x, problem.validation)
    np.testing.assert_allclose(worst_mean(np.asarray(table.scores["accuracy"]), True), values[best])
    scored = evaluation.evaluate(problem.task, x, problem.test).scores["accuracy"]
    np.testing.assert_allclose(finished.final.scores["accuracy"], scored)
    np.testing.assert_allclose(finished.outcome.summary["mean"], np.mean(scored))
    (reported,) = numbers.reported([finished])
    np.testing.assert_allclose(reported.values, scored)
    assert any(f"is that of round {best} of 12" in note for note in wording.notes([reported]))
    assert any("20% of every client's training rows are set aside" in note for note in finished.federation.notes)


@pytest.mark.thorough(witness="experiment/test_run.py::test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on_bit_for_bit")
def test_it_survives_a_stop_bit_for_bit(finished, tmp_path):
    after = finished.outcome.best_round + 2

    def watch(at, of, row):
        if at == after:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        run.run(parsed(), tmp_path / "run", watch=watch)
    again = run.resume(tmp_path / "run")
    assert again.outcome.best_round == finished.outcome.best_round
    ours, theirs = (safetensors.numpy.load_file(path / records.MODEL) for path in (again.path, finished.path))
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])
    assert [row.validation for row in again.rows] == [row.validation for row in finished.rows]


def test_patience_ends_a_run(finished, tmp_path):
    values = [row.validation for row in finished.rows]
    # The first round that is `patience` rounds after the best before it.
    patience = 1
    end = next(t for t in range(13) if t - int(np.argmax(values[: t + 1])) >= patience)
    done = run.run(parsed(f"run.patience={patience}"), tmp_path / "run")
    assert done.outcome.rounds == end < 12
    assert done.outcome.best_round == int(np.argmax(values[: end + 1]))
    assert [row.validation for row in done.rows] == values[: end + 1]


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["run.keep_best=false", "run.patience=3"], r"run\.patience waits for a better model"),
        (["run.keep_best=false", "data.unit=patient"], r"data\.unit is a column of owners' tables"),
        (["federation.sites=3"], r"run\.keep_best looks at validation rows on this machine"),
    ],
)
def test_mistakes_are_sentences(assignments, sentence):
    with pytest.raises(InputError, match=sentence):
        parsed(*assignments)


def test_rows_of_a_unit_are_not_torn_apart_to_choose_a_round():
    settings = {"data": {"silos": "owners", "unit": "patient"}, "run": {"keep_best": True}}
    with pytest.raises(InputError, match=r"sets rows aside one by one, not by data\.unit"):
        config.parse(settings)
