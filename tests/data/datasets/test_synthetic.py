"""The generators follow their papers; the exact solutions are exact by every other way of looking at them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from equipoise.data import Shards, synthetic
from equipoise.data.datasets.synthetic import quadratics, quadratics_solution, regression, saddle_point
from equipoise.errors import EquipoiseError, InputError

UNEQUAL = [20, 50, 100, 7, 33]


def rows(shards):
    """The examples without padding, client by client."""
    return [
        (np.asarray(a)[:m], np.asarray(y)[:m])
        for a, y, m in zip(shards.inputs, shards.labels, np.asarray(shards.sizes), strict=True)
    ]


def losses(shards, x, mu):
    return np.array([np.mean((a @ x - y) ** 2) + mu / 2 * x @ x for a, y in rows(shards)])


def gradients(shards, x, mu):
    return np.array([2 * a.T @ (a @ x - y) / len(y) + mu * x for a, y in rows(shards)])


def dual_optimality(slope, lam, cap):
    """How much a feasible change of lam could still gain: a linear program, solved by HiGHS."""
    n = lam.size
    best = optimize.linprog(-slope, A_eq=np.ones((1, n)), b_eq=[1.0], bounds=[(0, cap)] * n)
    return -best.fun - slope @ lam


# regression


def test_regression_has_the_papers_shape_and_is_exactly_linear_on_every_client():
    shards = regression(key=jax.random.key(0))
    assert shards.inputs.shape == (5, 100, 10)
    assert shards.labels.shape == (5, 100)
    assert shards.sizes.tolist() == [100] * 5
    for a, y in rows(shards):
        truth, residual, *_ = np.linalg.lstsq(a, y, rcond=None)
        assert residual.max(initial=0) < 1e-20
        assert np.abs(a @ truth - y).max() < 1e-12


def test_regression_statistics():
    n, dim, scale, shift = 2000, 10, 3.0, 0.5
    shards = regression(n=n, dim=dim, samples=dim, scale=scale, shift=shift, key=jax.random.key(1))
    a = np.asarray(shards.inputs)
    assert stats.kstest(a.ravel()[::7], "norm").pvalue > 1e-3
    truths = np.linalg.solve(a, np.asarray(shards.labels)[..., None])[..., 0]
    well = np.linalg.cond(a) < 1e6
    spread = (truths - truths[well].mean(axis=0))[well]
    assert stats.kstest(spread.ravel() / shift, "norm").pvalue > 1e-3
    centres = [
        np.linalg.lstsq(*rows(regression(n=1, scale=scale, shift=0.0, key=jax.random.key(s)))[0], rcond=None)[0]
        for s in range(60)
    ]
    assert stats.kstest(np.ravel(centres) / scale, "norm").pvalue > 1e-3


def test_no_shift_means_one_truth():
    truths = [np.linalg.lstsq(a, y, rcond=None)[0] for a, y in rows(regression(shift=0.0, key=jax.random.key(2)))]
    np.testing.assert_allclose(truths, np.broadcast_to(truths[0], (5, 10)), atol=1e-12)


def test_regression_is_a_function_of_its_key():
    one, same, other = (regression(key=jax.random.key(s)) for s in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.any(np.asarray(one.inputs) == np.asarray(other.inputs))


def test_unequal_clients_are_padded_with_zeros():
    shards = regression(samples=UNEQUAL, key=jax.random.key(5))
    assert shards.inputs.shape == (5, 100, 10)
    assert shards.sizes.tolist() == UNEQUAL
    for i, m in enumerate(UNEQUAL):
        assert not np.any(shards.inputs[i, m:])
        assert not np.any(shards.labels[i, m:])
        assert np.all(shards.labels[i, :m] != 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_dtype(dtype):
    shards = regression(key=jax.random.key(6), dtype=dtype)
    assert shards.inputs.dtype == shards.labels.dtype == dtype
    assert quadratics(dtype=dtype).inputs.dtype == dtype


def test_double_precision_is_not_silently_single():
    with jax.enable_x64(False), pytest.raises(InputError, match="jax_enable_x64"):
        regression(key=jax.random.key(0), dtype=np.float64)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": 0}, "at least one client"),
        ({"samples": [3, 4]}, "2 entries for 5 clients"),
        ({"samples": [3, 4, 0, 1, 1]}, "at least one"),
        ({"shift": -1.0}, "from zero up"),
        ({"dtype": np.int32}, "float32 or float64"),
    ],
)
def test_regression_says_what_is_wrong(wrong, says):
    with pytest.raises(InputError, match=says):
        regression(key=jax.random.key(0), **wrong)


# quadratics


@pytest.mark.parametrize("gradient", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("hessian", [0.0, 0.5, 1.0])
def test_quadratics_have_the_asked_heterogeneity(gradient, hessian):
    shards = quadratics(gradient=gradient, hessian=hessian)
    h, b = np.asarray(shards.inputs)[:, 0], np.asarray(shards.labels)[:, 0]
    assert shards.inputs.shape == (2, 1, 1, 1)
    assert shards.labels.shape == (2, 1, 1)
    x = quadratics_solution(shards)
    assert x == 0
    assert np.abs(h - h.mean(axis=0)).max() == hessian  # A2
    assert h.mean() == 1.0  # beta
    slopes = h @ x - b
    assert slopes.sum() == 0
    assert np.mean(np.sum(slopes**2, axis=1)) == gradient**2  # A1 at the optimum


def test_quadratics_contain_the_lower_bound_of_theorem_ii():
    mu, g, x = 0.7, 3.0, np.linspace(-2, 2, 9)
    shards = quadratics(gradient=g, hessian=mu, beta=mu)
    h, b = np.asarray(shards.inputs)[:, 0, 0, 0], np.asarray(shards.labels)[:, 0, 0]
    f_1, f_2 = (h[i] / 2 * x**2 - b[i] * x for i in range(2))
    np.testing.assert_allclose(f_1, mu * x**2 + g * x, rtol=1e-14)
    np.testing.assert_allclose(f_2, -g * x, rtol=1e-14)


def test_weighted_solution():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 1, 4, 4))
    shards = Shards(
        jnp.asarray(root @ np.swapaxes(root, -1, -2)), jnp.asarray(rng.normal(size=(3, 1, 4))), jnp.ones(3, int)
    )
    w = np.array([0.2, 0.5, 0.3])
    x = quadratics_solution(shards, w)
    slopes = np.asarray(shards.inputs)[:, 0] @ x - np.asarray(shards.labels)[:, 0]
    np.testing.assert_allclose(w @ slopes, 0, atol=1e-12)
    with pytest.raises(InputError, match="one number for each of the 3 clients"):
        quadratics_solution(shards, [1.0, 2.0])


# saddle_point

SETS = [{"rho": 0.001}, {"rho": 0.01}, {"rho": 0.1}, {"rho": 10.0}, {}, {"cap": 0.5}, {"cap": 0.4}, {"cap": 0.2}]


@pytest.mark.parametrize("kind", SETS, ids=str)
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0])
def test_saddle_point_meets_the_optimality_conditions(kind, shift):
    for seed in range(3):
        shards = regression(samples=UNEQUAL, shift=shift, key=jax.random.key(seed))
        rho, cap = kind.get("rho", 0.0), kind.get("cap", 1.0)
        x, lam, value = saddle_point(shards, mu=0.1, **kind)
        f, g = losses(shards, x, 0.1), gradients(shards, x, 0.1)
        assert abs(lam.sum() - 1) < 1e-14
        assert lam.min() >= 0
        assert lam.max() <= cap
        assert np.abs(lam @ g).max() < 1e-12 * np.abs(g).max()
        slope = f - rho * 5 * (lam - 0.2)
        assert dual_optimality(slope, lam, cap) < 1e-12 * max(1, f.max())
        assert value == pytest.approx(lam @ f - rho / 10 * np.sum((5 * lam - 1) ** 2), rel=1e-13)


@pytest.mark.parametrize("kind", [{"rho": 0.01}, {"rho": 1.0}, {}, {"cap": 0.05}], ids=str)
def test_saddle_point_of_many_clients(kind):
    for shift in (0.01, 1.0):
        shards = regression(n=50, samples=30, shift=shift, key=jax.random.key(7))
        x, lam, _ = saddle_point(shards, **kind)
        f, g = losses(shards, x, 0.1), gradients(shards, x, 0.1)
        assert np.abs(lam @ g).max() < 1e-12 * np.abs(g).max()
        slope = f - kind.get("rho", 0.0) * 50 * (lam - 0.02)
        assert dual_optimality(slope, lam, kind.get("cap", 1.0)) < 1e-12 * max(1, f.max())


@pytest.mark.parametrize("kind", [{"rho": 0.01}, {"rho": 0.1}, {}, {"cap": 0.5}], ids=str)
def test_saddle_point_agrees_with_an_epigraph_solver(kind):
    """SLSQP on min_{x, t, ...}: it knows nothing of lam, of projections or of kinks."""
    shards = regression(dim=4, samples=20, shift=0.3, key=jax.random.key(8))
    found = saddle_point(shards, **kind)
    n, dim, rho, cap = 5, 4, kind.get("rho", 0.0), kind.get("cap", 1.0)

    # max_lam <lam, f> - psi over the capped simplex = min_{t, z >= 0} t + cap sum z + sum conj(f_i - t - z_i): the
    # Lagrange dual, with conj(u) = max_{l >= 0} l u - rho n/2 (l - 1/n)^2, or the constraint u <= 0 if rho = 0.
    def split(v):
        return v[:dim], v[dim], v[dim + 1 :]

    def excess(v):
        x, t, z = split(v)
        return losses(shards, x, 0.1) - t - z

    def objective(v):
        _, t, z = split(v)
        total = t + cap * z.sum()
        if rho > 0:
            best = np.maximum(1 / n + excess(v) / (rho * n), 0)
            total += np.sum(best * excess(v) - rho * n / 2 * (best - 1 / n) ** 2)
        return total

    start = np.concatenate([np.zeros(dim), [losses(shards, np.zeros(dim), 0.1).max()], np.zeros(n)])
    limits = [] if rho > 0 else [{"type": "ineq", "fun": lambda v: -excess(v)}]
    bounds = [(None, None)] * (dim + 1) + [(0, None)] * n
    answer = optimize.minimize(
        objective,
        start,
        bounds=bounds,
        constraints=limits,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert answer.fun == pytest.approx(found.value, rel=1e-6)
    np.testing.assert_allclose(split(answer.x)[0], found.x, atol=2e-3)


def test_value_is_the_smallest_robust_objective_nearby():
    shards = regression(shift=0.5, key=jax.random.key(9))
    x, _, value = saddle_point(shards)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1, 1.0):
        around = x + size * rng.normal(size=(200, 10))
        assert min(losses(shards, u, 0.1).max() for u in around) > value
    assert losses(shards, x, 0.1).max() == pytest.approx(value, rel=1e-13)


def test_large_rho_is_the_average_and_full_cap_the_equal_weights():
    shards = regression(shift=0.5, key=jax.random.key(10))
    hessian = np.mean([2 * a.T @ a / len(y) for a, y in rows(shards)], axis=0) + 0.1 * np.eye(10)
    average = np.linalg.solve(hessian, np.mean([2 * a.T @ y / len(y) for a, y in rows(shards)], axis=0))
    np.testing.assert_allclose(saddle_point(shards, cap=0.2).x, average, atol=1e-13)
    np.testing.assert_allclose(saddle_point(shards, rho=1e6).x, average, atol=1e-5)


def test_clients_alike():
    one = regression(n=1, key=jax.random.key(11))
    three = Shards(*(jnp.concatenate([a] * 3) for a in one))
    for kind in ({}, {"rho": 0.1}, {"cap": 0.4}):
        np.testing.assert_allclose(saddle_point(three, **kind).x, saddle_point(one).x, atol=1e-13)


def test_single_precision_data_are_taken_as_they_are():
    shards = regression(key=jax.random.key(12), dtype=jnp.float32)
    double = Shards(shards.inputs.astype(jnp.float64), shards.labels.astype(jnp.float64), shards.sizes)
    np.testing.assert_array_equal(saddle_point(shards, rho=0.1).x, saddle_point(double, rho=0.1).x)


def test_saddle_point_says_what_is_wrong():
    shards = regression(key=jax.random.key(13))
    with pytest.raises(InputError, match=r"give at least 0\.2"):
        saddle_point(shards, cap=0.1)
    with pytest.raises(InputError, match="from zero up"):
        saddle_point(shards, rho=-1.0)
    with pytest.raises(InputError, match=r"needs \[n, m, d\]"):
        saddle_point(quadratics())


def test_an_answer_that_is_not_good_enough_is_an_error(monkeypatch):
    """Without its first phase the solver keeps the wrong bounds, and must notice."""
    monkeypatch.setattr(synthetic, "_newton", lambda ridge, x, *, centre, curvature, cap: (x, np.eye(5)[0]))
    with pytest.raises(EquipoiseError, match="only found"):
        saddle_point(regression(shift=1.0, key=jax.random.key(14)), rho=0.1)
