"""The walks of CONTRIBUTING.md: the files to read to follow a round, in the order in which they are met.

A walk is true when every file of it is called, and when nothing else is called but helpers, which do what their name
says and lead nowhere else.
"""

import gc
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from tests.problems import KEY, start, unequal
from tests.searches import tiny

SOURCE = Path(eq.__file__).parent
TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
MOST = {"simulator": 10, "flower": 16, "compare": 35}


def walk(name):
    """The files of the block that begins with `# name`."""
    block = re.search(rf"```\n# {name}\b.*?\n(.*?)```", TEXT, re.DOTALL)[1]
    return [line.split()[0] for line in block.splitlines() if line.strip()]


def helpers():
    block = re.search(r"```\n# helpers\b.*?\n(.*?)```", TEXT, re.DOTALL)[1]
    return set(block.split())


@contextmanager
def traced(found):
    """Collects the files of the package whose functions are called; what is done while importing does not count."""

    def see(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(SOURCE)) and frame.f_code.co_name != "<module>":
            found.add(str(Path(path).relative_to(SOURCE)))

    gc.collect()  # closing a generator that another test left half way counts as a call
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def under(found, folders):
    return {path for path in found if path.split("/")[0] in folders}


@pytest.mark.parametrize("name", MOST)
def test_a_walk_is_short_and_its_files_are_there(name):
    files = walk(name)
    assert len(files) == len(set(files)) <= MOST[name]
    assert [file for file in (*files, *helpers()) if not (SOURCE / file).is_file()] == []
    assert not helpers() & set(files) or name != "simulator"


def test_a_round_in_the_simulator():
    found, shards = set(), unequal()
    with traced(found):
        task, dual = eq.tasks.ridge(4, 0.1), eq.objectives.chi2(5, 0.1)
        algorithm = eq.algorithms.ALGORITHMS["scaffpd"].build_example(task, dual)
        eq.simulate(algorithm, start(), shards, KEY, rounds=1)
    assert sorted(set(walk("simulator")) - found) == []
    assert sorted(found - set(walk("simulator")) - helpers()) == []


@pytest.mark.thorough(witness="::test_a_walk_is_short_and_its_files_are_there")
def test_a_comparison_of_silos(tmp_path, monkeypatch):
    """With the stand-in for the engine of `tests/searches`: what the engines call is in the walk above."""
    tiny.use(monkeypatch)
    tiny.silos(tmp_path / "silos")
    found = set()
    with traced(found):
        words = [
            "compare",
            "--silos",
            str(tmp_path / "silos"),
            "--label",
            "y",
            "--set",
            "run.rounds=2",
            "--set",
            "run.checkpoint_seconds=0",
            "--out",
            str(tmp_path / "out"),
        ]
        said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    own = ("cli", "experiment", "report", "data")
    assert sorted(under(walk("compare"), own) - found) == []
    assert sorted(under(found, own) - set(walk("compare")) - helpers()) == []


@pytest.mark.thorough(witness="::test_a_walk_is_short_and_its_files_are_there")
def test_a_round_over_flower(tmp_path):
    pytest.importorskip("flwr")
    from equipoise.deploy.server.run import run_federation
    from equipoise.experiment import config
    from tests.deploy.test_federated_run import grid, settings
    from tests.flower import silos

    data = silos.write(tmp_path / "silos")
    here = config.parse(settings(algorithm={"name": "scaffpd", "rule": {"sigma": 0.5}, "steps": 2, "local_lr": 0.1}))
    found = set()
    with traced(found):
        run_federation(here, tmp_path / "out", grid(here, data, tmp_path / "homes"))
    assert sorted(set(walk("flower")) - found) == []
    assert sorted(under(found, ("deploy",)) - set(walk("flower")) - helpers()) == []
