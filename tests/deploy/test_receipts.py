"""The server keeps where each site's log stands; what was rejected, and how many rows there were, is in the log."""

import pytest

pytest.importorskip("flwr")

from equipoise.deploy.server.run import RECEIPTS, read_receipts, run_federation
from equipoise.deploy.site.messages import client_app
from equipoise.deploy.site.oversight import rejected
from equipoise.deploy.site.run import QUESTIONS, open_site
from equipoise.experiment import config
from equipoise.privacy import audit, identity, policy
from tests.deploy.grid import InProcess
from tests.deploy.test_federated_run import settings
from tests.deploy.test_secure_run import node
from tests.flower import silos
from tests.flower.silos import ROWS, SITES


def test_the_server_has_a_receipt_of_every_site_and_notices_a_log_that_was_deleted(tmp_path):
    own, homes, here = node(tmp_path), tmp_path / "homes", config.parse(settings(run={"rounds": 8}))
    silos.write(tmp_path / "silos")
    deleted = []
    for site in SITES:
        policy.trial(homes / site)

    def fault(message, reply):
        if message.content.get("at", {}).get("round") == 5 and place.site(message) == "north" and not deleted:
            deleted.extend([audit.FILE, audit.HEAD])
            for name in deleted:
                (homes / "north" / name).unlink()
        return reply

    app = client_app(open_site, questions=QUESTIONS, rejected=rejected)
    place = InProcess(
        app, SITES, fault, lambda site: {"folder": str(homes / site), **own(site)}, {"settings": here.toml()}
    )
    done = run_federation(here, tmp_path / "run", place)
    assert [e for e in done.outcome.events if "the log of 'north' has gone back" in e]
    receipts = read_receipts(tmp_path / "run" / RECEIPTS)
    assert receipts.keys() == {*SITES}
    signer = identity.signer(tmp_path / "keys" / "sites" / "south")
    chain = audit.verify(homes / "south", signer.check, receipts["south"])
    replied = [e for e in chain.entries if e["answer"] == "replied"]
    assert all(e["rows"]["train"] + e["rows"]["test"] == ROWS["south"] for e in replied)

    place.run_config["settings"] = "nonsense = ["
    message = next(m for m in place.asked if m.metadata.message_type == "query.statistics")
    assert "failed" in place.app(message, place.contexts[message.metadata.dst_node_id]).content
    site = place.site(message)
    last = audit.verify(homes / site, identity.signer(tmp_path / "keys" / "sites" / site).check).entries[-1]
    assert (last["kind"], last["answer"]) == ("statistics", "rejected")
