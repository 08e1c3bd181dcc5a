"""examples/three-silos does what its README says, here over the Grid in this process."""

import runpy
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.deploy.flower import client_app
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.run import QUESTIONS, open_site
from equipoise.experiment import config, run
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem
from equipoise.privacy import policy
from tests.deploy.grid import InProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "three-silos"


@pytest.fixture
def example(tmp_path):
    """The files of the example, its settings, and the same with the silos' files on one machine."""
    for name in ("make.py", "federation.toml"):
        (tmp_path / name).write_bytes((EXAMPLE / name).read_bytes())
    runpy.run_path(str(tmp_path / "make.py"), run_name="__main__")
    settings = tomllib.loads((tmp_path / "federation.toml").read_text())
    settings["run"] |= {"rounds": 3, "precision": "float64"}
    settings["personal"] = {"kind": "none"}
    local = {**settings, "data": {**settings["data"], "silos": str(tmp_path / "silos")}}
    return config.parse(settings), config.parse(local)


def test_its_files_are_those_of_its_sites_and_make_a_problem(example):
    told, local = example
    problem = build_problem(local)
    assert list(problem.names) == sorted(told.federation.sites)
    assert build_method(local, problem).algorithm.n == 3


@pytest.mark.thorough(witness="deploy/test_federated_run.py::test_scaffpd_as_on_one_machine")
def test_three_silos(example, tmp_path):
    told, here = example
    sites = told.federation.sites

    def node(site):
        (tmp_path / "homes" / site).mkdir(parents=True)
        (tmp_path / "homes" / site / policy.FILE).write_text("ask = false\n")  # all else as without the file
        return {"folder": str(tmp_path / "homes" / site), "data": str(tmp_path / "silos" / f"{site}.csv")}

    app = client_app(open_site, questions=QUESTIONS)
    over = run_federation(told, tmp_path / "over", InProcess(app, sites, None, node, {"settings": told.toml()}))
    local = run.run(here, tmp_path / "local")
    assert [m.name for m in over.federation.members] == sorted(sites)
    assert over.rows[-1].lam == pytest.approx(local.rows[-1].lam, rel=1e-8)
    assert over.outcome.summary == pytest.approx(local.outcome.summary, rel=1e-8)
    assert any("local_lr was measured: 1/L" in note for note in over.federation.notes)
