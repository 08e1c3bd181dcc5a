import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms.messages import ModelMessage
from equipoise.errors import InputError
from equipoise.protocol import exchange_keys
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)
KEY = jax.random.key(5)


@pytest.mark.parametrize("sample", [EVERYONE, eq.cohorts.by_weight(3)])
def test_follows_the_printed_update(sample):
    """Section 5.2 ascends along the gradient of the penalty; the prox does the same with another step size."""
    gamma, rho = 0.05, 0.1
    algorithm = eq.algorithms.drfa_alternative(
        TASK, eq.objectives.chi2(N, rho), sample, steps=6, local_lr=0.03, dual_lr=gamma / (1 - gamma * rho * N)
    )
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=10, record=lambda s: s)
    before = [np.full(N, 1 / N), *run.history.lam[:-1]]
    cohorts = [
        np.asarray(sample(exchange_keys(KEY, r, 1)[0], jnp.asarray(lam)).ids) if sample is not EVERYONE else None
        for r, lam in enumerate(before)
    ]
    how = {"steps": 6, "lr": 0.03, "gamma": gamma, "rho": rho}
    want = list(reference_baselines.drfa_alternative(np.asarray(start()), rows(unequal()), cohorts, **how))
    assert_same(run.history.w, np.array([w for w, _ in want]), rtol=1e-10)
    assert_same(run.history.lam, np.array([lam for _, lam in want]), rtol=1e-10)
    assert np.ptp(run.history.lam[-1]) > 0.1


@pytest.mark.thorough(witness="::test_follows_the_printed_update")
@pytest.mark.parametrize("steps", [1, 4])
def test_full_form_is_afl_at_once(steps):
    """With tau = 1 it is AFL as printed."""
    given = (TASK, eq.objectives.agnostic(N), EVERYONE)
    how = {"steps": steps, "local_lr": 0.05, "dual_lr": 0.02}
    ours = eq.simulate(
        eq.algorithms.drfa_alternative(*given, **how), start(), unequal(), 0, rounds=30, record=lambda s: (s.w, s.lam)
    )
    afl = eq.simulate(
        eq.algorithms.afl(*given, **how, simultaneous=True),
        start(),
        unequal(),
        0,
        rounds=30,
        record=lambda s: (s.x, s.lam),
    )
    assert_same(ours.history, afl.history, rtol=1e-10)


def test_drfa_with_one_step_is_afl_in_turns_half_a_round_later():
    """DRFA, full form, tau = 1: its snapshot is the new model, so w moves by lam, then lam by f(w).

    AFL with lam first makes the same moves in the same order when it starts from DRFA's first model: its x^r, lam^r
    are w^(r+1), lam^(r).
    """
    given, how = (TASK, eq.objectives.agnostic(N), EVERYONE), {"local_lr": 0.05, "dual_lr": 0.02}
    drfa = eq.simulate(eq.algorithms.drfa(*given, steps=1, **how), start(), unequal(), 0, rounds=31, record=lambda s: s)
    first = jnp.asarray(drfa.history.w[0])
    afl = eq.simulate(
        eq.algorithms.afl(*given, **how, simultaneous=False), first, unequal(), 0, rounds=30, record=lambda s: s
    )
    assert_same(afl.history.x, drfa.history.w[1:], rtol=1e-10)
    assert_same(afl.history.lam, drfa.history.lam[:-1], rtol=1e-10)


def test_takes_the_loss_over_all_local_data():
    algorithm = eq.algorithms.drfa_alternative(
        eq.tasks.ridge(DIM, reference.MU, batch=2),
        eq.objectives.agnostic(N),
        EVERYONE,
        steps=1,
        local_lr=0.1,
        dual_lr=0.1,
    )
    got = algorithm.round[0].work(ModelMessage(start()), None, unequal().client(2), KEY)[1].each.loss
    assert float(got) == pytest.approx(reference.loss(np.asarray(start()), rows(unequal())[2]))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"sample": eq.cohorts.uniform(N, 2)}, r"give by_weight\(m\), or everyone\(5\), not uniform\(5, 2\)"),
        ({"dual_lr": 0}, "dual_lr is 0"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, "steps": 1, "local_lr": 0.1, "dual_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.drfa_alternative(TASK, eq.objectives.agnostic(N), **given)
