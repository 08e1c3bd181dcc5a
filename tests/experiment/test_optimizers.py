"""Steps of optax in a configuration are those of the library."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import equipoise as eq
from equipoise.errors import InputError
from equipoise.experiment import config, reading
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem

SETTINGS = {
    "data": {"name": "synthetic", "options": {"dim": 3, "samples": 8}},
    "partition": {"clients": 3},
    "model": {"l2": 0.1, "metric": "none"},
    "algorithm": {"name": "fedavg", "steps": 3, "local_lr": 0.05},
    "run": {"rounds": 4, "precision": "float64"},
}


def parsed(*assignments):
    return config.parse(reading.override(SETTINGS, assignments))


def trained(settings):
    problem = build_problem(settings)
    method = build_method(settings, problem)
    result = eq.simulate(method.algorithm, problem.x, problem.train, 0, rounds=4)
    return problem, np.asarray(method.algorithm.model(result.server))


def reference(problem, **changes):
    task = changes.pop("task", problem.task)
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(3), **{"steps": 3, "local_lr": 0.05} | changes)
    return algorithm


def run(problem, algorithm):
    result = eq.simulate(algorithm, problem.x, problem.train, 0, rounds=4)
    return np.asarray(algorithm.model(result.server))


def test_local_steps():
    problem, x = trained(parsed("algorithm.optimizer={name='adam', clip=0.5, options={b1=0.8}}"))
    own = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1.0, b1=0.8))
    want = run(problem, reference(problem, task=eq.tasks.with_local_optimizer(problem.task, own)))
    np.testing.assert_allclose(x, want, rtol=1e-12)
    plain = run(problem, reference(problem))
    assert np.abs(x - plain).max() > 1e-3
    np.testing.assert_allclose(trained(parsed("algorithm.optimizer='sgd'"))[1], plain, rtol=1e-12)


def test_the_server_and_a_schedule():
    problem, x = trained(
        parsed(
            "algorithm.server_optimizer={name='sgd', learning_rate=0.9, options={momentum=0.5}}",
            "algorithm.schedule='linear'",
        )
    )

    def built(local_lr):
        return eq.algorithms.with_server_optimizer(reference(problem, local_lr=local_lr), optax.sgd(0.9, momentum=0.5))

    want = run(problem, eq.algorithms.with_local_schedule(built, optax.linear_schedule(0.05, 0.0, 4)))
    np.testing.assert_allclose(x, want, rtol=1e-12)


def test_a_scheduled_primal_step_is_as_long_as_the_local_ones():
    """tau follows local_lr: with one client and J = 1, SCAFF-PD is gradient descent with the scheduled step."""
    settings = parsed(
        "partition.clients=1", "algorithm.name='scaffpd'", "algorithm.steps=1", "algorithm.rule={sigma=1.0, theta=0.0}",
        "algorithm.schedule='linear'",
    )  # fmt: skip
    problem = build_problem(settings)
    method = build_method(settings, problem)
    result = eq.simulate(method.algorithm, problem.x, problem.train, 0, rounds=4)
    x = problem.x
    for lr in (0.05, 0.0375, 0.025, 0.0125):
        x = x - lr * problem.task.grad(x, problem.train.client(0))
    np.testing.assert_allclose(method.algorithm.model(result.server), x, rtol=1e-6)  # schedules are in float32


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["algorithm.optimizer='adm'"], "give 'sgd', 'adam'"),
        (["algorithm.optimizer={name='adam', options={b3=1.0}}"], r"optimizer\.options does not fit optax\.adam"),
        (["algorithm.optimizer={name='adam', clp=1.0}"], "has no key 'clp'; did you mean 'clip'"),
        (["algorithm.name='scaffold'", "algorithm.optimizer='adam'"], "these local steps are corrected"),
        (["algorithm.name='sgd'", "algorithm.lr=0.1", "algorithm.optimizer='adam'"], "of which sgd takes none"),
        (["algorithm.name='afl'", "algorithm.averaged=true", "algorithm.dual_lr=0.1",
          "algorithm.server_optimizer='adam'"], "ships another model"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(assignments, sentence):
    def build():
        settings = parsed(*assignments)
        build_method(settings, build_problem(settings))

    with pytest.raises(InputError, match=sentence):
        build()


def test_models_take_options():
    settings = {"data": {"name": "digits"}, "model": {"name": "resnet", "options": {"width": 2, "blocks": 1}}}
    settings["algorithm"] = {"name": "fedavg", "local_lr": 0.1}
    problem = build_problem(config.parse(settings))
    stem, _ = jax.eval_shape(problem.model.init, jax.random.key(0))["stem"]
    assert isinstance(stem, eqx.nn.Conv2d)
    assert stem.weight.shape == (2, 1, 3, 3)
    with pytest.raises(InputError, match=r"model\.options does not fit a resnet"):
        build_problem(config.parse(reading.override(settings, ["model.options={widht=3}"])))


def test_at_most_so_many_rows():
    settings = {"data": {"name": "digits"}, "partition": {"clients": 4, "max_size": 50}}
    problem = build_problem(config.parse(settings))
    assert np.asarray(problem.train.sizes).max() == 50
    whole = build_problem(config.parse(reading.override(settings, ["partition.max_size=100000"])))
    jax.tree.map(np.testing.assert_array_equal, problem.test, whole.test)


def test_minibatches_take_their_own_form():
    settings = {"data": {"name": "digits"}, "model": {"name": "mlp", "batch": 8}, "algorithm": {"local_lr": 0.1}}
    parsed = config.parse(settings)
    assert parsed.algorithm.name == "scaffpd_minibatch"
    problem = build_problem(parsed)
    method = build_method(parsed, problem)
    assert any("control variates are means of local gradients" in note for note in method.notes)
    assert any(f"sigma {0.4 / problem.n:g}, theta 0" in note for note in method.notes)
    assert config.parse(reading.override(settings, ["algorithm.cohort=3"])).algorithm.name == "scaffpd"
    unsaid = {key: value for key, value in settings.items() if key != "model"} | {"model": {"name": "mlp"}}
    assert config.parse(unsaid).algorithm.name == "scaffpd_minibatch"
    assert config.parse(unsaid).model.batch == 32
    named = config.parse(reading.override(settings, ["algorithm.name='scaffpd'", "algorithm.rule={sigma=0.1}"]))
    assert named.algorithm.name == "scaffpd"
