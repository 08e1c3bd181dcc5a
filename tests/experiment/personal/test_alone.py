"""Models of each client's own rows: against scikit-learn's, and where they are written."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from equipoise.data import stack
from equipoise.experiment import config, plan, records
from equipoise.experiment.personal import alone
from equipoise.experiment.problems import build_problem, precision
from equipoise.tasks import ridge, softmax_regression
from tests.searches import tiny


def clients():
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(m, 3)), rng.normal(size=m)) for m in (20, 35)]


def test_a_fit_is_the_optimum_of_ridge_regression():
    rows = clients()
    data, task = stack(rows), ridge(3, 0.1)
    for i, (inputs, labels) in enumerate(rows):
        exact = Ridge(alpha=0.1 * len(labels) / 2, fit_intercept=False).fit(inputs, labels).coef_
        found = alone.fitted(task, jnp.zeros(3), data.client(i))
        np.testing.assert_allclose(found, exact, rtol=0.02, atol=2e-3)


def test_a_fit_is_the_optimum_of_softmax_regression():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(60, 4))
    labels = (inputs @ rng.normal(size=(4, 3)) + rng.gumbel(size=(60, 3))).argmax(1)
    shard = stack([(inputs, labels.astype(np.int32))]).client(0)
    task = softmax_regression(features=4, classes=3, l2=0.05)
    found = alone.fitted(task, task.init(0), shard)
    # scikit-learn does not penalise its intercept, so that the value is compared with that of a long descent
    slow = task.descend(task.init(0), shard, None, steps=5000, lr=0.3)
    assert float(task.loss(found, shard)) == pytest.approx(float(task.loss(slow, shard)), rel=1e-6)
    unpenalised = LogisticRegression(C=1 / (0.05 * 60)).fit(inputs, labels)
    agree = np.asarray(task.predict(found, jnp.asarray(inputs))).argmax(1) == unpenalised.predict(inputs)
    assert agree.mean() > 0.95


def test_every_client_is_scored_on_its_own_rows(tmp_path):
    settings = config.parse(tiny.settings(tiny.silos(tmp_path / "silos"), model={"l2": 0.01}))
    with precision(settings):
        problem = build_problem(settings)
        table, rows = alone.scored(problem, alone.trained(problem, [settings]))
        record = alone.record_of(problem, table)
    assert record.measure == "skill"
    assert len(record.low) == problem.n == 2
    for i in range(2):
        model = problem.own_fits.model[i]
        own = problem.test.client(i)
        right = np.asarray(problem.task.predict(model, own.inputs)).argmax(1) == np.asarray(own.labels)
        assert float(table.scores["accuracy"][i]) == pytest.approx(right[: int(own.sizes)].mean())
        each = np.split(rows["accuracy"], np.cumsum(np.asarray(problem.test.sizes))[:-1])[i]
        np.testing.assert_array_equal(each, right[: int(own.sizes)])


@pytest.mark.thorough(witness="::test_which_local_steps")
def test_a_network_takes_the_local_steps_of_the_comparison(tmp_path):
    network = {"name": "mlp", "hidden": [3], "l2": 0.01}
    folder = tiny.silos(tmp_path / "silos")
    base = tiny.settings(folder, model=network, algorithm={"name": "fedavg", "steps": 2, "local_lr": 0.3})
    settings = config.parse(base)
    with precision(settings):
        problem = build_problem(settings)
        models = alone.trained(problem, [settings])
        table, _ = alone.scored(problem, models)
        for i in range(problem.n):
            shard = problem.task.prepare(problem.train.client(i))
            expected = problem.x
            for _ in range(8):  # four rounds of two steps on all rows, which need no random numbers
                expected = expected - 0.3 * problem.task.grad(expected, shard)
            np.testing.assert_allclose(models[i], expected, rtol=1e-9, atol=1e-12)
    assert alone.record_of(problem, table).measure == "skill"
    assert float(np.linalg.norm(models[0] - models[1])) > 0.01


def test_which_local_steps(tmp_path):
    folder = tiny.silos(tmp_path / "silos")

    def of(**algorithm):
        base = tiny.settings(folder, model={"name": "mlp"})
        return config.parse({**base, "algorithm": algorithm})

    fair = of(name="scaffpd_minibatch", steps=3, local_lr=0.2)
    plain = of(name="fedavg", steps=5, local_lr=0.1, cohort=1, optimizer="adam", schedule="cosine")
    assert alone.local_steps([fair], 2)[:3] == (3, 0.2, 4)
    found = alone.local_steps([fair, plain], 2)  # the one that trains for the average, in which a client is asked twice
    assert found[:3] == (5, 0.1, 2)
    assert found.optimizer.name == "adam"
    assert found.schedule == "cosine"
    assert alone.local_steps([of(name="sgd", lr=0.5)], 2)[:3] == (1, 0.5, 4)


def test_a_comparison_writes_them_beside_every_run_and_a_sweep_does_not(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    settings = tiny.settings(tiny.silos(tmp_path / "silos"))
    settings["compare"] = {"A": {"name": "fedavg"}, "B": {"name": "scaffold"}}
    plan.run_all(plan.compare(settings), tmp_path / "without")
    assert not list((tmp_path / "without").rglob(records.ALONE))
    runs = plan.run_all(plan.compare(settings), tmp_path / "out", beside_alone=True)
    found = [records.read_alone(run.path) for run in runs]
    assert found[0] == found[1]
    assert found[0].scores["accuracy"]
    assert all((run.path / records.ALONE_ROWS).is_file() for run in runs)
    (runs[0].path / records.ALONE).unlink()
    plan.run_all(plan.compare(settings), tmp_path / "out", beside_alone=True)  # what is missing is made again
    assert records.read_alone(runs[0].path) == found[1]
    plan.run_all(plan.compare(settings), tmp_path / "out", overwrite=True)
    assert not list((tmp_path / "out").rglob("alone*"))
