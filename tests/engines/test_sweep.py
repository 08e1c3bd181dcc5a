"""A sweep gives what its trials give one by one, from one compiled program."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError, Stopped
from tests import programs
from tests.problems import DIM, N, assert_identical, assert_same, everything, start, unequal

RATES, RHOS, SEEDS = (0.02, 0.01), (0.1, 1.0), (3, 4)
TASK = eq.tasks.ridge(DIM, 0.1, 2)


def make(local_lr, rho):
    rule = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.7)
    dual = eq.objectives.chi2(N, rho)
    return eq.algorithms.scaffpd(TASK, dual, eq.cohorts.everyone(N), rule, steps=3, local_lr=local_lr)


def unreliable(seed, round, exchange, ids):
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), round), exchange)
    return jax.random.bernoulli(key, 0.2, jnp.shape(ids))


def trials(**changes):
    grid = [make(local_lr, rho) for local_lr in RATES for rho in RHOS]
    given = {"algorithms": grid, "x": start(), "data": unequal(), "seeds": SEEDS}
    found = eq.grid(**given | changes)
    return [t._replace(lost=jax.tree_util.Partial(unreliable, jnp.uint32(i))) for i, t in enumerate(found)]


def alone(trial, **how):
    lost = jax.tree_util.Partial(unreliable, *trial.lost.args)
    return eq.simulate(trial.algorithm, trial.x, trial.data, trial.key, lost=lost, **how)


def seen(result):
    return result.server, result.clients, result.history, result.tally


def test_the_same_numbers_as_one_by_one():
    given = trials()
    assert [jax.tree.leaves(t.algorithm) for t in given[:3]] == [[0.1, 0.02, 0.5, 0.1, 0.7]] * 2 + [
        [1.0, 0.02, 0.5, 0.1, 0.7]
    ]
    found = eq.sweep(given, rounds=4, record=everything)
    in_slices = eq.sweep(given, rounds=4, record=everything, at_once=3)  # of which the last has one to spare
    for i in (0, 3, 7):
        one = alone(given[i], rounds=4, record=everything)
        for many in (found[i], in_slices[i]):
            assert_same(seen(one), seen(many))
            assert (one.rounds, one.algorithm, one.key) == (many.rounds, many.algorithm, many.key)
    assert not np.allclose(found[0].server.x, found[2].server.x)


@pytest.mark.thorough(witness="::test_the_same_numbers_as_one_by_one")
def test_divisions_of_other_sizes_are_padded():
    small, large = unequal(seed=1), unequal(seed=2)
    small = jax.tree.map(lambda a: a[:, :7] if a.ndim > 1 else jnp.minimum(a, 7), small)
    given = trials(data=[small, large], x=[start(), 2 * start()], algorithms=make(0.02, 0.1))
    for trial, many in zip(given, eq.sweep(given, rounds=3), strict=True):
        assert_same(alone(trial, rounds=3).server, many.server)


def test_a_trial_that_diverges_leaves_the_others_alone():
    wild = trials(algorithms=[make(0.02, 0.1), make(1e200, 0.1)])
    tame = trials(algorithms=[make(0.02, 0.1), make(0.01, 0.1)])
    found, calm = (eq.sweep(given, rounds=3) for given in (wild, tame))
    assert_identical([r.server for r in found[:2]], [r.server for r in calm[:2]])
    assert found[2].tally.broken.sum() > 0 == found[0].tally.broken.sum()


def test_compiles_once_stops_and_resumes():
    given, paused = trials(), []

    def stop(trial, result):
        paused.append((trial, result.rounds))
        if result.rounds == 2:
            signal.raise_signal(signal.SIGINT)

    whole = eq.sweep(given, rounds=6, record=everything, at_once=4)
    with pytest.raises(Stopped) as stopped:
        eq.sweep(given, rounds=6, record=everything, at_once=4, callback=lambda t, r: t == 0 and stop(t, r), every=2)
    part = stopped.value.result
    assert paused == [(0, 2)]
    assert [None if r is None else r.rounds for r in part].count(2) == 4
    compiled = programs.count()
    again = eq.sweep(given, rounds=6, record=everything, at_once=4, resume=part)
    assert programs.count() == compiled
    for a, b in zip(whole, again, strict=True):
        assert_identical(seen(a), seen(b))


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="2 seeds, 3 starts and 2 divisions"):
        eq.grid(make(0.02, 0.1), [start()] * 3, unequal(), SEEDS)
    with pytest.raises(InputError, match="there are no trials"):
        eq.sweep([], rounds=1)
    with pytest.raises(InputError, match="the data has 4 clients but scaffpd was built for 5"):
        eq.sweep(trials(data=unequal(4)), rounds=1)


def test_products_have_the_precision_that_was_asked_for():
    met = set()

    @eq.numbers_are_leaves
    def watched(local_lr):
        met.add(jax.config.jax_default_matmul_precision)
        return make(local_lr, 0.1)

    eq.sweep(eq.grid(watched(0.02), start(), unequal()), rounds=1, products="tf32")
    assert "tensorfloat32" in met
    with pytest.raises(InputError, match="precision of products"):
        eq.sweep(trials()[:1], rounds=1, products="float8")
