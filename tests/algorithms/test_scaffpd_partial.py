import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data import synthetic
from equipoise.errors import InputError
from equipoise.protocol import exchange_keys
from tests.algorithms import reference
from tests.problems import DIM, LOCAL, RULE, N, assert_same, first, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
KEY = jax.random.key(5)


def test_follows_its_description():
    """The round of the module's docstring, in NumPy, on the cohorts that the run drew."""
    sample, rounds, clients = eq.cohorts.uniform(N, 2), 12, rows(unequal())
    algorithm = eq.algorithms.scaffpd_partial(TASK, eq.objectives.chi2(N, 0.1), sample, RULE, **LOCAL)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=rounds, record=lambda s: s)
    x, lam, losses, table = np.asarray(start()), np.full(N, 1 / N), np.zeros(N), np.zeros((N, DIM))
    heard, (tau, sigma, theta) = np.zeros(N, bool), (0.1, 0.5, 0.7)
    for r in range(rounds):
        before, known = losses.copy(), heard.copy()
        for i in np.asarray(sample(exchange_keys(KEY, r, 0)[0]).ids):
            losses[i], table[i], heard[i] = reference.loss(x, clients[i]), reference.gradient(x, clients[i]), True
        before = np.where(known, before, losses)
        s = (1 + theta) * losses - theta * before
        s[~heard] = s[heard].mean()
        lam = reference.chi2_prox(lam + sigma * s, sigma, 0.1)
        c = (lam * heard / lam[heard].sum()) @ table
        drawn = eq.cohorts.by_weight(2)(exchange_keys(KEY, r, 1)[0], jnp.asarray(np.where(heard, lam, 0))).ids
        du = []
        for i in np.asarray(drawn):
            u = x
            for _ in range(LOCAL["steps"]):
                u = u - LOCAL["local_lr"] * (reference.gradient(u, clients[i]) - table[i] + c)
            du.append((x - u) / (LOCAL["steps"] * LOCAL["local_lr"]))
        x = x - tau * np.mean(du, axis=0)
        assert_same((run.history.x[r], run.history.lam[r]), (x, lam), rtol=1e-9)


def test_with_everyone_it_is_scaffpd():
    dual, everyone = eq.objectives.chi2(N, 0.1), eq.cohorts.everyone(N)
    plain = eq.algorithms.scaffpd(TASK, dual, everyone, RULE, **LOCAL)
    drawn = eq.algorithms.scaffpd_partial(TASK, dual, everyone, RULE, **LOCAL)
    one, other = (eq.simulate(a, start(), unequal(), KEY, rounds=9).server for a in (plain, drawn))
    for field in ("x", "lam", "losses", "c", "steps"):
        assert_same(getattr(one, field), getattr(other, field))
    assert eq.algorithms.scaffpd(TASK, dual, eq.cohorts.uniform(N, 2), RULE, **LOCAL).name == "scaffpd_partial"


@pytest.mark.thorough(witness="::test_follows_its_description")
@pytest.mark.parametrize("m", [2, 5, 10])
def test_reaches_the_saddle_point_with_a_fraction_of_the_clients(m):
    """N = 20: below 1e-20 within 600 rounds, with step sizes from a rule."""
    data, task, dual = synthetic.regression(n=20, key=KEY), eq.tasks.ridge(10), eq.objectives.chi2(20, 0.05)
    saddle = synthetic.saddle_point(data, rho=0.05)
    found = eq.steps.tuned(task, data, jnp.zeros(10), dual, steps=10, share=m / 20)
    algorithm = eq.algorithms.scaffpd_partial(
        task, dual, eq.cohorts.uniform(20, m), found.rule, steps=10, local_lr=found.local_lr
    )
    distance = eq.simulate(
        algorithm, jnp.zeros(10), data, 0, rounds=600, record=lambda s: jnp.sum((s.x - jnp.asarray(saddle.x)) ** 2)
    ).history
    assert distance[-1] < 1e-20
    assert distance[150] < 1e-3 * distance[20]


@pytest.mark.parametrize(
    "dual",
    first(
        1,
        [[eq.objectives.agnostic(N)], [eq.objectives.cvar(N, 0.3)], [eq.objectives.chi2(N, 0.01)]],
        "::test_lambda_stays_on_its_set_whoever_answers",
    ),
    ids=["agnostic", "cvar", "chi2"],
)
def test_lambda_stays_on_its_set_whoever_answers(dual):
    """Thousands of rounds with sparse weights, clients lost in any exchange, and cohorts without dual mass."""

    def unreliable(round, exchange, ids):
        return jax.random.bernoulli(jax.random.fold_in(jax.random.key(exchange), round), 0.4, jnp.shape(ids))

    rule = eq.steps.constant(tau=0.05, sigma=5.0, theta=0.9)
    algorithm = eq.algorithms.scaffpd_partial(TASK, dual, eq.cohorts.uniform(N, 2), rule, **LOCAL)
    history = eq.simulate(
        algorithm, start(), unequal(), KEY, rounds=3000, record=lambda s: (s.lam, s.x), lost=unreliable
    ).history
    lam, x = history
    np.testing.assert_allclose(lam.sum(axis=1), 1, atol=1e-9)
    assert lam.min() >= 0
    assert np.isfinite(x).all()
    assert (lam == 0).any()  # sparse indeed


def test_says_what_is_wrong():
    dual = eq.objectives.chi2(N, 0.1)
    with pytest.raises(InputError, match="one control variate per client"):
        eq.algorithms.scaffpd_partial(TASK, dual, eq.cohorts.by_weight(2), RULE, **LOCAL)
    with pytest.raises(InputError, match="drawn from 6 clients but the dual is for 5"):
        eq.algorithms.scaffpd_partial(TASK, dual, eq.cohorts.uniform(6, 2), RULE, **LOCAL)
    with pytest.raises(InputError, match=r"secure form .* give everyone\(5\)"):
        eq.algorithms.scaffpd(TASK, dual, eq.cohorts.uniform(N, 2), RULE, **LOCAL, secure=True)
