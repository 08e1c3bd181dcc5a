"""A name belongs to a key: who comes with another one is turned away and named; who lost its folder is taken back."""

import shutil

import pytest
from flwr.app import RecordDict

from equipoise.deploy.flower import FederationWarning, Timeouts, client_app
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.server.sites import ConnectedSites
from equipoise.deploy.site.run import AGREEMENTS
from equipoise.deploy.wire.transport import Door
from equipoise.experiment import config
from equipoise.privacy import policy
from tests.deploy.grid import InProcess
from tests.deploy.test_federated_run import QUESTIONS, grid, open_site, settings
from tests.flower import silos


def connected(names, nodes):
    """Sites "va" and "north" are expected; `names` are those of the nodes, `nodes` say whose keys they have."""
    found = ConnectedSites(
        InProcess(client_app(lambda context: None), names), ("va", "north"), Timeouts(hello=1.0, poll=0.001)
    )
    told = []
    found.observe = told.append
    found.transport.door = lambda: Door(nodes, found.seen)
    found.seen = {}
    return found, told


@pytest.mark.parametrize("order", [("va", "north", "va"), ("va", "va", "north")])
def test_a_node_with_another_key_is_turned_away_whoever_comes_first(order):
    true = order.index("north") + 1
    keys = {true: "north", 1 if order[1] == "north" else 2: "va"}
    false = ({1, 2, 3} - keys.keys()).pop()
    found, told = connected(order, {**keys, false: "eve"})
    with pytest.warns(FederationWarning, match="a node with the key of 'eve' says that it is 'va'; it is turned away"):
        found.look()
    assert found.nodes == {name: node for node, name in keys.items()}
    assert [(e.site, e.what) for e in found.events if e.what != "joined"] == [("va", "false name")]
    notices = [m for m in found.grid.asked if m.metadata.message_type == "query.notice"]
    assert [m.metadata.dst_node_id for m in notices] == [false]
    assert isinstance(notices[0].content, RecordDict)
    assert any(record.get("what") == "false name" for record in told)


def test_a_key_that_is_not_registered_has_no_name():
    found, _ = connected(("va",), {})
    with pytest.warns(FederationWarning, match="a node with a key that is not registered says that it is 'va'"):
        found.look()
    assert found.nodes == {}


def test_what_is_refused_at_the_port_is_told_and_does_not_fill_the_list():
    found, told = connected(("va",), None)
    for k in range(1, 6):
        found.seen = {"requests with an unknown key": 10 * k, "requests for what is not the sites' API": k}
        found.look()
    outside = [e for e in found.events if e.what == "outsider"]
    assert {(e.why, e.times) for e in outside} == {
        ("refused at the server's port: requests with an unknown key", 50),
        ("refused at the server's port: requests for what is not the sites' API", 5),
    }
    assert len(outside) == 2
    assert [record["refused"] for record in told if record["kind"] == "refused"][-1] == found.seen


def test_a_site_that_lost_its_folder_is_taken_back_without_a_restart(tmp_path):
    """Its process is another one, its folder gone: it refuses once, is told the agreement again, and goes on."""
    told = config.parse(settings())
    homes, lost = tmp_path / "homes", []

    def fault(message, reply):
        here = message.metadata.message_type == "train.exchange" and over.site(message) == "north"
        if here and message.content["at"]["round"] == 1 and not lost:
            lost.append(message)
            shutil.rmtree(homes / "north")
            policy.trial(homes / "north")
            over.app = client_app(open_site, questions=QUESTIONS)
        return reply

    over = grid(told, silos.write(tmp_path / "silos"), homes, fault=fault)
    done = run_federation(told, tmp_path / "run", over)
    refused = [event for event in done.outcome.events if "has not been told the agreement" in event]
    assert len(refused) == 1, done.outcome.events
    assert lost
    assert [*(homes / "north" / AGREEMENTS).glob("*.json")]
    assert None not in done.rows[-1].loss  # all are heard again
