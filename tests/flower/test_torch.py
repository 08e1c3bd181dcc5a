"""Sites with PyTorch as processes: a whole federation by one command."""

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.experiment import records
from tests.flower import torch_silos
from tests.flower.federation import LONG
from tests.flower.processes import Command, left, started_in

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'equipoise[torch]')")
from equipoise.deploy.torch_site import load_weights  # noqa: E402

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
