"""An intercept is not pulled to zero by the l2 penalty, unless that is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.certificates import certify
from equipoise.errors import InputError
from equipoise.experiment import config
from equipoise.experiment.problems import build_problem, precision
from equipoise.objectives import cvar

OWNERS, ROWS = 3, 40


@pytest.fixture
def silos(tmp_path):
    """Labels around 1000 with a noise of 0.5."""
    rng = np.random.default_rng(0)
    for i in range(OWNERS):
        inputs = rng.normal(size=(ROWS, 2)) + i
        labels = 1000 + inputs @ [3.0, -2.0] + 0.5 * rng.normal(size=ROWS)
        table = np.column_stack([inputs, labels])
        np.savetxt(tmp_path / f"{i}.csv", table, delimiter=",", header="a,b,label", comments="")
    return tmp_path


def solved(silos, **model):
    """The best model for the average owner, its root mean squared error, and the problem."""
    settings = {"data": {"silos": str(silos), "scale_label": False, "test": 0.0}, "run": {"precision": "float64"}}
    parsed = config.parse(settings | {"model": {"l2": 0.01, "own": "none", **model}})
    with precision(parsed):
        problem = build_problem(parsed)

        @jax.jit
        def best(data):
            def average(x):
                each = jax.vmap(lambda i: problem.task.loss(x, data.client(i)))(jnp.arange(OWNERS))
                return jnp.mean(each)

            zero = jnp.zeros_like(problem.x)
            return jnp.linalg.solve(jax.hessian(average)(zero), -jax.grad(average)(zero))

        x = best(problem.train)
        errors = problem.task.predict(x, problem.train.inputs.reshape(-1, 2))[:, 0] - problem.train.labels.reshape(-1)
        return x, float(jnp.sqrt(jnp.mean(errors**2))), problem


def test_the_error_is_that_of_the_noise(silos):
    """With l2 = 0.01 it was once 4.96."""
    x, error, problem = solved(silos)
    assert error < 0.6
    inputs, labels = np.asarray(problem.train.inputs).reshape(-1, 2), np.asarray(problem.train.labels).reshape(-1)
    wide = np.column_stack([inputs, np.ones(len(inputs))])
    free = np.diag([0.01, 0.01, 0.0])  # nothing on the intercept
    exact = np.linalg.solve(2 / len(wide) * wide.T @ wide + free, 2 / len(wide) * wide.T @ labels)
    np.testing.assert_allclose(x, exact, atol=1e-4)


def test_what_is_certified_is_so(silos):
    x, _, problem = solved(silos)
    with jax.enable_x64(True):
        found = certify(problem.task, cvar(OWNERS, 1.0), problem.train, x)
        assert 0 < float(found.gap) < 1e-9 * float(found.robust)
        off = certify(problem.task, cvar(OWNERS, 1.0), problem.train, x.at[-1].add(0.1))
        assert float(off.robust) - float(found.robust) <= float(off.gap)


def test_it_is_penalised_where_that_is_asked_for(silos):
    asked, _, problem = solved(silos, l2_intercept=100.0)
    assert problem.task.strong_convexity == (0.01, 0.01, 100.0)
    assert abs(float(asked[-1])) < 0.1 * abs(float(solved(silos)[0][-1])) + 0.01
    assert solved(silos, l2_intercept=0.0)[2].task.strong_convexity is None


@pytest.mark.parametrize("model", [{"name": "mlp"}, {"loss": "squared"}])
def test_models_without_an_intercept_of_their_own_decline_it(model):
    with pytest.raises(InputError, match=r"model.l2_intercept is for linear models with an intercept"):
        config.parse({"model": model | {"l2_intercept": 0.1}})


def test_rare_classes_of_files_keep_their_odds(tmp_path):
    """Inputs that say nothing, one row in ten of the rare class: the model predicts one in ten, whatever l2 is."""
    rng = np.random.default_rng(0)
    for i in range(OWNERS):
        labels = np.arange(ROWS) % 10 == 0
        table = np.column_stack([rng.normal(size=(ROWS, 2)), labels])
        np.savetxt(tmp_path / f"{i}.csv", table, delimiter=",", header="a,b,label", comments="")
    settings = {
        "data": {"silos": str(tmp_path), "test": 0.0},
        "run": {"precision": "float64"},
        "model": {"l2": 10.0, "own": "none"},
    }
    parsed = config.parse(settings)
    with precision(parsed):
        problem = build_problem(parsed)

        @jax.jit
        def best(data):
            def average(x):
                return jnp.mean(jax.vmap(lambda i: problem.task.loss(x, data.client(i)))(jnp.arange(OWNERS)))

            def newton(x, _):
                return x - jnp.linalg.solve(jax.hessian(average)(x), jax.grad(average)(x)), None

            return jax.lax.scan(newton, jnp.zeros_like(problem.x), length=12)[0]

        outputs = problem.task.predict(best(problem.train), problem.train.inputs.reshape(-1, 2))
    chances = np.asarray(jax.nn.softmax(outputs, axis=1))[:, 1]
    assert chances.mean() == pytest.approx(0.1, abs=0.02)
