"""An algorithm, an objective and a data set of the user's own: one file each, outside the package, run from TOML."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import InputError
from equipoise.experiment import config, records
from equipoise.report import numbers

ALGORITHM = '''
"""The coordinate-wise median of the clients' updates."""

from typing import NamedTuple

import jax.numpy as jnp

from equipoise.algorithms import Record
from equipoise.algorithms.messages import Model
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

    train_ = Exchange("train", lambda s, key: (s, sample(key)), lambda s, i: Model(s.x), train, step)
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

from equipoise.data.datasets.catalogue import Dataset


def clouds(rows: int = 60):
    rng = np.random.default_rng(0)
    labels = np.arange(rows, dtype=np.int32) % 2
    inputs = rng.normal(size=(rows, 3)).astype(np.float32) + 2 * labels[:, None]
    return Dataset("clouds", inputs, labels, ("low", "high"))
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
rounds = 4
evaluate_every = 2
precision = "float64"
"""
LISTED = {"data": "synthetic", "options": "dim = 4\nsamples = 20", "objective": "chi2", "algorithm": "fedavg"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the user's files; what was imported of it is forgotten afterwards."""
    for name, text in {"mymethod": ALGORITHM, "myobjective": OBJECTIVE, "mydata": DATA}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for section in (config.algorithm_section, config.objective_section):
        section.cache_clear()
    for name in ("mymethod", "myobjective", "mydata"):
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
        assert numbers.averages(done)
    assert done.rows[-1].objective < done.rows[0].objective
    assert config.parse(done.config).algorithm.name == f"mymethod:{name}"


def test_an_objective(folder):
    """Its run is that of the listed objective that it equals."""
    rule = 'scaffpd"\nsteps = 3\nlocal_lr = 0.05\nrule = { sigma = 0.5, theta = 0.5 }  #"'
    own = run(folder, objective="myobjective:quadratic", algorithm=rule)
    listed = run(folder, "listed", algorithm=rule)  # rho = 0.1 of 4 clients
    assert own.config["objective"] == {"name": "myobjective:quadratic", "strength": 0.4}
    for a, b in zip(own.rows, listed.rows, strict=True):
        np.testing.assert_allclose(a.objective, b.objective, rtol=1e-12)
        np.testing.assert_allclose(a.gap, b.gap, rtol=1e-9)
    np.testing.assert_allclose(own.rows[-1].lam, listed.rows[-1].lam, rtol=1e-12)


def test_a_data_set(folder):
    done = run(folder, data="mydata:clouds", options="rows = 80")
    assert sum(m.train + m.test for m in done.federation.members) == 80
    assert done.federation.classes == ("low", "high")


MISTAKES = [
    ({"algorithm": {"name": "nowhere:method"}}, "algorithm.name: 'nowhere:method' cannot be imported"),
    ({"algorithm": {"name": "mymethod:methd"}}, "algorithm.name: 'mymethod:methd' is not there"),
    ({"algorithm": {"name": "mymethod:Server"}}, "algorithm.name: 'mymethod:Server' takes an argument that a file"),
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
