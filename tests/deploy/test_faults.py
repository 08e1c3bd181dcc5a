"""Things that go wrong, each with what must come of it; the reference is the simulator that loses the same replies."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

import equipoise as eq
from equipoise.deploy import flower
from equipoise.deploy.flower import Demands, FederationWarning, GivenUp, Timeouts
from equipoise.deploy.server import events
from equipoise.deploy.wire.messages import pack, unpack
from equipoise.errors import InputError, Stopped
from equipoise.protocol import wire
from tests import problems
from tests.deploy.grid import InProcess
from tests.deploy.setting import CALM, HASTY, SITES, app, federate, serve
from tests.problems import DIM, LOCAL, RULE, N, assert_identical, assert_same, few, first, start, unequal

KEY = jax.random.key(7)
build = functools.cache(problems.build)  # compiled once for all tests here
ROUNDS = 4


def replies(algorithm):
    return {w.exchange: w.reply for w in wire(algorithm, start(), algorithm.prepare(unequal().client(0)))}


def only(site, rounds=(1, 2), exchange=None):
    """A fault at one site, in some rounds."""

    def decorate(change):
        def fault(message, reply):
            if message.metadata.message_type != "train.exchange":
                return reply
            at = message.content["at"]
            here = fault.grid.site(message) == site and at["round"] in rounds
            return change(message, reply) if here and exchange in (None, at["exchange"]) else reply

        return fault

    return decorate


def run(algorithm, folder, fault=None, **how):
    federation = federate(algorithm, folder, fault=fault)
    if fault is not None:
        fault.grid = federation.grid
    federation.timeouts = federation.timeouts._replace(exchange=0.0)  # the grid answers at once or never
    return serve(algorithm, federation, KEY, **{"rounds": ROUNDS, **how})


@functools.cache
def simulated(algorithm, client=None, lost_in=(1, 2), exchanges=(0, 1, 2), **how):
    """Where the replies of one client get lost in some rounds."""

    def lost(round, exchange, ids):
        gone = jnp.isin(round, jnp.array(lost_in, jnp.int32)) & (exchange in exchanges)
        return gone & (jnp.asarray(ids) == client)

    how = {"rounds": ROUNDS, "clients_per_batch": N, "devices": 1, **how}
    return eq.simulate(algorithm, start(), unequal(), KEY, lost=None if client is None else lost, **how)


def whats(outcome, site):
    """What happened when; of what happened again and again, the first time and the last."""
    found = [e for e in outcome.ledger.events if e.site == site and e.what != "joined"]
    return [(r, e.exchange, e.what) for e in found for r in (e.round, e.last_round)[: e.times]]


def sent(change):
    """A reply with other arrays."""

    def fault(message, reply):
        record = reply.content["reply"]
        return Message(RecordDict({"reply": change(record)}), reply_to=message)

    return fault


def first_is(**fields):
    def change(record):
        name = next(iter(record))
        old = record[name]
        record[name] = Array(**{"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data} | fields)
        return record

    return sent(change)


def of_nan(record):
    for name, old in list(record.items()):
        record[name] = Array(old.dtype, old.shape, old.stype, np.full(old.shape, math.nan).tobytes())
    return record


def raising(message, reply):
    raise ZeroDivisionError("the sky is falling")


FAULTS = {
    "raises": (raising, "failed", 0),
    "loses its reply": (lambda message, reply: None, "late", 0),
    "sends NaN": (sent(of_nan), "broken", 1),
    "sends a wrong shape": (first_is(shape=(17,)), "broken", 1),
    "sends a wrong type": (first_is(dtype="int64"), "broken", 1),
    "sends half of it": (first_is(data=b"12"), "broken", 1),
    "sends other arrays": (sent(lambda record: pack({"what": np.ones(3)})), "broken", 1),
    "sends nothing": (lambda m, r: Message(RecordDict(), reply_to=m), "broken", 1),
    "sends no arrays": (lambda m, r: Message(RecordDict({"reply": ConfigRecord({"a": 1})}), reply_to=m), "broken", 1),
}


@pytest.mark.parametrize(
    ("name", "fault"),
    first(
        len(FAULTS) + 2,
        [
            *(("scaffold", fault) for fault in FAULTS),
            *(("scaffpd_secure", fault) for fault in sorted(FAULTS, key=["sends NaN", "raises"].count, reverse=True)),
        ],
        "::test_a_fault_is_a_lost_reply",
    ),
)
def test_a_fault_is_a_lost_reply(name, fault, tmp_path):
    """The site's state goes on from the last reply that counted, as if the faulty ones had never been computed."""
    change, what, broken = FAULTS[fault]
    algorithm = build(name)
    outcome = run(algorithm, tmp_path, only("b")(change))
    expected = simulated(algorithm, 1)
    assert_same(outcome.result.server, expected.server)
    faults = [(r, k, what) for r in (1, 2) for k in [e.name for e in algorithm.round][:1]]  # then it is asked no more
    assert whats(outcome, "b") == faults
    assert outcome.result.tally.broken.tolist() == [0, broken * len(faults), 0, 0, 0]
    assert_same(outcome.result.tally.answered, expected.tally.answered)


def test_a_reply_that_flower_has_lost_says_so_and_is_not_waited_for(tmp_path):
    """Its database may be locked, for example: then it says at once that there will be no reply."""
    algorithm = build("scaffold")

    @only("b")
    def gone(message, reply):
        return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "not in the database"), reply_to=message)

    federation = federate(algorithm, tmp_path, fault=gone)
    gone.grid, federation.timeouts = federation.grid, federation.timeouts._replace(exchange=600.0)
    outcome = serve(algorithm, federation, KEY, rounds=ROUNDS)
    assert_same(outcome.result.server, simulated(algorithm, 1).server)
    whys = {e.why for e in outcome.ledger.events if e.site == "b" and e.what == "late"}
    assert whys == {"Flower no longer has the message, or its reply"}


def test_what_happens_in_every_exchange_is_one_event_that_counts(tmp_path):
    """Every checkpoint holds all events: a site that is gone for good must not fill them."""
    algorithm = build("scaffpd")
    federation = federate(algorithm, tmp_path)
    federation.grid.stop("b")
    saved = []
    outcome = serve(algorithm, federation, KEY, rounds=5, callback=lambda now: saved.append(len(now.ledger.events)))
    gone = [e for e in outcome.ledger.events if e.site == "b" and e.what == "absent"]
    assert [(e.round, e.exchange, e.times, e.last_round) for e in gone] == [(0, "collect", 5, 4)]  # asked once a round
    assert saved == [saved[0]] * 5
    assert [*events.sentences_of(gone)] == [
        "'b' was not there: 'b' is not there (5 times from round 1, collect to round 5)"
    ]
    assert flower.ledger(outcome.ledger.to_json()) == outcome.ledger


def test_a_reply_lost_in_the_second_exchange(tmp_path):
    algorithm = build("scaffpd")
    outcome = run(algorithm, tmp_path, only("c", exchange="improve")(lambda message, reply: None))
    assert_same(outcome.result.server, simulated(algorithm, 2, exchanges=(1,)).server)
    assert whats(outcome, "c") == [(1, "improve", "late"), (2, "improve", "late")]


def test_a_site_that_raises_in_its_own_code_tells_only_the_kind(tmp_path, caplog):
    algorithm = build("fedavg")
    exchange = algorithm.round[0]

    def secretive(name):
        def job():
            if name == "d":
                raise ValueError("patient Smith, born 1950")
            return flower.Job(algorithm, start(), unequal().client(SITES.index(name)))

        return {"train": job}

    federation = flower.gather(InProcess(app(algorithm, tmp_path, jobs=secretive), SITES), sites=SITES, timeouts=HASTY)
    outcome = serve(algorithm, federation, KEY, rounds=1)
    (event,) = [e for e in outcome.ledger.events if e.what == "failed"]
    assert (event.site, event.exchange) == ("d", exchange.name)
    assert event.why == "ValueError; the log of 'd' says more"
    assert "Smith" not in json.dumps(outcome.ledger.to_json())
    assert "Smith" in caplog.text  # at the site


def test_a_huge_loss_is_bounded_by_the_defences_where_every_length_is_believed(tmp_path):
    """1e30 is a number; what it can do then is a matter of the cap and the clip, and the site is named."""
    dual = eq.objectives.chi2(N, 0.1)
    task, everyone = eq.tasks.ridge(DIM, 0.1), eq.cohorts.everyone(N)

    def scaffpd(dual):
        return eq.algorithms.scaffpd(task, dual, everyone, RULE, **LOCAL)

    like = replies(scaffpd(dual))["collect"]

    def huge(record):
        reply = unpack(record, like)
        return pack(reply._replace(each=reply.each._replace(loss=np.float64(1e30))))

    fault = only("b", rounds=range(ROUNDS), exchange="collect")(sent(huge))
    with pytest.warns(FederationWarning, match="'b' has 100% of the weight"):
        plain = run(scaffpd(dual), tmp_path / "1", fault, demands=Demands(heavy=0.8, bound=None))
    assert [e.what for e in plain.ledger.events if e.site == "b" and e.what == "heavy"] == ["heavy"]  # once
    assert plain.result.server.lam[1] == 1
    guarded = eq.algorithms.clip_losses(scaffpd(eq.objectives.cap_weights(dual, 0.3)), factor=3.0)
    outcome = run(guarded, tmp_path / "2", fault, demands=CALM._replace(bound=None))
    assert outcome.result.server.lam[1] == pytest.approx(0.3)
    assert np.isfinite(outcome.result.server.x).all()


def test_too_few_answers_repeat_the_round_from_its_beginning(tmp_path):
    """What clients computed in the failed attempt leaves no trace, neither here nor there."""
    algorithm, failed = build("scaffold"), []

    @only("b", rounds=(2,))
    def once(message, reply):
        if len(failed) < 1:
            failed.append(message)
            return None
        return reply

    outcome = run(algorithm, tmp_path, once, demands=Demands(least=N))
    expected = simulated(algorithm)
    assert_same(outcome.result.server, expected.server)
    assert_same(outcome.result.tally, expected.tally)
    assert [(e.round, e.what) for e in outcome.ledger.events if not e.site] == [(2, "repeated")]
    attempts = [m.content["at"]["attempt"] for m in exchange_messages(once, 2)]
    assert len(set(attempts)) == 2


def exchange_messages(fault, round):
    messages = [m for m in fault.grid.asked if m.metadata.message_type == "train.exchange"]
    return [m for m in messages if m.content["at"]["round"] == round]


@pytest.mark.parametrize(
    "name",
    few(
        ["scaffpd_ls"],
        ["scaffpd", "scaffpd_secure", "scaffpd_ls"],
        "::test_a_round_that_fails_late_goes_back_over_all_its_exchanges[scaffpd_ls]",
    ),
)
def test_a_round_that_fails_late_goes_back_over_all_its_exchanges(name, tmp_path):
    algorithm, failed = build(name), []

    @only("b", rounds=(1,), exchange="improve")
    def once(message, reply):
        failed.append(message)
        return None if len(failed) < 2 else reply

    outcome = run(algorithm, tmp_path, once, demands=Demands(least=N, heavy=1.0))
    assert_same(outcome.result.server, simulated(algorithm).server)
    assert_same(outcome.result.tally, simulated(algorithm).tally)
    assert len(failed) == 2


def test_given_up_in_the_end_with_everything_in_hand_and_resumed(tmp_path):
    algorithm, checkpoints = build("scaffold"), []
    federation = federate(algorithm, tmp_path)
    federation.timeouts = federation.timeouts._replace(exchange=0.0)
    broken = only("b", rounds=(2,))(lambda message, reply: None)
    broken.grid, federation.grid.fault = federation.grid, broken
    how = {"rounds": ROUNDS, "demands": Demands(least=N, tries=2), "record": algorithm.model}
    with pytest.raises(
        GivenUp, match=r"round 2, exchange 'train': 4 of 5 sites answered and 5 are needed, 2 times"
    ) as up:
        serve(algorithm, federation, KEY, callback=checkpoints.append, **how)
    outcome = up.value.outcome
    assert outcome.rounds == 2 == len(outcome.result.history) == len(checkpoints)
    assert_identical(outcome.result.server, checkpoints[-1].result.server)
    assert [e.what for e in outcome.ledger.events if not e.site] == ["repeated", "given up"]

    again = federate(algorithm, tmp_path)  # new nodes, a new server; the sites' files are what they were
    finished = serve(algorithm, again, KEY, resume=outcome, **how)
    expected = simulated(algorithm, record=algorithm.model)
    assert_same((finished.result.server, finished.result.history), (expected.server, expected.history))
    assert finished.ledger.run == outcome.ledger.run
    assert_same(finished.result.tally, expected.tally)


@pytest.mark.parametrize(
    "every", few([2], [1, 2, 3], "::test_a_server_that_was_killed_resumes_from_its_last_checkpoint")
)
@pytest.mark.parametrize(
    "stop",
    few(
        [(3, "improve")],
        [(2, "collect"), (3, "improve"), (4, "collect")],
        "::test_a_server_that_was_killed_resumes_from_its_last_checkpoint",
    ),
)
def test_a_server_that_was_killed_resumes_from_its_last_checkpoint(stop, every, tmp_path):
    """Through the checkpoint's JSON; the sites meanwhile have gone further and go back."""
    algorithm, checkpoints = build("scaffpd_ls"), []

    @only("c", rounds=(stop[0],), exchange=stop[1])
    def killing(message, reply):
        raise SystemExit

    federation = federate(algorithm, tmp_path)
    killing.grid, federation.grid.fault = federation.grid, killing
    with pytest.raises(SystemExit):
        serve(algorithm, federation, KEY, rounds=5, callback=checkpoints.append, every=every)
    last = checkpoints[-1] if checkpoints else None
    assert (last.rounds if last else 0) == stop[0] - stop[0] % every
    if last is not None:
        told = json.loads(json.dumps(last.ledger.to_json()))
        last = flower.Outcome(last.result, flower.ledger(told))
        assert last.ledger == checkpoints[-1].ledger
    outcome = serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=5, resume=last)
    assert_same(outcome.result.server, simulated(algorithm, rounds=5).server)


def test_ctrl_c_keeps_all_finished_rounds(tmp_path):
    algorithm = build("scaffold")

    def interrupt(message, reply):
        raise KeyboardInterrupt

    with pytest.raises(Stopped, match="stopped after 2 rounds") as stop:
        run(algorithm, tmp_path, only("c", rounds=(2,))(interrupt))
    outcome = serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=ROUNDS, resume=stop.value.result)
    assert_same(outcome.result.server, simulated(algorithm).server)


def test_a_site_that_leaves_and_comes_back_takes_its_place_again(tmp_path):
    """With a new node id, in a new process; its control variate comes from its own file."""
    algorithm = build("scaffold")
    federation = federate(algorithm, tmp_path)
    first = federation.grid.app

    def progress(done, rounds, last):
        if done == 1:
            federation.grid.stop("b")
        if done == 3:
            federation.grid.start("b")
            federation.grid.app = app(algorithm, tmp_path)  # nothing is left in memory

    outcome = serve(algorithm, federation, KEY, rounds=5, progress=progress)
    assert federation.grid.app is not first
    assert_same(outcome.result.server, simulated(algorithm, 1, lost_in=(1, 2), rounds=5).server)
    assert whats(outcome, "b") == [(1, "train", "absent"), (2, "train", "absent")]
    assert [e.round for e in outcome.ledger.events if e.site == "b" and e.what == "joined"] == [0, 3]


def test_a_site_without_its_file_is_refused_where_that_matters_and_only_there(tmp_path):
    for name, expected in (("scaffold", [(r, "train", "refused") for r in (2, 3)]), ("scaffpd", []), ("fedavg", [])):
        algorithm, folder = build(name), tmp_path / name
        federation = federate(algorithm, folder)

        def forget(done, rounds, last, folder=folder):
            if done == 2:
                for file in (folder / "b").glob("*"):
                    file.unlink()

        outcome = serve(algorithm, federation, KEY, rounds=ROUNDS, progress=forget)
        assert whats(outcome, "b") == expected
        lost = simulated(algorithm, 1, lost_in=(2, 3)) if expected else simulated(algorithm)
        assert_same(outcome.result.server, lost.server)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    algorithm = build("scaffold")

    def spoil(done, rounds, last):
        for file in (tmp_path / "b").glob("*"):
            file.write_bytes(b"nonsense")

    outcome = serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=2, progress=spoil)
    (event,) = [e for e in outcome.ledger.events if e.what == "refused"]
    assert (event.site, event.round) == ("b", 1)
    assert event.why.startswith("what this site remembered of the run cannot be read")


def test_a_stale_message_changes_nothing(tmp_path):
    """A straggler that wakes up with an old message refuses it, and its memory stays."""
    algorithm = build("scaffold")
    federation = federate(algorithm, tmp_path)
    serve(algorithm, federation, KEY, rounds=3, run="r")
    file = tmp_path / "b" / "train-r.safetensors"
    before = file.read_bytes()
    messages = [m for m in federation.grid.asked if m.metadata.message_type == "train.exchange"]
    old = next(m for m in messages if federation.grid.site(m) == "b")
    reply = federation.grid.app(old, federation.grid.contexts[old.metadata.dst_node_id])
    assert reply.content["refused"]["text"] == "this message came too late: a later one has been answered already"
    assert file.read_bytes() == before


def test_strangers_and_doubles_are_turned_away(tmp_path):
    algorithm = build("fedavg")
    federation = federate(algorithm, tmp_path)

    def progress(done, rounds, last):
        if done == 1:
            federation.grid.start("zebra")
            federation.grid.start("b")

    with pytest.warns(FederationWarning) as said:
        outcome = serve(algorithm, federation, KEY, rounds=3, progress=progress)
    assert sorted(str(w.message)[:30] for w in said) == [
        "'zebra' is not one of this run",
        "there is another node called '",
    ]
    assert [(e.site, e.what) for e in outcome.ledger.events if e.what in ("stranger", "double")] == [
        ("zebra", "stranger"),
        ("b", "double"),
    ]
    assert_same(outcome.result.server, simulated(algorithm, rounds=3).server)
    notices = [m for m in federation.grid.asked if m.metadata.message_type == "query.notice"]
    assert "it can join the next run" in notices[0].content["question"]["text"]


def test_gathering(tmp_path):
    application = app(build("fedavg"), tmp_path)
    with (
        pytest.warns(FederationWarning, match="another node called 'a'"),
        pytest.raises(InputError, match="another node"),
    ):
        flower.gather(InProcess(application, ["a", "a"]), sites=["a", "b"], timeouts=HASTY)
    with pytest.raises(InputError, match=r"1 sites came within 0.5 s \(a\) but the run is for 2"):
        flower.gather(InProcess(application, ["a"]), n=2, timeouts=HASTY)
    with pytest.warns(FederationWarning, match="'b' did not come within"):
        federation = flower.gather(InProcess(application, ["a"]), sites=["a", "b"], timeouts=HASTY)
    assert list(federation.nodes) == ["a"]
    named = flower.gather(InProcess(application, ["c", "a", "b"]), n=3, timeouts=HASTY)
    assert named.sites == ("a", "b", "c")
    grid = InProcess(application, ["a", None])
    federation = flower.gather(grid, n=1, timeouts=HASTY)
    federation.find(["z"])
    assert any("has no name" in e.why for e in federation.events)


def test_sites_and_server_with_other_settings_refuse_each_other(tmp_path):
    algorithm = build("fedavg")
    with pytest.raises(GivenUp) as up:
        serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=1, config="other", demands=Demands())
    whys = {e.why for e in up.value.outcome.ledger.events if e.what == "refused"}
    assert "'a' and the server do not run the same: give both the same settings, and the same version" in whys


class Flaky(InProcess):
    """A network that fails, now and then or whenever a reply of one site is read."""

    poisoned = None

    def pull_messages(self, message_ids):
        ids = list(message_ids)
        for i in ids:
            if i in self.replies and self.replies[i].metadata.src_node_id == self.poisoned:
                if len(ids) == 1:
                    del self.replies[i]
                raise ValueError("Unexpected set of `children`")
        return super().pull_messages(ids)


def test_a_reply_that_flower_cannot_read_does_not_take_the_others_with_it(tmp_path):
    algorithm = build("scaffold")
    grid = Flaky(app(algorithm, tmp_path), SITES)
    federation = flower.gather(grid, sites=SITES, timeouts=HASTY._replace(exchange=0.02))
    grid.poisoned = 2
    outcome = serve(algorithm, federation, KEY, rounds=2)
    assert_same(outcome.result.server, simulated(algorithm, 1, lost_in=(0, 1), rounds=2).server)
    assert {"network", "late"} <= {e.what for e in outcome.ledger.events}


def test_a_network_that_is_down_gives_up_instead_of_crashing(tmp_path):
    algorithm = build("scaffold")
    federation = federate(algorithm, tmp_path)

    def refuse(messages):
        raise ConnectionError("no route to host")

    federation.grid.push_messages = refuse
    with pytest.raises(GivenUp, match="0 of 5 sites answered"):
        serve(algorithm, federation, KEY, rounds=1, demands=Demands(tries=2))


class Slow(InProcess):
    """Replies of one site are there only at the second look."""

    slow, looks = 2, 0

    def pull_messages(self, message_ids):
        self.looks += 1
        held = {i: r for i, r in self.replies.items() if r.metadata.src_node_id == self.slow and self.looks % 5}
        for i in held:
            del self.replies[i]
        out = super().pull_messages(message_ids)
        self.replies |= held
        return out


def test_a_slow_site_is_waited_for_until_the_time_out(tmp_path):
    algorithm = build("scaffold")
    federation = flower.gather(Slow(app(algorithm, tmp_path / "1"), SITES), sites=SITES, timeouts=HASTY)
    patient = serve(algorithm, federation, KEY, rounds=2, timeouts={"train": 5.0})
    assert_same(patient.result.server, simulated(algorithm, rounds=2).server)
    federation = flower.gather(Slow(app(algorithm, tmp_path / "2"), SITES), sites=SITES, timeouts=HASTY)
    federation.grid.looks = 1
    federation.grid.slow = 2
    hasty = serve(algorithm, federation, KEY, rounds=2, timeouts={"train": 0.0})
    assert_same(hasty.result.server, simulated(algorithm, 1, lost_in=(0, 1), rounds=2).server)
    assert whats(hasty, "b") == [(0, "train", "late"), (1, "train", "absent")]  # nobody waits for it twice


def test_no_site_waits_for_ever():
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in Timeouts())
    assert CALM.tries == Demands().tries == 3
