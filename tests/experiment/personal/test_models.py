"""Models of the owners' own: from a file to the page, the table and the models, against NumPy."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w
from jax.flatten_util import ravel_pytree
from typer.testing import CliRunner

from equipoise import artifact, tensors
from equipoise.cli import app
from equipoise.data.shards import Shards
from equipoise.errors import InputError
from equipoise.experiment import config, records, run
from equipoise.experiment.personal import models as personal
from equipoise.experiment.problems import build_problem, precision
from tests.flower import silos

SITES = silos.SITES


def settings(folder, **sections):
    """Three silos on one machine; a few rounds of FedAvg, exact."""
    base = {
        "name": "three",
        "data": {"silos": str(folder)},
        "model": {"l2": 0.05, "own": "none", "metric": "none"},
        "algorithm": {"name": "fedavg", "steps": 2, "local_lr": 0.1},
        "run": {"rounds": 3, "precision": "float64", "evaluate_every": 3},
    }
    out = {key: {**base.get(key, {}), **value} for key, value in sections.items()}
    return {**base, **out}


def read_own(folder):
    arrays, about = tensors.read(folder / records.OWN_MODELS)
    return arrays["models"], json.loads(about)["owners"]


def accuracies(vectors, problem):
    """Of each owner's own vector on its held-out rows, in NumPy."""
    found = []
    for i, v in enumerate(vectors):
        shard = jax.tree.map(np.asarray, problem.test.client(i))
        inputs, labels = shard.inputs[: shard.sizes], shard.labels[: shard.sizes]
        k, p = len(problem.classes), inputs.shape[1]
        outputs = inputs @ v[: k * p].reshape(k, p).T + v[k * p :]
        found.append((outputs.argmax(1) == labels).mean())
    return found


def test_from_a_file_to_the_page(tmp_path):
    """Fine-tuning with a measured step: the command, its table, the page, and models whose scores are those told."""
    silos.write(tmp_path / "silos")
    told = settings(tmp_path / "silos", personal={"steps": 60, "pulls": [0.03, 1.0]}, run={"score": "accuracy"})
    (tmp_path / "own.toml").write_text(tomli_w.dumps(told))
    said = CliRunner().invoke(app, ["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "run")])
    assert said.exit_code == 0, said.output
    done = records.read(tmp_path / "run")
    own = done.personal
    assert own.kind == "fine_tuning"
    assert own.shared == pytest.approx(done.rows[-1].scores[own.measure])
    assert set(own.pull) <= {0.0, 0.03, 1.0}
    assert any(pull > 0 for pull in own.pull)  # the owners differ, so that somebody gains

    told = config.parse(told)
    with precision(told):
        problem = build_problem(told)
    models, owners = read_own(tmp_path / "run")
    assert tuple(owners) == SITES
    assert own.own == pytest.approx(accuracies(models, problem))
    shared = artifact.load(tmp_path / "run" / records.MODEL)
    x = ravel_pytree(shared.params)[0]
    for v, pull in zip(models, own.pull, strict=True):
        assert np.array_equal(v, x) == (pull == 0)

    new = str(tmp_path / "silos" / "north.csv")
    ways = [["--owner", "north"], ["--owner", "south"], ["--owner", "west"]]
    predicted = [CliRunner().invoke(app, ["predict", str(tmp_path / "run"), new, *way]) for way in ways]
    assert [p.exit_code for p in predicted] == [0, 0, 2]
    assert "has no owner 'west'; it has east, north, south" in " ".join(predicted[2].output.split())
    assert (predicted[0].output == predicted[1].output) == np.array_equal(models[1], models[2])

    words = " ".join(said.output.split())
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (words, page):
        assert "owners fare better with it" in text
        assert all(name in text for name in SITES)
    assert "The shared model against each owner&#39;s own" in page
    assert "shared model" in words


@pytest.mark.thorough(witness="tasks/test_moreau.py::test_squares_are_exact")
def test_every_owner_s_envelope_is_solved_exactly(tmp_path):
    """Squared losses: v_i of the last model against a linear solve; step sizes are measured on the envelope."""
    silos.write(tmp_path / "silos")
    mu, l2 = 0.3, 0.05
    told = config.parse(
        settings(
            tmp_path / "silos",
            model={"loss": "squared", "l2": l2},
            algorithm={"name": "fedavg", "steps": 2, "local_lr": "auto"},
            personal={"kind": "moreau", "mu": mu},
        )
    )
    with precision(told):
        problem = build_problem(told)
        done = run.run(told, tmp_path / "run", problem=problem)
    models, _ = read_own(tmp_path / "run")
    shared = artifact.load(tmp_path / "run" / records.MODEL)
    x, k = np.asarray(ravel_pytree(shared.params)[0]), len(problem.classes)
    largest = 0.0
    for i, v in enumerate(models):
        shard = jax.tree.map(np.asarray, problem.train.client(i))
        a, y = shard.inputs[: shard.sizes], np.eye(k)[shard.labels[: shard.sizes]] - 1 / k
        scale = 0.5  # of `least_squares`
        hessian = 2 * scale / len(y) * a.T @ a + l2 * np.eye(a.shape[1])
        direct = np.linalg.solve(
            hessian + mu * np.eye(a.shape[1]), 2 * scale / len(y) * a.T @ y + mu * x[:-k].reshape(k, -1).T
        ).T
        np.testing.assert_allclose(v[: k * a.shape[1]].reshape(k, -1), direct, rtol=1e-9, atol=1e-10)
        largest = max(largest, np.linalg.eigvalsh(hessian).max())
    assert problem.smoothness == pytest.approx(mu * largest / (mu + largest), rel=1e-6)
    assert done.personal.pull is None
    assert done.personal.own == pytest.approx(accuracies([np.r_[v[:-k], 0, 0] for v in models], problem))


@pytest.mark.thorough(witness="tasks/test_moreau.py::test_local_steps_start_the_inner_ones_where_they_were")
def test_other_losses_take_inner_steps(tmp_path):
    """Cross-entropy: the model that an owner keeps is where grad f_i(v) + mu (v - x) is zero."""
    silos.write(tmp_path / "silos")
    told = config.parse(settings(tmp_path / "silos", personal={"kind": "moreau", "mu": 0.5, "steps": 400}))
    with precision(told):
        problem = build_problem(told)
        run.run(told, tmp_path / "run", problem=problem)
        models, _ = read_own(tmp_path / "run")
        x, _ = ravel_pytree(artifact.load(tmp_path / "run" / records.MODEL).params)
        for i, v in enumerate(models):
            slope = problem.plain_task.grad(jnp.asarray(v), problem.train.client(i)) + 0.5 * (v - x)
            assert np.abs(slope).max() < 1e-8


def test_rows_are_divided_by_chance_and_none_is_lost():
    for size in (1, 2, 3, 10, 12):
        inputs = jnp.arange(1.0, 13.0).reshape(12, 1)
        shard = Shards(jnp.where(jnp.arange(12)[:, None] < size, inputs, 0.0), jnp.arange(12), jnp.int32(size))
        train, left_out = jax.jit(personal.divided, static_argnums=1)(shard, 0.25)
        assert int(train.sizes) + int(left_out.sizes) == size
        assert int(left_out.sizes) == max(1, round(0.25 * size))
        seen = [*train.inputs[: train.sizes, 0].tolist(), *left_out.inputs[: left_out.sizes, 0].tolist()]
        assert sorted(seen) == list(range(1, size + 1))
        assert not np.asarray(train.inputs[train.sizes :]).any()


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"federation": {"sites": 3, "secure": True}, "data": {}}, "tells each site's scores with both models"),
        ({"model": {"name": "mlp"}, "data": {}}, r"personal.lr is 'auto', which is measured for linear models only"),
        ({"data": {"name": "quadratics"}, "model": {"l2": 0.0}}, "for models that JAX trains on rows"),
        ({"privacy": {"epsilon": 1.0}, "data": {}}, r"personal.lr would be measured on the rows"),
        ({"privacy": {"epsilon": 1.0}, "data": {}, "personal": {"kind": "moreau", "lr": 0.1}}, "plain losses"),
        ({"data": {}, "personal": {"pulls": []}}, "personal.pulls"),
        ({"data": {}, "personal": {"kind": "own"}}, "fine_tuning"),
    ],
)
def test_says_what_is_wrong(sections, sentence):
    told = {"algorithm": {"name": "fedavg", "local_lr": 0.1}, "personal": {}, **sections}
    with pytest.raises(InputError, match=sentence):
        config.parse(told)
