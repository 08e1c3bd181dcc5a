"""Objectives of gains: their operators, and saddle points against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import equipoise as eq
from equipoise.certificates import certify
from equipoise.errors import InputError
from equipoise.objectives import of_gains
from equipoise.tasks import WithBaseline, less_baseline, own_part
from tests.problems import (
    DIM,
    KEY,
    RULE,
    N,
    assert_identical,
    assert_same,
    build,
    few,
    play,
    rows,
    start,
    unequal,
)

BASE = np.array([0.3, 1.2, 0.1, 0.7, 0.4])
LOSSES = jnp.asarray([0.9, 1.1, 0.4, 1.6, 0.2])
DUALS = {
    "chi2": eq.objectives.chi2(N, 0.3),
    "kl": eq.objectives.kl(N, 0.3),
    "agnostic": eq.objectives.agnostic(N),
    "cvar": eq.objectives.cvar(N, 0.5),
    "qffl": eq.objectives.qffl(N, 1.0),
}


@pytest.mark.parametrize("name", DUALS)
def test_the_operators_are_those_of_the_penalty_with_the_baselines(name):
    """Each by its definition: no weights nearby are better."""
    plain, dual = DUALS[name], of_gains(DUALS[name], BASE)
    lam = plain.best_response(LOSSES - BASE)
    assert_identical(dual.best_response(LOSSES), lam)
    assert_same(dual.value(LOSSES), LOSSES @ lam - dual.penalty(lam))
    v, step = jnp.asarray([0.1, 0.5, -0.2, 0.3, 0.4]), 0.7

    def cost(lam):
        return float(dual.penalty(lam) + jnp.sum((lam - v) ** 2) / (2 * step))

    best = dual.prox(v, step)
    rng = np.random.default_rng(0)
    for _ in range(20):  # towards other weights of the set
        other = plain.best_response(jnp.asarray(rng.normal(size=N)))
        assert cost(best) <= cost(best + 1e-4 * (other - best)) + 1e-12
    assert_same(jax.grad(dual.value)(LOSSES), lam, rtol=1e-6)


def own_squares(client, x):
    """f_i and its slope with an own intercept, by hand: ridge with mu = 0.1."""
    a, y = client
    m = len(y)
    r = a @ x - y
    b = -2 * r.sum() / (2 * m + 1)
    return np.mean((r + b) ** 2) + b**2 / (2 * m) + 0.05 * x @ x, 2 / m * a.T @ (r + b) + 0.1 * x


@pytest.mark.thorough(witness="::test_the_operators_are_those_of_the_penalty_with_the_baselines")
@pytest.mark.parametrize("name", ["chi2", "kl", "agnostic"])
def test_saddle_points_with_own_parts_and_gains(name):
    data, task, dual = unequal(), own_part(eq.tasks.ridge(DIM, 0.1)), of_gains(DUALS[name], BASE)
    method = eq.algorithms.scaffpd_model(task, dual, eq.cohorts.everyone(N), steps=5, memory=5)
    end = eq.simulate(method, start(), data, KEY, rounds=60).server
    x = np.asarray(method.model(end))
    clients = rows(data)

    def gains(x):
        return np.array([own_squares(client, x)[0] for client in clients]) - BASE

    def robust(x):
        found = gains(x)
        lam = np.asarray(DUALS[name].best_response(jnp.asarray(found)))
        return float(DUALS[name].value(jnp.asarray(found))), lam @ np.array([own_squares(c, x)[1] for c in clients])

    if name == "agnostic":
        found = minimize(
            lambda v: v[-1],
            np.append(x + 0.1, 5.0),
            jac=lambda v: np.eye(DIM + 1)[-1],
            constraints={"type": "ineq", "fun": lambda v: v[-1] - gains(v[:-1]),
                         "jac": lambda v: np.array([np.append(-own_squares(c, v[:-1])[1], 1.0) for c in clients])},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        best, where = found.x[-1], found.x[:-1]
    else:
        found = minimize(robust, x + 0.1, jac=True, method="BFGS", options={"gtol": 1e-11})
        best, where = found.fun, found.x
    assert abs(robust(x)[0] - best) < 1e-8
    np.testing.assert_allclose(x, where, atol=1e-6 if name == "agnostic" else 1e-8)
    known = certify(task, dual, data, jnp.asarray(x), method.weights(end))
    assert float(known.robust) - best <= float(known.gap) < 1e-6
    np.testing.assert_allclose(known.losses, gains(x) + BASE, rtol=1e-9)  # what is told are losses


@pytest.mark.parametrize(
    "name", few(["scaffpd"], ["drfa", "scaffpd"], "::test_gains_over_nothing_are_losses_bit_for_bit[scaffpd]")
)
def test_gains_over_nothing_are_losses_bit_for_bit(name):
    plain = play(name).server
    dual = of_gains(eq.objectives.chi2(N, 0.1), np.zeros(N))
    task, everyone = eq.tasks.ridge(DIM, 0.1), eq.cohorts.everyone(N)
    method = eq.algorithms.ALGORITHMS[name].build_example(task, dual, everyone)
    end = eq.simulate(method, start(), unequal(), KEY, rounds=3).server
    assert_identical(build(name).weights(plain), method.weights(end))


def test_clients_that_weigh_themselves_need_to_tell_nobody():
    """scaffpd_sums on data with baselines: the saddle point of gains, which scaffpd finds too."""
    dual, data, task = eq.objectives.kl(N, 0.5), unequal(), eq.tasks.ridge(DIM, 0.1)
    how = {"steps": 3, "local_lr": 0.03}
    sums = eq.algorithms.scaffpd_sums(less_baseline(task), dual, eq.cohorts.everyone(N), RULE, **how)
    seen = eq.algorithms.scaffpd(task, of_gains(dual, BASE), eq.cohorts.everyone(N), RULE, **how)
    mine = eq.simulate(sums, start(), WithBaseline(data, jnp.asarray(BASE)), KEY, rounds=600).server
    assert_same(mine.x, eq.simulate(seen, start(), data, KEY, rounds=600).server.x, rtol=1e-6, atol=1e-7)


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="for 5 clients; give one for each"):
        of_gains(DUALS["kl"], np.zeros(4))
    with pytest.raises(InputError, match="not finite"):
        of_gains(DUALS["kl"], np.full(N, np.nan))
