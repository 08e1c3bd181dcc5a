"""A federation of processes, which tests watch and disturb; and what its numbers should be."""

import json
import os
import socket
import subprocess

import numpy as np
import tomli_w

from equipoise import artifact
from equipoise.deploy.operations import keys, processes
from equipoise.deploy.operations.processes import free_port
from equipoise.experiment import checkpoint, config, records, run
from equipoise.files import write_whole
from equipoise.privacy import policy
from tests.flower import silos
from tests.flower.processes import PATH, ROOT, Command, until
from tests.flower.silos import SITES

APPS = 'modules = ["tests.flower.faulty:app", "tests.flower.recorded:app"]\n'
LONG = 240.0  # seconds after which a run hangs, on a machine that is busy with other things
ALTERED = {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "flower" / "altered"), PATH])}
AHEAD, BEHIND = ({**ALTERED, "EQUIPOISE_TEST_CLOCK": seconds} for seconds in ("3600", "-3600"))
OBJECTS = {**ALTERED, "EQUIPOISE_TEST_INLINE": "8"}  # messages of more bytes are very large ones
HURRIED = {**ALTERED, "EQUIPOISE_TEST_POLL": "0.2"}  # Flower's own node, which sleeps for 3 s between two looks


class Federation:
    """The sites, and a way to start servers for them."""

    def __init__(self, folder):
        self.folder, self.port, self.sites, self.servers = folder, free_port(), {}, []
        self.faults = folder / "faults.json"
        self.faults.write_text("{}")
        silos.write(folder / "silos")
        keys.make(folder / "keys", SITES)
        (folder / "trial.toml").write_text(policy.TRIAL + APPS)  # not in a folder that a site may lose

    def start(self, site, *more, env=None):
        words = ("site", site, f"silos/{site}.csv", "--server", f"127.0.0.1:{self.port}", *more)
        words += ("--policy", "trial.toml")
        env = {"EQUIPOISE_TEST_FAULTS": str(self.faults), **(env or {})}
        self.sites[site] = Command(*words, folder=self.folder, log=f"{site}.log", env=env)

    def serve(self, name, settings, env=None):
        file = self.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(settings))
        words = ("server", file, "--port", self.port, "--out", name, "--client", "tests.flower.faulty:app")
        self.servers.append(Command(*words, folder=self.folder, log=f"{name}.log", env=env))
        return self.servers[-1]

    def faults_are(self, **plan):
        write_whole(self.faults, json.dumps(plan))  # sites read it all the while

    def events(self, name):
        """What happened so far, as (site, what, why)."""
        path = self.folder / name / "log.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        told = [json.loads(line) for line in lines if line.endswith("}")]
        return [(line["site"], line["what"], line["why"]) for line in told if line["kind"] == "event"]

    def rounds(self, name):
        return checkpoint.rounds(self.folder / name / records.CHECKPOINT)

    def everyone(self):
        return [*self.servers, *self.sites.values()]

    def stop(self):
        """As Ctrl-C would, all at once; gives the processes that there were."""
        processes = [process for command in self.everyone() for process in command.tree()]
        for command in self.everyone():
            command.terminate()
        for command in self.everyone():
            command.stop()
        return processes


class SharedProcess(Command):
    """The process that several sites share, with their files in silos/ and their keys in keys/."""

    def __init__(self, sites, server, *, folder, log, env=None):
        self.log = folder / log
        for site in sites:
            policy.trial(folder / site)
        files = {site: {"data": str(folder / "silos" / f"{site}.csv")} for site in sites}
        made = [processes.Site(s, folder / s, processes.node_config(s, folder / s, files[s])) for s in sites]
        self.start(processes.WORKER, folder, env, stdin=subprocess.PIPE)
        self.process.stdin.write(processes.line(processes.work_of(made, server, folder / "keys")))
        self.process.stdin.flush()

    def stop(self, patience=20):
        super().stop(patience)
        self.process.stdin.close()


class ServedRun:
    """A run of a federation, whose server is started when it is needed, and again when a test has ended it."""

    def __init__(self, federation, name, settings):
        self.federation, self.name, self.settings = federation, name, settings
        self.folder, self.servers = federation.folder / name, []

    def running(self):
        """The server, which has finished a round since it was asked for."""
        if not self.servers or self.servers[-1].process.poll() is not None:
            self.servers.append(self.federation.serve(self.name, self.settings))
        self.await_rounds(1)
        return self.servers[-1]

    def rounds(self):
        return self.federation.rounds(self.name)

    def await_rounds(self, more):
        before = self.rounds()
        self.until(lambda: self.rounds() >= before + more)

    def until(self, condition):
        until(condition, LONG, self.servers[-1])

    def events(self, site, what, why=""):
        """The reasons of a site's events of a kind."""
        return [
            said for of, kind, said in self.federation.events(self.name) if (of, kind) == (site, what) and why in said
        ]

    def await_event(self, site, what, why="", more_than=0):
        self.until(lambda: len(self.events(site, what, why)) > more_than)

    def rows(self):
        return records.read_rows(self.folder / records.HISTORY)


def on_one_machine(folder, settings, name):
    return run.run(config.parse({**settings, "data": {"silos": str(folder / "silos")}}), folder / name)


def parameters(done):
    import jax

    saved = artifact.load(done.path / records.MODEL)
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(saved.params)])


def assert_as_on_one_machine(over, here):
    np.testing.assert_allclose(parameters(over), parameters(here), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(over.rows[-1].lam, here.rows[-1].lam, rtol=1e-9)
    np.testing.assert_allclose(over.rows[-1].loss, here.rows[-1].loss, rtol=1e-9)
    assert [row.round for row in over.rows] == [row.round for row in here.rows]
    assert over.federation.members == here.federation.members


def bytes_of(row):
    return row.bytes_down, row.bytes_up


def nobody_listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
