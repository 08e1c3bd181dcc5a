"""Masked sums without a network: every drop-out, every question that a site must refuse, and noise for messages."""

import itertools
import os
import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import InputError, Refusal
from equipoise.privacy import fixed_point, masks, shamir
from equipoise.privacy.disclosure import colluders
from equipoise.privacy.identity import Identity
from equipoise.privacy.site_masks import KEPT, About, Limits, SiteMasks, check_weights, read_state
from equipoise.privacy.unmasking import Batch, recover, unmasked
from tests.problems import few

NAMES = ("ada", "ben", "cyd", "dan", "eve")
N, T, D = 5, 3, 7
CONTEXT = b"what all were sent"


def identities(names=NAMES):
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
    roster = {name: key.public_key() for name, key in keys.items()}
    return {name: Identity(name, key, roster) for name, key in keys.items()}


IDENTITIES = identities()


def sites_in(folder, names=NAMES, who=IDENTITIES, least=3):
    return {name: SiteMasks(who[name], folder / name, lambda: least) for name in names}


def head(step, batch="b", **more):
    return {"step": step, "run": "r", "batch": batch, **more}


def prepared(sites, count=1, batch="b", threshold=T, change=lambda step, name, answer: answer):
    """All three steps, as an honest server relays them; `change` may spoil an answer."""
    members = list(sites)
    asked = head("keys", batch, members=members, threshold=threshold, count=count)
    keys = {name: change("keys", name, site.answer(asked)) for name, site in sites.items()}
    everybody = {"keys": [k["keys"] for k in keys.values()], "signatures": [k["signature"] for k in keys.values()]}
    sealed = {
        name: change("shares", name, site.answer(head("shares", batch, **everybody)))["sealed"]
        for name, site in sites.items()
    }
    for k, site in enumerate(sites.values()):
        site.answer(head("deliver", batch, sealed=[sealed[name][k] for name in members]))
    return Batch("r", batch, tuple(members), threshold, count, {name: k["keys"] for name, k in keys.items()})


def masked(site, integers, exchange=0, batch="b", context=CONTEXT):
    return site.mask({"run": "r", "batch": batch, "exchange": exchange}, lambda *_: integers, context)


def opening(answered, members=NAMES, exchange=0, batch="b"):
    missing = [name for name in members if name not in answered]
    return head("open", batch, exchange=exchange, answered=list(answered), missing=missing)


def values():
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2**64, D, dtype=np.uint64) for name in NAMES}


# The parts.


def test_every_set_of_enough_shares_gives_the_secret_and_no_smaller_one_does():
    secret = int.from_bytes(os.urandom(32))
    for n, t in itertools.chain.from_iterable(((n, t) for t in range(1, n + 1)) for n in range(1, 7)):
        shares = dict(enumerate(shamir.split(secret, t, n), 1))
        for size in range(1, n + 1):
            for some in itertools.combinations(shares, size):
                assert (shamir.join({k: shares[k] for k in some}) == secret) == (size >= t)


def test_the_field_is_one_and_holds_every_key():
    p = shamir.PRIME
    assert p > 2**256
    assert all(pow(a, p - 1, p) == 1 for a in (2, 3, 5, 7, 11, 13, 17))  # Fermat
    # Miller and Rabin: p - 1 = 2^3 d, and no base is a witness against it.
    d, s = p - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for a in range(2, 60):
        x = pow(a, d, p)
        assert x == 1 or any(pow(a, d << k, p) == p - 1 for k in range(s))
    assert max(shamir.split(2**256 - 1, 3, 5)) < 2 ** (8 * shamir.BYTES)


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """Two shares of three leave every secret as likely as any other: for each there is exactly one polynomial."""
    shares = dict(enumerate(shamir.split(7, 3, 5), 1))
    known = {1: shares[1], 4: shares[4]}
    for other in (0, 7, 123456789, shamir.PRIME - 1):
        w = shamir.weights_at_zero([1, 4, 5])
        third = (other - w[0] * known[1] - w[1] * known[4]) * pow(w[2], -1, shamir.PRIME) % shamir.PRIME
        assert shamir.join({**known, 5: third}) == other


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 40),
    st.floats(1e-3, 1e9),
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=6),
    st.integers(-(2**40), 2**40),
)
def test_encoded_totals_add_up_to_the_stated_error(n, bound, shares, whole):
    tree = {"a": np.array(shares) * bound, "b": np.int64(whole), "c": np.float32(shares[0])[None][None]}
    bound = max(bound, 1.0)
    total = np.zeros(fixed_point.length(tree), np.uint64)
    for _ in range(n):
        total += fixed_point.encode(tree, n, bound)
    found = fixed_point.decode(total, tree, n, bound)
    error = fixed_point.largest_error(n, bound)
    rounding = 4 * np.finfo(np.float64).eps * n * bound  # of the comparison itself
    np.testing.assert_allclose(found["a"], n * tree["a"], rtol=0, atol=error + rounding)
    assert found["b"] == n * whole
    assert found["b"].dtype == np.int64
    assert found["c"].dtype == np.float32
    assert found["c"].shape == (1, 1)


def test_numbers_are_rounded_to_the_nearest_integer_of_the_sum():
    parts = np.array([0.75, 0.25, -0.25, -0.75]) * 2.0 ** -fixed_point.fraction_bits(5, 1024.0)
    assert fixed_point.encode(parts, 5, 1024.0).view(np.int64).tolist() == [1, 0, 0, -1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1024.0001, -2e300])
def test_what_no_sum_can_hold_is_refused(bad):
    fixed_point.encode(np.array([1024.0, -1024.0]), 5, 1024.0)
    with pytest.raises(Refusal, match="not finite or beyond 1024"):
        fixed_point.encode(np.array([1.0, bad]), 5, 1024.0)
    with pytest.raises(Refusal, match="integers beyond"):
        fixed_point.encode(np.array([2**61]), 5, 1024.0)
    with pytest.raises(Refusal, match="integers beyond"):
        fixed_point.encode(np.array([2**64 - 1], np.uint64), 5, 1024.0)
    with pytest.raises(InputError, match="leave no digits"):
        fixed_point.fraction_bits(5, 1e30)


def test_the_streams_are_aes_and_the_integers_look_like_nothing():
    """The counter mode of AES-256, as NIST's vector has it; and a hidden zero is uniform."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    first = masks.stream(key, 2).tobytes()
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    assert first == Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(bytes(16))
    bits = np.unpackbits(masks.stream(os.urandom(32), 20_000).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


# Every pattern of drop-outs.


def test_whoever_drops_out_before_or_after_answering_the_sum_is_that_of_integers(tmp_path):
    """All 2^5 sets of sites that answer, and for each those who do not give their shares either."""
    sites = sites_in(tmp_path)
    batch, mine = prepared(sites, count=32), values()
    opened = 0
    for e, pattern in enumerate(itertools.product((True, False), repeat=N)):
        answered = [name for name, there in zip(NAMES, pattern, strict=True) if there]
        hidden = {name: masked(sites[name], mine[name], e) for name in answered}
        if len(answered) < 3:
            for name in answered:
                with pytest.raises(Refusal, match="opens sums over at least 3 sites"):
                    sites[name].answer(opening(answered, exchange=e))
            continue
        total, exact = np.zeros(D, np.uint64), np.zeros(D, np.uint64)
        for name in answered:
            total += hidden[name]
            exact += mine[name]
        shares = {name: sites[name].answer(opening(answered, exchange=e))["shares"] for name in answered}
        for openers in itertools.combinations(answered, T):  # of those who answered, some may be gone by now
            secrets = recover(batch, e, answered, {name: shares[name] for name in openers})
            assert {*secrets.seeds} == {*answered}
            assert {*secrets.privates} == {*NAMES} - {*answered}
            np.testing.assert_array_equal(unmasked(total, batch, e, secrets, CONTEXT), exact)
        opened += 1
    assert opened == 16  # 10 + 5 + 1 sets of at least three


def test_sites_that_were_sent_different_things_give_nothing(tmp_path):
    sites = sites_in(tmp_path)
    batch, mine = prepared(sites), values()
    total = np.zeros(D, np.uint64)
    for name in NAMES:
        total += masked(sites[name], mine[name], context=b"another" if name == "cyd" else CONTEXT)
    shares = {name: sites[name].answer(opening(NAMES))["shares"] for name in NAMES}
    found = unmasked(total, batch, 0, recover(batch, 0, NAMES, shares), CONTEXT)
    assert not (found == sum(mine.values(), np.zeros(D, np.uint64))).any()


def test_a_wrong_share_is_noticed_and_outvoted_where_there_are_more(tmp_path):
    sites = sites_in(tmp_path)
    batch, mine = prepared(sites), values()
    answered = NAMES[:4]
    total = np.zeros(D, np.uint64)
    for name in answered:
        total += masked(sites[name], mine[name])
    shares = {name: sites[name].answer(opening(answered))["shares"] for name in answered}
    shares["ada"] = [os.urandom(33) for _ in NAMES]
    exact = sum((mine[name] for name in answered), np.zeros(D, np.uint64))
    np.testing.assert_array_equal(unmasked(total, batch, 0, recover(batch, 0, answered, shares), CONTEXT), exact)
    with pytest.raises(Refusal, match="a site sent wrong ones"):
        recover(batch, 0, answered, {name: shares[name] for name in answered[:3]})
    with pytest.raises(Refusal, match="2 sites gave shares and 3 are needed"):
        recover(batch, 0, answered, {name: shares[name] for name in answered[1:3]})


def test_secrets_are_gone_once_an_exchange_is_opened(tmp_path):
    sites = sites_in(tmp_path)
    prepared(sites, count=2)
    for name in NAMES:
        masked(sites[name], values()[name])
    path = tmp_path / "ada" / "masks-r-b.sealed"
    before = read_state(path, sites["ada"].identity.at_rest)
    sites["ada"].answer(opening(NAMES))
    after = read_state(path, sites["ada"].identity.at_rest)
    assert path.stat().st_mode & 0o077 == 0
    assert before["seeds"][0]
    assert (after["seeds"][0], after["privates"][0]) == ("", "")
    assert after["seeds"][1] == before["seeds"][1]
    for old, new in zip(before["shares"], after["shares"], strict=True):
        assert new == "0" * 132 + old[132:]


# What a site refuses, whatever the server says.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"missing": ["eve", "ben"]}, "both shares of 'ben' were asked for"),
        ({"missing": []}, "are not the members"),
        ({"answered": ["ada", "ben", "cyd", "dan", "zoe"], "missing": ["eve"]}, "are not the members"),
        ({"answered": ["ben", "cyd", "dan"], "missing": ["ada", "eve"]}, "'ada' is said to be missing"),
        ({"answered": ["ada", "ben"], "missing": ["cyd", "dan", "eve"]}, "opens sums over at least 3 sites"),
        ({"answered": ["ada"], "missing": ["ben", "cyd", "dan", "eve"]}, "opens sums over at least 3 sites"),
        ({"answered": ["ada", "ada", "ben", "cyd"]}, "the message's answered are no names"),
        ({"exchange": 1}, "has not answered in this exchange"),
        ({"exchange": 7}, "has not answered in this exchange"),
        ({"exchange": True}, "is no number"),
        ({"batch": "c"}, "has not been prepared here"),
        ({"batch": "../../etc"}, "the message's batch is not valid"),
        ({"step": "close"}, "no step of a masked sum"),
    ],
)
def test_an_opening_that_would_tell_too_much_is_refused(change, sentence, tmp_path):
    sites = sites_in(tmp_path)
    prepared(sites, count=2)
    for name in NAMES[:4]:
        masked(sites[name], values()[name])
    with pytest.raises(Refusal, match=sentence):
        sites["ada"].answer({**opening(NAMES[:4]), **change})
    assert sites["ada"].answer(opening(NAMES[:4]))["shares"]  # it is still there for the right question


def test_an_exchange_is_answered_once_and_opened_once(tmp_path):
    sites = sites_in(tmp_path)
    prepared(sites)
    for name in NAMES:
        masked(sites[name], values()[name])
    with pytest.raises(Refusal, match="has been answered already"):
        masked(sites["ada"], values()["ada"])
    sites["ada"].answer(opening(NAMES))
    for again in (opening(NAMES), opening(NAMES[:4])):
        with pytest.raises(Refusal, match="has been opened already"):
            sites["ada"].answer(again)
    with pytest.raises(Refusal, match="has been prepared already"):
        sites["ada"].answer(head("keys", members=list(NAMES), threshold=3, count=1))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"members": ["ada"]}, "takes part in sums over 3 to 200 sites"),
        ({"members": ["ada", "ben"]}, "takes part in sums over 3 to 200 sites"),
        ({"members": ["ada", "ben", "ben"]}, "are no names"),
        ({"members": ["ben", "cyd", "dan"]}, "is not a member"),
        ({"members": ["ada", "ben", "zoe"]}, "does not know the key of 'zoe'"),
        ({"threshold": 2}, "it has to be 3 or more"),
        ({"threshold": 6}, "it has to be 3 or more"),
        ({"count": 0}, "of 1 to 256 exchanges"),
        ({"count": 10**9}, "of 1 to 256 exchanges"),
        ({"run": "a/b"}, "the message's run is not valid"),
    ],
)
def test_a_batch_that_would_hide_too_little_is_refused(change, sentence, tmp_path):
    site = sites_in(tmp_path)["ada"]
    with pytest.raises(Refusal, match=sentence):
        site.answer({**head("keys", members=list(NAMES), threshold=3, count=1), **change})
    assert not list(tmp_path.glob("ada/masks-*"))


def test_a_site_asks_for_more_company_if_its_policy_does(tmp_path):
    sites = sites_in(tmp_path, least=5)
    prepared(sites)
    for name in NAMES:
        masked(sites[name], values()[name])
    with pytest.raises(Refusal, match="at least 5 sites, and this one is over 4"):
        sites["ada"].answer(opening(NAMES[:4]))


def test_keys_that_the_server_made_up_or_changed_are_refused(tmp_path):
    def exchanged(step, name, answer):
        if step == "keys" and name == "eve":  # the server's own keys under a site's name
            return {**answer, "keys": os.urandom(len(answer["keys"]))}
        return answer

    with pytest.raises(Refusal, match="what is said to be of 'eve' is not signed by its key"):
        prepared(sites_in(tmp_path / "1"), change=exchanged)

    stranger = identities()["eve"]
    with pytest.raises(Refusal, match="what is said to be of 'eve' is not signed"):
        prepared(sites_in(tmp_path / "2", who={**IDENTITIES, "eve": stranger}))

    old = {}

    def replayed(step, name, answer):  # of another batch
        old.setdefault((step, name), answer)
        return old[step, name] if (step, name) == ("keys", "eve") else answer

    sites = sites_in(tmp_path / "3")
    prepared(sites, change=replayed)
    with pytest.raises(Refusal, match="what is said to be of 'eve' is not signed"):
        prepared(sites, batch="c", change=replayed)

    def resealed(step, name, answer):
        if step == "shares" and name == "eve":
            sealed = answer["sealed"]
            return {"sealed": [sealed[1], sealed[0], *sealed[2:]]}
        return answer

    with pytest.raises(Refusal, match="the shares of 'eve' are not those that it sealed for 'ada'"):
        prepared(sites_in(tmp_path / "4"), change=resealed)


def test_sites_that_were_shown_different_keys_of_one_site_never_begin(tmp_path):
    """A server makes a site forget a batch and prepare it again, and shows others its first or its second keys.

    Each of these is signed. If both were taken, the keys of different times could be opened at different sites, and in
    the end both secrets of one site; so sites unseal only what was sealed by somebody who was shown the same keys.
    """
    sites, asked = sites_in(tmp_path), head("keys", members=list(NAMES), threshold=T, count=1)
    keys = {name: site.answer(asked) for name, site in sites.items()}
    for k in range(KEPT):
        sites["eve"].answer({**asked, "batch": f"other{k}"})
    again = {**keys, "eve": sites["eve"].answer(asked)}
    assert again["eve"]["keys"] != keys["eve"]["keys"]

    def shown(found):
        return head(
            "shares", keys=[k["keys"] for k in found.values()], signatures=[k["signature"] for k in found.values()]
        )

    views = {"ada": keys, "ben": again, "cyd": again, "dan": again, "eve": again}
    sealed = {name: sites[name].answer(shown(views[name]))["sealed"] for name in NAMES}
    for k, name in enumerate(NAMES[:4]):
        # ada and the others have the same keys of each other, and differ in eve's alone.
        with pytest.raises(Refusal, match="are not those that it sealed for"):
            sites[name].answer(head("deliver", sealed=[sealed[of][k] for of in NAMES]))
        assert read_state(tmp_path / name / "masks-r-b.sealed", sites[name].identity.at_rest)["step"] == "shares"


def test_steps_out_of_order_are_refused(tmp_path):
    site = sites_in(tmp_path)["ada"]
    site.answer(head("keys", members=list(NAMES), threshold=3, count=1))
    with pytest.raises(Refusal, match="at the step 'keys', not 'ready'"):
        masked(site, values()["ada"])
    with pytest.raises(Refusal, match="at the step 'keys', not 'shares'"):
        site.answer(head("deliver", sealed=[b""] * 5))
    with pytest.raises(Refusal, match="at the step 'keys', not 'ready'"):
        site.answer(opening(NAMES))


# Ten thousand messages of every kind.

JUNK = [None, True, -1, 0, 3, 2**70, 0.5, "", "r", "b", "ada", "../x", b"", b"x" * 32, [], ["ada"], [1], [b""], {}]


def junk(rng, real):
    """A question that is nearly right, or not at all."""
    asked = dict(real)
    for _ in range(rng.choice((1, 1, 2, 3))):
        key = rng.choice([*asked, "step", "more"])
        what = rng.random()
        if what < 0.5:
            asked[key] = rng.choice(JUNK)
        elif what < 0.7:
            asked.pop(key, None)
        elif isinstance(asked.get(key), list):
            asked[key] = [*asked[key][1:], rng.choice([*asked[key], *JUNK])]
        elif isinstance(asked.get(key), bytes):
            asked[key] = asked[key][:-1] + bytes([rng.randrange(256)])
    return asked


def alike(one, other):
    return one == other or (in_order(one) == in_order(other) and isinstance(one, list))


def in_order(value):
    return sorted(map(repr, value)) if isinstance(value, list) else value


@pytest.mark.parametrize(
    "step",
    few(
        ["shares", "open"],
        ["keys", "shares", "deliver", "mask", "open"],
        "searches/test_privacy.py::test_odd_steps_of_a_masked_sum",
    ),
)
def test_ten_thousand_odd_messages_are_refused_and_change_nothing(step, tmp_path):
    """Each is answered as it should or refused with a sentence, no file is lost, no share is told."""
    rng = random.Random(step)
    small = {name: IDENTITIES[name] for name in NAMES[:3]}
    sites = sites_in(tmp_path, names=NAMES[:3])
    members = list(small)
    site = sites["ada"]
    ask = head("keys", members=members, threshold=2, count=1)
    given = {name: s.answer(ask) for name, s in sites.items()}
    keys = {"keys": [k["keys"] for k in given.values()], "signatures": [k["signature"] for k in given.values()]}
    real = {"keys": ask, "shares": head("shares", **keys)}
    if step in ("deliver", "mask", "open"):
        sealed = [s.answer(real["shares"])["sealed"] for s in sites.values()]
        real["deliver"] = head("deliver", sealed=[s[0] for s in sealed])
    if step in ("mask", "open"):
        site.answer(real["deliver"])
        real["mask"] = {"run": "r", "batch": "b", "exchange": 0}
    if step == "open":
        masked(site, np.zeros(D, np.uint64))
        real["open"] = opening(members, members)
    path = tmp_path / "ada" / "masks-r-b.sealed"
    before, told = path.read_bytes(), 0
    for _ in range(10_000):
        asked = junk(rng, real[step])
        if step == "keys" and (asked.get("run"), asked.get("batch")) != ("r", "b"):
            continue  # a batch of another name is one that may be made
        if all(alike(asked.get(key), value) for key, value in real[step].items()):
            continue  # what it does not know it does not read
        try:
            if step == "mask":
                site.mask(asked, lambda *_: np.zeros(D, np.uint64), CONTEXT)
            else:
                site.answer(asked)
        except Refusal:
            continue
        told += 1
    assert told == 0
    assert path.read_bytes() == before
    assert [p.name for p in (tmp_path / "ada").glob("masks-*.sealed")] == [path.name]


# An active server.


def about(sites, names, batch, subject, place):
    """One exchange of a batch among `names`, about something, until it is opened."""
    some = {name: sites[name] for name in names}
    prepared(some, batch=batch, threshold=len(names) - 1)
    at = {"run": "r", "batch": batch, "exchange": 0}
    for site in some.values():
        site.mask(at, lambda *_: np.zeros(D, np.uint64), CONTEXT, About(subject, place, "plan"))
    return [site.answer(opening(names, names, batch=batch)) for site in some.values()]


def test_two_cohorts_that_differ_by_a_site_do_not_get_both_sums(tmp_path):
    """The difference of the two sums would be what the fifth has added."""
    sites, four = sites_in(tmp_path), NAMES[:4]
    assert len(about(sites, NAMES, "one", "gradients at x", "round 1")) == 5
    with pytest.raises(Refusal, match="opened a sum about the same over other sites, and both together would tell"):
        about(sites, four, "two", "gradients at x", "round 2")
    with pytest.raises(Refusal, match="opened a sum of the same round over other sites"):
        about(sites, four, "three", "gradients at almost x", "round 1")
    assert len(about(sites, NAMES, "four", "gradients at x", "round 1")) == 5  # the same again says nothing more
    assert len(about(sites, four, "five", "gradients at y", "round 2")) == 4  # somebody is gone, and the run goes on


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    "weights",
    [
        [0, 0, 0, 0, 1],
        [1 - 1e-9, 2.5e-10, 2.5e-10, 2.5e-10, 2.5e-10],
        [1, 1e-20, 1e-20, 1e-20, 1e-20],  # which no sum of floats tells from 1
        [1e-30, 1e-38, 0, 0, 0],
        ["most", "most / 100", 1, 1, 1],
        [np.nan, 1, 1, 1, 1],
        [np.inf, np.inf, 1, 1, 1],
        [-1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0],
        [],
    ],
)
def test_weights_that_are_nearly_all_of_one_site_are_refused_however_they_are_written(weights, kind):
    largest = float(np.finfo(kind).max)
    given = np.array([{"most": largest, "most / 100": largest / 100}.get(w, w) for w in weights], kind)
    with pytest.raises(Refusal, match=r"the weights of this masked sum are not valid|of the weight of this masked sum"):
        check_weights(given, 0.95)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300, 1.7e308])
def test_equal_weights_are_fine_whatever_their_sum(scale):
    check_weights(np.full(5, scale), 0.2)
    with pytest.raises(Refusal, match=r"a site would have 0\.2 of the weight"):
        check_weights(np.full(5, scale), 0.19)


def test_a_sum_that_is_one_sites_because_another_is_missing_is_not_opened(tmp_path):
    """Half of the weight each, and the server says that one of the two did not answer."""
    sites = sites_in(tmp_path)
    prepared(sites, count=3)
    halves = dict(zip(NAMES, (0.5, 0.5, 0.0, 0.0, 0.0), strict=True))
    zeros = lambda *_: np.zeros(D, np.uint64)  # noqa: E731
    for exchange in (0, 1):
        for site in sites.values():
            site.mask({"run": "r", "batch": "b", "exchange": exchange}, zeros, CONTEXT, None, [halves])
    four = [name for name in NAMES if name != "ben"]
    for name in four:
        with pytest.raises(Refusal, match="a site would have 1 of the weight of this masked sum"):
            sites[name].answer(opening(four, exchange=0))
    assert all(site.answer(opening(NAMES, exchange=0))["shares"] for site in sites.values())
    without_dan = [name for name in NAMES if name != "dan"]
    assert sites["ada"].answer(opening(without_dan, exchange=1))["shares"]
    with pytest.raises(Refusal, match="what every member counts for was not agreed on"):
        sites["ada"].mask({"run": "r", "batch": "b", "exchange": 2}, zeros, CONTEXT, None, [{"ada": 1.0}])


def test_a_site_may_ask_for_the_same_sites_in_all_sums_of_a_run(tmp_path):
    sites = {k: s._replace(limits=lambda: Limits(same_sites=True)) for k, s in sites_in(tmp_path).items()}
    about(sites, NAMES, "one", "gradients at x", "round 1")
    with pytest.raises(Refusal, match="opens the sums of a run over the same sites only"):
        about(sites, NAMES[:4], "two", "gradients at y", "round 2")
    assert len(about(sites, NAMES, "three", "gradients at y", "round 2")) == 5


def test_a_threshold_below_what_a_site_asks_for_is_refused(tmp_path):
    """All but one, unless its owner says otherwise."""
    for demanded, lowest in ((None, 4), (0, 3), (3, 3), (9, 4)):
        limits = Limits(threshold=demanded)
        site = sites_in(tmp_path / str(demanded))["ada"]._replace(limits=lambda limits=limits: limits)
        for threshold in (2, 3, 4, 5):
            asked = head("keys", f"b{threshold}", members=list(NAMES), threshold=threshold, count=1)
            if threshold >= lowest:
                site.answer(asked)
            else:
                with pytest.raises(Refusal, match=f"of 5 sites it has to be {lowest} or more"):
                    site.answer(asked)


@pytest.mark.parametrize("threshold", [3, 4, 5])
def test_as_many_sites_as_the_approver_is_told_could_read_a_part_and_no_fewer(threshold):
    """By trying every way in which a lying server could divide the honest sites between its two stories."""
    n = len(NAMES)

    def readable(c):
        honest = n - c  # the site that is to be read is one of them
        return c >= n - 1 or any(a + c >= threshold and honest - a + c >= threshold for a in range(honest + 1))

    assert colluders(n, threshold) == next(c for c in range(n) if readable(c))
