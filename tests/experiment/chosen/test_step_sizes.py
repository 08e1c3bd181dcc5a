"""Networks without a step size: `local_lr` and `lr` are tried out."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.experiment import config, run
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem, precision

SETTINGS = {
    "data": {"name": "digits", "test": 0.5},
    "partition": {"kind": "iid", "clients": 3, "max_size": 40},
    "model": {"name": "mlp", "hidden": [8], "batch": 8},
    "run": {"rounds": 4, "evaluate_every": 2},
}


def parsed(**sections):
    return config.parse({**SETTINGS, **{key: {**SETTINGS.get(key, {}), **value} for key, value in sections.items()}})


@pytest.fixture(scope="module")
def problem():
    return built()


def built():
    with precision(parsed()):
        return build_problem(parsed())


def choice_of(problem, **sections):
    with precision(parsed()):
        (found,) = build_method(parsed(**sections), problem).chosen
        return found


def test_about_twice_the_step_of_the_least_loss_after_a_round(problem):
    found = choice_of(problem, algorithm={"name": "fedavg", "steps": 5})
    assert found.key == "algorithm.local_lr"
    rows = [(row["value"], row["loss after a round"]) for row in found.tried]
    steps, losses = np.array([row for row in rows if row[1] is not None]).T
    assert (np.diff(steps) > 0).all()
    least = steps[losses.argmin()]
    assert found.value in [least * 2.0**k for k in (1, 0, -1, -2, -3)]
    assert found.runner_up > 0
    assert found.rounds >= len(found.tried) + 4
    model = 4 * problem.x.size  # bytes; beside it a loss
    assert found.bytes_down == found.rounds * 3 * (model + 8 + model)  # a scale and an era with the model
    assert found.bytes_up == found.rounds * 3 * (4 + model + 8 + 4)


def test_on_a_plateau_candidates_have_rounds_that_teach_something(problem):
    """All weights are nearly zero: a round of a few local steps leaves the loss where it was."""
    flat = replace(problem, x=problem.x * 1e-6)
    found = choice_of(flat, algorithm={"name": "fedavg", "steps": 2})
    assert "8 times the local steps, as shorter ones taught nothing here" in found.why
    assert found.value == min(found.tried, key=lambda row: row["loss after a round"] or np.inf)["value"]
    assert found.rounds < 24  # the better half goes on


def test_the_same_choice_again_and_once_for_a_problem(problem):
    first = choice_of(problem, algorithm={"name": "fedavg", "steps": 5})
    assert choice_of(problem, algorithm={"name": "fedavg", "steps": 5}) is first
    assert choice_of(built(), algorithm={"name": "fedavg", "steps": 5}) == first


def test_a_run_of_the_default_method_says_what_it_chose_and_can_be_resumed(tmp_path):
    told = parsed()
    assert (told.algorithm.name, told.model.batch) == ("scaffpd_minibatch", 8)
    done = run.run(told, tmp_path / "run")
    assert any("local_lr was chosen: " in note for note in done.federation.notes)
    assert done.rows[0].bytes_up > 0  # of the trial
    assert done.outcome.summary["mean"] > 0.3

    def stop(at, of, row):
        if at == 2:
            raise KeyboardInterrupt

    often = parsed(run={"checkpoint_seconds": 0.0})
    with pytest.raises(KeyboardInterrupt):
        run.run(often, tmp_path / "stopped", watch=stop)
    again = run.resume(tmp_path / "stopped")
    assert again.rows[-1].loss == done.rows[-1].loss
    assert again.federation.notes == done.federation.notes


def test_without_a_batch_the_default_method_takes_one():
    assert config.parse({"model": {"name": "mlp"}}).model.batch == 32
    assert config.parse({"model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}).model.batch is None


def test_a_problem_that_no_step_solves_is_a_sentence(problem):
    broken = replace(problem, x=problem.x * 1e30)
    with pytest.raises(InputError, match=r"algorithm\.local_lr is 'auto', but no step size from .* give algorithm"):
        choice_of(broken, algorithm={"name": "fedavg", "steps": 5})


@pytest.mark.thorough(witness="::test_about_twice_the_step_of_the_least_loss_after_a_round")
@pytest.mark.parametrize("name", ["sgd", "scaffold", "drfa", "fedprox", "scaffpd", "afl", "qfedavg", "fedavgm"])
def test_every_method_trains_a_network_without_a_step_size(name, problem, tmp_path):
    done = run.run(parsed(algorithm={"name": name}), tmp_path / "run", problem=problem)
    assert np.mean(done.rows[-1].loss) < np.mean(done.rows[0].loss)
