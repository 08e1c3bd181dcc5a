import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data import synthetic
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, few, first, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)
RULES = {
    "constant": eq.steps.constant(tau=0.1, sigma=2.0, theta=0.6),
    "accelerated": eq.steps.accelerated(tau=0.1, sigma=1.0, mu=0.1),
}


FIRST = [(1, "accelerated", False), (7, "constant", False), (7, "accelerated", False), (7, "constant", True)]
CASES = sorted(itertools.product([1, 7], RULES, [False, True]), key=lambda case: case not in FIRST)


@pytest.mark.parametrize(("steps", "rule", "secure"), first(4, CASES, "::test_follows_the_pseudo_code"))
def test_follows_the_pseudo_code(rule, steps, secure):
    """With steps=1 this is the accelerated primal-dual method itself: no local work, no correction."""
    algorithm = eq.algorithms.scaffpd(
        TASK, eq.objectives.chi2(N, 0.1), EVERYONE, RULES[rule], steps=steps, local_lr=0.02, secure=secure
    )
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=12, record=lambda s: s)
    now = zip(*map(np.asarray, run.history.steps.now), strict=True)
    want = list(reference.scaffpd(np.asarray(start()), rows(unequal()), now, steps=steps, lr=0.02, rho=0.1))
    for field, column in (("x", 0), ("lam", 1), ("losses", 2), ("c", 3)):
        assert_same(getattr(run.history, field), np.array([row[column] for row in want]), rtol=1e-10)


def test_one_step_is_accelerated_primal_dual():
    """APD: x+ = x - tau grad_x Phi(x, lam+), whatever the local step size."""
    runs = [
        eq.simulate(
            eq.algorithms.scaffpd(
                TASK, eq.objectives.chi2(N, 0.1), EVERYONE, RULES["constant"], steps=1, local_lr=local_lr
            ),
            start(),
            unequal(),
            0,
            rounds=12,
        ).server.x
        for local_lr in (1e-3, 0.3)
    ]
    assert_same(*runs)


@pytest.mark.parametrize("secure", [False, True])
def test_the_saddle_point_is_a_fixed_point(secure):
    data = unequal()
    saddle = synthetic.saddle_point(data, mu=reference.MU, rho=0.1)
    algorithm = eq.algorithms.scaffpd(
        TASK, eq.objectives.chi2(N, 0.1), EVERYONE, RULES["constant"], steps=20, local_lr=0.02, secure=secure
    )
    there = algorithm.init(jnp.asarray(saddle.x))._replace(lam=jnp.asarray(saddle.lam))
    moved = eq.simulate(algorithm._replace(init=lambda x: there), jnp.asarray(saddle.x), data, 0, rounds=5).server
    assert_same((moved.x, moved.lam), (saddle.x, saddle.lam), atol=1e-10)


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
@pytest.mark.parametrize("rho", [0.01, 0.1])
def test_reaches_the_saddle_point_where_drfa_stalls(rho):
    data = synthetic.regression(key=jax.random.key(1))
    task, dual, everyone = eq.tasks.ridge(10), eq.objectives.chi2(5, rho), eq.cohorts.everyone(5)
    saddle = synthetic.saddle_point(data, rho=rho)

    def distance(x):
        return jnp.sum((x - jnp.asarray(saddle.x)) ** 2)

    rule = eq.steps.constant(tau=0.5, sigma=3.0, theta=0.0)
    ours = eq.algorithms.scaffpd(task, dual, everyone, rule, steps=100, local_lr=0.005)
    theirs = eq.algorithms.drfa(task, dual, everyone, steps=100, local_lr=0.005, dual_lr=0.03)
    end = {
        algorithm.name: distance(algorithm.model(eq.simulate(algorithm, jnp.zeros(10), data, 0, rounds=200).server))
        for algorithm in (ours, theirs)
    }
    assert end["scaffpd"] < 1e-20
    assert 1e-9 < end["drfa"] < 1e-1


def test_a_strong_penalty_gives_the_average_objective():
    algorithm = eq.algorithms.scaffpd(
        TASK, eq.objectives.chi2(N, 1e9), EVERYONE, RULES["constant"], steps=5, local_lr=0.02
    )
    server = eq.simulate(algorithm, start(), unequal(), 0, rounds=2000).server
    assert_same(server.lam, np.full(N, 1 / N), atol=1e-7)
    mean = np.mean([reference.gradient(np.asarray(server.x), client) for client in rows(unequal())], axis=0)
    assert np.abs(mean).max() < 1e-7


@pytest.mark.parametrize(
    "name",
    few(["agnostic"], sorted(eq.objectives.DUALS), "laws/test_every_dual.py::test_stays_finite_and_on_its_set"),
)
def test_takes_every_dual(name):
    record = eq.objectives.DUALS[name]
    dual = record(N, **record.example)
    # The weights of PropFair sum to about 1/bound, not to one, and the primal step with them.
    rule = eq.steps.constant(tau=3.0 if name == "propfair" else 0.02, sigma=0.02, theta=0.9)
    algorithm = eq.algorithms.scaffpd(TASK, dual, EVERYONE, rule, steps=5, local_lr=0.01)

    def robust(server):
        return dual.value(eq.tasks.losses(TASK, server.x, unequal()))

    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=3000, record=robust)
    values, x = run.history, jnp.asarray(run.server.x)
    assert values[-1] < values[0]
    directions = jnp.asarray(np.random.default_rng(0).normal(size=(20, DIM)))
    near = jax.vmap(lambda d: dual.value(eq.tasks.losses(TASK, x + 0.05 * d, unequal())))(directions)
    assert np.all(near > values[-1] - 1e-6)  # no direction is better than where it ended


def test_a_client_never_heard_from_neither_gains_nor_loses_weight():
    def without_two(round, exchange, ids):
        return jnp.asarray(ids) == 2

    rule = eq.steps.constant(tau=0.05, sigma=0.02, theta=0.5)
    algorithm = eq.algorithms.scaffpd(TASK, eq.objectives.agnostic(N), EVERYONE, rule, steps=3, local_lr=0.02)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=1, lost=without_two)
    assert run.server.heard.tolist() == [True, True, False, True, True]
    assert float(run.server.lam[2]) == pytest.approx(1 / N)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"local_lr": 0.0}, "local_lr is 0.0; give a number above zero"),
        ({"steps": -1}, "steps is -1"),
        ({"sample": eq.cohorts.everyone(N + 1)}, r"give everyone\(5\), not everyone\(6\)"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, "rule": RULES["constant"], "steps": 1, "local_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.scaffpd(TASK, eq.objectives.chi2(N, 0.1), **given)
