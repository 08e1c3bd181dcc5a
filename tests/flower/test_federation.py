"""Real federations: a SuperLink and sites as processes, TLS and authentication on, faults included.

Two runs of the same three sites, which stay up all the while, as they would: one whose server is ended in every way,
and one whose sites do whatever sites may do. `make test` has the federation of one command (`test_local.py`), and sees
what happens here in one process (`tests/deploy`). A test disturbs the run and waits for what must come of it;
the run goes on. The clock of one site is an hour ahead, that of another an hour behind. Every wait is for something
and bounded, and whatever is started is ended.
"""

import json
import os
import re
import shutil
import signal
import ssl

import httpx
import numpy as np
import pytest
import safetensors

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.deploy.server import events
from equipoise.deploy.server.events import Event
from equipoise.experiment import records
from tests.flower import silos
from tests.flower.federation import (
    AHEAD,
    BEHIND,
    LONG,
    Federation,
    ServedRun,
    assert_as_on_one_machine,
    bytes_of,
    nobody_listens,
    on_one_machine,
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


# A server that is ended.


@pytest.fixture(scope="module")
def steady(federation):
    """A run in which all sites have to answer in every round."""
    settings = silos.settings(
        run={"rounds": 40, "evaluate_every": 20}, federation={"least": 3, "gather": 90.0, "exchange": 60.0}
    )
    run = ServedRun(federation, "steady", settings)
    yield run
    for server in run.servers:
        server.stop()


def nothing_is_left_but_the_sites(run, tree):
    assert left(tree) == []
    assert nobody_listens(run.federation.port)
    assert not records.finished(run.folder), "too fast for this test: give the run more rounds"
    assert all(site.process.poll() is None for site in run.federation.sites.values())


@pytest.mark.thorough(witness="deploy/test_faults.py::test_ctrl_c_keeps_all_finished_rounds")
def test_ctrl_c_ends_all_of_a_server_and_the_sites_stay(steady):
    server = steady.running()
    tree = server.tree()
    os.kill(server.process.pid, signal.SIGINT)
    server.wait(LONG, code=130)
    nothing_is_left_but_the_sites(steady, tree)


@pytest.mark.thorough(
    witness="cli/test_flower.py::test_a_process_that_crashes_is_started_again_and_one_that_refuses_is_not"
)
def test_a_superlink_that_is_killed_is_started_again_and_the_run_resumes(steady):
    server = steady.running()
    server.find("superlink.py").kill()
    until(lambda: "started again" in server.log.read_text(), LONG, server)
    steady.await_rounds(1)  # the sites have reconnected by themselves


@pytest.mark.thorough(witness="cli/test_flower.py::test_a_process_ends_when_the_one_that_started_it_is_killed")
def test_a_server_that_is_killed_leaves_nothing_and_the_sites_stay(steady):
    nothing_is_left_but_the_sites(steady, steady.running().kill())


@pytest.mark.thorough(
    witness="flower/test_local.py::test_one_command_is_a_whole_federation_and_ctrl_c_leaves_nothing[scaffpd]"
)
def test_a_run_that_was_resumed_has_the_numbers_of_one_machine(steady, federation):
    """Model, weights, losses and bytes: what no checkpoint counted does not count."""
    steady.running().wait(LONG)
    over, here = records.read(steady.folder), on_one_machine(federation.folder, steady.settings, "here")
    assert_as_on_one_machine(over, here)
    assert bytes_of(over.rows[-1]) == bytes_of(here.rows[-1])
    restarts = steady.servers[-1].log.read_text().count("it is started again, and the run resumes")
    resumed = [event.split(" after")[0] for event in over.outcome.events]
    assert resumed == ["the server was started again"] * (len(steady.servers) - 1 + restarts)
    assert {site for site, *_ in federation.events("steady") if site} <= {*SITES}


@pytest.mark.thorough(witness="deploy/test_warm.py::test_requests_are_signed_by_the_servers_clock_where_the_two_differ")
def test_a_clock_that_is_an_hour_ahead_or_behind_is_no_fault(steady, federation):
    """The run above went on with such sites; they have noticed."""
    if not steady.servers:
        steady.running()
    logs = {site: federation.sites[site].log.read_text() for site in SITES}
    assert re.search(r"clock .* differ by -3[56]\d\d s", logs["east"])
    assert re.search(r"clock .* differ by 3[56]\d\d s", logs["south"])
    assert "differ by" not in logs["north"]


# Sites that go wrong.


@pytest.fixture(scope="module")
def wild(federation):
    """A run without end, with everything on that bounds what a site can do."""
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
            "bound": "none",  # what is out of all proportion would not come this far
        },
    )
    (federation.folder / "paced").touch()
    run = ServedRun(federation, "wild", settings)
    run.running()
    yield run
    for server in run.servers:
        server.stop()


def away_and_back(run, site, fault, exchange, release):
    """A site that does not answer is left out, the others go on, and it takes its place again."""
    joined = len(run.events(site, "joined"))
    run.federation.faults_are(**{site: [[0, exchange, fault]]})
    run.until(lambda: run.events(site, "late") or run.events(site, "failed", "ended while it worked"))
    run.await_rounds(1)
    if fault != "die":
        run.await_event(site, "absent")  # and nobody waits for it
    release()
    run.await_event(site, "joined", more_than=joined)


@pytest.mark.thorough(witness="deploy/test_faults.py::test_a_site_that_raises_in_its_own_code_tells_only_the_kind")
def test_a_site_that_raises(wild, federation):
    federation.faults_are(east=[[0, "collect", "raise"]])
    wild.await_event("east", "failed", "error 2: ZeroDivisionError; the log of 'east' says more")
    assert "ZeroDivisionError" in federation.sites["east"].log.read_text()


@pytest.mark.thorough(witness="deploy/test_faults.py::test_a_fault_is_a_lost_reply")
def test_replies_with_nan_or_a_wrong_shape_are_left_out(wild, federation):
    federation.faults_are(north=[[0, "collect", "shape"]], south=[[0, "improve", "nan"]])
    wild.await_event("south", "broken", "is not finite")
    wild.await_event("north", "broken", "[17])")
    wild.until(lambda: wild.rows() and wild.rows()[-1].broken == 2)


@pytest.mark.thorough(
    witness="deploy/test_faults.py::test_a_huge_loss_is_bounded_by_the_defences_where_every_length_is_believed"
)
def test_a_site_with_an_enormous_loss_is_named_and_capped(wild, federation):
    federation.faults_are(south=[[0, "collect", "huge"]])
    wild.await_event("south", "heavy", "'south' has 50% of the weight")
    at = wild.rounds()
    wild.until(lambda: wild.rows()[-1].round > at)
    assert max(wild.rows()[-1].lam) <= 0.5 + 1e-12


@pytest.mark.thorough(witness="deploy/test_faults.py::test_a_site_that_raises_in_its_own_code_tells_only_the_kind")
def test_a_site_whose_disk_is_full(wild, federation):
    federation.faults_are(east=[[0, "collect", "full"]])
    wild.await_event("east", "failed", "FileError; the log of 'east' says more")


@pytest.mark.thorough(witness="deploy/test_faults.py::test_a_slow_site_is_waited_for_until_the_time_out")
def test_a_site_that_hangs_in_its_work(wild, federation):
    wild.until(lambda: wild.rounds() >= 8)  # enough replies to make deadlines of
    away_and_back(wild, "south", "hang", "collect", (federation.folder / "released").touch)


@pytest.mark.thorough(witness="deploy/test_faults.py::test_a_site_that_leaves_and_comes_back_takes_its_place_again")
def test_a_network_that_is_cut_for_longer_than_the_deadline_and_comes_back(wild, federation):
    wild.until(lambda: wild.rounds() >= 8)
    cut = federation.sites["east"].find("operations.processes")
    away_and_back(wild, "east", "stop", "collect", lambda: os.kill(cut.pid, signal.SIGCONT))


@pytest.mark.thorough(
    witness="cli/test_flower.py::test_a_process_that_crashes_is_started_again_and_one_that_refuses_is_not"
)
def test_a_site_whose_process_dies_is_started_again(wild):
    away_and_back(wild, "north", "die", "improve", lambda: None)


@pytest.mark.thorough(
    witness="deploy/test_faults.py::test_a_site_without_its_file_is_refused_where_that_matters_and_only_there"
)
def test_a_site_that_is_killed_leaves_nothing_and_without_its_memory_it_refuses(wild, federation):
    federation.faults_are()
    assert left(federation.sites["north"].kill()) == []  # no node without its command
    for file in (federation.folder / "flower-sites" / "north").glob("train-*.safetensors"):
        file.unlink()
    federation.start("north")
    wild.await_event("north", "refused", "'north' does not remember what it did in")
    now = wild.rows()[-1].round
    wild.until(lambda: wild.rows()[-1].round > now and None not in wild.rows()[-1].loss)  # all are heard again


@pytest.mark.thorough(witness="deploy/test_names.py::test_a_site_that_lost_its_folder_is_taken_back_without_a_restart")
def test_a_site_that_lost_its_folder_is_taken_back_without_a_restart(wild, federation):
    federation.faults_are()
    federation.sites["north"].stop()
    shutil.rmtree(federation.folder / "flower-sites" / "north")
    federation.start("north")
    wild.await_event("north", "refused", "'north' has not been told the agreement")
    now = wild.rows()[-1].round
    wild.until(lambda: wild.rows()[-1].round > now and None not in wild.rows()[-1].loss)


@pytest.mark.thorough(witness="flower/test_outsider.py::test_an_outsider_gets_nothing_at_any_route")
def test_an_outsider_is_refused_and_named_in_status_and_log(wild, federation):
    trust = ssl.create_default_context(cafile=federation.folder / "keys" / "ca.crt")
    for path in ("control/start-run", "control/register-node"):
        assert httpx.post(f"https://127.0.0.1:{federation.port}/v1/{path}", verify=trust).status_code == 404
    wild.await_event("", "outsider", "requests for what is not the sites' API")
    found = json.loads((wild.folder / "status.json").read_text())
    assert found["refused"] == {"requests for what is not the sites' API": 2}
    logs = [path.read_text() for path in federation.folder.rglob("superlink.log")]
    assert any("/v1/control/register-node" in log for log in logs)


@pytest.mark.thorough(witness="deploy/test_faults.py::test_no_site_waits_for_ever")
def test_nobody_was_held_up_until_the_time_out(wild, federation):
    assert [why for _, _, why in federation.events("wild") if "within 60 s" in why] == []


@pytest.mark.thorough(witness="deploy/test_faults.py::test_given_up_in_the_end_with_everything_in_hand_and_resumed")
def test_a_run_that_no_site_answers_stops_with_all_that_is_finished(wild, federation):
    """All fail in every try of a round. Of the tests of this run it has to be the last."""
    server = wild.servers[-1]
    tree, done = server.tree(), wild.rounds()
    federation.faults_are(**{site: [[0, "collect", "fail"]] for site in SITES})
    server.wait(LONG, code=2)
    assert "0 of 3 sites answered and 1 are needed, 3 times over" in server.log.read_text()
    assert left(tree) == []
    assert nobody_listens(federation.port)
    with safetensors.safe_open(wild.folder / records.CHECKPOINT, framework="numpy") as saved:
        header = json.loads(saved.metadata()["equipoise"])
        for name in saved.keys():  # noqa: SIM118
            assert np.isfinite(saved.get_tensor(name)).all()
    assert header["rounds"] >= done
    found = json.loads((wild.folder / "status.json").read_text())
    assert {site: state["state"] for site, state in found["sites"].items()} == dict.fromkeys(SITES, "failed")
    assert found["state"] == "stopped"
    told = "\n".join(events.sentences_of([Event(**event) for event in header["more"]["events"]]))
    assert "the round was repeated: 0 of 3 sites answered and 1 are needed" in told
    assert "the run stopped: 0 of 3 sites answered and 1 are needed" in told
    kinds = {"late": "did not answer in time", "broken": "sent a reply that was left out", "refused": "refused"}
    kinds |= {"failed": "failed", "absent": "was not there"}
    for site, what, why in federation.events("wild"):  # the report tells each of them
        if what in kinds:
            assert f"'{site}' {kinds[what]}: {why}" in told


@pytest.mark.thorough(
    witness="flower/test_local.py::test_one_command_is_a_whole_federation_and_ctrl_c_leaves_nothing[scaffpd]"
)
def test_everything_ends_with_what_started_it(federation):
    """The sites that stay, and whatever had been started: by themselves, none has to be killed."""
    everyone = federation.everyone()
    for command in everyone:
        command.terminate()
    for command in everyone:
        command.process.wait(LONG)
    assert left(started_in(federation.folder), LONG) == []
    assert nobody_listens(federation.port)
