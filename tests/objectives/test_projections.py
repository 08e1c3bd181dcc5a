"""Projections keep the digits that the naive formulas lose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives.projections import (
    LONG,
    SearchStart,
    folded,
    level,
    moderate,
    simplex,
    sum_above_zero,
    with_unit_sum,
)
from tests.objectives import dual_references as ref


def test_simplex_keeps_the_digits_of_small_weights_beside_a_large_one():
    rng = np.random.default_rng(0)
    v = rng.random(50_000).astype(np.float32) * np.float32(2e-5)
    v[0] = 0.5
    right = ref.simplex(v.astype(np.longdouble))
    lam = np.asarray(simplex(jnp.asarray(v)))
    held = right > 1e-7
    assert held.sum() > 40_000
    assert (abs(lam - right)[held] / right[held]).max() < 1e-4  # centred at the largest entry: 3e-3


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e3, 1e20])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_simplex_minimises_at_every_scale(scale, dtype):
    """Variational inequality: the gradient scale * lam - v is smallest, and level, where there is weight."""
    v = (scale * np.random.default_rng(1).normal(size=30)).astype(dtype)
    lam = np.asarray(simplex(jnp.asarray(v), scale)).astype(np.longdouble)
    gradient = lam - v / np.longdouble(scale)
    assert (lam * (gradient - gradient.min())).sum() < 20 * np.finfo(dtype).eps
    assert abs(lam.sum() - 1) < 10 * np.finfo(dtype).eps


def test_a_point_of_the_simplex_is_its_own_projection():
    lam = np.random.default_rng(2).dirichlet(np.full(200, 0.1))
    np.testing.assert_allclose(simplex(jnp.asarray(lam)), lam, rtol=0, atol=1e-15)


MANY = 3 * LONG + 7  # long enough for parts, the last of which has to be filled up
project_many = jax.jit(jax.vmap(simplex))


def geometric(rng):
    """Every step of Newton's method leaves out a few entries more."""
    return -(1.001 ** np.arange(MANY) - 1) * 1e-5


def sparse_change(rng):
    """A point of the simplex with half of its weights zero, and a few of them moved far, as in a round of DRFA."""
    lam = rng.dirichlet(np.ones(MANY)) * (rng.random(MANY) < 0.5)
    lam /= lam.sum()
    lam[rng.choice(MANY, 100, replace=False)] += 10.0 ** rng.uniform(-8, 2, 100)
    return lam


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_simplex_of_many_minimises(dtype):
    """Against a sort in extended precision, all cases and scales in one program."""
    rng = np.random.default_rng(4)
    points = [geometric(rng), sparse_change(rng), sparse_change(rng), rng.normal(size=MANY), np.full(MANY, 3.0)]
    scales = np.array([1.0, 1.0, 5001.0, 0.1, 100.0], dtype)
    v = np.array(points).astype(dtype)
    lam = np.asarray(project_many(jnp.asarray(v), jnp.asarray(scales)))
    eps = np.finfo(dtype).eps
    for one, point, scale in zip(lam, v, scales, strict=True):
        right = ref.simplex(point.astype(np.longdouble) / np.longdouble(scale))
        assert abs(one - right).sum() < 2e3 * eps
        assert abs(one - right).max() < 20 * eps * max(1, abs(point).max() / scale)
        assert abs(one.astype(np.longdouble).sum() - 1) < 100 * eps
        assert one.min() == 0 or right.min() > 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_what_is_known_of_a_point_changes_only_the_way_to_its_projection(dtype):
    """Also where it is of little use: the smallest entries, one twice, and a sum that is off."""
    rng = np.random.default_rng(5)
    v = rng.dirichlet(np.ones(40), 200) + 10.0 ** rng.uniform(-6, 2, (200, 1)) * (rng.random((200, 40)) < 0.1)
    v, scale = v.astype(dtype), (10.0 ** rng.uniform(-3, 3, 200)).astype(dtype)
    order, eps = np.sort(v, axis=1), np.finfo(dtype).eps
    start = jax.jit(jax.vmap(lambda v, scale, some, total: simplex(v, scale, SearchStart(some, total))))
    for some, error in ((order[:, -4:], 0), (order[:, :4], 0), (order[:, [-1, -1]], 0.01), (v[:, :2], -0.5)):
        lam = np.asarray(start(v, scale, some, (v.sum(axis=1) * (1 + error)).astype(dtype)))
        assert abs(lam - jax.vmap(simplex)(v, scale)).max() < 50 * eps
        assert abs(lam.sum(axis=1) - 1).max() < 50 * eps


@pytest.mark.parametrize("size", [1, 15, LONG, LONG + 1, MANY])
def test_sums_over_parts_are_sums_over_all(size):
    v = np.random.default_rng(size).normal(size=size)
    total, count = jax.jit(lambda v: sum_above_zero(lambda part: part - 0.5, v))(jnp.asarray(v))
    np.testing.assert_allclose(total, np.maximum(v - 0.5, 0).sum(), rtol=1e-13)
    assert int(count) == (v > 0.5).sum()
    assert jnp.max(folded(lambda part: part, jnp.maximum, jnp.asarray(v))) == v.max()


def test_level_fills_to_one_under_uneven_caps():
    rng = np.random.default_rng(3)

    def mass(b, cap):
        return jnp.sum(jnp.clip(b - level(b, cap, -1.0), 0, cap))

    b = -rng.random((200, 25)) * 10.0 ** rng.uniform(-6, 0, (200, 25))
    cap = rng.dirichlet(np.full(25, 0.3), 200) * 1.5
    np.testing.assert_allclose(jax.vmap(mass)(jnp.asarray(b), jnp.asarray(cap)), 1, rtol=1e-14)


def test_settling_changes_only_weights_inside_the_bounds():
    lam = with_unit_sum(jnp.asarray([0.0, 0.4, 0.3, 0.2 + 1e-9, 0.1 + 1e-9]), 0.4)
    assert (lam[0], lam[1]) == (0.0, 0.4)
    assert abs(float(jnp.sum(lam)) - 1) < 1e-15


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moderate_numbers_survive_a_product_and_a_quotient(dtype):
    for x in (1e-300, 1.0, 1e300):
        kept = moderate(x, dtype)
        assert kept.dtype == dtype
        assert np.isfinite(kept * 100)
        assert kept * np.finfo(dtype).eps > 0
    assert moderate(0.7, dtype) == dtype(0.7)
    assert moderate(jnp.asarray(np.inf, dtype), dtype) == moderate(1e308, dtype)
