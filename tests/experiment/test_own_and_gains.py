"""Own parts and gains from a configuration: what is trained, what is told, what stays."""

import json

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from equipoise import artifact
from equipoise.data.shards import Shards
from equipoise.errors import InputError, Stopped
from equipoise.experiment import config, records, run
from equipoise.experiment.methods import baselines_of, build_dual
from equipoise.experiment.personal import models as personal
from equipoise.experiment.personal import own_parts
from equipoise.experiment.personal.baselines import FEWEST, own_loss
from equipoise.experiment.problems import build_problem, precision
from tests.experiment.test_run import assert_same_run
from tests.flower import silos

OWN = {"model": {"own": "intercept", "l2": 0.1}, "objective": {"name": "chi2", "of": "gains"}}


def told(folder, **sections):
    base = {**silos.settings(**{"personal": {"kind": "none"}, **OWN, **sections}), "data": {"silos": str(folder)}}
    base.pop("federation")
    return config.parse(base)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return silos.write(tmp_path_factory.mktemp("own") / "silos")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    return run.run(told(data), tmp_path_factory.mktemp("runs") / "own")


def logistic(z, labels):
    return np.mean(np.logaddexp(0, z) - labels * z)


def rows_of(shards, i):
    m = int(shards.sizes[i])
    return np.asarray(shards.inputs[i, :m], np.float64), np.asarray(shards.labels[i, :m])


def test_owners_are_scored_with_the_part_of_their_training_rows(finished, data):
    with precision(told(data)):
        problem = build_problem(told(data))
    shared = artifact.load(finished.path / records.MODEL)
    parts = own_parts.read(finished.path)
    assert list(parts) == list(silos.SITES)
    np.testing.assert_allclose(shared.own.part, np.mean(list(parts.values()), axis=0))  # for a new owner
    for i, name in enumerate(silos.SITES):
        (a, y), (seen, truth) = rows_of(problem.train, i), rows_of(problem.test, i)
        weights = np.asarray(shared.params.weight), np.asarray(shared.params.bias)
        z, other = ((rows @ weights[0].T + weights[1]) @ [-1, 1] for rows in (a, seen))
        m = len(y)
        best = minimize(lambda b, z=z, y=y, m=m: logistic(z + b[0], y) + b[0] ** 2 / (2 * m), [0.0], tol=1e-12).x[0]
        assert parts[name][:, 0] @ [-1, 1] == pytest.approx(best, abs=1e-5)
        penalty = 0.05 * (np.sum(weights[0] ** 2) + np.sum(weights[1] ** 2) / 1000)  # l2_intercept is l2 / 1000
        assert finished.final.scores["loss"][i] == pytest.approx(logistic(other + best, truth), abs=1e-6)
        assert finished.final.scores["accuracy"][i] == pytest.approx(np.mean((other + best > 0) == truth))
        assert finished.final.loss[i] == pytest.approx(logistic(z + best, y) + penalty + best**2 / (2 * m), abs=1e-6)
    base = np.array([member.baseline for member in finished.federation.members])
    gains = np.array(finished.final.loss) - base
    with precision(told(data)):
        plain = build_dual(told(data, objective={"name": "chi2", "of": "losses"}), problem)
        np.testing.assert_allclose(finished.final.objective, plain.value(jnp.asarray(gains)))
    assert any("the objective is of gains" in note for note in finished.federation.notes)


def test_predictions_for_an_owner_and_for_a_new_one(finished, data):
    table = pl.read_csv(data / "north.csv").head(5)
    chances = {}
    for owner in (None, *silos.SITES):
        model = (
            artifact.load(finished.path / records.MODEL) if owner is None else personal.own_model(finished.path, owner)
        )
        chances[owner] = model.predict(table)["probability of yes"].to_numpy()
    order = [own_parts.read(finished.path)[site][:, 0] @ [-1, 1] for site in silos.SITES]
    assert (np.argsort(order) == np.argsort([chances[site][0] for site in silos.SITES])).all()
    assert min(chances[s][0] for s in silos.SITES) < chances[None][0] < max(chances[s][0] for s in silos.SITES)
    with pytest.raises(InputError, match="no owner 'west'"):
        personal.own_model(finished.path, "west")


@pytest.mark.thorough(
    witness="experiment/chosen/test_step_sizes.py::test_a_run_of_the_default_method_says_what_it_chose_and_can_be_resumed"
)
def test_stopped_and_resumed_bit_for_bit(finished, data, tmp_path):
    import os
    import signal

    def watch(at, of, row):
        if at == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        run.run(told(data), tmp_path / "own", watch=watch)
    assert "own part" not in (tmp_path / "own" / records.CHECKPOINT).read_bytes().decode("latin1")
    assert_same_run(run.resume(tmp_path / "own"), finished)


def test_baselines_against_scipy():
    """An owner with many rows: five folds by hand, each fitted by scipy, with an own intercept."""
    settings = told("nowhere", model={"own": "intercept"})
    rng = np.random.default_rng(0)
    a, noise = rng.normal(size=(60, 2)), rng.normal(size=60)
    y = (a @ [1.0, -2.0] + noise > 1).astype(np.int32)
    from equipoise.experiment.personal.baselines import L2
    from equipoise.experiment.personal.paths import fold
    from equipoise.tasks import own_part, softmax_regression

    task = own_part(softmax_regression(2, 2, l2=0.1))
    shard = Shards(jnp.asarray(a), jnp.asarray(y), jnp.int32(60))
    totals = np.zeros(len(L2) + 1)
    for k in range(5):
        kept, left = fold(shard, jnp.int32(k))
        (a1, y1), (a2, y2) = (
            (np.asarray(s.inputs)[: int(s.sizes)], np.asarray(s.labels)[: int(s.sizes)]) for s in (kept, left)
        )
        assert len(y2) == 12
        for j, l2 in enumerate(L2):
            # x = (W, bias) of two classes at -w/2 and w/2; the intercept is that of the bias and of the own part.
            def value(v, l2=l2, a1=a1, y1=y1):
                w, c, b = v[:2], v[2], v[3]
                return logistic(a1 @ w + c + b, y1) + l2 / 4 * (w @ w + c * c) + b * b / (2 * len(y1))

            v = minimize(value, np.zeros(4), tol=1e-10).x
            totals[j] += len(y2) * logistic(a2 @ v[:2] + v[2] + v[3], y2)
        b = minimize(lambda b, y1=y1: logistic(b[0], y1) + b[0] ** 2 / (2 * len(y1)), [0.0], tol=1e-10).x[0]
        totals[-1] += len(y2) * logistic(np.full(12, b), y2)
    found = own_loss(task, True, jnp.zeros(6), shard)
    assert found == pytest.approx(totals.min() / 60, rel=1e-3)
    # Too few rows for folds, and networks: the base rate.
    few = shard._replace(sizes=jnp.int32(FEWEST - 1))
    rate = np.mean(y[: FEWEST - 1])
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert own_loss(task, True, jnp.zeros(6), few) == pytest.approx(entropy, rel=0.05)
    assert own_loss(task, False, jnp.zeros(6), shard) >= found
    assert settings.objective.of == "gains"


def test_gains_of_the_average_are_losses(data):
    settings = told(data, objective={"name": "average", "of": "gains"})
    with precision(settings):
        assert baselines_of(settings, build_problem(settings)) is None


def test_own_slopes_of_columns(data):
    settings = told(data, model={"own": ["dose"], "l2": 0.1})
    with precision(settings):
        problem = build_problem(settings)
        assert [problem.encoding.inputs[j] for j in problem.own_inputs] == ["dose"]
        wrong = told(data, model={"own": ["does"]})
        with pytest.raises(InputError, match=r"'does', which is not a column of the model.*dose"):
            build_problem(wrong)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"privacy": {"epsilon": 1.0}, "objective": {"of": "losses"}}, "an own part joins them"),
        ({"privacy": {"epsilon": 1.0}, "model": {"own": "none"}}, "which no noise covers; give 'losses'"),
    ],
)
def test_contradictions_are_said(data, sections, sentence):
    with pytest.raises(InputError, match=sentence):
        told(data, **sections)


@pytest.mark.thorough(witness="experiment/personal/test_models.py::test_from_a_file_to_the_page")
def test_with_models_of_their_own(data, tmp_path):
    """Fine-tuned from the shared model, each with its own part, chosen by rows that neither has seen."""
    done = run.run(told(data, personal={"steps": 20, "lr": 0.1, "pulls": [0.1]}), tmp_path / "tuned")
    assert len(done.personal.own) == 3
    model = personal.own_model(done.path, "north")
    parts = own_parts.read(done.path)
    np.testing.assert_array_equal(model.own.part, parts["north"])
    assert json.loads((done.path / records.PERSONAL).read_text())["kind"] == "fine_tuning"
