"""Projections keep the digits that the naive formulas lose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives.projections import level, moderate, simplex, with_unit_sum
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
