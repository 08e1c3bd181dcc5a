"""Sites with PyTorch as processes: by one command, and Flower's own node beside a site that stays."""

import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

import equipoise as eq
from equipoise.deploy.operations import keys
from equipoise.deploy.operations.processes import free_port
from equipoise.experiment import records
from tests.flower import torch_silos
from tests.flower.federation import HURRIED, LONG
from tests.flower.processes import Command, kill, left, started_in

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'equipoise[torch]')")
from equipoise.privacy import policy  # noqa: E402
from equipoise.pytorch.site import load_weights  # noqa: E402

SITES = ("east", "north")


def test_modules_of_the_sites_own_from_toml(tmp_path):
    settings = torch_silos.settings()
    settings["model"]["torch"] = "tests.flower.torch_silos:regression"
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    torch_silos.write(tmp_path / "files", SITES)
    command = Command("local", "f.toml", "--silos", "files", "--out", "run", folder=tmp_path, log="local.log")
    try:
        command.wait(LONG)
    finally:
        command.stop()
    assert left(started_in(tmp_path)) == []
    done = records.read(tmp_path / "run")
    assert (done.path / "report.html").is_file()
    assert done.outcome.measure == "rmse"
    assert done.outcome.events == ()
    assert max(done.rows[-1].loss) < max(done.rows[0].loss)
    module = torch_silos.module()
    load_weights(module, done.path / records.MODEL)
    for site, told in zip(SITES, done.rows[-1].scores["rmse"], strict=True):  # on rows that the module has not seen
        inputs, labels = (torch.tensor(a[30:]) for a in torch_silos.read(site, tmp_path / "files" / f"{site}.npz"))
        error = torch.sqrt(torch.mean((module(inputs)[:, 0] - labels) ** 2)).item()
        np.testing.assert_allclose(told, error, rtol=1e-12)
        saved = torch.load(tmp_path / "flower-local" / "sites" / site / "model.pt", weights_only=True)
        torch.testing.assert_close(saved["weight"], module.weight.detach(), rtol=1e-12, atol=0)


def test_flower_s_own_node_with_a_module_beside_a_site_that_stays(tmp_path):
    """The node makes the module anew for every message; the numbers are those of JAX on one machine."""
    torch_silos.write(tmp_path, SITES)
    keys.make(tmp_path / "keys", SITES)
    settings = torch_silos.settings(run={"rounds": 1}, federation={"gather": 120.0})
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    port, commands = free_port(), []
    try:
        for site, more in zip(SITES, ((), ("--stock",)), strict=True):
            words = ("site", site, f"{site}.npz", "--server", f"127.0.0.1:{port}", *more)
            words += ("--torch", "tests.flower.torch_silos:regression")
            policy.trial(tmp_path / "flower-sites" / site)
            commands.append(Command(*words, folder=tmp_path, log=f"{site}.log", env=HURRIED))
        server = Command("server", "f.toml", "--port", port, "--out", "run", folder=tmp_path, log="server.log")
        commands.append(server)
        server.wait(2 * LONG)
    finally:
        processes = [process for command in commands for process in command.tree()]
        for command in commands:
            command.stop()
        kill(processes)
    assert left(started_in(tmp_path)) == []
    assert "one process that stays (warm)" in (tmp_path / "east.log").read_text()
    assert "Flower's SuperNode, a process for every message" in (tmp_path / "north.log").read_text()
    done = records.read(tmp_path / "run")
    assert done.outcome.events == ()
    assert done.rows[-1].answered == (2, 2)

    rows = [torch_silos.read(site, tmp_path / f"{site}.npz") for site in SITES]
    task, dual = eq.tasks.ridge(torch_silos.DIM, mu=0.1), eq.objectives.chi2(2, rho=0.1)
    rule = eq.steps.constant(tau=0.15, sigma=0.5, theta=0.5)
    algorithm = eq.algorithms.scaffpd(task, dual, eq.cohorts.everyone(2), rule, steps=3, local_lr=0.05)
    torch.manual_seed(0)
    start = torch_silos.module().weight.detach().numpy().ravel()
    shards = eq.data.stack([(x[:30], y[:30]) for x, y in rows])
    expected = eq.simulate(algorithm, jnp.asarray(start), shards, 0, rounds=1).server
    module = torch_silos.module()
    load_weights(module, done.path / records.MODEL)
    np.testing.assert_allclose(module.weight.detach().numpy().ravel(), expected.x, rtol=1e-9)
    np.testing.assert_allclose(done.rows[-1].lam, expected.lam, rtol=1e-9)
