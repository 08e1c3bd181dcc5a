"""Real federations: a SuperLink and sites as processes, TLS and authentication on, faults included.

The sites stay up from run to run, as they would. Every wait is bounded, and whatever is started is ended.
"""

import json
import os
import re
import signal
import socket
import time

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise import artifact
from equipoise.experiment import checkpoint, config, records, run
from equipoise.experiment.federated.processes import free_port
from tests.flower import silos
from tests.flower.processes import PATH, ROOT, Command, kill, left, until
from tests.flower.silos import SITES

LONG = 240.0  # seconds after which a run hangs, on a machine that is busy with other things
DEADLINE = 10.0  # seconds for the replies of an exchange, where sites are slow on purpose


class Federation:
    """The sites, and a way to start servers for them."""

    def __init__(self, folder):
        self.folder, self.port, self.sites, self.servers = folder, free_port(), {}, []
        self.faults = folder / "faults.json"
        self.faults.write_text("{}")
        silos.write(folder / "silos")
        Command("keys", "keys", "--sites", ",".join(SITES), folder=folder, log="keys.log").wait(60)
        for site in SITES:
            self.start(site)

    def start(self, site, *more, env=None):
        words = ("site", site, f"silos/{site}.csv", "--server", f"127.0.0.1:{self.port}", *more)
        env = {"EQUIPOISE_TEST_FAULTS": str(self.faults), **(env or {})}
        self.sites[site] = Command(*words, folder=self.folder, log=f"{site}.log", env=env)

    def serve(self, name, settings):
        file = self.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(settings))
        words = ("server", file, "--port", self.port, "--out", name, "--client", "tests.flower.faulty:app")
        self.servers.append(Command(*words, folder=self.folder, log=f"{name}.log"))
        return self.servers[-1]

    def rounds(self, name):
        return checkpoint.rounds(self.folder / name / records.CHECKPOINT)

    def stop(self):
        """As Ctrl-C would, all at once; gives the processes that there were."""
        everyone = [*self.servers, *self.sites.values()]
        processes = [process for command in everyone for process in command.tree()]
        for command in everyone:
            command.process.poll() is None and command.process.terminate()
        for command in everyone:
            command.stop()
        return processes


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    found = Federation(tmp_path_factory.mktemp("federation"))
    try:
        yield found
    finally:
        kill(found.stop())


@pytest.fixture(autouse=True)
def no_server_is_left(request):
    """Whatever a test was doing when it failed, the next one starts without its server."""
    yield
    if "federation" in request.fixturenames:
        for server in request.getfixturevalue("federation").servers:
            server.stop()


def at_home(folder, settings, name):
    return run.run(config.parse({**settings, "data": {"silos": str(folder / "silos")}}), folder / name)


def parameters(done):
    import jax

    saved = artifact.load(done.path / records.MODEL)
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(saved.params)])


def assert_as_at_home(over, here):
    np.testing.assert_allclose(parameters(over), parameters(here), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(over.rows[-1].lam, here.rows[-1].lam, rtol=1e-9)
    np.testing.assert_allclose(over.rows[-1].loss, here.rows[-1].loss, rtol=1e-9)
    assert [row.round for row in over.rows] == [row.round for row in here.rows]
    assert [over.rows[-1].bytes_down, over.rows[-1].bytes_up] == [here.rows[-1].bytes_down, here.rows[-1].bytes_up]
    assert over.federation.members == here.federation.members


def nobody_listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_one_command_is_a_whole_federation_and_ctrl_c_leaves_nothing(tmp_path):
    """It resumes after Ctrl-C, gives the simulator's numbers, and ends everything that it started."""
    settings = silos.settings(run={"rounds": 6, "evaluate_every": 2})
    del settings["federation"]["sites"]  # all files of the folder
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    silos.write(tmp_path / "silos")
    words, log = ("local", "f.toml", "--silos", "silos", "--out", "run"), "local.log"
    slow = {"EQUIPOISE_TEST_FAULTS": "", "PYTHONUNBUFFERED": "1"}
    command = Command(*words, folder=tmp_path, log=log, env=slow)
    try:
        until(lambda: checkpoint.rounds(tmp_path / "run" / records.CHECKPOINT) >= 1, LONG, command)
        tree = command.tree()
        os.kill(command.process.pid, signal.SIGINT)
        command.process.wait(30)
        assert left(tree) == []
        finished = records.finished(tmp_path / "run")  # it may have been as fast as that
        assert command.process.returncode == (0 if finished else 130), command.tail()
        if not finished:
            again = Command(*words, folder=tmp_path, log=log)
            try:
                again.wait(LONG)
            finally:
                again.stop()
    finally:
        command.stop()
    over = records.read(tmp_path / "run")
    here = at_home(tmp_path, {**settings, "federation": {"sites": list(SITES), "heavy": 1.0}}, "here")
    assert_as_at_home(over, here)
    assert all("server was started again" in event for event in over.outcome.events)
    text = (tmp_path / "local.log").read_text()
    assert "one process that stays (warm)" in text
    assert nobody_listens(int(text.split("--port ")[1].split()[0]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert {"event", "exchange"} <= {line["kind"] for line in lines}


def test_whatever_sites_and_servers_do_the_run_ends_and_says_so(federation):
    """One run, everything that can go wrong: what is finished is kept, and every fault is told by the site's name."""
    faults = {
        "north": [[1, "collect", "shape"], [3, "improve", "die"]],
        "south": [[0, "improve", "nan"], [1, "collect", "huge"], [4, "collect", "hang"]],
        "east": [[0, "collect", "raise"], [2, "collect", "full"]],
    }
    federation.faults.write_text(json.dumps(faults))
    settings = silos.settings(
        run={"rounds": 10, "evaluate_every": 10},
        federation={"gather": 90.0, "exchange": DEADLINE, "question": 60.0, "cap": 0.5, "heavy": 0.45},
    )
    server, folder = federation.serve("wild", settings), federation.folder / "wild"

    # 1. The SuperLink is killed: the command starts another, and the run resumes; the sites reconnect.
    until(lambda: federation.rounds("wild") >= 6, LONG, server)
    server.find("superlink.py").kill()
    until(lambda: "started again" in server.log.read_text(), 30, server)

    # 2. The server is killed with -9: nothing of it is left; the same command resumes, the sites have stayed.
    before = federation.rounds("wild")
    until(lambda: federation.rounds("wild") > before, LONG, server)
    tree = server.kill()
    assert left(tree) == []
    assert nobody_listens(federation.port)
    assert not records.finished(folder), "too fast for this test: give the run more rounds"
    assert all(site.process.poll() is None for site in federation.sites.values())
    server = federation.serve("wild", settings)
    server.wait(LONG)

    done = records.read(folder)
    assert done.outcome.rounds == 10
    assert np.isfinite(parameters(done)).all()
    events = "\n".join(done.outcome.events)
    for expected in (
        "'east' failed: error 2: ZeroDivisionError; the log of 'east' says more (round 1, collect)",
        "is not finite (round 1, improve)",
        "[17]) (round 2, collect)",
        "'south' sent a reply that was left out: the array",
        "'east' failed: FileError; the log of 'east' says more (round 3, collect)",
        f"'south' did not answer in time: no reply within {DEADLINE:g} s (round 5, collect",
        "'south' came back",
        "'south' has 50% of the weight",
        "the server was started again after",
    ):
        assert expected in events, events
    # Told as soon as the process is there again, or given up at the deadline if that takes longer.
    crashed = "'north' failed: error 8: the process of 'north' ended while it worked on the message (round 4, improve)"
    assert crashed in events or re.search(r"'north' did not answer in time: .*round 4, improve", events), events
    assert [row.round for row in done.rows] == [0, 10]
    assert all(value is not None for value in done.rows[-1].loss)  # everybody was back for the last evaluation
    assert max(done.rows[-1].lam) <= 0.5 + 1e-12
    assert done.rows[-1].broken == 2  # NaN and the shape; an enormous loss is a number


def test_sites_that_go_and_come_back(federation):
    """Killed with -9, stopped for longer than the deadline, with a clock an hour ahead: the run goes on, and ends."""
    federation.faults.write_text("{}")
    tree = federation.sites["north"].kill()
    assert left(tree) == []  # no node without its command
    (federation.folder / "flower-sites" / "north").rename(federation.folder / "lost")
    shifted = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "flower" / "shifted"), PATH]),
        "EQUIPOISE_TEST_CLOCK": "3600",
    }
    federation.start("north", env=shifted)
    settings = silos.settings(
        algorithm={"name": "scaffold", "steps": 3, "local_lr": 0.1},
        run={"rounds": 100_000, "evaluate_every": 100_000},
        federation={"gather": 90.0, "exchange": DEADLINE, "question": 60.0},
    )
    del settings["algorithm"]["rule"]
    server, folder = federation.serve("away", settings), federation.folder / "away"
    until(lambda: federation.rounds("away") >= 2, LONG, server)
    assert re.search(r"clock .* differ by -36\d\d s", federation.sites["north"].log.read_text())

    # As if the network were cut: the process hears and says nothing for longer than the deadline.
    cut = federation.sites["east"].find("federated.worker")
    os.kill(cut.pid, signal.SIGSTOP)
    time.sleep(DEADLINE + 2)
    os.kill(cut.pid, signal.SIGCONT)

    # Gone with its memory, and back without: SCAFFOLD needs it, so the site refuses, and the others go on.
    now = federation.rounds("away")
    until(lambda: federation.rounds("away") > now, LONG, server)
    assert left(federation.sites["south"].kill()) == []
    for file in (federation.folder / "flower-sites" / "south").glob("train-*.safetensors"):
        file.unlink()
    federation.start("south")

    def events(site):
        lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
        return [(line["what"], line["why"]) for line in lines if line["kind"] == "event" and line["site"] == site]

    until(lambda: "refused" in dict(events("south")), LONG, server)

    # Ctrl-C: the rounds that are finished are kept, and nothing is left.
    tree = server.tree()
    os.kill(server.process.pid, signal.SIGINT)
    server.wait(30, code=130)
    assert left(tree) == []
    assert nobody_listens(federation.port)
    assert federation.rounds("away") > 2
    assert dict(events("east"))["late"] == f"no reply within {DEADLINE:g} s"
    assert [what for what, _ in events("east")][-1] == "joined"
    assert "'south' does not remember what it did in" in dict(events("south"))["refused"]
    assert {what for what, _ in events("north")} == {"joined"}  # a wrong clock is no fault
    found = json.loads((folder / "status.json").read_text())
    assert found["sites"]["north"]["state"] == "connected"
    assert "does not remember" in found["sites"]["south"]["last_error"]


def test_too_few_sites_stop_the_run_and_it_resumes_when_they_are_back(federation):
    federation.faults.write_text("{}")
    settings = silos.settings(
        run={"rounds": 4, "evaluate_every": 4},
        federation={"least": 3, "tries": 2, "exchange": DEADLINE, "gather": 90.0, "hello": 5.0},
    )
    federation.faults.write_text(json.dumps({"east": [[2, "collect", "raise"]]}))
    federation.serve("few", settings).wait(LONG, code=2)
    assert federation.rounds("few") == 2
    assert "2 of 3 sites answered and 3 are needed, 2 times over" in (federation.folder / "few.log").read_text()
    federation.faults.write_text("{}")
    federation.serve("few", settings).wait(LONG)
    done = records.read(federation.folder / "few")
    told = [event for event in done.outcome.events if "repeated" in event or "stopped" in event]
    assert told == [
        "the round was repeated: 2 of 3 sites answered and 3 are needed (round 3, collect)",
        "the run stopped: 2 of 3 sites answered and 3 are needed (round 3, collect)",
    ]
    np.testing.assert_allclose(
        parameters(done), parameters(at_home(federation.folder, settings, "here")), rtol=1e-9, atol=1e-12
    )


def test_flowers_own_nodes_work_beside_sites_that_stay(federation):
    federation.faults.write_text("{}")
    federation.sites["south"].stop()
    federation.start("south", "--stock")
    settings = silos.settings(
        algorithm={"name": "fedavg", "steps": 2, "local_lr": 0.1},
        run={"rounds": 1},
        federation={"gather": 120.0, "sites": ["north", "south"]},
    )
    del settings["algorithm"]["rule"]
    federation.serve("mixed", settings).wait(LONG)
    done = records.read(federation.folder / "mixed")
    assert done.rows[-1].answered == (2,)
    assert "Flower's SuperNode, a process for every message" in (federation.folder / "south.log").read_text()
    # Killed with -9, it leaves neither its SuperNode nor what that has started.
    tree = federation.sites["south"].kill()
    assert any("supernode" in " ".join(process.cmdline()) for process in tree)
    assert left(tree) == []


def test_everything_ends_with_what_started_it(federation):
    """In a second for the sites that stay, and whatever had been started."""
    began = time.monotonic()
    processes = federation.stop()
    assert time.monotonic() - began < 10
    assert left(processes) == []
