"""Real federations: a SuperLink and sites as processes, TLS and authentication on, faults included.

The sites stay up from run to run, as they would; the clock of one is an hour ahead, that of another an hour behind.
Every wait is for something and bounded, and whatever is started is ended.
"""

import json
import os
import re
import signal
import time

import numpy as np
import pytest
import safetensors

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.deploy import sentences
from equipoise.deploy.events import Event
from equipoise.experiment import records
from tests.flower import silos
from tests.flower.federation import (
    AHEAD,
    BEHIND,
    LONG,
    Federation,
    assert_as_at_home,
    at_home,
    bytes_of,
    nobody_listens,
)
from tests.flower.processes import kill, left, started_in, until
from tests.flower.silos import SITES


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    found = Federation(tmp_path_factory.mktemp("federation"))
    try:
        found.start("east", env=AHEAD)
        found.start("north")
        found.start("south", env=BEHIND)
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


def test_whatever_ends_a_server_the_same_command_resumes_and_the_numbers_are_those_of_one_machine(federation):
    """Ctrl-C, a SuperLink that is killed, a server that is killed with -9: the sites stay all the while."""
    settings = silos.settings(
        run={"rounds": 60, "evaluate_every": 30}, federation={"least": 3, "gather": 90.0, "exchange": 60.0}
    )
    folder = federation.folder / "steady"

    def until_more_rounds(server):
        before = federation.rounds("steady")
        until(lambda: federation.rounds("steady") > before, LONG, server)

    def nothing_is_left_but_the_sites(tree):
        assert left(tree) == []
        assert nobody_listens(federation.port)
        assert not records.finished(folder), "too fast for this test: give the run more rounds"
        assert all(site.process.poll() is None for site in federation.sites.values())

    # Ctrl-C: everything of the server ends, and the same command resumes.
    server = federation.serve("steady", settings)
    until_more_rounds(server)
    tree = server.tree()
    os.kill(server.process.pid, signal.SIGINT)
    server.wait(30, code=130)
    nothing_is_left_but_the_sites(tree)

    # The SuperLink is killed: the command starts another, and the run resumes; the sites reconnect.
    server = federation.serve("steady", settings)
    until_more_rounds(server)
    server.find("superlink.py").kill()
    until(lambda: "started again" in server.log.read_text(), 30, server)

    # The server is killed with -9.
    until_more_rounds(server)
    nothing_is_left_but_the_sites(server.kill())
    federation.serve("steady", settings).wait(LONG)

    over = records.read(folder)
    here = at_home(federation.folder, settings, "here")
    assert_as_at_home(over, here)
    assert bytes_of(over.rows[-1]) == bytes_of(here.rows[-1])  # what no checkpoint counted does not count
    assert [event.split(" after")[0] for event in over.outcome.events] == ["the server was started again"] * 3
    assert {site for site, *_ in federation.events("steady") if site} <= {*SITES}
    # A clock that is an hour ahead or behind is no fault.
    for site, ahead in (("east", "-"), ("south", "")):
        assert re.search(rf"clock .* differ by {ahead}3[56]\d\d s", federation.sites[site].log.read_text())


def test_whatever_sites_do_the_run_goes_on_and_says_so(federation):
    """Everything that can go wrong at a site: each costs a reply or a few, and is told by the site's name."""
    settings = silos.settings(
        run={"rounds": 100_000, "evaluate_every": 5},
        # In float32 a site keeps what it has sent, so that it has something to forget.
        federation={
            "gather": 90.0,
            "exchange": 60.0,
            "quantile": 0.9,
            "cap": 0.5,
            "heavy": 0.45,
            "compress": "float32",
        },
    )
    server, folder = federation.serve("wild", settings), federation.folder / "wild"

    def known(site, what, why=""):
        return [
            reason for of, kind, reason in federation.events("wild") if (of, kind) == (site, what) and why in reason
        ]

    def await_event(site, what, why="", more_than=0):
        until(lambda: len(known(site, what, why)) > more_than, LONG, server)

    def away_and_back(site, fault, exchange, release):
        """A site that does not answer is left out, and takes its place again."""
        joined = len(known(site, "joined"))
        federation.faults_are(**{site: [[0, exchange, fault]]})
        until(lambda: known(site, "late") or known(site, "failed", "ended while it worked"), LONG, server)
        at = federation.rounds("wild")
        until(lambda: federation.rounds("wild") > at, LONG, server)  # the others go on
        if fault != "die":
            await_event(site, "absent")  # and do not wait for it
        release()
        await_event(site, "joined", more_than=joined)

    federation.faults_are(east=[[0, "collect", "raise"]], south=[[0, "improve", "nan"]])
    await_event("east", "failed", "error 2: ZeroDivisionError; the log of 'east' says more")
    await_event("south", "broken", "is not finite")
    federation.faults_are(north=[[0, "collect", "shape"]], south=[[0, "collect", "huge"]])
    await_event("north", "broken", "[17])")
    await_event("south", "heavy", "'south' has 50% of the weight")
    federation.faults_are(east=[[0, "collect", "full"]])
    await_event("east", "failed", "FileError; the log of 'east' says more")
    until(lambda: federation.rounds("wild") >= 8, LONG, server)  # enough replies to make deadlines of
    away_and_back("south", "hang", "collect", (federation.folder / "released").touch)
    cut = federation.sites["east"].find("operations.worker")
    away_and_back("east", "stop", "collect", lambda: os.kill(cut.pid, signal.SIGCONT))
    away_and_back("north", "die", "improve", lambda: None)  # it is started again by itself

    # Killed with -9, and back without what it must not forget: it refuses, and the others go on.
    federation.faults_are()
    assert left(federation.sites["north"].kill()) == []  # no node without its command
    for file in (federation.folder / "flower-sites" / "north").glob("train-*.safetensors"):
        file.unlink()
    federation.start("north")
    await_event("north", "refused", "'north' does not remember what it did in")

    def rows():
        return records.read_rows(folder / records.HISTORY)

    now = rows()[-1].round
    until(lambda: rows()[-1].round > now and None not in rows()[-1].loss, LONG, server)  # all are heard again
    last = rows()[-1]
    assert max(last.lam) <= 0.5 + 1e-12
    assert last.broken == 2  # NaN and the shape; an enormous loss is a number

    assert not [why for _, _, why in federation.events("wild") if "within 60 s" in why]  # nobody was held up

    # All fail in every try of a round: the run stops with what is finished, and nothing is left.
    tree = server.tree()
    federation.faults_are(**{site: [[0, "collect", "fail"]] for site in SITES})
    server.wait(LONG, code=2)
    assert "0 of 3 sites answered and 1 are needed, 3 times over" in server.log.read_text()
    assert left(tree) == []
    assert nobody_listens(federation.port)
    with safetensors.safe_open(folder / records.CHECKPOINT, framework="numpy") as saved:
        header = json.loads(saved.metadata()["equipoise"])
        for name in saved.keys():  # noqa: SIM118
            assert np.isfinite(saved.get_tensor(name)).all()
    assert header["rounds"] >= last.round
    told = "\n".join(sentences.of([Event(**event) for event in header["more"]["events"]]))
    for expected in (
        "'south' did not answer in time: no reply within",
        "'east' did not answer in time: no reply within",
        "'south' came back",
        "'north' sent a reply that was left out: the array",
        "'north' refused: 'north' does not remember",
        "the round was repeated: 0 of 3 sites answered and 1 are needed",
        "the run stopped: 0 of 3 sites answered and 1 are needed",
    ):
        assert expected in told, told
    found = json.loads((folder / "status.json").read_text())
    assert {site: state["state"] for site, state in found["sites"].items()} == dict.fromkeys(SITES, "failed")
    assert found["state"] == "stopped"


def test_everything_ends_with_what_started_it(federation):
    """In a second for the sites that stay, and whatever had been started."""
    began = time.monotonic()
    processes = federation.stop()
    assert time.monotonic() - began < 10
    assert left([*processes, *started_in(federation.folder)]) == []
    assert nobody_listens(federation.port)
