"""A site that poisons: replies out of all proportion are left out, their site is named, and the run goes on."""

import json

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from equipoise.data.silos.statistics import Column, Statistics
from equipoise.deploy import flower
from equipoise.deploy.flower import Demands, GivenUp
from equipoise.deploy.server.lengths import Bounded, Heard, lengths
from equipoise.deploy.server.reach_agreement import _check_alike, _check_baselines, _statistics_of
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.run import SiteStatistics
from equipoise.deploy.wire.messages import pack, unpack
from equipoise.errors import InputError
from equipoise.experiment import config, records
from equipoise.protocol import Reply, weighted
from tests.deploy.setting import federate, serve
from tests.deploy.test_faults import KEY, build, only, replies, run, sent, simulated, whats
from tests.deploy.test_federated_run import grid, settings
from tests.deploy.test_secure_run import node, told
from tests.flower import silos
from tests.problems import assert_same, few

ROUNDS = 4


def poisoned(algorithm, exchange, change):
    """A fault: the reply of an exchange as `change` makes it."""
    like = replies(algorithm)[exchange]
    return sent(lambda record: pack(change(unpack(record, like))))


def gradient(size):
    return lambda reply: reply._replace(each=reply.each._replace(gradient=np.full_like(reply.each.gradient, size)))


def loss(size):
    return lambda reply: reply._replace(each=reply.each._replace(loss=np.float64(size)))


def update(factor):
    return lambda reply: reply._replace(total=reply.total._replace(value=factor * reply.total.value))


def no_weight(reply):
    return reply._replace(total=reply.total._replace(weight=np.float64(0)))


def great_weight(reply):
    return reply._replace(total=jax.tree.map(lambda a: 100 * a, reply.total))  # the update per weight is honest


ATTACKS = {
    "a gradient of 1e150": ("collect", gradient(1e150), (0, 1), "its gradient is"),
    "a loss of 1e30": ("collect", loss(1e30), (0, 1), "its loss is"),
    "an update a million times too long": ("improve", update(1e6), (1,), "its update is more than 10000 times"),
    "an update of no weight": ("improve", no_weight, (1,), "its weight is not the one that it was given"),
    "a weight that it was not given": ("improve", great_weight, (1,), "its weight is not the one that it was given"),
}


@pytest.mark.parametrize("first", few([2], [0, 2], "::test_a_poisoned_reply_is_lost_and_its_site_named"))
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_poisoned_reply_is_lost_and_its_site_named(attack, first, tmp_path):
    """From the first round on, or after honest ones: the run is the one that lost these replies."""
    exchange, change, lost, why = ATTACKS[attack]
    algorithm, rounds = build("scaffpd"), range(first, ROUNDS)
    outcome = run(algorithm, tmp_path, only("e", rounds, exchange)(poisoned(algorithm, exchange, change)))
    expected = simulated(algorithm, 4, lost_in=tuple(rounds), exchanges=lost)
    assert_same(outcome.result.server, expected.server)
    assert {what for _, _, what in whats(outcome, "e")} == {"broken"}
    assert outcome.result.tally.broken.tolist() == [0, 0, 0, 0, ROUNDS - first]
    assert all(why in e.why for e in outcome.ledger.events if e.site == "e" and e.what == "broken")
    assert not [e for e in outcome.ledger.events if e.what == "broken" and e.site != "e"]


def test_a_poison_that_grows_slowly_ends_at_the_bound(tmp_path):
    algorithm, factors = build("scaffpd"), iter([50.0**k for k in range(10)])
    fault = only("e", range(10), "improve")(poisoned(algorithm, "improve", lambda reply: update(next(factors))(reply)))
    outcome = run(algorithm, tmp_path, fault, rounds=5)
    assert outcome.result.tally.broken[4] >= 2  # 125,000 and 6,250,000 times, whatever came before
    assert np.abs(outcome.result.server.x).max() < 1e6


def test_what_is_usual_survives_a_restart(tmp_path):
    """5000 times what the site ever sent: noticed only by who remembers."""
    algorithm = build("scaffpd")
    fault = only("e", (2, 3), "improve")(poisoned(algorithm, "improve", update(5e3)))
    first = run(algorithm, tmp_path, rounds=2)
    saved = flower.ledger(json.loads(json.dumps(first.ledger.to_json())))
    federation = federate(algorithm, tmp_path, fault=fault)
    fault.grid = federation.grid
    done = serve(algorithm, federation, KEY, rounds=4, resume=flower.Outcome(first.result, saved))
    assert done.result.tally.broken.tolist() == [0, 0, 0, 0, 2]
    assert_same(done.result.server, simulated(algorithm, 4, lost_in=(2, 3), exchanges=(1,)).server)
    without = flower.ledger(
        {k: v for k, v in first.ledger.to_json().items() if k != "lengths"}
    )  # of an earlier version
    assert without.lengths == {}


def test_without_a_bound_all_is_believed(tmp_path):
    algorithm = build("scaffpd")
    fault = only("e", (1,), "improve")(poisoned(algorithm, "improve", update(1e6)))
    trusting = run(algorithm, tmp_path, fault, demands=Demands(least=0, heavy=1.0, bound=None))
    assert trusting.result.tally.broken.tolist() == [0] * 5
    assert not np.allclose(trusting.result.server.x, simulated(algorithm).server.x, rtol=1e-2)


@pytest.mark.thorough(witness="::test_a_poisoned_reply_is_lost_and_its_site_named")
def test_a_run_that_needs_the_poisoner_stops_names_it_and_resumes_without_it(tmp_path):
    """The configured run: its checkpoint is the last good one, and the report blames the right site."""
    data = silos.write(tmp_path / "silos")
    here = config.parse(settings(federation={"least": 3, "tries": 2}))

    def fault(message, reply):
        at = message.content.get("at", {"round": -1, "exchange": ""})
        if place.site(message) != "north" or at["round"] < 1 or at["exchange"] != "collect":
            return reply
        record = reply.content["reply"]
        name = next(name for name in record if "gradient" in name)
        old = record[name]
        far = pack({"a": np.full(old.shape, 1e150)})
        record[name] = type(old)(old.dtype, old.shape, old.stype, next(iter(far.values())).data)
        return Message(RecordDict({"reply": record}), reply_to=message)

    place = grid(here, data, tmp_path / "homes", fault=fault)
    with pytest.raises(GivenUp, match=r"equipoise flower server --without north .*'north' was left out: its gradient"):
        run_federation(here, tmp_path / "run", place)
    with pytest.raises(InputError, match="west cannot be left out"):
        run_federation(here, tmp_path / "run", place, without=("west",))
    done = run_federation(here, tmp_path / "run", place, without=("north",))
    assert records.finished(tmp_path / "run")
    said = [e for e in done.outcome.events if "'north'" in e]
    assert any("sent a reply that was left out: its gradient is" in e for e in said)
    assert any("'north' is left out of this run by its operator" in e for e in said)
    assert not [e for e in done.outcome.events if "'east'" in e or "'south'" in e]
    assert done.rows[-1].answered == (9, 9)  # three, then two in every round
    assert None not in [done.rows[-1].loss[k] for k in (0, 2)]


def test_a_masked_sum_out_of_all_proportion_stops_the_run_before_its_checkpoint(tmp_path, monkeypatch):
    """Nobody sees whose reply it was; no round is counted with it."""
    from equipoise.deploy.wire import secure as sums

    data, here = silos.write(tmp_path / "silos"), config.parse(told(federation={"secure": True, "tries": 2}))
    honest = sums.masked

    def lying(secure, spec, at, content, reply, weights):
        if secure.masks.name == "north" and at.part == "train" and at.round == 2 and spec.exchange.name == "improve":
            reply = reply._replace(total=reply.total._replace(value=np.full_like(reply.total.value, 2.0**19)))
        return honest(secure, spec, at, content, reply, weights)

    monkeypatch.setattr("equipoise.deploy.site.messages.masked", lying)
    place = grid(here, data, tmp_path / "homes", node=node(tmp_path))
    with pytest.raises(GivenUp, match=r"the sum of update is more than 10000 times what it usually is .*leave"):
        run_federation(here, tmp_path / "run", place)
    monkeypatch.undo()
    done = run_federation(here, tmp_path / "run", place)
    assert done.rows[-1].round == 4
    assert all(np.isfinite(row.objective) for row in done.rows)


def test_a_curvature_out_of_all_proportion_is_refused():
    here = config.parse(settings())
    _check_alike(here, {"east": 1.0, "north": 300.0, "south": 0.1})
    with pytest.raises(InputError, match=r"'north' measured a curvature of 1e[+]150, 5e[+]149 times the median"):
        _check_alike(here, {"east": 1.0, "north": 1e150, "south": 2.0})


def test_a_baseline_out_of_all_proportion_is_refused():
    """Below zero it would be a gain that takes all of the weight."""
    here = config.parse(settings())
    _check_baselines(here, {"east": 0.7, "north": 0.0, "south": 0.6})
    for lie in (-1e-3, 1e5):
        with pytest.raises(InputError, match="'north' told a loss of"):
            _check_baselines(here, {"east": 0.7, "north": lie, "south": 0.6})


def test_statistics_of_more_rows_than_there_are_are_refused():
    """A column is standardised over all sites by how many numbers each has."""
    age = Column("age", "number", n=90, m2=1.0)
    honest = Statistics("north", 90, Column("label", "text"), (age,))
    _statistics_of("north", SiteStatistics(statistics=honest.to_json(), train=90, test=0))
    for lie in (honest._replace(columns=(age._replace(n=2**52),)), honest._replace(rows=2**40)):
        with pytest.raises(InputError, match="'north' told of 90 rows and of"):
            _statistics_of("north", SiteStatistics(statistics=lie.to_json(), train=90, test=0))


def test_who_passes_early_passes_in_the_end_whoever_comes_first():
    """Five are asked and two lie: whatever the order, honest ones count and liars do not."""
    honest = Reply(each={"gradient": np.ones(3)})
    lie = Reply(each={"gradient": np.full(3, 1e9)})
    for order in ([lie, lie, honest, honest, honest], [honest, lie, honest, lie, honest], [honest] * 3 + [lie] * 2):
        heard, early = Heard(Bounded(100.0), "collect", 5), set()
        for slot, reply in enumerate(order):
            heard.add(slot, "abcde"[slot], reply)
            early |= {s for s in range(slot + 1) if not heard.why_not(s)}
        passed = {s for s in range(5) if not heard.why_not(s, complete=True)}
        assert early <= passed == {s for s in range(5) if order[s] is honest}


def test_lengths_are_per_weight_and_do_not_overflow():
    found = dict(lengths(Reply(total=weighted(np.float64(0.5), np.array([3.0, 4.0])), each={"loss": np.float64(-2)})))
    assert {name: length.value for name, length in found.items()} == {"weight": 0.5, "update": 5.0, "loss": 2.0}
    (found,) = lengths(Reply(each={"gradient": np.array([3e200, 4e200])}))
    assert found[1].value == pytest.approx(5e200)


def test_a_model_that_is_infinite_is_in_no_checkpoint(tmp_path):
    """Steps that are far too long: the run is given up with the last finite model in hand."""
    honest, saved, asked = build("scaffpd"), [], iter(range(100))
    algorithm = honest._replace(model=lambda server: server.x if next(asked) < 2 else server.x + np.inf)
    with pytest.raises(GivenUp, match="the model is not finite any longer"):
        run(algorithm, tmp_path, callback=saved.append)
    assert [o.rounds for o in saved] == [1, 2]


def test_where_most_replies_are_broken_no_site_is_blamed(tmp_path):
    algorithm = build("scaffpd")
    spoilt = poisoned(algorithm, "collect", gradient(np.nan))
    with pytest.raises(GivenUp, match="the model of the last checkpoint may be spoilt: start over, with shorter steps"):
        run(algorithm, tmp_path, lambda m, r: spoilt(m, r) if "reply" in r.content else r, demands=Demands())
