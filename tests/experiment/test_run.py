"""A run folder: what is in it, and that nothing which happens on the way changes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest
import safetensors.numpy

import equipoise as eq
from equipoise import artifact, files
from equipoise.engines import simulator
from equipoise.errors import InputError, Stopped
from equipoise.experiment import config, reading, records, run
from equipoise.experiment.methods import build_dual, build_method, known_saddle
from equipoise.experiment.problems import build_problem
from tests.problems import few
from tests.searches import tiny

SMALL = {
    "name": "small",
    "data": {"name": "synthetic", "options": {"dim": 4, "samples": 20, "shift": 0.5}},
    "partition": {"clients": 4},
    "model": {"l2": 0.1, "metric": "none"},
    "algorithm": {"name": "scaffold", "steps": 3, "local_lr": 0.05, "cohort": 2},
    "run": {"rounds": 12, "evaluate_every": 3, "precision": "float64"},
}


def small(*assignments):
    return config.parse(reading.override(SMALL, assignments))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run.run(small(), tmp_path_factory.mktemp("runs") / "small")


def test_the_folder_holds_what_is_promised(finished):
    names = {path.name for path in finished.path.iterdir()}
    assert names == {"equipoise.json", "config.toml", "environment.json", "federation.json", "history.jsonl",
                     "model.safetensors", "result.json", "rows.safetensors"}  # fmt: skip
    assert config.parse(finished.config) == small()
    assert [row.round for row in finished.rows] == [0, 3, 6, 9, 12]
    assert [m.train for m in finished.federation.members] == [20] * 4
    assert finished.federation.parameters == 4
    assert finished.environment.precision == "float64"
    assert finished.outcome.label == "small"
    assert finished.outcome.measure == "rmse"
    assert not finished.outcome.higher_is_better


def test_it_is_the_run_that_the_library_makes(finished):
    told = small()
    this = build_problem(told)
    algorithm = build_method(told, this).algorithm
    result = eq.simulate(algorithm, this.x, this.train, 0, rounds=12, record=algorithm.model)
    x = np.asarray(algorithm.model(result.server))
    saved = safetensors.numpy.load_file(finished.path / "model.safetensors")
    np.testing.assert_array_equal(saved["weight"].ravel(), x)
    np.testing.assert_array_equal(saved["bias"], [0])
    last = finished.rows[-1]
    losses = np.asarray(eq.tasks.losses(this.task, x, this.train))
    np.testing.assert_allclose(last.loss, losses)
    np.testing.assert_allclose(last.objective, build_dual(told, build_problem(told)).value(losses))
    np.testing.assert_allclose(last.distance, np.sum((x - known_saddle(told, this)) ** 2))
    assert last.asked == (24,)
    assert (last.bytes_down, last.bytes_up) == (24 * 64, 24 * 72)  # x and c down, dy, dc and a one up
    assert last.lam is None
    rmse = [np.sqrt(np.mean((np.asarray(this.train.inputs[i]) @ x - np.asarray(this.train.labels[i])) ** 2))
            for i in range(4)]  # fmt: skip
    np.testing.assert_allclose(last.scores["rmse"], rmse)


def test_the_gap_is_a_bound_for_methods_with_weights_and_without(finished, tmp_path):
    """Against the optimum from another solver."""
    for told in (small(), small("algorithm.name=scaffpd", "algorithm.rule={sigma=0.5}", "algorithm.cohort=4")):
        told = told.model_copy(update={"algorithm": told.algorithm.model_copy(update={"cohort": None})})
        done = run.run(told, tmp_path / told.algorithm.name)
        this = build_problem(told)
        best = build_dual(told, this).value(eq.tasks.losses(this.task, known_saddle(told, this), this.train))
        for row in done.rows:
            assert row.objective - float(best) <= row.gap + 1e-12


def test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on_bit_for_bit(finished, tmp_path, monkeypatch):
    seen = []

    def watch(at, of, row):
        seen.append(at)
        if at == 6:
            simulate_interrupt()

    def simulate_interrupt():
        import signal

        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        run.run(small(), tmp_path / "small", watch=watch)
    folder = tmp_path / "small"
    assert not records.finished(folder)
    assert records.read(folder).outcome is None
    with pytest.raises(InputError, match="equipoise resume"):
        run.run(small(), folder)
    again = run.resume(folder)
    assert_same_run(again, finished)
    with pytest.raises(InputError, match="nothing to resume"):
        run.resume(folder)


def assert_same_run(a, b):
    def but_time(rows):
        return [row.model_copy(update={"seconds": 0.0}) for row in rows]

    assert but_time(a.rows) == but_time(b.rows)
    left, right = (safetensors.numpy.load_file(r.path / "model.safetensors") for r in (a, b))
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes()
    assert a.outcome.summary == b.outcome.summary


@pytest.mark.thorough(witness="searches/test_disk.py::test_whatever_write_fails_the_run_goes_on_bit_for_bit")
def test_kill_9_at_random_moments_changes_nothing(tmp_path):
    """Eight times, anywhere: with control variates, minibatches, client sampling and lost replies."""
    kills = 8 * tiny.LONGER
    told = reading.override(
        SMALL, ["run.rounds=400", "run.evaluate_every=1", "run.checkpoint_seconds=0", "model.batch=5", "run.lost=0.1"]
    )
    file = tmp_path / "killed.toml"
    file.write_text(config.parse(told).toml())
    whole = in_a_process(file, tmp_path / "whole", kills=0)
    killed = in_a_process(file, tmp_path / "killed", kills=kills)
    assert whole == [0]
    assert killed[0] == kills
    assert len(set(killed[1:])) > 3, f"the kills were not at different moments: {killed[1:]}"
    assert_same_run(records.read(tmp_path / "killed"), records.read(tmp_path / "whole"))
    assert len(records.read(tmp_path / "killed").rows) == 401


def in_a_process(file, folder, kills):
    env = {**os.environ, "JAX_ENABLE_X64": "1"}
    script = Path(__file__).with_name("nursery.py")
    out = subprocess.run(
        [sys.executable, str(script), str(file), str(folder), str(kills), "0"],
        capture_output=True, text=True, timeout=500, env=env, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    return [int(word) for word in out.stdout.split()]


def test_a_short_run_needs_no_checkpoint_and_its_history_is_on_the_disk_before_its_result(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    wrote, sync, write_result = [], files.sync, run.results.write_result
    monkeypatch.setattr("equipoise.experiment.checkpoint.save", lambda *args: wrote.append("checkpoint"))
    monkeypatch.setattr(files, "sync", lambda path: wrote.append(path.name) or sync(path))
    monkeypatch.setattr(run.results, "write_result", lambda *a, **o: wrote.append("result") or write_result(*a, **o))
    given = tiny.settings(tiny.silos(tmp_path / "silos"), run={"checkpoint_seconds": 3600})
    assert run.run(config.parse(given), tmp_path / "run").outcome is not None
    assert wrote == ["history.jsonl", "result"]


def test_a_torn_line_and_rows_beyond_the_checkpoint_are_forgotten(finished, tmp_path):
    folder = tmp_path / "small"
    with pytest.raises(KeyError):
        run.run(small("run.checkpoint_seconds=0"), folder, watch=stop_at(9))
    history = folder / "history.jsonl"
    row = json.loads(history.read_text().splitlines()[-1])
    with history.open("a") as file:
        file.write(json.dumps({**row, "round": 11}) + "\n" + '{"round": 12, "sec')
    assert_same_run(run.resume(folder), finished)


def stop_at(round):
    def watch(at, of, row):
        if at == round:
            raise KeyError("the machine is gone")

    return watch


def test_a_finished_folder_is_not_overwritten_without_being_asked(finished, tmp_path):
    before = {path.name: path.read_bytes() for path in finished.path.iterdir()}
    with pytest.raises(InputError, match="finished run; give another --out, or --overwrite"):
        run.run(small("run.rounds=3"), finished.path)
    assert {path.name: path.read_bytes() for path in finished.path.iterdir()} == before
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="holds files that Equipoise did not make"):
        run.run(small("run.rounds=3"), tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_overwriting_begins_anew(tmp_path):
    run.run(small("run.rounds=3"), tmp_path / "a")
    of_that_run = [tmp_path / "a" / name for name in ("chosen.json", "baselines.json", "receipts.json")]
    for path in of_that_run:  # what was chosen or told for one run is not for another
        path.write_text("{}")
    done = run.run(small("run.rounds=4"), tmp_path / "a", overwrite=True)
    assert done.rows[-1].round == 4
    assert not any(path.exists() for path in of_that_run)


def test_a_run_that_diverges_ends_with_sentences(tmp_path):
    done = run.run(small("algorithm.local_lr=1e60", "run.rounds=3"), tmp_path / "a")
    assert done.outcome.summary == {}
    assert any("step sizes are too large" in event for event in done.outcome.events)
    assert any("no client could score the model" in event for event in done.outcome.events)


def test_replies_that_are_not_finite_are_told(tmp_path):
    done = run.run(small("algorithm.local_lr=1e200", "run.rounds=3"), tmp_path / "a")
    assert done.rows[-1].broken == 6
    assert any("were not finite" in event for event in done.outcome.events)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    with pytest.raises(KeyError):
        run.run(small("run.checkpoint_seconds=0"), tmp_path / "a", watch=stop_at(6))
    file = tmp_path / "a" / "config.toml"
    file.write_text(config.parse(reading.override(SMALL, ["algorithm.name=fedavg"])).toml())
    with pytest.raises(InputError, match=r'since its checkpoint algorithm.name was "scaffold" and is "fedavg"'):
        run.resume(tmp_path / "a")
    file.write_text(small("run.checkpoint_seconds=0").toml())
    (tmp_path / "a" / "checkpoint.safetensors").write_bytes(b"rubbish")
    with pytest.raises(InputError, match="is not a checkpoint of this version"):
        run.resume(tmp_path / "a")


@pytest.mark.parametrize(
    "precision",
    few(["float32"], ["float32", "float64"], "::test_the_precision_is_that_of_the_configuration[float32]"),
)
def test_the_precision_is_that_of_the_configuration(precision, tmp_path):
    done = run.run(small(f"run.precision={precision}", "run.rounds=2"), tmp_path / "a")
    weights = safetensors.numpy.load_file(done.path / "model.safetensors")["weight"]
    assert weights.dtype == precision


def prices(folder):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name, m in (("east", 60), ("west", 30)):
        size = rng.normal(size=m)
        frame = pl.DataFrame({"size": size, "price": 2e5 + 1e4 * size + rng.normal(0, 10, m)})
        frame.write_csv(folder / f"{name}.csv")


def test_only_weights_of_the_runs_own_objective_certify_it(tmp_path):
    """TERM's weights are of another dual: the run is certified by the best response of its own."""
    told = small("algorithm.name=term", "algorithm.t=50.0", "objective.name=agnostic")
    done = run.run(told, tmp_path / "run")
    last, this, dual = done.rows[-1], build_problem(told), build_dual(told, build_problem(told))
    assert sum(last.lam) == pytest.approx(1)  # recorded as they are
    x = jax.numpy.asarray(safetensors.numpy.load_file(done.path / "model.safetensors")["weight"].ravel())

    def gap(lam):
        return float(eq.certificates.certify(this.task, dual, this.train, x, jax.numpy.asarray(lam), mu=0.1).gap)

    assert last.gap == pytest.approx(gap(dual.best_response(np.array(last.loss))))
    assert abs(last.gap - gap(last.lam)) > 1e-3


@pytest.mark.thorough(witness="cli/test_experiments.py::test_from_silo_files_to_predictions")
def test_silos_of_the_user_end_in_a_model_that_predicts(tmp_path):
    """A regression: RMSE is in the label's own units, with intervals."""
    prices(tmp_path / "shops")
    settings = {"data": {"silos": str(tmp_path / "shops"), "label": "price"}, "run": {"rounds": 40}}
    settings["personal"] = {"kind": "none"}
    done = eq.experiment.train(settings, tmp_path / "run")
    assert [m.name for m in done.federation.members] == ["east", "west"]
    assert done.outcome.measure == "rmse"
    assert 5 < done.outcome.summary["max"] < 1000  # with l2 = 0.01, not far above the noise of 10
    assert all(a < v < b for a, v, b in zip(done.outcome.low, done.rows[-1].scores["rmse"], done.outcome.high,
                                            strict=True))  # fmt: skip
    assert sum(done.rows[-1].lam) == pytest.approx(1, abs=1e-6)
    new = tmp_path / "new.csv"
    new.write_text("size\n0.0\n1.0\n")
    said = artifact.predict(done.path / "model.safetensors", new)["prediction"]
    np.testing.assert_allclose(said, [2e5, 2.1e5], rtol=2e-3)


@pytest.mark.thorough(witness="cli/test_experiments.py::test_from_silo_files_to_predictions")
def test_digits_predict_from_an_npz(tmp_path):
    settings = {"run": {"rounds": 20}, "partition": {"kind": "iid", "clients": 3}, "algorithm": {"name": "scaffold"}}
    done = eq.experiment.train(settings, tmp_path / "run")
    images, labels = eq.data.vision.digits().flat()[1:3]
    np.savez(tmp_path / "new.npz", inputs=images[:300], labels=labels[:300])
    said = artifact.predict(done.path / "model.safetensors", tmp_path / "new.npz")["prediction"].to_numpy()
    assert (said == labels[:300]).mean() > 0.85


def test_tensorboard_can_follow(tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra [tensorboard] is not installed")
    from tensorboardX.proto import event_pb2

    run.run(small("run.tensorboard=true", "run.rounds=6", "algorithm.name=scaffpd", "algorithm.rule={sigma=0.5}"),
            tmp_path / "a")  # fmt: skip
    (file,) = (tmp_path / "a" / "tensorboard").iterdir()
    raw, tags, at = file.read_bytes(), set(), 0
    while at < len(raw):  # a TFRecord: length, its checksum, the event, its checksum
        length = int.from_bytes(raw[at : at + 8], "little")
        event = event_pb2.Event.FromString(raw[at + 12 : at + 12 + length])
        tags |= {(value.tag, event.step) for value in event.summary.value}
        at += 16 + length
    assert {("rmse/mean", 6), ("gap", 3), ("lambda/client_3", 6)} <= tags


def test_warnings_of_others_are_not_swallowed(tmp_path, monkeypatch):
    def noisy(*args, **kwargs):
        import warnings

        warnings.warn("something else", UserWarning, stacklevel=1)
        return simulator.simulate(*args, **kwargs)

    monkeypatch.setattr(run, "simulate", noisy)
    with pytest.warns(UserWarning, match="something else"):
        run.run(small("run.rounds=2"), tmp_path / "a")


def test_lost_replies_are_drawn_from_the_configuration(tmp_path):
    done = run.run(small("run.lost=0.5", "run.rounds=30"), tmp_path / "a")
    asked, answered = done.rows[-1].asked[0], done.rows[-1].answered[0]
    assert asked == 60
    assert 15 < answered < 45
    assert done.rows[-1].bytes_up == answered * 72
    assert done.rows[-1].bytes_down == asked * 64
    assert jax.config.jax_enable_x64  # as the tests have it


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """Of MLflow itself, which writes to a folder."""
    pytest.importorskip("mlflow", reason="the extra [mlflow] is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tiny.use(monkeypatch)
    return config.parse(tiny.settings(tiny.silos(tmp_path / "silos"), run={"mlflow": True}))


def test_mlflow_can_follow(mlflow, tmp_path):
    from mlflow import MlflowClient

    done = run.run(mlflow, tmp_path / "a")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("tiny").experiment_id
    (found,) = client.search_runs([experiment])
    assert found.info.run_name == "a"
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm.name"] == "scaffold"
    assert found.data.params["run.rounds"] == "4"
    seen = {m.step: m.value for m in client.get_metric_history(found.info.run_id, "accuracy/mean")}
    assert seen == pytest.approx({row.round: sum(row.scores["accuracy"]) / 2 for row in done.rows})
    assert found.data.metrics["gap"] == pytest.approx(done.rows[-1].gap)
    run.run(mlflow, tmp_path / "b")
    assert {one.info.run_name for one in client.search_runs([experiment])} == {"a", "b"}


def test_mlflow_may_fail_and_the_run_does_not(mlflow, tmp_path, monkeypatch):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def full(self, run, metrics=(), **_):
        if metrics:
            raise MlflowException("the disk is full")

    monkeypatch.setattr(MlflowClient, "log_batch", full)
    with pytest.warns(UserWarning, match="it goes on, its history is whole") as said:
        done = run.run(mlflow, tmp_path / "a")
    assert len(said) == 1
    assert done.outcome.rounds == 4
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")  # MLflow's own words, in one sentence
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "others").as_uri())
    with pytest.raises(InputError, match=r"MLflow does not take the run \(The filesystem .*; set MLFLOW_TRACKING_URI"):
        run.run(mlflow, tmp_path / "b")
