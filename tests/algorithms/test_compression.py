"""Vectors in fewer bytes: the same limit, counted bytes, every engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms.compression import compress_replies
from equipoise.engines.debug import debug
from equipoise.errors import InputError
from equipoise.protocol import wire
from tests.problems import DIM, N, assert_same, build, few, start, unequal

KEY = jax.random.key(5)


def crossing(algorithm):
    return wire(algorithm, start(), algorithm.prepare(unequal().client(0)))


def shortened(algorithm, dtype="bfloat16", **how):
    return compress_replies(algorithm, crossing(algorithm), dtype=dtype, **how)


def run(algorithm, rounds, **options):
    return eq.simulate(algorithm, start(), unequal(), KEY, rounds=rounds, **options)


@pytest.mark.parametrize(("dtype", "bytes_"), [("float32", 4), ("bfloat16", 2)])
def test_the_bytes_are_counted_and_only_vectors_of_single_clients_are_shorter(dtype, bytes_):
    plain = build("scaffpd")
    for before, after in zip(crossing(plain), crossing(shortened(plain, dtype)), strict=True):
        vectors = 1 if before.exchange == "collect" else 0
        assert before.up - after.up == vectors * DIM * (8 - bytes_)
        assert before.down == after.down


def test_the_limit_is_the_same():
    """Each round rounds to three digits; the iterates agree to twelve."""
    plain = build("scaffpd")
    exact, short = run(plain, 400), run(shortened(plain), 400)
    early = run(shortened(plain), 2)
    assert not np.allclose(plain.model(run(plain, 2).server), early.server.inner.x, rtol=1e-9, atol=0)
    np.testing.assert_allclose(short.server.inner.x, plain.model(exact.server), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(short.server.inner.lam, plain.weights(exact.server), rtol=1e-10, atol=1e-12)


SUMS = {"scaffpd": (1, 1), "scaffpd_secure": (0, 1, 1), "scaffold": (2,), "fedavg": (1,)}  # vectors up, by exchange


@pytest.mark.parametrize(
    "name", few(("scaffpd",), SUMS, "::test_with_sums_every_vector_is_shorter_and_the_limit_is_the_same[scaffpd]")
)
def test_with_sums_every_vector_is_shorter_and_the_limit_is_the_same(name):
    plain = build(name)
    short = shortened(plain, sums=True)
    for before, after, vectors in zip(crossing(plain), crossing(short), SUMS[name], strict=True):
        assert before.up - after.up == vectors * DIM * (8 - 2)
        assert before.down == after.down
    exact, found = run(plain, 600), run(short, 600)
    np.testing.assert_allclose(short.model(found.server), plain.model(exact.server), rtol=1e-10, atol=1e-12)
    if plain.dual is not None:
        np.testing.assert_allclose(short.weights(found.server), plain.weights(exact.server), rtol=1e-10, atol=1e-12)
    early = run(short, 2)
    assert not np.allclose(plain.model(run(plain, 2).server), short.model(early.server), rtol=1e-9, atol=0)


def test_sums_are_of_those_who_answered():
    """A lost reply changes what is known at neither end, and the sums are those of the others."""
    plain = build("scaffold")
    short = shortened(plain, "float32", sums=True)

    def lost(round, exchange, ids):
        return jnp.asarray(ids) == round % N

    found, exact = run(short, 5, lost=lost), run(plain, 5, lost=lost)
    assert_same(found.server.own, found.clients.own.sent)
    np.testing.assert_allclose(short.model(found.server), plain.model(exact.server), rtol=1e-5)


def test_clients_and_server_know_the_same_whatever_is_lost():
    algorithm = shortened(build("scaffpd"))

    def lost(round, exchange, ids):
        return jnp.asarray(ids) == (round + exchange) % N

    found = run(algorithm, 5, lost=lost)
    assert_same(found.server.own, found.clients.own.sent)


@pytest.mark.parametrize("engine", few(["flower"], ["debug", "flower"], "::test_every_engine[flower]"))
def test_every_engine(engine, tmp_path):
    algorithm = shortened(build("scaffpd", batch=3), "float32", sums=True)
    expected = run(algorithm, 3).server
    if engine == "debug":
        found = debug(algorithm, start(), unequal(), KEY, rounds=3, jit=True).server
    else:
        pytest.importorskip("flwr")
        from tests.deploy.setting import federate, serve

        outcome = serve(algorithm, federate(algorithm, tmp_path), KEY, rounds=3)
        found = outcome.result.server
        for traffic, crosses in zip(outcome.ledger.traffic, crossing(algorithm), strict=True):
            assert traffic.up == crosses.up * traffic.received
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)  # a last bit may round the other way


def test_half_precision_crosses_and_what_is_not_finite_is_left_out():
    pytest.importorskip("flwr")
    from equipoise.deploy.wire.messages import Refusal, check_values, pack, unpack

    tree = {"q": np.asarray(jnp.asarray([1.5, -2.0, 3e20], jnp.bfloat16))}
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)
    back = unpack(pack(tree), like)
    assert back["q"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(back["q"].astype(np.float32), tree["q"].astype(np.float32))
    with pytest.raises(Refusal, match="beyond"):
        check_values(back)
    with pytest.raises(Refusal, match="not finite"):
        check_values({"q": np.asarray(jnp.asarray([jnp.nan], jnp.bfloat16))})


def test_what_cannot_be_compressed_is_said():
    with pytest.raises(InputError, match=r"fedavg sends no vectors .* set compress_sums = true"):
        shortened(build("fedavg"))
    with pytest.raises(InputError, match="give one of float32, bfloat16"):
        shortened(build("scaffpd"), "int8")
