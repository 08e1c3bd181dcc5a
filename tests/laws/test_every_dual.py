"""Every method that takes a dual takes every dual: few clients per round, some of them lost, weights on their set."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.errors import InputError
from equipoise.objectives import DUALS
from tests.problems import DIM, EVERY, N, few, start, unequal

APART = ("scaffpd", "scaffpd_secure")  # with every dual in tests/algorithms/test_scaffpd.py
ROBUST = [n for n in EVERY if ALGORITHMS[n].takes_dual and ALGORITHMS[n].only_dual is None and n not in APART]
SMALLER = ("qffl", "scaffpd_partial")
ALIKE = ("afl", "drfa_alternative", "scaffpd_minibatch")  # to drfa and scaffpd_partial, in how their weights move
OTHERS = ("agnostic", "propfair", "qffl")  # duals of another kind than chi2
LOST = {"scaffpd_ls": 0.05}  # which goes on only when everybody answers
ROUNDS = {"scaffpd_model": 60}  # which needs far fewer rounds than the others, and takes longer for each


@cache  # the same object for all methods: its programs are compiled once
def dual_of(kind):
    return DUALS[kind](N, **DUALS[kind].example)


def unreliable(share):
    def lost(round, exchange, ids):
        return jax.random.bernoulli(jax.random.fold_in(jax.random.key(exchange), round), share, jnp.shape(ids))

    return lost


def pairs():
    """Methods of each kind with one dual, duals of each kind with one method; the other pairs in `make test-all`."""
    later = pytest.mark.thorough(witness="::test_stays_finite_and_on_its_set")
    for kind in sorted(DUALS):
        for name in ROBUST:
            fast = (kind == "chi2" and name not in ALIKE) or (
                name == "scaffpd_partial" and kind in ("agnostic", "propfair", "qffl")
            )
            yield pytest.param(kind, name, marks=[pytest.mark.xdist_group(kind), *([] if fast else [later])])


@pytest.mark.parametrize(("kind", "name"), list(pairs()))
def test_stays_finite_and_on_its_set(kind, name):
    dual = dual_of(kind)
    if name == "scaffpd_model" and not dual.simplex:
        with pytest.raises(InputError, match="are not shares, which SCAFF-PD with a model needs"):
            ALGORITHMS[name].build_example(eq.tasks.ridge(DIM, 0.1), dual)
        return
    # The weights of q-FFL have no bound, and with few clients heard they ask for smaller steps than the others.
    changes = {"rule": eq.steps.constant(tau=0.02, sigma=0.1, theta=0.0)} if (kind, name) == SMALLER else {}
    algorithm = ALGORITHMS[name].build_example(eq.tasks.ridge(DIM, 0.1), dual, eq.cohorts.uniform(N, 2), **changes)

    def record(server):
        return algorithm.model(server), algorithm.weights(server)

    lost = unreliable(LOST.get(name, 0.3))
    x, lam = eq.simulate(
        algorithm, start(), unequal(), 0, rounds=ROUNDS.get(name, 2000), record=record, lost=lost
    ).history
    assert np.isfinite(x).all()
    assert np.isfinite(lam).all()
    assert lam.min() >= 0
    if dual.simplex:
        np.testing.assert_allclose(lam.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(jax.vmap(lambda v: dual.prox(v, 1e-12))(jnp.asarray(lam[-20:])), lam[-20:], atol=1e-6)
    assert not np.allclose(lam[0], lam[-1])


NUMBERS = {"chi2": "rho", "kl": "rho", "tv": "rho", "propfair": "bound"}  # that sweeps change


@pytest.mark.parametrize(
    "kind", few(("chi2", "propfair"), sorted(NUMBERS), "::test_its_number_may_be_an_operand[chi2]")
)
def test_its_number_may_be_an_operand(kind):
    """Of a round of every method: nothing in there asks for its value."""
    settings = dict(DUALS[kind].example)
    number = settings.pop(NUMBERS[kind])

    def one_round(number, name):
        dual = DUALS[kind](N, **{NUMBERS[kind]: number}, **settings)
        algorithm = ALGORITHMS[name].build_example(eq.tasks.ridge(DIM, 0.1), dual)
        state, federation = eq.kernel.init(algorithm, start()), eq.kernel.prepare(algorithm, unequal())
        return algorithm.model(eq.kernel.step(algorithm, state, federation, jax.random.key(0)).server)

    for name in (*ROBUST, *APART):
        if dual_of(kind).simplex or name != "scaffpd_model":
            assert jax.eval_shape(lambda rho, name=name: one_round(rho, name), jnp.asarray(number)).shape == (DIM,)
