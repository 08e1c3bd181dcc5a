"""The small saddle solver against duality gaps, SciPy, and its own residual, for every dual on the simplex."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import equipoise as eq
from equipoise.algorithms.server_model import saddle
from tests.problems import few

N, K, ACROSS = 6, 3, 4
DUALS = {
    "agnostic": eq.objectives.agnostic(N),
    "chi2": eq.objectives.chi2(N, 0.05),
    "chi2_ball": eq.objectives.chi2_ball(N, 0.4),
    "cvar": eq.objectives.cvar(N, 0.4),
    "average": eq.objectives.cvar(N, 1.0),
    "kl": eq.objectives.kl(N, 0.1, p=[0.3, 0.1, 0.2, 0.1, 0.1, 0.2]),
    "tv": eq.objectives.tv(N, 0.2, p=[0.3, 0.0, 0.2, 0.2, 0.1, 0.2]),
    "chi2 capped": eq.objectives.cap_weights(eq.objectives.chi2(N, 0.02), 0.4),
    "tv capped": eq.objectives.cap_weights(eq.objectives.tv(N, 0.05), 0.4),
}


def problem(seed):
    """Losses of all sizes; every third without curvature across the directions."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(N, K, K)) * 10 ** rng.uniform(-2, 1)
    F = rng.normal(size=(N, ACROSS)) * 10 ** rng.uniform(-3, 0) * (seed % 3 > 0)
    f = 1 + rng.normal(size=N) * 10.0 ** rng.integers(-3, 2)
    return f, rng.normal(size=(N, K)), B @ B.transpose(0, 2, 1) + 1e-3 * np.eye(K), F


def values(f, G, A, a):
    return f + G @ a + np.einsum("nij,i,j->n", A, a, a) / 2


def lower(dual, f, G, A, F, lam):
    """The value of lam: the inner minimum, exactly."""
    a = np.linalg.solve(np.tensordot(lam, A, 1), -lam @ G)
    return lam @ values(f, G, A, a) - np.sum((lam @ F) ** 2) / 2 - float(dual.penalty(jnp.asarray(lam)))


@pytest.mark.parametrize(
    "name", few(("chi2", "agnostic", "kl"), DUALS, "::test_no_weights_and_no_point_are_better[chi2]")
)
def test_no_weights_and_no_point_are_better(name):
    """Q = F F' is what minimising over one more point e leaves: |e|^2/2 + F e at e = -F'lam."""
    dual = DUALS[name]
    solve = jax.jit(lambda f, G, A, Q: saddle.solve(dual.interior, f, G, A, Q))
    for seed in range(12):
        f, G, A, F = problem(seed)
        lam, a, residual = map(np.asarray, solve(*map(jnp.asarray, (f, G, A, F @ F.T))))
        scale = max(np.ptp(f), 1e-3)
        assert residual < 1e-10
        assert lam.min() >= 0
        assert lam.sum() == pytest.approx(1)
        np.testing.assert_allclose(dual.prox(jnp.asarray(lam), 1e-13), lam, atol=1e-9)  # on the dual's set
        e = -lam @ F
        upper = float(dual.value(jnp.asarray(values(f, G, A, a) + F @ e + e @ e / 2)))
        assert upper - lower(dual, f, G, A, F, lam) < 1e-8 * scale


@pytest.mark.thorough(witness="::test_no_weights_and_no_point_are_better")
@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # of the oldest SciPy
@pytest.mark.parametrize("name", ["agnostic", "chi2", "kl", "cvar"])
def test_another_solver_finds_no_better_weights(name):
    dual = DUALS[name]
    solve = jax.jit(lambda f, G, A, Q: saddle.solve(dual.interior, f, G, A, Q))
    f, G, A, F = problem(4)
    ours = np.asarray(solve(*map(jnp.asarray, (f, G, A, F @ F.T))).lam)
    cap = np.minimum(dual.interior.cap, 1)
    theirs = minimize(
        lambda lam: -lower(dual, f, G, A, F, np.maximum(lam, 1e-12)),
        np.full(N, 1 / N),
        bounds=[(1e-9, top) for top in cap],
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 400},
    ).x
    best, found = lower(dual, f, G, A, F, ours), lower(dual, f, G, A, F, theirs / theirs.sum())
    assert found <= best + 1e-9 * np.ptp(f)
    assert best - found < 1e-4 * np.ptp(f)
    np.testing.assert_allclose(ours, theirs, atol=1e-2)


def test_double_precision_inside_a_program_of_single_precision():
    dual = DUALS["chi2"]

    @jax.jit
    def run(f, G, A, Q):
        with jax.enable_x64(True):
            found = saddle.solve(dual.interior, *(x.astype(jnp.float64) for x in (f, G, A, Q)))
            high = found.lam.astype(jnp.float32)
            return high, (found.lam - high.astype(jnp.float64)).astype(jnp.float32), found.residual.astype(jnp.float32)

    f, G, A, F = (x.astype(np.float32) for x in problem(1))
    with jax.enable_x64(False):
        high, low, residual = run(f, G, A, F @ F.T)
    assert {x.dtype for x in (high, low, residual)} == {np.dtype(np.float32)}
    assert residual < 1e-10
    wide = saddle.solve(dual.interior, *(jnp.asarray(x, jnp.float64) for x in (f, G, A, F @ F.T)))
    np.testing.assert_allclose(np.float64(high) + np.float64(low), wide.lam, atol=1e-12)
