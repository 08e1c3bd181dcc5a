"""`algorithm.steps`, `model.batch` and `algorithm.cohort` = "auto": what a round costs against what it brings."""

import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.experiment import config, records, run
from equipoise.experiment.chosen import effort, settle

SETTINGS = {
    "data": {"name": "digits", "test": 0.5},
    "partition": {"kind": "iid", "clients": 4, "max_size": 40},
    "model": {"name": "mlp", "hidden": [8], "batch": 8},
    "algorithm": {"name": "fedavg", "local_lr": 0.3, "steps": 2},
    "run": {"rounds": 2},
}


def parsed(**sections):
    return config.parse({**SETTINGS, **{key: {**SETTINGS.get(key, {}), **value} for key, value in sections.items()}})


class Known:
    """Trials whose losses are known."""

    rounds = down = up = 0

    def __init__(self, losses):
        self.losses = losses

    def tried(self, values):
        self.rounds += 5
        return effort.Tried(self.losses[values["algorithm.steps"]], 5, 2.0)


@pytest.mark.parametrize(
    ("losses", "wanted", "count"),
    [
        ({1: 5, 3: 4, 10: 3, 30: 2, 100: 1}, 100, 3),  # the neighbours below are not tried
        ({1: 1, 3: 2, 10: 3, 30: 4, 100: 0}, 1, 4),
        ({1: 0, 3: 4, 10: 3, 30: 4, 100: 0}, 10, 3),
        ({1: 0, 3: 4, 10: 3, 30: np.inf, 100: 0}, 10, 3),
    ],
)
def test_it_goes_on_while_that_pays(losses, wanted, count):
    found = effort._walked("algorithm.steps", effort.GRID["algorithm.steps"], {"algorithm.steps": 10}, Known(losses))
    assert found.value == wanted
    assert len(found.tried) == count
    assert found.rounds == 5 * count
    assert found.runner_up != wanted


def test_cohorts_are_halves_of_halves():
    assert effort._cohorts(10) == (10, 5, 3, 2)
    assert effort._cohorts(1) == (1,)


def test_a_run_takes_the_round_that_brings_most_for_its_cost(tmp_path, monkeypatch):
    """Where only local steps cost anything, a candidate of fewer has more rounds; they cross, and are counted."""
    monkeypatch.setitem(effort.GRID, "algorithm.steps", (2, 10))
    free = {"exchange_seconds": 0.0, "bytes_per_second": 1e15, "step_seconds": 1.0, "rounds": 2}
    told = parsed(algorithm={"steps": "auto"}, run=free)
    done = run.run(told, tmp_path / "run")
    (found,) = settle.read(done.path)
    assert found.key == "algorithm.steps"
    assert {row["value"]: row["rounds"] for row in found.tried} == {2: 5 * effort.BUDGET, 10: effort.BUDGET}
    assert found.value == min(found.tried, key=lambda row: row["loss"])["value"]
    assert done.rows[0].bytes_up == found.bytes_up > 0
    assert found.sentence in done.federation.notes
    assert config.parse(records.read_toml(done.path / records.CONFIG)) == told
    assert settle.applied(told, (found,)).algorithm.steps == found.value


@pytest.mark.thorough(witness="::test_a_run_takes_the_round_that_brings_most_for_its_cost")
def test_dear_rounds_have_more_local_steps_and_a_full_line_fewer_owners(tmp_path):
    def found(seconds, line, **auto):
        cost = {"exchange_seconds": seconds, "bytes_per_second": line, "step_seconds": 0.01}
        return effort.chosen(parsed(algorithm=auto, run=cost), None)[0].value

    assert found(100.0, 1e15, steps="auto") > found(0.0, 1e15, steps="auto")
    assert found(100.0, 1e15, cohort="auto") == 4
    assert found(0.0, 1e3, cohort="auto") < 4


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"algorithm": {"cohort": "auto"}, "convexify": {}}, "cohort is 'auto', which is for one training"),
        ({"convexify": {"algorithm": {"steps": "auto"}}}, "steps or cohort 'auto'"),
        ({"model": {"batch": "auto"}, "federation": {"sites": 2}}, "batch is 'auto', .* over Flower give a number"),
    ],
)
def test_what_cannot_be_tried_is_a_sentence(sections, sentence):
    with pytest.raises(InputError, match=sentence):
        parsed(**sections)
