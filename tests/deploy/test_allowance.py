"""A run that floods: more rounds, questions, runs or bytes than were approved, other runs' agreements, other code."""

import sys

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site import messages, oversight
from equipoise.deploy.site.messages import forget_old
from equipoise.deploy.site.run import AGREEMENTS
from equipoise.deploy.wire import warm
from equipoise.errors import Refusal
from equipoise.experiment import config
from equipoise.privacy import audit, policy
from tests.deploy.test_federated_run import grid, settings
from tests.flower import silos

NORTH = "north"


class Run:
    """An honest run that has ended; the server may then ask what it likes."""

    def __init__(self, tmp_path, more="", **sections):
        self.here, self.home = config.parse(settings(run={"rounds": 2}, **sections)), tmp_path / "homes" / NORTH
        self.home.mkdir(parents=True)
        (self.home / policy.FILE).write_text(policy.TRIAL.replace("\nruns = 1000000\n", "\n") + more)
        for site in ("east", "south"):
            policy.trial(tmp_path / "homes" / site)
        self.asked = []

        def fault(message, reply):
            if self.place.site(message) == NORTH:
                self.asked.append((message, reply))
            return reply

        self.place = grid(self.here, silos.write(tmp_path / "silos"), tmp_path / "homes", fault=fault)

    def first(self, kind, **at):
        """The first message of a kind that was answered."""
        for message, _ in self.asked:
            found = message.content.get("at", {})
            if message.metadata.message_type.endswith(kind) and at.items() <= dict(found).items():
                return message
        raise AssertionError(kind)

    def ask(self, message, content=None, **at):
        """What the site says to a message, with another address."""
        content = content or RecordDict({"at": ConfigRecord({**message.content["at"], **at})})
        for name in ("message", "question", "mask"):
            if name in message.content and name not in content:
                content[name] = message.content[name]
        odd = Message(content, message.metadata.dst_node_id, message.metadata.message_type)
        odd.metadata.__dict__["_message_id"] = "1"
        return self.place.app(odd, self.place.contexts[message.metadata.dst_node_id]).content

    def refused(self, *args, **at):
        answer = self.ask(*args, **at)
        assert set(answer) == {"refused"}, answer
        assert audit.verify(self.home).entries[-1]["why"] == answer["refused"]["text"]
        return answer["refused"]["text"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    run = Run(folder)
    run_federation(run.here, folder / "run", run.place)
    return run


def test_a_round_that_the_run_does_not_have_is_refused_and_logged(ended):
    message = ended.first("exchange", part="train", exchange="collect")
    assert ended.refused(message, round=10**9, attempt=10**15) == "round 1000000001 was asked for, of 2"
    assert "of 1" in ended.refused(ended.first("exchange", part="evaluate"), round=1)


def test_an_invented_run_gets_nothing(ended):
    """It was never agreed on; sixty of them are not even asked about after the twentieth."""
    message = ended.first("exchange", part="train", exchange="collect")
    said = [ended.refused(message, run=f"invented-{k}", attempt=10**15) for k in range(60)]
    assert "has not been told the agreement" in said[0]
    assert all("has taken part in 20 runs of this configuration" in why for why in said[20:])


def test_the_same_exchange_is_not_answered_for_ever(ended):
    message = ended.first("exchange", part="evaluate")
    said = [ended.ask(message) for _ in range(40)]
    most = 3 * 2 + 20  # tries times rounds, and restarts
    assert sum("reply" in answer for answer in said) < most
    assert f"'evaluate evaluate' {most} times in this run" in said[-1]["refused"]["text"]


@pytest.mark.thorough(witness="::test_an_invented_run_gets_nothing")
def test_another_runs_agreement_leaves_this_one_alone(tmp_path):
    """In the middle of a run, a foreign one is agreed on with the same site: both go on, each from its own."""
    run, done = Run(tmp_path), []
    inner = run.place.fault

    def fault(message, reply):
        at = message.content.get("at", {})
        if run.place.site(message) == NORTH and at.get("exchange") == "improve" and at["round"] == 0 and not done:
            done.append(message)
            told = run.first("agreement")
            foreign = told.content["question"]["text"].replace('"run":"', '"run":"foreign-', 1)
            foreign = foreign.replace('"train":[', '"train":[1', 1)  # of other sizes: what would not fit here
            answer = run.ask(told, RecordDict({"question": ConfigRecord({"text": foreign})}))
            assert "answer" in answer, answer
        return inner(message, reply)

    run.place.fault = fault
    over = run_federation(run.here, tmp_path / "run", run.place)
    assert done
    assert over.outcome.events == ()
    assert len([*(run.home / AGREEMENTS).glob("*.json")]) == 2


def test_statistics_are_not_asked_for_ever(ended, monkeypatch):
    """In each of the 20 runs that are approved, as often as a server may be started again: 20 times; here, once."""
    monkeypatch.setattr(oversight, "RESTARTS", 1)
    message = ended.first("statistics")
    content = RecordDict({"question": message.content["question"]})
    answers = [ended.ask(message, content) for _ in range(20)]
    assert ["refused" in answer for answer in answers] == [False] * 19 + [True]  # one was asked before
    assert "'statistics' 20 times, which is all that is approved" in ended.refused(message, content)


def test_bytes_and_rounds_of_the_policy(ended, tmp_path):
    """So many that the first round, and no other, fits."""
    sizes = [e["bytes"] for e in audit.verify(ended.home).entries if e["answer"] == "replied"]
    most = sum(sizes[: [e["kind"] for e in audit.verify(ended.home).entries].index("exchange") + 2])
    run = Run(tmp_path / "bytes", f"bytes = {most}\n")
    over = run_federation(run.here, tmp_path / "run", run.place)
    refused = [event for event in over.outcome.events if f"more than {most} bytes for this configuration" in event]
    assert refused
    assert all("'north' refused" in event for event in refused)
    rules, plan = (
        policy.Policy(rounds=5, ask=False),
        policy.Plan("a" * 64, "fedavg", 3, False, False, "y", None, None, None),
    )
    policy.check(rules, plan._replace(rounds=5), set())
    with pytest.raises(Refusal, match="runs of 5 rounds at most, not 6"):
        policy.check(rules, plan._replace(rounds=6), set())


def test_what_a_site_remembers_of_runs_is_bounded(tmp_path):
    for k in range(3 * messages.RUNS):
        (tmp_path / f"train-{k}.safetensors").write_bytes(b"")
        forget_old(tmp_path.glob("train-*.safetensors"))
    assert len([*tmp_path.iterdir()]) == messages.RUNS
    assert (tmp_path / f"train-{3 * messages.RUNS - 1}.safetensors").exists()


@pytest.mark.parametrize("named", ["antigravity:x", "os:system", "equipoise.deploy.server.run:server", None])
def test_no_module_is_imported_because_a_server_names_it(named, tmp_path):
    sys.modules.pop("antigravity", None)
    with pytest.raises(Refusal, match="which this site does not run"):
        warm.check_module(tmp_path, {}, named)
    assert "antigravity" not in sys.modules
    (entry,) = audit.verify(tmp_path).entries
    assert (entry["kind"], entry["answer"]) == ("module", "refused")


def test_a_module_that_the_owner_allows_is_taken(tmp_path):
    warm.check_module(tmp_path, {}, warm.OWN_APP)
    (tmp_path / "mine.toml").write_text('modules = ["ours:app"]\n')
    warm.check_module(tmp_path, {"policy": str(tmp_path / "mine.toml")}, "ours:app")
    with pytest.raises(Refusal):
        warm.check_module(tmp_path, {}, "ours:app")
