"""A real federation: a SuperLink and three SuperNodes as processes, TLS and authentication on, faults included.

Every message starts a process, so this takes minutes; both tests share the sites, which stay up from run to run.
"""

import json
import time

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise import artifact
from equipoise.experiment import checkpoint, config, records, run
from equipoise.experiment.federated.launch import free_port
from tests.flower import silos
from tests.flower.processes import Command, children, descendants, running, until
from tests.flower.silos import SITES

LONG = 400.0  # seconds after which a run hangs


class Federation:
    """The sites, and a way to start servers for them."""

    def __init__(self, folder):
        self.folder, self.port, self.sites, self.servers = folder, free_port(), {}, []
        self.faults = folder / "faults.json"
        self.faults.write_text("{}")
        silos.write(folder / "silos")
        keys = Command("keys", "keys", "--sites", ",".join(SITES), folder=folder, log="keys.log")
        keys.wait(60)
        for site in SITES:
            self.start(site)

    def start(self, site):
        words = ("site", site, f"silos/{site}.csv", "--server", f"127.0.0.1:{self.port}")
        env = {"EQUIPOISE_TEST_FAULTS": str(self.faults)}
        self.sites[site] = Command(*words, folder=self.folder, log=f"{site}.log", env=env)

    def serve(self, name, settings):
        file = self.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(settings))
        words = ("server", file, "--port", self.port, "--out", name, "--client", "tests.flower.faulty:app")
        self.servers.append(Command(*words, folder=self.folder, log=f"{name}.log"))
        return self.servers[-1]

    def stop(self):
        everyone = [*self.servers, *self.sites.values()]
        pids = [pid for c in everyone for pid in (c.process.pid, *descendants(c.process.pid))]
        for command in everyone:
            command.process.poll() is None and command.process.terminate()
        for command in everyone:
            command.stop()
        return pids


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    found = Federation(tmp_path_factory.mktemp("federation"))
    yield found
    found.stop()


def local(federation, settings, name):
    data = {"silos": str(federation.folder / "silos")}
    return run.run(config.parse({**settings, "data": data}), federation.folder / name)


def parameters(done):
    import jax

    saved = artifact.load(done.path / records.MODEL)
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(saved.params)])


def test_as_on_one_machine(federation):
    settings = silos.settings(run={"rounds": 2}, federation={"gather": 120.0})
    federation.serve("calm", settings).wait(LONG)
    over, here = records.read(federation.folder / "calm"), local(federation, settings, "local")
    assert over.outcome.events == ()
    np.testing.assert_allclose(parameters(over), parameters(here), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(over.rows[-1].lam, here.rows[-1].lam, rtol=1e-9)
    np.testing.assert_allclose(over.rows[-1].loss, here.rows[-1].loss, rtol=1e-9)
    assert [over.rows[-1].bytes_down, over.rows[-1].bytes_up] == [here.rows[-1].bytes_down, here.rows[-1].bytes_up]
    assert over.federation.members == here.federation.members
    new = artifact.predict(over.path / records.MODEL, federation.folder / "silos" / "north.csv")
    assert new["prediction"].is_in(["yes", "no"]).all()


def test_whatever_sites_and_servers_do_the_run_ends_and_says_so(federation):
    """One run, everything that can go wrong: what is finished is kept, and every fault is told by the site's name."""
    faults = {
        "north": [[1, "collect", "shape"]],
        "south": [[0, "improve", "nan"], [1, "collect", "huge"]],
        "east": [[0, "collect", "raise"], [1, "improve", "slow"]],
    }
    federation.faults.write_text(json.dumps(faults))
    settings = silos.settings(
        run={"rounds": 4, "evaluate_every": 4},
        federation={"gather": 90.0, "exchange": 30.0, "cap": 0.5, "heavy": 0.45},
    )
    server, folder = federation.serve("wild", settings), federation.folder / "wild"

    def rounds():
        return checkpoint.rounds(folder / records.CHECKPOINT)

    until(lambda: rounds() == 2, LONG, server)
    federation.sites["north"].kill()  # between two exchanges
    killed = time.monotonic()
    federation.start("north")
    until(lambda: rounds() == 3, LONG, server)
    server.kill()
    assert not records.finished(folder)
    federation.serve("wild", settings).wait(LONG)

    done = records.read(folder)
    assert done.outcome.rounds == 4
    assert np.isfinite(parameters(done)).all()
    events = "\n".join(done.outcome.events)
    assert "'east' failed: error 2: " in events
    assert "'south' sent a reply that was left out: the array" in events
    assert "is not finite (round 1, improve)" in events
    assert "'north' sent a reply that was left out: the array" in events
    assert "[17]) (round 2, collect)" in events
    assert "'east' did not answer in time: no reply within 30 s (round 2, improve" in events
    assert "'south' has 50% of the weight" in events
    assert "'north' did not answer in time" in events
    assert "'north' came back" in events
    assert "the server was started again after 3 rounds" in events
    assert [row.round for row in done.rows] == [0, 4]
    assert all(value is not None for value in done.rows[-1].loss)  # everybody was back for the last look
    assert max(done.rows[-1].lam) <= 0.5 + 1e-12
    assert done.rows[-1].broken == 2
    assert time.monotonic() - killed < LONG


def test_everything_ends_with_what_started_it(federation):
    """The commands and the programs of Flower that they run; what those start is killed with them."""
    commands = [*federation.servers, *federation.sites.values()]
    pids = {c.process.pid for c in commands} | {child for c in commands for child in children(c.process.pid)}
    federation.stop()
    end = time.monotonic() + 30
    while any(map(running, pids)) and time.monotonic() < end:
        time.sleep(0.2)
    assert [pid for pid in pids if running(pid)] == []
