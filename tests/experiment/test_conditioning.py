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
    "model": {"l2": 0.1, "own": "none"},
    "objective": {"name": "chi2", "rho": 0.1, "of": "losses"},
    "personal": {"kind": "none"},
    "algorithm": {"name": "scaffpd_model", "steps": 5},
    "run": {"rounds": 8, "precision": "float64"},
}


FEDAVG = {"name": "fedavg", "local_lr": 0.1}


def settings(**sections):
    return configuration.parse({key: BASE.get(key, {}) | sections.get(key, {}) for key in {*BASE, *sections}})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {which: in_metric(which, tmp_path_factory.mktemp("runs") / which) for which in ("none", "full")}


def in_metric(which, folder):
    run(settings(model={"metric": which}), folder)
    return records.read(folder)


def test_the_saddle_point_is_the_same(folders):
    errors = {which: [row.distance for row in done.rows] for which, done in folders.items()}
    assert errors["full"][-1] < 1e-10
    assert errors["none"][0] == errors["full"][0]  # told in x from the first model on
    last = folders["full"].rows[-1]
    assert 0 <= last.gap < 1e-8 * last.objective


def test_bytes_are_counted_and_told(folders):
    plain, full = (folders[which].rows[0] for which in ("none", "full"))
    assert (plain.bytes_down, plain.bytes_up) == (0, 0)
    half = D * (D + 1) // 2
    assert (full.bytes_down, full.bytes_up) == (8 * N * half, 8 * N * (1 + D + half))
    assert full.bytes_up + full.bytes_down == 8 * N * (1 + D + 2 * half)
    assert folders["full"].rows[-1].bytes_up - full.bytes_up == folders["none"].rows[-1].bytes_up
    assert any("metric" in note for note in folders["full"].federation.notes)
    assert not any("metric" in note for note in folders["none"].federation.notes)


@pytest.mark.thorough(witness="tasks/test_metric.py::test_bytes_and_packing")
def test_bytes_of_a_rank_are_counted(tmp_path):
    ranked = in_metric(3, tmp_path / "run").rows[0]
    assert ranked.bytes_up == 8 * N * (2 + D + 2 * D * D)  # a sketch of at most as many directions as inputs


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    """Columns that are nearly the same, of which no standardising makes them any less alike."""
    folder, rng = tmp_path_factory.mktemp("silos"), np.random.default_rng(0)
    for name in "abc":
        base = rng.normal(size=(60, 1))
        inputs = np.concatenate([base + 0.03 * rng.normal(size=(60, 4)), rng.normal(size=(60, 2))], axis=1)
        label = inputs @ [3.0, -3.0, 1.0, 0.0, 0.5, 0.1] + rng.normal(size=60)
        lines = [",".join(map(repr, row)) for row in np.column_stack([inputs, label]).tolist()]
        (folder / f"{name}.csv").write_text("\n".join(["p,q,r,s,t,u,label", *lines]) + "\n")
    return folder


def of_silos(silos, metric, **sections):
    given = {key: BASE[key] | sections.get(key, {}) for key in ("objective", "algorithm", "run")}
    given["objective"]["of"] = "losses"
    data = {"silos": str(silos), "label": "label", "task": sections.pop("task", "regression")}
    model = {"l2": 1e-4, "metric": metric, "own": "none"}
    return configuration.parse(given | {"data": data, "model": model, "personal": {"kind": "none"}})


@pytest.mark.thorough(witness="::test_the_saddle_point_is_the_same")
def test_rounds_are_fewer_where_inputs_are_alike(tmp_path, silos):
    values = {}
    for which in ("none", "auto"):
        done = run(of_silos(silos, which, run={"rounds": 12}), tmp_path / which)
        values[which] = np.array([row.objective for row in done.rows])
    best = values["auto"].min()
    assert values["auto"][5] - best < 1e-6 * best  # an intercept, and l2 of its own for it
    assert values["none"][4] - best > 10 * (values["auto"][4] - best)


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


@pytest.mark.thorough(witness="steps/test_rules_and_measure.py::test_constants_in_the_metric_of_the_local_steps")
@pytest.mark.parametrize("name", ["fedavg", "scaffpd"])
def test_methods_with_step_sizes_measure_them_in_the_metric(tmp_path, silos, name):
    ends = {}
    for which in ("none", "full"):
        chosen = of_silos(silos, which, algorithm={"name": name}, run={"rounds": 5})
        ends[which] = run(chosen, tmp_path / which).rows[-1].objective
    assert ends["full"] < ends["none"]


def test_auto_is_the_default_where_nothing_hides_the_rows():
    with precision(settings()):
        problem = build_problem(settings())
    assert settings().model.metric == "auto"
    assert planned(settings(), problem).rank is None
    assert planned(settings(model={"metric": "none"}), problem) is None
    private = {"privacy": {"epsilon": 1.0}, "algorithm": FEDAVG | {"steps": 1}}
    assert planned(settings(**private), problem) is None
    assert planned(settings(model={"metric": 3}), problem).rank == 3
    assert planned(settings(model={"metric": 99}), problem).rank is None


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"metric": "full", "name": "mlp"}}, "linear in their inputs"),
        ({"model": {"metric": 3}, "privacy": {"epsilon": 1.0}, "algorithm": FEDAVG}, "no noise"),
        ({"model": {"metric": "some"}}, "model.metric"),
        ({"model": {"metric": 0}}, "model.metric"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(sections, sentence):
    with pytest.raises(InputError, match=sentence):
        settings(**sections)


@pytest.mark.thorough(witness="tasks/test_metric.py::test_the_exchange_is_the_mean_over_those_who_answered")
def test_lost_replies_leave_the_others_in_the_mean(tmp_path):
    done = run(settings(model={"metric": "full"}, run={"lost": 0.4, "rounds": 10}), tmp_path / "run")
    assert np.isfinite(done.rows[-1].objective)
    assert done.rows[-1].distance < done.rows[0].distance * 1e-4
