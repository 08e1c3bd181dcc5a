"""`equipoise flower local` chooses the penalty and the price of fairness as `equipoise run` does, by real processes."""

import os
import signal

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.experiment import choice, config, folders, records, run
from equipoise.experiment.chosen import settle
from equipoise.files import read_text
from tests.flower import silos
from tests.flower.federation import LONG, assert_as_on_one_machine, bytes_of
from tests.flower.processes import Command, left, started_in, until


@pytest.mark.thorough(witness="deploy/test_chosen_run.py::test_as_on_one_machine")
def test_four_owners_choose_what_one_machine_does_though_the_server_is_killed(tmp_path):
    """Nothing is given: not the penalty, not the objective, not the method."""
    silos.write(tmp_path / "silos")
    text = (tmp_path / "silos" / "north.csv").read_text().splitlines()
    (tmp_path / "silos" / "west.csv").write_text("\n".join([text[0], *text[1:41][::-1]]) + "\n")
    settings = {"run": {"precision": "float64", "rounds": 6, "evaluate_every": 1}, "federation": {"heavy": 1.0}}
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    words = ("local", "f.toml", "--silos", "silos", "--out", "run", "--processes", "2")
    command, path = Command(*words, folder=tmp_path, log="local.log"), tmp_path / "run" / folders.PATH
    try:
        until(lambda: path.is_file() and read_text(path).count('"model"') >= 2, LONG, command)
        os.kill(command.process.pid, signal.SIGINT)
        command.process.wait(LONG)
        begun = read_text(path)
        command = Command(*words, folder=tmp_path, log="local.log")
        command.wait(LONG)
    finally:
        command.stop()
    assert left(started_in(tmp_path)) == []
    assert read_text(path).startswith(begun.rstrip()[:-1])  # what had been heard was not asked for again
    over = records.read(tmp_path / "run")
    opened = choice.left_open({"data": {"silos": str(tmp_path / "silos")}, "run": settings["run"]})
    here = run.run(config.parse(opened), tmp_path / "here")
    mine, other = settle.read(over.path), settle.read(here.path)
    assert [one.key for one in mine] == ["model.l2", "objective.rho"]
    for a, b in zip(mine, other, strict=True):
        assert (a.value, a.runner_up, a.rounds, a.bytes_up) == (b.value, b.runner_up, b.rounds, b.bytes_up)
        for row, same in zip(a.tried, b.tried, strict=True):
            np.testing.assert_allclose(list(row.values()), list(same.values()), rtol=1e-9, atol=1e-11)
    assert_as_on_one_machine(over, here)
    assert bytes_of(over.rows[-1]) == bytes_of(here.rows[-1])
    assert mine[0].sentence in (tmp_path / "local.log").read_text()
