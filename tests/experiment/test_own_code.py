"""An algorithm, an objective, a data set and a score of the user's own: a file each, outside the package, from TOML."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import artifact
from equipoise.cli import app
from equipoise.errors import InputError
from equipoise.experiment import config, records
from equipoise.experiment.problems import build_problem
from equipoise.report import numbers
from tests.problems import few

ALGORITHM = '''
"""The coordinate-wise median of the clients' updates."""

from typing import NamedTuple

import jax.numpy as jnp

from equipoise.algorithms import Record
from equipoise.algorithms.messages import ModelMessage
from equipoise.protocol import Algorithm, Exchange, Reply, Vector


class Server(NamedTuple):
    x: Vector


class Update(NamedTuple):
    dy: Vector


def median_averaging(task, sample, *, steps: int, local_lr: float, damping: float):
    """Median averaging."""

    def train(message, _, data, key):
        return None, Reply(each=Update(task.descend(message.x, data, key, steps=steps, lr=local_lr) - message.x))

    def step(server, replies):
        dy = jnp.where(jnp.asarray(replies.cohort.present)[:, None], replies.each.dy, jnp.nan)
        return Server(server.x + damping * jnp.nanmedian(dy, axis=0))

    train_ = Exchange("train", lambda s, key: (s, sample(key)), lambda s, i: ModelMessage(s.x), train, step)
    return Algorithm("median", sample.n, task.size, task.prepare, Server, lambda x: None, (train_,), lambda s: s.x)


RECORD = Record(
    "median", median_averaging, objective="1/n Σ f_i", paper="none", example={}, average=True,
    defaults={"steps": 3, "local_lr": "auto", "damping": 0.5},
)
'''

OBJECTIVE = '''
"""A quadratic penalty on the distance from equal weights, in its own scale: chi2 with rho = strength / n."""

import jax.numpy as jnp

from equipoise.objectives import Dual
from equipoise.objectives.projections import simplex


def quadratic(n: int, strength: float = 0.4):
    def penalty(lam):
        return strength / 2 * jnp.sum((lam - 1 / n) ** 2)

    def best_response(losses):
        return simplex(losses, strength)

    def value(losses):
        lam = best_response(losses)
        return losses @ lam - penalty(lam)

    def prox(v, step):
        return simplex(v, 1 + step * strength)

    return Dual("quadratic", n, penalty, prox, best_response, value, modulus=strength)
'''

DATA = '''
"""Two clouds of points."""

import numpy as np

from equipoise.data import Dataset


def clouds(rows: int = 60):
    rng = np.random.default_rng(0)
    labels = np.arange(rows, dtype=np.int32) % 2
    inputs = rng.normal(size=(rows, 3)).astype(np.float32) + 2 * labels[:, None]
    return Dataset("clouds", inputs, labels, ("low", "high"))
'''

SCORE = '''
"""The chance that the model gives to what was wrong."""

import jax
import jax.numpy as jnp

from equipoise.evaluation import ScoreRecord


def doubt(outputs, labels, real):
    chance = jax.nn.softmax(outputs)[jnp.arange(labels.shape[0]), labels]
    return jnp.mean(1 - chance, where=real)


RECORD = ScoreRecord(doubt, higher_is_better=False)
'''

SMALL = """
name = "own"
[data]
name = "{data}"
[data.options]
{options}
[partition]
kind = "iid"
clients = 4
min_size = 1
[model]
l2 = 0.1
[objective]
name = "{objective}"
[algorithm]
name = "{algorithm}"
[run]
{score}
rounds = 4
evaluate_every = 2
precision = "float64"
"""
LISTED = {
    "data": "synthetic",
    "options": "dim = 4\nsamples = 20",
    "objective": "chi2",
    "algorithm": "fedavg",
    "score": "",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the user's files; what was imported of it is forgotten afterwards."""
    for name, text in {"mymethod": ALGORITHM, "myobjective": OBJECTIVE, "mydata": DATA, "myscore": SCORE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    config.section_of.cache_clear()
    for name in ("mymethod", "myobjective", "mydata", "myscore"):
        sys.modules.pop(name, None)


def run(folder, name="run", **changes):
    path = folder / f"{name}.toml"
    path.write_text(SMALL.format(**LISTED | changes))
    said = CliRunner().invoke(app, ["run", str(path), "--out", str(folder / name)])
    assert said.exit_code == 0, said.output
    return records.read(folder / name)


@pytest.mark.parametrize("name", ["median_averaging", "RECORD"])
def test_an_algorithm(folder, name):
    if name == "median_averaging":  # a bare function has no defaults to offer
        with pytest.raises(InputError, match="algorithm has no steps; give it"):
            config.parse({"algorithm": {"name": "mymethod:median_averaging"}})
        settings = 'mymethod:median_averaging"\nsteps = 3\nlocal_lr = 0.05\ndamping = 0.5  #"'
        done = run(folder, algorithm=settings)
        assert done.config["algorithm"]["damping"] == 0.5
    else:
        done = run(folder, algorithm="mymethod:RECORD")
        assert numbers.reported([done])[0].trains_for_average
    assert done.rows[-1].objective < done.rows[0].objective
    assert config.parse(done.config).algorithm.name == f"mymethod:{name}"


def test_an_objective(folder):
    """Its run is that of the listed objective that it equals."""
    rule = 'scaffpd"\nsteps = 3\nlocal_lr = 0.05\nrule = { sigma = 0.5, theta = 0.5 }  #"'
    own = run(folder, objective="myobjective:quadratic", algorithm=rule)
    listed = run(folder, "listed", algorithm=rule)  # rho = 0.1 of 4 clients
    assert own.config["objective"] == {"name": "myobjective:quadratic", "of": "losses", "strength": 0.4}
    for a, b in zip(own.rows, listed.rows, strict=True):
        np.testing.assert_allclose(a.objective, b.objective, rtol=1e-12)
        np.testing.assert_allclose(a.gap, b.gap, rtol=1e-9)
    np.testing.assert_allclose(own.rows[-1].lam, listed.rows[-1].lam, rtol=1e-12)


@pytest.mark.thorough(witness="::test_a_score")
def test_a_data_set(folder):
    done = run(folder, data="mydata:clouds", options="rows = 80")
    assert sum(m.train + m.test for m in done.federation.members) == 80
    assert done.federation.classes == ("low", "high")


@pytest.mark.parametrize("name", few(["RECORD"], ["doubt", "RECORD"], "::test_a_score[RECORD]"))
def test_a_score(folder, name):
    """It stands beside the others, and the run is summed up by it, the right way round.

    Bounds of a score of which nothing is known take 20 scored rows of a client: 480 are 24 each.
    """
    done = run(folder, data="mydata:clouds", options="rows = 480", score=f'score = "myscore:{name}"')
    assert set(done.rows[-1].scores) > {"loss", "accuracy", "auroc", "skill", name}
    values = np.array(done.rows[-1].scores[name])
    assert done.outcome.measure == name
    assert done.outcome.higher_is_better == (name == "doubt")
    np.testing.assert_allclose(done.outcome.summary["worst20"], values.max() if name == "RECORD" else values.min())
    model = artifact.load(done.path / records.MODEL)
    problem = build_problem(config.parse(done.config))
    for i in range(4):
        shard = problem.test.client(i)
        inputs, labels = np.asarray(shard.inputs)[: shard.sizes], np.asarray(shard.labels)[: shard.sizes]
        chance = np.exp(out := model.outputs(inputs)) / np.exp(out).sum(1, keepdims=True)
        np.testing.assert_allclose(values[i], np.mean(1 - chance[np.arange(len(labels)), labels]), rtol=1e-5)
    assert all(
        low <= value <= high for low, value, high in zip(done.outcome.low, values, done.outcome.high, strict=True)
    )


def test_a_score_of_the_library_may_be_asked_for(folder):
    done = run(folder, data="mydata:clouds", options="rows = 80", score='score = "auroc"')
    assert (done.outcome.measure, done.outcome.higher_is_better) == ("auroc", True)
    with pytest.raises(
        InputError, match=r"run\.score is 'rmse', which this problem does not have; give accuracy, auroc"
    ):
        build_problem(config.parse({**done.config, "run": {"score": "rmse"}}))


MISTAKES = [
    ({"algorithm": {"name": "nowhere:method"}}, "algorithm.name: 'nowhere:method' cannot be imported"),
    ({"algorithm": {"name": "mymethod:methd"}}, "algorithm.name: 'mymethod:methd' is not there"),
    ({"algorithm": {"name": "mymethod:Server"}}, "algorithm.name: 'mymethod:Server' takes an argument that a file"),
    ({"run": {"score": "nowhere:score"}}, "run.score: 'nowhere:score' cannot be imported"),
    ({"run": {"score": "myscore:RECORD"}, "federation": {"sites": 2}}, "in a federation use one of accuracy"),
    ({"objective": {"name": "my objective:x"}}, "objective.name: 'my objective:x' names no code"),
    ({"objective": {"name": "myobjective:__doc__"}}, "is not a function"),
    ({"algorithm": {"name": "mymethod:RECORD"}, "federation": {"sites": 2}}, "in a federation use one of fedavg"),
]


@pytest.mark.parametrize(("settings", "sentence"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_sentence(folder, settings, sentence):
    with pytest.raises(InputError) as error:
        config.parse(settings, source="mine.toml")
    assert sentence in str(error.value)
    assert str(error.value).startswith("mine.toml")
    assert "\n" not in str(error.value)


def test_an_example_that_is_missing_is_asked_for(folder):
    said = CliRunner().invoke(app, ["algorithms", "mymethod:RECORD"])
    assert said.exit_code == 2
    assert "has no example of steps, local_lr, damping; put one into its `example`" in said.stderr


def test_a_site_imports_nothing_that_a_server_names(folder):
    with pytest.raises(InputError, match="which sites would have to import"):
        config.parse({"objective": {"name": "myobjective:quadratic"}}, own_code=False)
    assert "myobjective" not in sys.modules
