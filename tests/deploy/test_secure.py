"""Masked sums over Flower's messages, in one process: the simulator's numbers, and no site's own in any message."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import equipoise as eq
from equipoise.deploy import flower
from equipoise.deploy.flower import Demands, GivenUp, SecureSite, SecureSums
from equipoise.deploy.site import messages as client
from equipoise.deploy.wire import secure
from equipoise.errors import StopRun
from equipoise.privacy import fixed_point
from equipoise.privacy.site_masks import Limits, SiteMasks
from tests import problems
from tests.deploy.grid import InProcess
from tests.deploy.setting import CALM, HASTY, SHARD, SITES
from tests.privacy.test_masked_sums import identities
from tests.problems import N, assert_same, start, unequal

KEY = jax.random.key(7)
ROUNDS = 4
SETTINGS = SecureSums()
ERROR = fixed_point.largest_error(N, SETTINGS.bound)
IDENTITIES = identities(SITES)
build = functools.cache(problems.build)
FREE = Limits(weight=1.0)  # small problems put much weight on one client
# All of them that ask no site twice.
SUMMED = ("agnostic_fedavg", "fedavg", "scaffold", "scaffpd_secure", "scaffpd_sums")


def federate(algorithm, folder, fault=None, who=IDENTITIES, secured=True, least=3, limits=FREE, counted=None):
    data = unequal()

    def open_site(context):
        name = flower.site_name(context)
        job = flower.Job(algorithm, start(), data.client(SITES.index(name)), counted=counted)
        own = SiteMasks(who[name], folder / name, lambda: least, lambda: limits)
        masks = SecureSite(own) if secured else None
        return flower.Participant(name, folder / name, {"train": lambda: job}, secure=masks)

    grid = InProcess(flower.client_app(open_site), SITES, fault)
    found = flower.gather(grid, sites=SITES, timeouts=HASTY._replace(exchange=0.0))  # at once, or never
    return found


def serve(algorithm, federation, *, secure=SETTINGS, rounds=ROUNDS, demands=CALM, **how):
    return flower.serve(
        algorithm, start(), federation, KEY, shard=SHARD, rounds=rounds, demands=demands, secure=secure, **how
    )


def by_simulator(algorithm, lost=None, rounds=ROUNDS):
    return eq.simulate(algorithm, start(), unequal(), KEY, rounds=rounds, lost=lost, clients_per_batch=N, devices=1)


def assert_near(found, expected, factor=1e4):
    """To the fixed-point error of the sums, which the rounds may magnify."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=factor * ERROR)


@pytest.mark.parametrize(
    "name", problems.few(("scaffold", "scaffpd_sums"), SUMMED, "::test_masked_as_in_the_simulator[scaffpd_sums]")
)
def test_masked_as_in_the_simulator(name, tmp_path):
    algorithm = build(name)
    outcome = serve(algorithm, federate(algorithm, tmp_path))
    expected = by_simulator(algorithm)
    assert_near(algorithm.model(outcome.result.server), algorithm.model(expected.server))
    assert_same(outcome.result.tally, expected.tally)
    assert {e.what for e in outcome.ledger.events} == {"joined"}


def test_cohorts_that_change_are_prepared_anew(tmp_path):
    algorithm = build("fedavg", m=3)
    outcome = serve(algorithm, federate(algorithm, tmp_path))
    assert_near(outcome.result.server, by_simulator(algorithm).server)


def numbers_of(reply):
    return [a for leaf in jax.tree.leaves(reply) for a in np.asarray(leaf, np.float64).ravel() if a not in (0.0, 1.0)]


def test_sites_lost_at_different_stages_and_no_number_of_a_site_in_any_message(tmp_path, monkeypatch):
    """One is gone before it answers, another after that, when the sum is to be opened: as in the simulator."""
    algorithm, seen, totals = build("scaffpd_sums"), [], []

    def fault(message, reply):
        seen.append(message.content)
        site, at = federation.grid.site(message), message.content.get("at")
        if at is not None and (at["round"], at["exchange"], site) == (1, "collect", "b"):
            federation.grid.stop("b")
            return None
        question = message.content.get("question")
        if question is not None and question.get("step") == "open" and site == "d" and fault.opened >= 15:
            federation.grid.stop("d")
            return None
        fault.opened += question is not None and question.get("step") == "open"
        seen.append(reply.content)
        return reply

    fault.opened = 0
    real = client.masked

    def watched(secure, spec, at, content, reply, weights):
        totals.append((secure.masks.name, at.round, at.exchange, reply.total))
        return real(secure, spec, at, content, reply, weights)

    monkeypatch.setattr(client, "masked", watched)
    federation = federate(algorithm, tmp_path)
    federation.grid.fault = fault
    outcome = serve(algorithm, federation)

    answered = {(round, exchange): [] for _, round, exchange, _ in totals}
    for site, round, exchange, _ in totals:
        answered[round, exchange].append(site)
    assert "b" not in answered[1, "improve"]
    assert "d" in answered[1, "improve"]  # it answered, and then could not help to open the sum
    assert "d" not in answered[2, "collect"]

    def lost(round, exchange, ids):
        ids = jnp.asarray(ids)
        return ((ids == 1) & (round >= 1)) | ((ids == 3) & (round >= 2))

    expected = by_simulator(algorithm, lost)
    assert_near(outcome.result.server.x, expected.server.x)

    # Everything that crossed, as bytes; of every number of every total both its own and its encoded ones.
    crossed = b"".join(part.deflate() for content in seen for record in content.values() for part in flat(record))
    assert len(totals) > 20
    assert len(crossed) > 10_000
    probes = 0
    for site, _, _, total in totals:
        for number in numbers_of(total):
            whole = np.rint(np.ldexp(number, fixed_point.fraction_bits(N, SETTINGS.bound))).astype(np.int64)
            for raw in (np.float64(number).tobytes(), np.float32(number).tobytes(), whole.tobytes()):
                assert raw not in crossed, (site, number)
            probes += 1
    assert probes > 100
    # The test would find them: what the server does learn, the model, is there.
    assert np.asarray(start())[:1].tobytes() in crossed


def flat(record):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return get_all_nested_objects(record).values()


def told(outcome, what):
    return [e.why for e in outcome.ledger.events if e.what == what]


def test_a_server_that_leaves_the_masks_out_is_refused(tmp_path):
    algorithm = build("fedavg")
    with pytest.raises(GivenUp) as up:
        serve(algorithm, federate(algorithm, tmp_path), secure=None, demands=CALM._replace(least=1, tries=1))
    assert told(up.value.outcome, "refused") == ["this site sends totals masked, and was asked for a plain one"] * N


def test_a_site_without_masks_is_left_out_and_the_others_go_on(tmp_path):
    algorithm = build("fedavg")
    federation = federate(algorithm, tmp_path, secured=False)
    with pytest.raises(GivenUp, match="fewer than 3 sites could prepare a masked sum"):
        serve(algorithm, federation, demands=CALM._replace(tries=1))


def test_with_a_site_whose_key_is_another_no_sum_begins(tmp_path):
    """Whoever put that key there, the server perhaps: the others say whose it is, and nothing is sent."""
    algorithm = build("fedavg")
    federation = federate(algorithm, tmp_path, who={**IDENTITIES, "c": identities(SITES)["c"]})
    with pytest.raises(GivenUp, match="fewer than 3 sites could prepare a masked sum") as up:
        serve(algorithm, federation, demands=CALM._replace(tries=1))
    assert told(up.value.outcome, "refused").count("what is said to be of 'c' is not signed by its key") == 4


def test_two_sites_are_no_company(tmp_path):
    algorithm = build("fedavg")
    federation = federate(algorithm, tmp_path)
    for site in "abc":
        federation.grid.stop(site)
    with pytest.raises(GivenUp, match="fewer than 3 sites could prepare a masked sum"):
        serve(algorithm, federation, demands=Demands(least=1, tries=1, heavy=1.0))


def test_a_total_beyond_the_bound_costs_the_reply(tmp_path):
    """Large numbers are refused by the site, not wrapped around."""
    algorithm = build("fedavg")

    def work(message, mine, data, key):
        mine, reply = algorithm.round[0].work(message, mine, data, key)
        huge = jnp.where(data.sizes == 3, 1e9, 1.0)  # of the site 'b'
        return mine, jax.tree.map(lambda a: a * huge, reply)

    broken = algorithm._replace(round=(algorithm.round[0]._replace(work=work),))
    outcome = serve(broken, federate(broken, tmp_path), rounds=1)
    assert [e.site for e in outcome.ledger.events if e.what == "refused"] == ["b"]
    assert "beyond 1.04858e+06" in told(outcome, "refused")[0]
    lost = by_simulator(algorithm, lambda round, exchange, ids: jnp.asarray(ids) == 1, rounds=1)
    assert_near(outcome.result.server, lost.server)


def test_wrong_shares_cost_nothing_while_enough_are_right(tmp_path):
    algorithm = build("fedavg")

    def fault(message, reply):
        question = message.content.get("question")
        if question is None or question.get("step") != "open" or federation.grid.site(message) != "a":
            return reply
        wrong = [bytes(33) for _ in SITES]
        return Message(RecordDict({"answer": ConfigRecord({"shares": wrong})}), reply_to=message)

    federation = federate(algorithm, tmp_path, fault)
    assert_near(serve(algorithm, federation).result.server, by_simulator(algorithm).server)


def test_a_site_is_not_asked_twice_in_one_sum(tmp_path):
    algorithm = build("drfa", m=3)
    with pytest.raises(eq.errors.InputError, match="asks a site twice, which a masked sum cannot"):
        serve(algorithm, federate(algorithm, tmp_path), rounds=20)


JUNK = [None, {"batch": "x", "exchange": 0}, {"batch": 3, "exchange": "a"}, {"batch": "", "exchange": -1}, {}]


def test_odd_masks_on_a_message_are_refused(tmp_path):
    """Nothing plain leaves, nothing crashes."""
    algorithm, asked = build("fedavg"), []

    def fault(message, reply):
        if "mask" in message.content:
            asked.append(message)
        return reply

    federation = federate(algorithm, tmp_path, fault)
    serve(algorithm, federation, rounds=1)
    message = asked[0]
    context = federation.grid.contexts[message.metadata.dst_node_id]
    for junk in JUNK:
        content = RecordDict({"at": message.content["at"], "message": message.content["message"]})
        if junk is not None:
            content["mask"] = ConfigRecord(junk)
        odd = Message(content, message.metadata.dst_node_id, message.metadata.message_type)
        odd.metadata.__dict__["_message_id"] = "1"
        answer = federation.grid.app(odd, context).content
        assert set(answer) == {"refused"}
    for words in ([], [1], [1, 2, 3]):
        at = ConfigRecord({**message.content["at"], "key": words})
        content = RecordDict({**message.content, "at": at})
        odd = Message(content, message.metadata.dst_node_id, message.metadata.message_type)
        odd.metadata.__dict__["_message_id"] = "1"
        assert set(federation.grid.app(odd, context).content) == {"refused"}
    again = federation.grid.app(message, context).content  # a message that is sent again
    assert set(again) == {"refused"}


# A server that is active.


def other(algorithm, name, send):
    """The server's algorithm with one exchange that sends something else; sites run the honest one."""
    return algorithm._replace(
        round=tuple(e._replace(send=send(e.send)) if e.name == name else e for e in algorithm.round)
    )


def alone(send):
    """All weight on the last site."""
    return lambda server, i: send(server, i)._replace(lam_i=jnp.where(i == N - 1, 1.0, 0.0))


def refused_by_all(lying, honest, folder, sentence, **how):
    with pytest.raises(GivenUp) as up:
        serve(lying, federate(honest, folder, **how), demands=CALM._replace(least=1, tries=1), rounds=1)
    assert sum(sentence in why for why in told(up.value.outcome, "refused")) == N


@pytest.mark.parametrize("exchange", ["weigh", "improve"])
def test_all_weight_on_one_site_is_refused_by_all(exchange, tmp_path):
    """(0, 0, 0, 0, 1) gave the gradient of one site to 4e-13."""
    honest = build("scaffpd_secure")
    sentence = "a site would have 1 of the weight of this masked sum"
    refused_by_all(other(honest, exchange, alone), honest, tmp_path, sentence, limits=Limits())


def test_a_sum_that_is_one_sites_since_the_server_leaves_another_out_is_not_opened(tmp_path):
    """Half of the weight on each of two sites is within all limits; then one of them is said not to have answered."""
    honest = build("scaffpd_secure")

    def halves(send):
        return lambda server, i: send(server, i)._replace(lam_i=jnp.where(i >= N - 2, 0.5, 0.0))

    def fault(message, reply):
        at = message.content.get("at")
        left_out = at is not None and at["exchange"] == "weigh" and federation.grid.site(message) == "d"
        return None if left_out else reply

    federation = federate(honest, tmp_path, fault, limits=Limits())
    with pytest.raises(GivenUp) as up:
        serve(other(honest, "weigh", halves), federation, demands=CALM._replace(least=1, tries=1), rounds=1)
    refused = [why for why in told(up.value.outcome, "refused") if "a site would have 1 of the weight" in why]
    assert len(refused) == N - 1


def test_rows_are_counted_among_those_who_answered(tmp_path):
    """As above, where a site counts for its rows and no message says how many."""
    algorithm = build("fedavg")

    def fault(message, reply):
        return None if message.content.get("at") is not None and federation.grid.site(message) == "b" else reply

    rows = {"a": 20, "b": 10_000, "c": 10, "d": 10_000, "e": 10}
    federation = federate(algorithm, tmp_path, fault, limits=Limits(), counted=rows)
    with pytest.raises(GivenUp) as up:
        serve(algorithm, federation, demands=CALM._replace(least=1, tries=1), rounds=1)
    assert sum("a site would have 0.996 of the weight" in why for why in told(up.value.outcome, "refused")) == N - 1


def flower_array(a):
    return Array(dtype=str(a.dtype), shape=a.shape, stype="equipoise.raw", data=a.tobytes())


def test_other_weights_to_one_site_than_to_the_rest_give_noise(tmp_path):
    """What a site is sent is part of what hides its reply: the masks of one that was told something else stay on."""
    algorithm = build("scaffpd_secure")
    plain = serve(algorithm, federate(algorithm, tmp_path / "honest"), rounds=1)
    federation = federate(algorithm, tmp_path)
    real = federation.grid.app

    def app(message, context):
        at = message.content.get("at")
        if at is not None and at["exchange"] == "weigh" and context.node_config["site"] == "e":
            name, array = next(iter(message.content["message"].items()))
            weights = np.frombuffer(array.data) * [0, 0, 0, 0, 1]  # to this site it looks as if it were alone
            message.content["message"] = ArrayRecord({name: flower_array(weights)})
        return real(message, context)

    federation.grid.app = app
    given_up = None
    try:
        outcome = serve(algorithm, federation, rounds=1)
    except GivenUp as up:
        given_up = up.outcome
    if given_up is not None:  # the noise is so large that sites refuse what they make of it in the next exchange
        assert any("beyond 1.04858e+06" in why for why in told(given_up, "refused"))
        return
    c, honest = (np.asarray(o.result.server.c) for o in (outcome, plain))
    assert np.abs(c - honest).max() > 1e-3  # noise over the whole range of a masked sum, weights included


@pytest.mark.parametrize(("what", "value"), [("sigma", 1e6), ("theta", 50.0)])
def test_step_sizes_of_the_weights_that_the_rule_does_not_give_are_refused(what, value, tmp_path):
    """A sigma of 1e6 told the weights of the sites apart in 44 exchanges."""
    honest = build("scaffpd_sums")
    lying = other(honest, "collect", lambda send: lambda s, i: send(s, i)._replace(**{what: jnp.float64(value)}))
    refused_by_all(lying, honest, tmp_path, f"{what} is {value:.4g}, and the agreed rule gives")


def test_within_the_band_no_weight_is_more_than_its_share():
    """The heaviest that could be: one at the top, all others at the bottom."""
    for n in (3, 5, 40):
        for most in (0.5, 0.9, 0.95):
            low = secure.lowest_weight(n, most)
            assert secure.HIGHEST / (secure.HIGHEST + (n - 1) * low) == pytest.approx(most)
            secure.check_own_weight(low * 1.001, n, most)
            for beyond in (0.999 * low, 1.001 * secure.HIGHEST, np.nan):
                with pytest.raises(StopRun, match="own weight has left the range"):
                    secure.check_own_weight(beyond, n, most)


@pytest.mark.parametrize(
    "name",
    problems.few(
        ("scaffpd_sums",),
        ["agnostic_fedavg", "fedavg", "scaffold", "scaffpd_sums"],
        "::test_honest_runs_keep_the_default_limits[scaffpd_sums]",
    ),
)
def test_honest_runs_keep_the_default_limits(name, tmp_path):
    algorithm = build(name)
    outcome = serve(algorithm, federate(algorithm, tmp_path, limits=Limits(threshold=None)))
    assert {e.what for e in outcome.ledger.events} == {"joined"}
