"""Runs whose model is a PyTorch module at every site, from a configuration."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import artifact
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.messages import client_app
from equipoise.deploy.site.run import QUESTIONS, open_site
from equipoise.errors import EquipoiseError, InputError
from equipoise.experiment import config, records
from equipoise.privacy import policy
from equipoise.pytorch.spec import agreed_module
from equipoise.pytorch.task import ELSEWHERE
from tests.deploy.grid import InProcess
from tests.flower import torch_silos

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'equipoise[torch]')")

SITES = ("east", "north")


def grid(told, folder, function="regression", **node):
    named = {"torch": f"tests.flower.torch_silos:{function}"} if function else {}

    def own(site):
        policy.trial(folder / site)
        return {"folder": str(folder / site), "data": str(folder / f"{site}.npz"), **named, **node}

    app = client_app(open_site, questions=QUESTIONS)
    return InProcess(app, SITES, None, own, {"settings": told.toml()})


def trained(tmp_path, settings, function="regression", **node):
    torch_silos.write(tmp_path, SITES)
    told = config.parse(settings)
    return run_federation(told, tmp_path / "run", grid(told, tmp_path, function, **node))


def test_a_module_is_trained_as_a_task_of_jax_is(tmp_path):
    """Linear regression, for which there is both; the site's own test loader gives the scores."""
    done = trained(tmp_path, torch_silos.settings())
    rows = [torch_silos.read(site, tmp_path / f"{site}.npz") for site in SITES]
    task, dual = eq.tasks.ridge(torch_silos.DIM, mu=0.1), eq.objectives.chi2(2, rho=0.1)
    algorithm = eq.algorithms.scaffpd(
        task, dual, eq.cohorts.everyone(2), eq.steps.constant(tau=0.15, sigma=0.5, theta=0.5), steps=3, local_lr=0.05
    )
    torch.manual_seed(0)
    start = torch_silos.module().weight.detach().numpy().ravel()
    shards = eq.data.stack([(x[:30], y[:30]) for x, y in rows])
    result = eq.simulate(algorithm, jnp.asarray(start), shards, 0, rounds=4)

    model = torch_silos.module()
    eq.pytorch.site.load_weights(model, done.path / records.MODEL)
    np.testing.assert_allclose(model.weight.detach().numpy().ravel(), result.server.x, rtol=1e-9)
    np.testing.assert_allclose(done.rows[-1].lam, result.server.lam, rtol=1e-9)
    np.testing.assert_allclose(done.rows[-1].loss, eq.tasks.losses(task, result.server.x, shards), rtol=1e-9)
    errors = [np.sqrt(np.mean((x[30:] @ result.server.x - y[30:]) ** 2)) for x, y in rows]
    np.testing.assert_allclose(done.rows[-1].scores["rmse"], errors, rtol=1e-9)
    assert [(m.train, m.test) for m in done.federation.members] == [(30, 10), (30, 10)]
    assert done.federation.parameters == torch_silos.DIM
    assert "the model starts as the module of 'east' does" in done.federation.notes
    assert done.outcome.measure == "rmse"
    for site in SITES:  # the last model that was evaluated there
        weights = torch.load(tmp_path / site / "model.pt", weights_only=True)["weight"]
        np.testing.assert_allclose(weights.numpy().ravel(), result.server.x, rtol=1e-9)
    with pytest.raises(InputError, match="load_weights"):
        artifact.load(done.path / records.MODEL).outputs(np.zeros((1, torch_silos.DIM)))


def test_scores_of_the_sites_own_sum_up_the_run(tmp_path):
    """The site's function gives them, so that no server names code; `run.score` says which sums up the run."""
    done = trained(tmp_path, torch_silos.settings(run={"score": "worst_error"}), "with_scores")
    model = torch_silos.module()
    eq.pytorch.site.load_weights(model, done.path / records.MODEL)
    errors = []
    for site in SITES:
        x, y = torch_silos.read(site, tmp_path / f"{site}.npz")
        errors.append(np.abs(x[30:] @ model.weight.detach().numpy()[0] - y[30:]))
    found = done.rows[-1].scores
    assert found.keys() == {"loss", "rmse", "r2", "within_half", "worst_error"}
    np.testing.assert_allclose(found["worst_error"], [e.max() for e in errors], rtol=1e-9)
    np.testing.assert_allclose(found["within_half"], [np.mean(e < 0.5) for e in errors], rtol=1e-9)
    assert (done.outcome.measure, done.outcome.higher_is_better) == ("worst_error", False)
    assert done.outcome.summary["max"] == pytest.approx(max(e.max() for e in errors))


def test_a_network_for_classes_in_minibatches_with_buffers_that_stay(tmp_path):
    settings = torch_silos.settings(
        algorithm={"name": "scaffold", "steps": 4, "local_lr": 0.3},
        model={"l2": 0.0, "batch": 10},
        run={"rounds": 8, "precision": "float32", "evaluate_every": 8},
    )
    done = trained(tmp_path, settings, "classification")
    assert done.rows[-1].scores.keys() == {"loss", "accuracy", "auroc"}
    assert min(done.rows[-1].scores["accuracy"]) > 0.85
    assert max(done.rows[-1].loss) < min(done.rows[0].loss)
    means = [torch.load(tmp_path / site / "model.pt", weights_only=True)["0.running_mean"] for site in SITES]
    assert not torch.allclose(*means)  # each its own
    saved = artifact.load(done.path / records.MODEL)
    assert list(saved.params) == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert list(tmp_path.glob("*/buffers-*.pt"))


def test_what_the_docs_say(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    (code,) = re.findall(r"```python\n(# hospital.py.*?)```", text, re.DOTALL)
    (toml,) = re.findall(r"```toml\n(\[model\]\nname = \"torch\".*?)```", text, re.DOTALL)
    (tmp_path / "hospital_of_the_docs.py").write_text(code)
    for k, site in enumerate(SITES):
        inputs = torch.tensor(np.random.default_rng(k).normal(size=(84, 20)), dtype=torch.float32)
        labels = (inputs.sum(1) > 0).long()
        parts = {"train": (inputs[:64], labels[:64]), "test": (inputs[64:], labels[64:])}
        torch.save(parts, tmp_path / f"{site}.npz")
    settings = torch_silos.settings()
    told = config.parse({**settings, **tomllib.loads(toml), "run": {"rounds": 2}})
    network = grid(told, tmp_path, None, torch="hospital_of_the_docs:make", path=str(tmp_path))
    done = run_federation(told, tmp_path / "run", network)
    assert done.outcome.measure == "accuracy"
    assert done.federation.classes == ("0", "1")


def test_buffers_outlive_the_process(tmp_path):
    """Flower's own nodes start one for every message: here the site is opened anew for each."""
    from equipoise.pytorch.run import Buffers

    one, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    one(torch.randn(8, 2) + 5)
    Buffers(one, tmp_path / "buffers.pt").keep()
    Buffers(other, tmp_path / "buffers.pt").restore()
    assert torch.equal(one.running_mean, other.running_mean)
    assert one.num_batches_tracked == other.num_batches_tracked == 1


def test_a_run_that_was_stopped_resumes_without_asking_for_the_start(tmp_path, monkeypatch):
    torch_silos.write(tmp_path, SITES)
    told = config.parse(torch_silos.settings())
    whole = run_federation(told, tmp_path / "whole", grid(told, tmp_path))
    network = grid(told, tmp_path)

    def killed(message, reply):
        if message.content.get("at", {}).get("round") == 2:
            raise SystemExit
        return reply

    network.fault = killed
    with pytest.raises(SystemExit):
        run_federation(told, tmp_path / "run", network)
    again = grid(told, tmp_path)
    resumed = run_federation(told, tmp_path / "run", again)
    assert not [m for m in again.asked if m.content.get("at", {}).get("part") == "start"]
    np.testing.assert_allclose(resumed.rows[-1].loss, whole.rows[-1].loss, rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "settings", "sentence"),
    [
        (None, {}, "'east' did not answer 'statistics': InputError; the log of 'east' says more"),
        ("nothing", {}, "'east' did not answer 'statistics': InputError"),
        ("wrong", {}, "'east' did not answer 'statistics': InputError"),
        ("different", {}, "the modules of 'east' and 'north' differ in parameters; all sites need the same module"),
        ("wrong_scores", {}, "'east' did not answer 'statistics': InputError"),
        ("regression", {"run": {"score": "f1"}}, "run.score is 'f1', which this problem does not have; give rmse, r2"),
        ("regression", {"model": {"batch": 7}}, "'east' did not answer 'statistics': InputError"),
        ("regression", {"run": {"precision": "float32"}}, "the sites' modules are float64 and the run is float32"),
        ("regression", {"algorithm": {"local_lr": "auto"}}, "measured for linear models only, and this is a torch"),
    ],
)
def test_what_cannot_be_is_a_sentence(function, settings, sentence, tmp_path):
    with pytest.raises(EquipoiseError, match=re.escape(sentence)):
        trained(tmp_path, torch_silos.settings(**settings), function)


def test_sites_of_tables_are_none_of_modules():
    with pytest.raises(InputError, match="'north' told nothing of a PyTorch module"):
        agreed_module({"north": '{"columns": []}'})


def test_a_module_is_for_federations():
    with pytest.raises(InputError, match=r"model.name is 'torch', a module at each site of a federation"):
        config.parse({"model": {"name": "torch"}})
    with pytest.raises(EquipoiseError, match="only they can compute with it"):
        ELSEWHERE.loss(np.zeros(1), 0)


def test_the_server_needs_no_pytorch():
    """What it imports, in a process of its own."""
    code = "import equipoise.deploy.site.run, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
