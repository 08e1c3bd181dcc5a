"""A server that asks for more than it may, in the middle of a run: every site says no, writes it down, and goes on."""

import threading

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from equipoise import artifact
from equipoise.deploy.server.run import run_federation
from equipoise.errors import EquipoiseError
from equipoise.experiment import config, records, run
from equipoise.privacy import accounting, audit, policy
from tests.deploy.test_federated_run import both, grid, settings
from tests.deploy.test_secure_run import node, told
from tests.flower import silos
from tests.flower.silos import SITES

NORTH = "north"


def question(step, header, **more):
    return RecordDict({"question": ConfigRecord({"step": step, **header, **more})})


class Asking:
    """Sends a site what no honest server would, and keeps what it said beside the log of the site."""

    def __init__(self, place, home):
        self.place, self.home, self.said, self.turn = place, home, {}, threading.RLock()

    def ask(self, name, message, content, kind):
        odd = Message(content, message.metadata.dst_node_id, kind)
        odd.metadata.__dict__["_message_id"] = "1"
        before = len(audit.verify(self.home).entries)
        answer = self.place.app(odd, self.place.contexts[message.metadata.dst_node_id]).content
        assert set(answer) == {"refused"}, (name, answer)
        meanwhile = audit.verify(self.home).entries[before:]  # an honest question may have been answered as well
        assert [e["why"] for e in meanwhile if e["answer"] == "refused"] == [answer["refused"]["text"]]
        self.said[name] = answer["refused"]["text"]


def test_shares_openings_and_cohorts_of_one_are_refused_and_logged_and_the_run_goes_on(tmp_path):
    """Both shares of a site, a second opening, a sum over one: asked between the messages of an honest run."""
    asking = Asking(None, tmp_path / "homes" / NORTH)

    def fault(message, reply):
        with asking.turn:  # evaluation goes out beside the next exchange
            return between(message, reply)

    def between(message, reply):
        if asking.place is None or asking.place.site(message) != NORTH:
            return reply
        content, query = message.content, "query.secure"
        if "mask" in content and "both" not in asking.said:  # north has answered, and nobody has opened the sum
            at, mask = content["at"], content["mask"]
            header = {"run": at["run"], "batch": mask["batch"], "exchange": mask["exchange"]}
            everybody, others = list(SITES), [name for name in SITES if name != NORTH]
            both_shares = question("open", header, answered=everybody, missing=["south"])
            asking.ask("both", message, both_shares, query)
            asking.ask("one", message, question("open", header, answered=[NORTH], missing=others), query)
            batch = {"run": at["run"], "batch": "alone"}
            asking.ask("alone", message, question("keys", batch, members=[NORTH], threshold=1, count=1), query)
            asking.ask("answered again", message, content, "train.exchange")
            plain = RecordDict({"at": at, "message": content["message"]})
            asking.ask("without masks", message, plain, "train.exchange")
        opened = content.get("question")
        if opened is not None and opened.get("step") == "open" and "again" not in asking.said:
            asking.ask("again", message, content, query)  # just answered
            more = RecordDict({"question": ConfigRecord({**opened, "answered": list(SITES), "missing": []})})
            asking.ask("again, another set", message, more, query)
        return reply

    data = silos.write(tmp_path / "silos")
    own, here = node(tmp_path), config.parse(told())
    asking.place = grid(here, data, tmp_path / "homes", node=own, fault=fault)
    over = run_federation(here, tmp_path / "flower", asking.place)
    assert asking.said["both"] == "both shares of 'south' were asked for"
    assert "opens sums over at least 3 sites, and this one is over 1" in asking.said["one"]
    assert "takes part in sums over 3 to 200 sites, and this one is over 1" in asking.said["alone"]
    assert "has been opened already" in asking.said["again"]
    assert "has been opened already" in asking.said["again, another set"]
    assert "answered already" in asking.said["answered again"]
    assert "was asked for a plain one" in asking.said["without masks"]

    # The run is the one that it would have been.
    assert over.outcome.events == ()

    local = run.run(config.parse({**told(), "data": {"silos": str(data)}}), tmp_path / "local")
    models = (ravel_pytree(artifact.load(r.path / records.MODEL).params)[0] for r in (over, local))
    np.testing.assert_allclose(*models, rtol=0, atol=1e-8)


@pytest.mark.thorough(witness="privacy/test_masked_sums.py::test_a_site_asks_for_more_company_if_its_policy_does")
def test_a_policy_that_gets_stricter_meanwhile_holds_at_once(tmp_path):
    """A site that asks for four sites from now on opens no more sums over three."""
    data, homes = silos.write(tmp_path / "silos"), tmp_path / "homes"
    own, here = node(tmp_path), config.parse(told(federation={"secure": True, "tries": 1, "exchange": 1.0}))

    def fault(message, reply):
        opened = message.content.get("question")
        if opened is not None and opened.get("step") == "open":
            for site in SITES:
                (homes / site / policy.FILE).write_text(f"{policy.TRIAL}least_cohort = 4\n")
        return reply

    with pytest.raises(EquipoiseError, match=r"helped to open their sum|could prepare a masked sum"):
        run_federation(here, tmp_path / "flower", grid(here, data, homes, node=own, fault=fault))
    why = [e["why"] for e in audit.verify(homes / NORTH).entries if e["answer"] == "refused"]
    assert why
    assert all("4 sites or more, not 3" in w or "at least 4 sites" in w for w in why)


@pytest.mark.thorough(
    witness="deploy/test_owners.py::test_without_a_file_a_site_asks_and_its_owner_is_told_how_many_rows_stand_behind"
)
def test_a_configuration_that_was_not_approved_is_refused_and_logged(tmp_path):
    """One setting differs from what was approved; no row is read, and the run ends with a sentence."""
    homes, data = tmp_path / "homes", silos.write(tmp_path / "silos")
    approved, other = (config.parse(settings(run={"rounds": r, "evaluate_every": 1})) for r in (1, 2))
    (homes / NORTH).mkdir(parents=True)
    digest = policy.digest_of(approved.toml())
    (homes / NORTH / policy.FILE).write_text(policy.TRIAL.replace("ask = false", f'approved = ["{digest}"]'))
    data_of_north = (data / f"{NORTH}.csv").rename(tmp_path / "away.csv")
    with pytest.raises(EquipoiseError, match=f"'{NORTH}' did not answer 'statistics': this configuration has not been"):
        run_federation(other, tmp_path / "other", grid(other, data, homes))
    entries = audit.verify(homes / NORTH).entries  # the server asks again while it waits for the owner
    assert entries
    for entry in entries:
        assert (entry["kind"], entry["answer"]) == ("statistics", "refused")
        assert entry["why"].startswith("this configuration has not been approved here")
        assert entry["plan"] == policy.digest_of(other.toml())
    data_of_north.rename(data / f"{NORTH}.csv")
    assert run_federation(approved, tmp_path / "run", grid(approved, data, homes)).outcome is not None


@pytest.mark.thorough(
    witness="privacy/test_differential_privacy.py::test_the_ledger_counts_every_reply_and_refuses_the_one_too_many"
)
def test_past_the_budget_is_refused_and_logged_and_the_others_go_on(tmp_path):
    """A server that repeats rounds, so that a run of three costs as much as six."""
    method = {"name": "fedavg", "steps": 1, "local_lr": 0.2, "rule": None}
    plan = settings(algorithm=method, run={"rounds": 3}, privacy={"epsilon": 2.0, "delta": 1e-5})
    plan["algorithm"] = {key: value for key, value in plan["algorithm"].items() if value is not None}
    homes, asked = tmp_path / "homes", []

    def fault(message, reply):
        at = message.content.get("at")
        if at is not None and at["part"] == "train" and place.site(message) == NORTH:
            asked.append(message)
        return reply

    data, here = silos.write(tmp_path / "silos"), config.parse(plan)
    place = grid(here, data, homes, fault=fault)
    done = run_federation(here, tmp_path / "flower", place)
    assert done.outcome is not None
    assert len(asked) == 3
    assert accounting.epsilon_of(accounting.spent(homes / NORTH)["mu2"] ** 0.5, 1e-5) == pytest.approx(2.0, rel=1e-6)
    asking = Asking(place, homes / NORTH)
    for k, message in enumerate(asked):  # the same messages again: each would be another release
        asking.ask(k, message, message.content, "train.exchange")
    assert set(asking.said.values()) == {
        "with this reply this run would have given away more than epsilon 2 at delta 1e-05"
    }
    assert accounting.spent(homes / NORTH)["replies"] == 3
    assert accounting.epsilon_of(accounting.spent(homes / "south")["mu2"] ** 0.5, 1e-5) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.thorough(
    witness="privacy/test_differential_privacy.py::test_every_local_step_is_a_release_with_noise_of_its_own"
)
def test_a_private_run_over_the_network_takes_more_local_steps(tmp_path):
    """SCAFF-PD with two: a loss and three gradients in every round are counted."""
    method = {"name": "scaffpd", "steps": 2, "local_lr": 0.1, "rule": {"sigma": 0.5, "theta": 0.0}}
    plan = settings(algorithm=method, run={"rounds": 2}, privacy={"epsilon": 3.0, "delta": 1e-5})
    over, _ = both(tmp_path, plan)
    assert over.outcome is not None
    found = accounting.spent(tmp_path / "homes" / NORTH)
    assert found["replies"] == 4
    assert accounting.epsilon_of(found["mu2"] ** 0.5, 1e-5) == pytest.approx(3.0, rel=1e-6)
