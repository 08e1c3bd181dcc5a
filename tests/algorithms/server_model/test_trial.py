"""What the server does when its model fails: the minimax gradient mapping, which cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import equipoise as eq
from equipoise.algorithms.server_model import judge, state
from equipoise.algorithms.server_model.constants import IN_A_ROW
from equipoise.algorithms.server_model.precision import joined
from equipoise.algorithms.server_model.trial import next_trial, update_dual

N, K, D = 4, 3, 5
EPS = np.finfo(float).eps
DUAL = eq.objectives.chi2(N, 0.05)
HERE = jnp.ones(N, bool)


def clients(seed=0):
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(N, D, D)) * np.geomspace(0.1, 3, D)
    H = B @ B.transpose(0, 2, 1) / D + 0.1 * np.eye(D)
    return H, rng.normal(size=(N, D)), np.linalg.eigvalsh(H)[:, -1]


def replies(x, H, aim):
    away = np.asarray(x) - aim
    C = np.einsum("nde,ne->nd", H, away)
    return np.einsum("nd,nd->n", C, away) / 2, C


def at_centre(H, aim, L):
    server = state.initial(jnp.zeros(D), N, K)._replace(L=jnp.asarray(L))
    return judge.heard_at_centre(server, HERE, *map(jnp.asarray, replies(np.zeros(D), H, aim)), EPS)


@jax.jit
def one_trial(server):
    server = update_dual(server, DUAL, DUAL.interior)
    return next_trial(server, DUAL, DUAL.interior, -server.c / jnp.max(server.L))


@jax.jit
def judged(server, losses, gradients):
    return judge.judged(server, DUAL, HERE, losses, gradients, EPS)


@pytest.mark.parametrize("more", [0, 2])
def test_after_three_failures_the_gradient_mapping(more):
    """x - (1/L) sum_i lam_i c_i with the weights that are best for it; L = max_i L_i, doubled every time after."""
    H, aim, L = clients()
    server = at_centre(H, aim, L)
    server = server._replace(shape=server.shape._replace(in_a_row=jnp.int32(IN_A_ROW + more)))
    trial = one_trial(server).trial
    f, C = replies(np.zeros(D), H, aim)
    top = L.max() * 2**more

    def negative(lam):
        return np.sum((lam @ C) ** 2) / (2 * top) + 0.05 * N / 2 * np.sum((lam - 1 / N) ** 2) - lam @ f

    found = minimize(
        negative,
        np.full(N, 1 / N),
        bounds=[(0, 1)] * N,
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1},
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(trial.x, -found.x @ C / top, atol=1e-5)
    there = float(DUAL.value(jnp.asarray(replies(trial.x, H, aim)[0])))
    assert there <= float(joined(trial.predicted)) + 1e-12  # the model is above every client's loss
    assert there < float(DUAL.value(jnp.asarray(f)))


def test_a_trial_that_is_worse_is_taken_back_and_three_in_a_row_are_counted():
    H, aim, L = clients()
    server = at_centre(H, aim, L)
    before = server.centre
    for count in (1, 2, 3):
        trial = one_trial(server)
        _, C = replies(trial.trial.x, H, aim)
        server = judged(trial, joined(before.f) + 1, jnp.asarray(C))  # losses that no gradient told of
        assert int(server.shape.in_a_row) == count
        np.testing.assert_array_equal(server.centre.x, before.x)
        np.testing.assert_allclose(joined(server.centre.f), joined(before.f))
    assert float(server.shape.nu) > 0
    kept = one_trial(server)  # the gradient mapping
    server = judged(kept, *map(jnp.asarray, replies(kept.trial.x, H, aim)))
    np.testing.assert_array_equal(server.centre.x, kept.trial.x)
    assert int(server.shape.in_a_row) == 0


def test_nobody_could_answer():
    H, aim, L = clients()
    server = one_trial(at_centre(H, aim, L))
    after = judge.retreat(server)
    assert float(after.shape.nu) == 1
    np.testing.assert_allclose(after.shape.kappa, 4 * server.shape.kappa)
    shorter = one_trial(after).trial.x
    assert np.linalg.norm(shorter) < np.linalg.norm(server.trial.x)
