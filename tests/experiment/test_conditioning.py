"""Runs in the metric: the same saddle point, told in x, in fewer rounds; what crossed for it is counted."""

import json

import numpy as np
import pytest

from equipoise.errors import InputError, Stopped
from equipoise.experiment import config as configuration
from equipoise.experiment import records
from equipoise.experiment.conditioning import planned
from equipoise.experiment.problems import build_problem, precision
from equipoise.experiment.run import resume, run

N, D, ROWS = 4, 6, 20
BASE = {
    "data": {"name": "synthetic", "options": {"dim": D, "samples": ROWS, "scale": 20.0, "shift": 1.0}},
    "partition": {"clients": N},
    "model": {"l2": 0.1},
    "objective": {"name": "chi2", "rho": 0.1},
    "algorithm": {"name": "scaffpd_model", "steps": 5},
    "run": {"rounds": 8, "precision": "float64"},
}


def settings(**sections):
    return configuration.parse({key: BASE.get(key, {}) | sections.get(key, {}) for key in {*BASE, *sections}})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = {}
    for which in ("none", "full", 3):
        out[which] = tmp_path_factory.mktemp("runs") / str(which)
        run(settings(model={"metric": which}), out[which])
    return {which: records.read(folder) for which, folder in out.items()}


def test_the_saddle_point_is_the_same_and_comes_sooner(folders):
    errors = {which: [row.distance for row in done.rows] for which, done in folders.items()}
    assert errors["full"][-1] < 1e-10
    print(errors)
    assert errors["full"][4] < 1e-3 * errors["none"][4]
    assert errors["none"][0] == errors["full"][0]  # told in x from the first model on
    last = folders["full"].rows[-1]
    assert 0 <= last.gap < 1e-8 * last.objective


def test_bytes_are_counted_and_told(folders):
    plain, full, ranked = (folders[which].rows[0] for which in ("none", "full", 3))
    assert (plain.bytes_down, plain.bytes_up) == (0, 0)
    half = D * (D + 1) // 2
    assert (full.bytes_down, full.bytes_up) == (8 * N * half, 8 * N * (1 + D + half))
    assert ranked.bytes_up == 8 * N * (2 + D + 2 * D * D)  # a sketch of at most as many directions as inputs
    assert full.bytes_up + full.bytes_down == 8 * N * (1 + D + 2 * half)
    assert folders["full"].rows[-1].bytes_up - full.bytes_up == folders["none"].rows[-1].bytes_up
    assert any("metric" in note for note in folders["full"].federation.notes)
    assert not any("metric" in note for note in folders["none"].federation.notes)


def test_a_stopped_run_resumes(tmp_path, folders):
    def stop(at, of, row):
        if at == 3:
            raise KeyboardInterrupt

    chosen = settings(model={"metric": "full"}, run={"checkpoint_seconds": 0.0})
    with pytest.raises((KeyboardInterrupt, Stopped)):
        run(chosen, tmp_path / "run", watch=stop)
    done = resume(tmp_path / "run")
    whole = [json.loads(row.model_dump_json(exclude={"seconds"})) for row in folders["full"].rows]
    assert [json.loads(row.model_dump_json(exclude={"seconds"})) for row in done.rows] == whole


@pytest.mark.parametrize("name", ["fedavg", "scaffpd"])
def test_methods_with_step_sizes_measure_them_in_the_metric(tmp_path, name):
    ends = {}
    for which in ("none", "full"):
        chosen = settings(model={"metric": which}, algorithm={"name": name}, objective={"name": "average"})
        ends[which] = run(chosen, tmp_path / which).rows[-1].distance
    assert ends["full"] < 1e-2 * ends["none"]


def test_auto_is_for_owners_that_there_are():
    with precision(settings()):
        problem = build_problem(settings())
    assert planned(settings(model={"metric": "auto"}), problem) is None
    natural = settings(model={"metric": "auto"}).model_copy(
        update={"partition": settings().partition.model_copy(update={"kind": "natural"})}
    )
    assert planned(natural, problem).rank is None
    assert planned(settings(model={"metric": 3}), problem).rank == 3
    assert planned(settings(model={"metric": 99}), problem).rank is None


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"metric": "full", "name": "mlp"}}, "linear in their inputs"),
        ({"model": {"metric": 3}, "privacy": {"epsilon": 1.0}, "algorithm": {"name": "fedavg", "steps": 5,
          "local_lr": 0.1, "memory": None}}, "no noise"),
        ({"model": {"metric": "some"}}, "model.metric"),
        ({"model": {"metric": 0}}, "model.metric"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(sections, sentence):
    with pytest.raises(InputError, match=sentence):
        settings(**sections)


def test_lost_replies_leave_the_others_in_the_mean(tmp_path):
    done = run(settings(model={"metric": "full"}, run={"lost": 0.4, "rounds": 10}), tmp_path / "run")
    assert np.isfinite(done.rows[-1].objective)
    assert done.rows[-1].distance < done.rows[0].distance * 1e-4
