"""Train-Convexify-Train from a file to a model that predicts from raw inputs."""

import os
import signal
import tomllib

import jax
import numpy as np
import polars as pl
import pytest
import safetensors.numpy

from equipoise import artifact, data, tasks
from equipoise.algorithms.moments import moments, scaling
from equipoise.cohorts import everyone
from equipoise.data.shards import stack
from equipoise.engines.simulator import simulate
from equipoise.errors import InputError, Stopped
from equipoise.experiment import config, plan, reading, records, run
from equipoise.experiment.convexify import stages
from equipoise.experiment.problems import build_problem
from equipoise.experiment.run import RunSpec, problem_of
from equipoise.tasks.squares import Kernel
from tests.problems import few

FILE = """
[data]
name = "digits"
test = 0.4
[partition]
clients = 3
[model]
name = "cnn"
metric = "none"
l2 = 0.0
batch = 8
[convexify]
rounds = 2
features = 900
algorithm = { steps = 2 }
[algorithm]
name = "scaffold"
steps = 5
local_lr = 0.5
[run]
rounds = 4
evaluate_every = 1
checkpoint_seconds = 0.0
precision = "float64"
"""
SETTINGS = tomllib.loads(FILE)
MLP = reading.override(SETTINGS, ["model.name='mlp'", "model.hidden=[6]", "convexify.features=60"])
WIDER = reading.override(SETTINGS, ["model.name='mlp'", "model.hidden=[14]"])  # with more features than rows
NETWORKS = {"cnn": SETTINGS, "mlp": WIDER}


def parsed(settings, *assignments):
    return config.parse(reading.override(settings, assignments))


def nothing():
    pass


@pytest.fixture(scope="module", params=few(["mlp"], NETWORKS, "::test_the_artifact_predicts_from_raw_inputs[mlp]"))
def network(request):
    """The settings of a run. A convolution is as any other layer here, and takes ten times as long."""
    return NETWORKS[request.param]


@pytest.fixture(scope="module")
def finished(network, tmp_path_factory):
    return run.run(parsed(network), tmp_path_factory.mktemp("runs") / "tct")


def test_one_folder_has_both_stages(network, finished):
    settings, features = network, network["convexify"]["features"]
    inside = finished.path / records.STAGE_1
    network = records.read(inside)
    assert network.config["algorithm"] == {"name": "fedavg", "steps": 2, "local_lr": 0.1, "server_lr": 1.0,
                                           "weights": "uniform"}  # fmt: skip
    assert network.config["objective"] == {"name": "average", "of": "losses"}
    assert "convexify" not in network.config
    assert network.outcome.rounds == 2
    assert config.parse(finished.config) == parsed(settings)
    assert finished.federation.parameters == features * 10
    assert any(
        f"{features} features of a {settings['model']['name']} trained by 2 rounds of fedavg" in note
        for note in finished.federation.notes
    )
    before, last = finished.rows[0], finished.rows[-1]
    sums = 3 * 8 * (2 * features + 1)
    assert before.bytes_up == network.rows[-1].bytes_up + sums  # what stages 1 and 2 sent is counted
    told = 3 * 8 * (network.federation.parameters + 2 * features)  # the network and the scaling
    assert before.bytes_down == network.rows[-1].bytes_down + told
    assert last.bytes_down - before.bytes_down == 3 * 4 * 2 * 8 * 10 * features  # x and c
    assert records.find(finished.path) == [finished.path]
    assert last.objective < 0.8 * before.objective


def test_the_artifact_predicts_from_raw_inputs(network, finished):
    """As the task does from features, bit by bit the same network."""
    settings = parsed(network)
    problem = problem_of(RunSpec(settings, finished.path, ""), nothing)  # the network is there, and is read
    saved = artifact.load(finished.path / records.MODEL)
    raw = build_problem(settings).test
    x = np.asarray(saved.params["head"]).ravel()
    for i in range(3):
        shard, features = raw.client(i), problem.test.client(i)
        want = np.asarray(problem.task.predict(x, features.inputs))[: int(shard.sizes)]
        np.testing.assert_allclose(saved.outputs(np.asarray(shard.inputs))[: int(shard.sizes)], want, atol=1e-12)
        scored = np.mean(want.argmax(axis=1) == np.asarray(shard.labels)[: int(shard.sizes)])
        np.testing.assert_allclose(finished.rows[-1].scores["accuracy"][i], scored)


def test_predict_takes_images(network, finished, tmp_path):
    images = data.load("digits").inputs[:20]
    images = images if network["model"]["name"] == "cnn" else images.reshape(20, -1)
    np.savez(tmp_path / "new.npz", inputs=images)
    predicted = artifact.predict(finished.path / records.MODEL, tmp_path / "new.npz")
    assert isinstance(predicted, pl.DataFrame)
    assert predicted.columns == ["prediction"]  # squares make no probabilities
    outputs = artifact.load(finished.path / records.MODEL).outputs(images / 16)
    assert predicted["prediction"].to_list() == outputs.argmax(axis=1).tolist()


def test_the_problem_is_least_squares_on_standardised_features(network, finished):
    """Against NumPy, on pooled rows; more features than rows take the kernel road."""
    problem, features = (
        problem_of(RunSpec(parsed(network), finished.path, ""), nothing),
        network["convexify"]["features"],
    )
    shards = [problem.train.client(i) for i in range(3)]
    rows = [np.asarray(s.inputs)[: int(s.sizes)] for s in shards]
    pooled = np.concatenate(rows)
    np.testing.assert_allclose(pooled.mean(axis=0), 0, atol=1e-12)
    spread = pooled.std(axis=0) * np.sqrt(features)
    assert np.all((np.abs(spread - 1) < 1e-9) | (spread == 0))
    assert isinstance(problem.task.prepare(shards[0]), Kernel)
    x = np.random.default_rng(0).normal(size=problem.task.size)
    losses = np.asarray(tasks.losses(problem.task, x, problem.train))
    for i, (a, shard) in enumerate(zip(rows, shards, strict=True)):
        y = np.eye(10)[np.asarray(shard.labels)[: len(a)]] - 0.1
        want = np.sum((a @ x.reshape(10, features).T - y) ** 2) / (2 * len(a)) + 1e-5 / 2 * x @ x
        np.testing.assert_allclose(losses[i], want, rtol=1e-10)


def test_agreed_moments_are_the_pooled_ones():
    rng = np.random.default_rng(0)
    parts = [rng.normal(100, 0.1, size=(m, 5)) for m in (3, 8, 20)]
    data = stack([(a, np.zeros(len(a))) for a in parts])
    pooled = np.concatenate(parts)
    sums = simulate(moments(5, everyone(3)), np.zeros(5), data, 0, rounds=1).server
    np.testing.assert_array_equal(sums.count, 31)
    np.testing.assert_allclose(sums.total, pooled.sum(axis=0), rtol=1e-14)
    np.testing.assert_allclose(sums.squares, (pooled**2).sum(axis=0), rtol=1e-14)
    mean, scale = stages.agreed_scaling(data)
    np.testing.assert_allclose(mean, pooled.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(scale, 1 / pooled.std(axis=0) / np.sqrt(5), rtol=1e-8)
    np.testing.assert_array_equal(scale, scaling(sums)[1])


@pytest.mark.parametrize("lines", few([1], [1, 4], "::test_it_resumes_in_either_stage_bit_for_bit"))
def test_it_resumes_in_either_stage_bit_for_bit(network, finished, tmp_path, lines):
    """Lines of both histories are counted: three of stage 1, then five of the run."""
    seen = 0

    def watch(at, of, row):
        nonlocal seen
        seen += 1
        if seen == lines + 1:
            os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "tct"
    with pytest.raises(Stopped):
        run.run(parsed(network), folder, watch=watch)
    assert records.finished(folder / records.STAGE_1) == (lines == 4)
    assert not records.finished(folder)
    again = run.resume(folder)
    ours, theirs = (safetensors.numpy.load_file(path / records.MODEL) for path in (again.path, finished.path))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])
    assert [row.model_copy(update={"seconds": 0}) for row in again.rows] == [
        row.model_copy(update={"seconds": 0}) for row in finished.rows
    ]


@pytest.mark.thorough(witness="::test_one_folder_has_both_stages")
def test_a_plan_trains_a_network_once_and_methods_differ_in_sections(tmp_path):
    settings = MLP | {
        "compare": {
            "on features": {"name": "fedavg", "local_lr": 0.5},
            "also": {"name": "scaffold"},
            "last": {"name": "fedavg", "local_lr": 0.5, "convexify": {"kind": "last"}},
            "random": {"name": "fedavg", "local_lr": 0.5, "convexify": {"rounds": 0}},
            "deep": {"name": "fedavg", "local_lr": 0.1, "convexify": False, "run": {"rounds": 3}},
        }
    }
    jobs = plan.compare(settings)
    done = dict(zip([job.label for job in jobs], plan.run_all(jobs, tmp_path / "plan"), strict=True))
    (network,) = (tmp_path / "plan" / records.STAGE_1).iterdir()
    assert records.find(tmp_path / "plan") == sorted(one.path for one in done.values())
    assert {label: one.federation.parameters for label, one in done.items()} == {
        "on features": 600, "also": 600, "last": 60, "random": 600, "deep": 64 * 6 + 6 + 70,
    }  # fmt: skip
    assert done["deep"].outcome.rounds == 3
    theta = safetensors.numpy.load_file(network / records.MODEL)
    for label in ("on features", "also", "last"):
        ours = safetensors.numpy.load_file(done[label].path / records.MODEL)
        np.testing.assert_array_equal(ours["['network'][0].weight"], theta["[0].weight"])
    before = (network / records.RESULT).stat().st_mtime_ns
    plan.run_all(jobs[:1], tmp_path / "plan")
    assert (network / records.RESULT).stat().st_mtime_ns == before
    plan.run_all(jobs[:1], tmp_path / "plan", overwrite=True)
    assert (network / records.RESULT).stat().st_mtime_ns > before  # the rows of silo files may be others now
    rows = {records.read_row_scores(one.path / records.ROW_SCORES).rows for label, one in done.items()}
    assert len(rows) == 1  # the same, whatever was made of them: methods can be compared row by row


def test_a_given_network_is_taken(network, finished, tmp_path):
    folder = finished.path / records.STAGE_1
    settings = parsed(network, f"convexify.network='{folder}'", "run.rounds=1")
    done = run.run(settings, tmp_path / "given")
    assert not (tmp_path / "given" / records.STAGE_1).exists()
    ours, theirs = (safetensors.numpy.load_file(path / records.MODEL) for path in (done.path, finished.path))
    np.testing.assert_array_equal(ours["['network'][0].weight"], theirs["['network'][0].weight"])
    mine, other = network, NETWORKS["mlp" if network is SETTINGS else "cnn"]
    names = [given["model"]["name"] for given in (mine, other)]
    with pytest.raises(InputError, match=r"is a {} of .*, and \[model\] is a {} of .*; give the same".format(*names)):
        run.run(parsed(other, f"convexify.network='{folder}'"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.thorough(witness="tasks/test_linearised.py::test_starts_as_the_network_and_trains")
def test_the_linearised_network_is_trained_by_its_own_loss(tmp_path):
    done = run.run(parsed(MLP, "convexify.kind='linearised'", "algorithm.local_lr=0.1"), tmp_path / "run")
    saved = artifact.load(done.path / records.MODEL)
    assert (saved.model.name, saved.loss) == ("linearised", "cross_entropy")
    assert done.federation.parameters == 64 * 6 + 6 + 70
    assert done.rows[-1].objective < done.rows[0].objective
    raw = build_problem(parsed(MLP)).test.client(0)
    real = int(raw.sizes)
    right = saved.outputs(np.asarray(raw.inputs))[:real].argmax(axis=1) == np.asarray(raw.labels)[:real]
    np.testing.assert_allclose(done.rows[-1].scores["accuracy"][0], right.mean())


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["convexify.kind='ntk'"], "convexify.kind is 'ntk'; give 'sketch', 'coordinates', 'last' or 'linearised'"),
        (["convexify.featurs=5"], r"\[convexify\] has no key 'featurs'; did you mean 'features'"),
        (["convexify.algorithm={name='fedavg', step=5}"], "has no key 'step'; did you mean 'steps'"),
        (["convexify.algorithm={name='fedag'}"], "give the name of one of .*; did you mean 'fedavg'"),
        (["convexify.algorithm={step=5}"], "has no key 'step'; did you mean 'steps'"),
        (["convexify.algorithm=5"], "convexify.algorithm is 5; give a table"),
        (["convexify.algorithm={name='os:system'}"], "'os:system' }; give the name of one of"),
        (["convexify.objective={name=['chi2']}"], "give the name of one of average"),
        (["convexify.rounds=-1"], "convexify.rounds is -1; give a number at least 0"),
        (["privacy.epsilon=1.0"], r"\[convexify\] has two and sums of features, which no noise covers"),
        (["convexify.last='fc'"], "names a layer of a PyTorch module, and this is a cnn, whose last layer is known"),
    ],
)
def test_mistakes_are_sentences(assignments, sentence):
    with pytest.raises(InputError, match=sentence):
        parsed(SETTINGS, *assignments)


def test_a_mistake_in_stage_1_leaves_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"algorithm\.cohort is 99 of"):
        run.run(parsed(MLP, "convexify.algorithm={cohort=99}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough(witness="experiment/test_run.py::test_overwriting_begins_anew")
def test_overwriting_leaves_nothing_of_the_network(finished, tmp_path):
    folder = tmp_path / "run"
    run.run(parsed(MLP, "run.rounds=1"), folder)
    first = (folder / records.STAGE_1 / records.MODEL).read_bytes()
    run.run(parsed(MLP, "run.rounds=1", "run.seed=5"), folder, overwrite=True)
    assert (folder / records.STAGE_1 / records.MODEL).read_bytes() != first
    run.run(parsed(MLP, "run.rounds=1", "convexify.rounds=0"), folder, overwrite=True)
    assert not (folder / records.STAGE_1).exists()


def test_the_method_of_choice_is_that_of_convex_models():
    settings = reading.override(MLP, [])
    del settings["algorithm"]
    assert config.parse(settings).algorithm.name == "scaffpd_model"
    del settings["convexify"]
    assert config.parse(settings).algorithm.name != "scaffpd_model"


@pytest.mark.thorough(witness="::test_the_problem_is_least_squares_on_standardised_features")
def test_jax_makes_the_same_features_again(network, finished):
    """What `resume` counts on."""
    jax.clear_caches()
    one, two = (problem_of(RunSpec(parsed(network), finished.path, ""), nothing).train.inputs for _ in range(2))
    np.testing.assert_array_equal(one, two)
