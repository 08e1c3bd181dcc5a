import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.certificates import certify
from equipoise.data import synthetic
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, rows, start, unequal

EVERYONE = eq.cohorts.everyone(N)
TASK = eq.tasks.ridge(DIM, reference.MU)


def transcript(x, clients, rounds, *, steps, lr, mu, tau, rho):
    """The rounds of the module's docstring in NumPy, for the chi2 penalty: yields x, lam and the trials taken back."""
    n = len(clients)
    mu = (1 - (1 - lr * mu) ** steps) / (steps * lr)
    mu_lam, limit = rho * n, mu / (rho * n)
    lam = np.full(n, 1 / n)
    at = before = trial = None
    step, kept, starting, rejected = tau, None, True, 0
    for _ in range(rounds):
        x_new = x if at is None else trial[0]
        losses = np.array([reference.loss(x_new, client) for client in clients])
        table = np.array([reference.gradient(x_new, client) for client in clients])
        if at is None:
            at, before = (x, lam, losses, table), losses
        else:
            (x_old, lam_old, losses_old, table_old), (_, lam_new, c, sigma) = at, trial
            dx, dlam, q = x_new - x_old, lam_new - lam_old, losses - losses_old
            rest = 0.475 * c @ dx + sigma / 1.8 * np.sum((q - q.mean()) ** 2) - 0.025 / sigma * dlam @ dlam
            by_losses = lam_new @ q - c @ dx + rest
            by_gradients = lam_new @ (table - table_old) @ dx / 2 + rest
            if by_losses <= 64 * np.finfo(float).eps * np.abs(losses_old).max() and by_gradients <= 0:
                starting = starting and rejected == 0
                before = losses if starting else losses_old
                at, kept = (x_new, lam_new, losses, table), (step, sigma)
                step *= 4 if rejected == 0 else 1.05
            else:
                rejected += 1
                step *= 0.25 if starting else 0.5
        x_at, lam_at, losses_at, table_at = at
        if starting:
            centred = table_at - table_at.mean(axis=0)
            gamma, theta = 1 / 4 / (step**2 * np.sum(centred**2)), 0.0
            sigma = min(gamma, limit) * step
        else:
            tau_kept, sigma_kept = kept
            sigma = min(sigma_kept / tau_kept / (1 - min(mu * step, 0.5)), limit) * step
            theta = max(sigma_kept / sigma / (1 + mu_lam * sigma_kept), tau_kept / step * (1 - mu * step))
            theta = min(max(theta, 0), sigma_kept / sigma)
        lam_new = reference.chi2_prox(lam_at + sigma * ((1 + theta) * losses_at - theta * before), sigma, rho)
        c = lam_new @ table_at
        total = 0
        for i, client in enumerate(clients):
            u = x_at
            for _ in range(steps):
                u = u - lr * (reference.gradient(u, client) - table_at[i] + c)
            total = total + lam_new[i] * (x_at - u) / (lr * steps)
        trial = (x_at - step * total, lam_new, c, sigma)
        yield x_at, lam_at, rejected


@pytest.mark.parametrize(("steps", "tau"), [(1, 1e-3), (5, 30.0)])
def test_follows_its_description(steps, tau):
    algorithm = eq.algorithms.scaffpd_ls(
        TASK, eq.objectives.chi2(N, 0.1), EVERYONE, steps=steps, local_lr=0.05, mu=0.1, tau=tau
    )
    run = eq.simulate(
        algorithm, start(), unequal(), 0, rounds=25, record=lambda s: (s.point.x, s.point.lam, s.rejected)
    )
    want = transcript(np.asarray(start()), rows(unequal()), 25, steps=steps, lr=0.05, mu=0.1, tau=tau, rho=0.1)
    x, lam, rejected = (np.array(column) for column in zip(*want, strict=True))
    assert run.history[2].tolist() == rejected.tolist()
    assert_same(run.history[:2], (x, lam), rtol=1e-8)
    assert rejected[-1] > 0  # something was taken back


# ALGORITHMS.md, section 11: rounds to a duality gap of 1e-10 from tau = 1e-3, 1 and 100, rejected trials counted.
LISTED = {(0.1, 0.1): (76, 22, 24), (0.1, 1.0): (113, 77, 79), (0.01, 0.1): (69, 24, 25), (0.01, 1.0): (276, 255, 254)}


@pytest.mark.thorough(witness="::test_follows_its_description")
@pytest.mark.parametrize("case", LISTED, ids=str)
def test_reaches_the_gap_from_starts_that_are_far_off(case):
    rho, shift = case
    data, task = synthetic.regression(shift=shift, key=jax.random.key(0)), eq.tasks.ridge(10)
    dual, everyone = eq.objectives.chi2(5, rho), eq.cohorts.everyone(5)
    constants = eq.steps.estimate_constants(task, data, jnp.zeros(10))
    how = {"local_lr": 1 / constants.L_xx, "mu": constants.mu_x}
    for tau, listed in zip((1e-3, 1.0, 100.0), LISTED[case], strict=True):
        algorithm = eq.algorithms.scaffpd_ls(task, dual, everyone, steps=1, **how, tau=tau)
        gaps = eq.simulate(
            algorithm,
            jnp.zeros(10),
            data,
            0,
            rounds=int(1.5 * listed),
            record=lambda s: certify(task, dual, data, s.point.x, s.point.lam, mu=constants.mu_x).gap,
        ).history
        assert gaps.min() < 1e-10


@pytest.mark.thorough(witness="::test_follows_its_description")
@pytest.mark.parametrize("dual", [eq.objectives.agnostic(5), eq.objectives.cvar(5, 0.4)], ids=["agnostic", "cvar"])
def test_reaches_the_gap_without_strong_concavity(dual):
    data, task = synthetic.regression(key=jax.random.key(0)), eq.tasks.ridge(10)
    constants = eq.steps.estimate_constants(task, data, jnp.zeros(10))
    algorithm = eq.algorithms.scaffpd_ls(
        task, dual, eq.cohorts.everyone(5), steps=20, local_lr=1 / constants.L_xx, mu=constants.mu_x
    )
    gaps = eq.simulate(
        algorithm,
        jnp.zeros(10),
        data,
        0,
        rounds=600,
        record=lambda s: certify(task, dual, data, s.point.x, s.point.lam, mu=constants.mu_x).gap,
    ).history
    assert gaps.min() < 1e-8


def test_says_what_is_wrong():
    dual = eq.objectives.chi2(N, 0.1)
    with pytest.raises(InputError, match=r"give everyone\(5\), not uniform\(5, 2\)"):
        eq.algorithms.scaffpd_ls(TASK, dual, eq.cohorts.uniform(N, 2), steps=1, local_lr=0.1, mu=0.1)
    with pytest.raises(InputError, match="mu is 0; give a number above zero"):
        eq.algorithms.scaffpd_ls(TASK, dual, EVERYONE, steps=1, local_lr=0.1, mu=0)
