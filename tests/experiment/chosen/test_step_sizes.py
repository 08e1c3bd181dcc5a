"""Networks without a step size: candidates of `local_lr` and `lr` race."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines.simulator import simulate
from equipoise.errors import InputError
from equipoise.experiment import config, run
from equipoise.experiment.chosen import step_sizes
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


def method_of(problem, **sections):
    with precision(parsed()):
        return build_method(parsed(**sections), problem)


def choice_of(problem, **sections):
    return method_of(problem, **sections).chosen[0]


def test_the_longest_of_the_good_ones_after_a_race(problem):
    found = choice_of(problem, algorithm={"name": "fedavg", "steps": 5}, run={"rounds": 80})
    assert found.key == "algorithm.local_lr"
    steps, rounds, losses = zip(*((row["value"], row["rounds"], row["loss"]) for row in found.tried), strict=True)
    assert list(steps) == sorted(steps)
    assert sorted(rounds, reverse=True)[:6] == [16, 16, 16, 8, 8, 4]  # the better ones go on
    at_the_end = {step: loss for step, at, loss in zip(steps, rounds, losses, strict=True) if at == 16}
    first, least = np.log(10), min(at_the_end.values())  # as good as nothing is known at first
    close = [step for step, loss in at_the_end.items() if loss <= min(step_sizes.CLOSE * least, (first + least) / 2)]
    assert found.value == max(close)
    assert found.runner_up in at_the_end
    assert found.runner_up != found.value
    assert {*steps} == {*step_sizes.CANDIDATES}
    assert found.rounds == 16
    model, judged = 4 * problem.x.size, 1 + len(steps) + 5 + 3  # bytes; how many models
    # A scale, an era and the late decay's share cross with the model.
    assert found.bytes_down == 3 * (sum(rounds) * (model + 12) + judged * model)
    assert found.bytes_up == 3 * (sum(rounds) * (4 + model + 8) + judged * 4)


def test_a_race_takes_a_fifth_of_the_rounds(problem):
    assert [step_sizes.race_rounds(rounds) for rounds in (1, 10, 60, 80, 1000)] == [2, 2, 12, 16, 16]
    found = choice_of(problem, algorithm={"name": "fedavg", "steps": 5}, run={"rounds": 60})
    assert {row["rounds"] for row in found.tried} == {3, 6, 12}


def test_on_a_plateau_the_race_finds_who_leaves_it(problem):
    """All weights are nearly zero: the first rounds leave the loss where it was, with any step size."""
    flat = replace(problem, x=problem.x * 1e-3)
    found = choice_of(flat, algorithm={"name": "fedavg", "steps": 5}, run={"rounds": 80})
    losses = {row["value"]: row["loss"] for row in found.tried}
    assert max(loss for loss in losses.values() if loss is not None) > 2.2
    assert losses[found.value] < 0.9 * np.log(10)


def test_a_race_that_keeps_no_states_has_the_same_end(problem, monkeypatch):
    algorithm = {"name": "scaffpd_minibatch", "steps": 5}
    expected = choice_of(replace(problem), algorithm=algorithm)
    monkeypatch.setattr(step_sizes, "MEMORY", 0.0)
    assert choice_of(replace(problem), algorithm=algorithm) == expected


def test_where_all_that_go_on_fail_the_choice_is_among_those_that_dropped_out(problem, monkeypatch):
    def failing_later(*args, rounds, **settings):
        done = simulate(*args, rounds=rounds, **settings)
        return done._replace(tally=done.tally._replace(broken=done.tally.broken + (rounds > 1)))

    monkeypatch.setattr(step_sizes, "simulate", failing_later)
    found = choice_of(replace(problem), algorithm={"name": "fedavg", "steps": 5})
    rounds = {row["value"]: row["rounds"] for row in found.tried if row["loss"] is not None}
    assert set(rounds.values()) == {1}
    assert found.value in rounds
    assert found.runner_up in rounds


def test_candidates_are_added_where_the_best_is_the_longest(problem):
    """A round of one step of descent can take long ones."""
    found = choice_of(problem, algorithm={"name": "sgd"})
    assert {row["value"] for row in found.tried} > {*step_sizes.CANDIDATES}
    assert found.rounds == step_sizes.race_rounds(4)  # those that are added take rounds of the race


def test_the_same_choice_again_and_once_for_a_problem(problem):
    first = choice_of(problem, algorithm={"name": "fedavg", "steps": 5})
    assert choice_of(problem, algorithm={"name": "fedavg", "steps": 5}) is first
    assert choice_of(built(), algorithm={"name": "fedavg", "steps": 5}) == first


@pytest.mark.parametrize("name", ["fedavg", "scaffpd_minibatch"])
def test_a_run_begins_where_the_chosen_one_ended_the_race(name, problem, tmp_path):
    done = run.run(parsed(algorithm={"name": name}, run={"rounds": 10}), tmp_path / "run", problem=problem)
    step, falls = done.chosen
    (loss,) = (row["loss"] for row in step.tried if row["value"] == step.value)
    np.testing.assert_allclose(np.mean(done.rows[0].loss), loss, rtol=1e-5)
    assert loss < 0.99 * np.mean(eq.tasks.losses(problem.plain_task, problem.x, problem.train))
    assert (falls.key, falls.value, falls.runner_up) == ("algorithm.schedule", "late", "constant")


def test_steps_fall_over_the_last_third_counted_from_the_first_round_of_the_race(problem):
    made = method_of(problem, algorithm={"name": "fedavg"}, run={"rounds": 10})
    assert int(made.start.server.own) == step_sizes.race_rounds(10)  # the rounds that the chosen one has trained
    assert jax.tree.leaves(made.algorithm)[-2:] == [12.0, 9.0]  # to the end, from where on
    (only,) = method_of(problem, algorithm={"name": "fedavg", "schedule": "constant"}, run={"rounds": 10}).chosen
    assert only.key == "algorithm.local_lr"


def test_a_run_of_the_default_method_says_what_it_chose_and_can_be_resumed(tmp_path):
    told = parsed()
    assert (told.algorithm.name, told.model.batch) == ("scaffpd_minibatch", 8)
    done = run.run(told, tmp_path / "run")
    assert any("local_lr was chosen: " in note for note in done.federation.notes)
    assert done.rows[0].bytes_up > 0  # of the race
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


@pytest.mark.thorough(witness="::test_the_longest_of_the_good_ones_after_a_race")
@pytest.mark.parametrize("name", ["sgd", "scaffold", "drfa", "fedprox", "scaffpd", "afl", "qfedavg", "fedavgm"])
def test_every_method_trains_a_network_without_a_step_size(name, problem, tmp_path):
    done = run.run(parsed(algorithm={"name": name}), tmp_path / "run", problem=problem)
    assert np.mean(done.rows[-1].loss) < np.mean(done.rows[0].loss)
