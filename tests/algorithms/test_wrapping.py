"""Algorithms around algorithms: what they keep stands beside, and they compose."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import equipoise as eq
from equipoise.algorithms import (
    Beside,
    chain,
    clip_gradients,
    clip_losses,
    with_cohort,
    with_server_optimizer,
    wrap,
    wrap_client,
    wrap_server,
)
from equipoise.errors import InputError
from equipoise.protocol import Cohort
from tests.problems import N, assert_same, build, everything, play, start, unequal


def test_a_chain_is_its_wrappers_one_after_the_other():
    adam = optax.adam(0.1)
    by_hand = with_server_optimizer(clip_losses(build("scaffpd"), factor=3.0), adam)
    chained = chain(partial(clip_losses, factor=3.0), partial(with_server_optimizer, optimizer=adam))
    assert jax.tree.structure(chained(build("scaffpd"))) == jax.tree.structure(by_hand)
    assert jax.tree.leaves(chained(build("scaffpd"))) == jax.tree.leaves(by_hand)
    assert chain()(build("scaffpd")) is build("scaffpd")


def test_what_changes_nothing_leaves_states_and_flags_as_they_are():
    plain, x = build("scaffold"), start()
    around = chain(
        lambda algorithm: wrap(algorithm, lambda k, exchange: exchange),
        lambda algorithm: wrap_server(algorithm, lambda x: jnp.int32(0), lambda k, exchange: exchange),
        lambda algorithm: wrap_client(algorithm, lambda x: jnp.int32(0), lambda k, exchange: exchange),
    )(plain)
    server, client = jax.eval_shape(lambda: (around.init(x), around.init_client(x)))
    assert isinstance(server, Beside)
    assert isinstance(client, Beside)
    assert jax.tree.structure(server.inner) == jax.tree.structure(jax.eval_shape(plain.init, x))
    for exchange, inner in zip(around.round, plain.round, strict=True):
        assert (exchange.name, exchange.writes, exchange.unit) == (inner.name, inner.writes, inner.unit)


def test_a_compressed_algorithm_says_of_its_weights_what_it_said():
    from equipoise.algorithms.compression import compress_replies
    from equipoise.protocol import wire

    plain = build("agnostic_fedavg")
    crossing = wire(plain, start(), plain.prepare(unequal().client(0)))
    short = compress_replies(plain, crossing, dtype="float32", sums=True)
    assert (short.round[0].weights is None) == (plain.round[0].weights is None)


def by_turns(key, round):
    """Two clients a round, one after the other."""
    return Cohort((2 * round + jnp.arange(2, dtype=jnp.int32)) % N, jnp.ones(2, bool))


def not_their_turn(round, exchange, ids):
    return ~jnp.isin(jnp.asarray(ids), (2 * round + jnp.arange(2, dtype=jnp.int32)) % N)


def test_a_cohort_of_ones_own_sees_the_round():
    """In both exchanges of SCAFF-PD the same two clients, as if the others did not answer."""
    algorithm = with_cohort(build("scaffpd"), by_turns)
    result = eq.simulate(algorithm, start(), unequal(), 3, rounds=3, record=everything)
    same = play("scaffpd", rounds=3, lost=not_their_turn)
    assert_same(result.history.inner, same.history)
    np.testing.assert_array_equal(result.history.own.round, [1, 2, 3])
    np.testing.assert_array_equal(result.history.own.cohort.ids, [[0, 1], [2, 3], [4, 0]])
    assert result.tally.asked.tolist() == [6, 6]


def test_a_cohort_of_ones_own_is_for_algorithms_that_ask_everyone():
    with pytest.raises(InputError, match=r"fedavg draws cohorts of its own; build it with everyone\(5\)"):
        with_cohort(build("fedavg", m=3), by_turns)


def test_wrappers_compose_in_either_order():
    """Clipping losses and clipping gradients are of different fields."""
    one = chain(clip_losses, clip_gradients)(build("scaffpd"))
    other = chain(clip_gradients, clip_losses)(build("scaffpd"))
    server, cohort = one.round[0].open(one.init(start()), jax.random.key(0))
    each = type_of_each()(jnp.arange(1.0, 1 + N), jnp.asarray(np.eye(N, 4) * 50.0))
    replies = eq.protocol.Replies(None, each, cohort)
    assert_same(*(a.round[0].close(server, replies) for a in (one, other)))


def type_of_each():
    from equipoise.algorithms.messages import LossAndGradient

    return LossAndGradient
