import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS, guarded_steps, may_be_guarded, with_guarded_steps
from equipoise.protocol import Weighted
from tests.algorithms import reference
from tests.problems import DIM, LOCAL, N, assert_same, start, unequal

TASK, EVERYONE = eq.tasks.ridge(DIM, reference.MU), eq.cohorts.everyone(N)
TOO_LONG = 2.0  # of a local step; curvatures are about 3


def scaffold(local_lr):
    return ALGORITHMS["scaffold"](TASK, EVERYONE, steps=LOCAL["steps"], local_lr=local_lr)


def losses(algorithm, x):
    return float(np.mean(eq.tasks.losses(TASK, x, unequal())))


def test_where_nothing_explodes_it_changes_nothing():
    plain, guarded = scaffold(LOCAL["local_lr"]), with_guarded_steps(TASK, scaffold(LOCAL["local_lr"]))
    x, y = (eq.simulate(a, start(), unequal(), 0, rounds=4).model for a in (plain, guarded))
    assert_same(x, y)
    assert may_be_guarded(TASK, plain)


def test_steps_that_explode_are_halved_until_they_do_not():
    """From the best model, with fresh control variates at both ends."""
    algorithm = with_guarded_steps(TASK, scaffold(TOO_LONG))
    end = eq.simulate(algorithm, start(), unequal(), 0, rounds=20)
    assert float(end.server.own.scale) < 1 / 4
    assert int(end.server.own.era) == np.log2(1 / float(end.server.own.scale))
    assert losses(algorithm, end.model) < 0.9 * losses(algorithm, start())
    wild = eq.simulate(scaffold(TOO_LONG), start(), unequal(), 0, rounds=20).model
    assert not losses(algorithm, wild) < 1e6


def test_engines_agree_on_it():
    algorithm = with_guarded_steps(TASK, scaffold(TOO_LONG))
    compiled = eq.simulate(algorithm, start(), unequal(), 0, rounds=3).model
    slow = eq.debug(algorithm, start(), unequal(), 0, rounds=3, jit=True)
    assert_same(compiled, algorithm.model(slow.server))


def test_replies_that_are_not_finite_are_an_explosion_and_nobody_asked_is_none():
    def fedavg(local_lr):
        return ALGORITHMS["fedavg"](TASK, EVERYONE, steps=2, local_lr=local_lr)

    algorithm = with_guarded_steps(TASK, fedavg(1e200))
    with pytest.warns(eq.errors.LostReplies):
        end = eq.simulate(algorithm, start(), unequal(), 0, rounds=3)
    assert float(end.server.own.scale) < 1
    np.testing.assert_array_equal(end.model, start())
    quiet = with_guarded_steps(TASK, fedavg(1e-2))
    gone = jax.tree_util.Partial(lambda round, exchange, ids: jnp.broadcast_to(round == 1, jnp.shape(ids)))
    assert float(eq.simulate(quiet, start(), unequal(), 0, rounds=3, lost=gone).server.own.scale) in (0.5, 1.0)


def test_a_later_exchange_in_which_no_reply_is_finite_is_an_explosion():
    """The model stays as it is there, so that its loss says nothing."""
    rule = eq.steps.constant(tau=1.0, sigma=0.1, theta=0.0)
    dual = eq.objectives.chi2(N, 1.0)
    wild = ALGORITHMS["scaffpd"].build(TASK, dual, EVERYONE, rule, steps=2, local_lr=1e200)
    with pytest.warns(eq.errors.LostReplies):
        end = eq.simulate(with_guarded_steps(TASK, wild), start(), unequal(), 0, rounds=3)
    assert float(end.server.own.scale) == 1 / 8


def test_a_loss_above_the_first_is_an_explosion_once_something_was_learned():
    def judged(best, first, loss):
        guard = guarded_steps.Guard(*map(jnp.asarray, (1.0, 0, start(), best, first, True, False)))
        heard = Weighted(jnp.asarray(2.0), jnp.asarray(2.0 * loss))
        return bool(guarded_steps._judged(guard, start(), heard).exploded)

    assert judged(1.96, 2.30, 2.34)
    assert not judged(1.96, 2.30, 2.28)
    assert not judged(2.29, 2.30, 2.31)  # nothing was, and nothing is lost
    assert judged(2.29, 2.30, 3.0)
