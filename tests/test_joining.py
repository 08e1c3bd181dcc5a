"""What `experiments/joining.py` measures, and that what it trains is the optimum that scipy finds."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import log_loss, roc_auc_score

import equipoise as eq

JOINING = runpy.run_path(str(Path(__file__).parents[1] / "experiments" / "joining.py"))
SLOPES, L2, RHO = np.array([1.0, -2.0]), JOINING["L2"], 0.1
BASE = np.array([0.5, 0.3, 0.6])


def owners():
    rng = np.random.default_rng(0)
    for intercept, m in [(1.0, 30), (-2.0, 50), (0.0, 40)]:
        a = rng.normal(size=(m, 2))
        yield a, (a @ SLOPES + intercept + rng.logistic(size=m) > 0).astype(np.int32)


def own_task():
    return eq.tasks.own_part(eq.tasks.softmax_regression(2, 2, l2=2 * L2))


def own_intercept(z, y):
    """Of log odds z, by Newton."""
    b = 0.0
    for _ in range(30):
        p = 1 / (1 + np.exp(-z - b))
        b -= (np.mean(p - y) + b / len(y)) / (np.mean(p * (1 - p)) + 1 / len(y))
    return b


def test_owners_are_scored_on_rows_held_out_with_their_own_intercepts():
    parts = JOINING["split"](list(owners()), 0)
    assert [len(y) for _, y in parts.test] == [9, 15, 12]
    with jax.enable_x64(True):
        x = jnp.asarray(np.concatenate([-SLOPES / 2, SLOPES / 2, [0.0, 0.0]]))
        found = JOINING["scores"](own_task(), x, eq.data.stack(parts.train), parts.test)
    for i, ((a, y), (tests, labels)) in enumerate(zip(parts.train, parts.test, strict=True)):
        z = tests @ SLOPES + own_intercept(a @ SLOPES, y)
        p = 1 / (1 + np.exp(-z))
        expected = log_loss(labels, p, labels=[0, 1]), np.mean((z > 0) == labels), roc_auc_score(labels, z)
        np.testing.assert_allclose([scores[i] for scores in found], expected, rtol=1e-8)
    assert JOINING["auc"](np.array([1.0, 1.0, 0.0]), np.array([1, 0, 0])) == 0.75
    numbers = JOINING["summary"](found, found._replace(loss=found.loss + np.array([0.1, -0.1, 0.2])))
    np.testing.assert_allclose(numbers[-3:], [0.2 / 3, -0.1, 1 / 3])


@pytest.mark.thorough(witness="::test_owners_are_scored_on_rows_held_out_with_their_own_intercepts")
def test_what_is_trained_is_the_optimum():
    rows = list(owners())
    with jax.enable_x64(True):
        dual = eq.objectives.chi2(3, RHO)
        x = np.asarray(JOINING["trained"](own_task(), eq.data.stack(rows), RHO, BASE))

        def robust(w):  # slopes, and the shared intercept
            gains = []
            for (a, y), base in zip(rows, BASE, strict=True):
                z = a @ w[:2] + w[2]
                b = own_intercept(z, y)
                loss = np.mean(np.logaddexp(0, z + b) - y * (z + b)) + b**2 / (2 * len(y))
                gains.append(loss + L2 / 2 * w @ w - base)
            return float(dual.value(jnp.asarray(gains)))

        best = minimize(robust, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    np.testing.assert_allclose([*(x[2:4] - x[:2]), x[5] - x[4]], best.x, atol=1e-5)
