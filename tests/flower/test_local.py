"""`equipoise flower local`: a whole federation by one command."""

import json
import os
import signal
from datetime import datetime

import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.deploy.wire import warm
from equipoise.experiment import checkpoint, records
from tests.flower import silos
from tests.flower.federation import LONG, assert_as_on_one_machine, bytes_of, nobody_listens, on_one_machine
from tests.flower.processes import Command, left, started_in, until
from tests.problems import few

WITNESS = "::test_one_command_is_a_whole_federation_and_ctrl_c_leaves_nothing[scaffpd]"


@pytest.mark.parametrize("method", few(["scaffpd"], ["scaffpd", "scaffpd_model"], WITNESS))
def test_one_command_is_a_whole_federation_and_ctrl_c_leaves_nothing(tmp_path, method):
    """It resumes after Ctrl-C, gives the simulator's numbers, and ends all that it started."""
    settings = silos.settings(run={"rounds": 8, "evaluate_every": 1})
    if method == "scaffpd_model":
        settings["algorithm"] = {"name": "scaffpd_model", "steps": 3}
    del settings["federation"]["sites"]  # all files of the folder
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    silos.write(tmp_path / "silos")
    (tmp_path / "silos" / "north.csv").unlink()  # two are enough
    words = ("local", "f.toml", "--silos", "silos", "--out", "run", "--processes", "1")
    command = Command(*words, folder=tmp_path, log="local.log", env={"PYTHONUNBUFFERED": "1"})
    try:
        until(lambda: checkpoint.rounds(tmp_path / "run" / records.CHECKPOINT) >= 1, LONG, command)
        os.kill(command.process.pid, signal.SIGINT)
        command.process.wait(LONG)
        assert left(started_in(tmp_path)) == []
        finished = records.finished(tmp_path / "run")  # it may have been as fast as that
        assert command.process.returncode == (0 if finished else 130), command.tail()
        if not finished:
            command = Command(*words, folder=tmp_path, log="local.log")
            command.wait(LONG)
    finally:
        command.stop()
    assert left(started_in(tmp_path)) == []
    over = records.read(tmp_path / "run")
    here = on_one_machine(tmp_path, {**settings, "federation": {"sites": ["east", "south"], "heavy": 1.0}}, "here")
    assert_as_on_one_machine(over, here)
    assert bytes_of(over.rows[-1]) == bytes_of(here.rows[-1])
    assert all("server was started again" in event for event in over.outcome.events)
    text = (tmp_path / "local.log").read_text()
    assert "one process that stays (warm)" in text
    assert nobody_listens(int(text.split("--sites-port ")[1].split()[0]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    exchanges = [line for line in lines if line["kind"] == "exchange"]
    ends = [datetime.fromisoformat(line["time"]).timestamp() for line in exchanges]
    spans = [(line["part"], end - line["seconds"], end) for line, end in zip(exchanges, ends, strict=True)]
    trained, evaluated = ([span[1:] for span in spans if (span[0] == "train") is of] for of in (True, False))
    # Evaluations go out beside the next exchange.
    assert any(begin < other_end and other < end for begin, end in evaluated for other, other_end in trained)


@pytest.mark.thorough(
    witness="cli/test_flower.py::test_a_process_that_crashes_is_started_again_and_one_that_refuses_is_not"
)
def test_a_site_that_cannot_start_ends_all_of_it(tmp_path):
    settings = silos.settings(federation={"sites": ["east"]})
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    silos.write(tmp_path / "silos")
    home = tmp_path / "flower-local" / "sites" / "east"
    home.mkdir(parents=True)
    with warm.locked(home, "east"):  # somebody else runs this site
        command = Command("local", "f.toml", "--silos", "silos", "--out", "run", folder=tmp_path, log="local.log")
        try:
            command.wait(LONG, code=2)
        finally:
            command.stop()
    assert command.tail(1) == "error: east could not start, see above"
    assert "error: another process runs 'east'" in command.log.read_text()
    assert left(started_in(tmp_path)) == []
