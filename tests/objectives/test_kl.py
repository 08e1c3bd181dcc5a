import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import wrightomega

from equipoise.objectives import agnostic, kl
from equipoise.objectives.kl import omega

LOSSES = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])
P = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.25])


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-14), (np.float32, 1e-5)])
def test_omega(dtype, rtol):
    z = np.concatenate([np.linspace(-60, 60, 4001), 10.0 ** np.arange(2, 30)]).astype(dtype)
    np.testing.assert_allclose(omega(jnp.asarray(z)), wrightomega(z.astype(np.float64)), rtol=rtol)


def test_omega_exists_below_the_smallest_float():
    assert 0 <= omega(jnp.asarray(-np.inf)) < 1e-30


def test_best_response_is_the_tilted_reference():
    np.testing.assert_allclose(
        kl(6, 0.3, p=P).best_response(LOSSES), jax.nn.softmax(np.log(P) + LOSSES / 0.3), rtol=1e-14
    )


def test_a_tiny_penalty_leaves_the_projection_and_a_huge_one_the_reference():
    v = jnp.asarray([0.4, 0.2, -0.3, 0.1, 0.9, 0.3])
    np.testing.assert_allclose(kl(6, 1e-12, p=P).prox(v, 1e-3), agnostic(6).prox(v, 1.0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(kl(6, 1e12, p=P).prox(v, 1e3), P, rtol=1e-12)


def test_a_large_penalty_tilts_the_reference():
    """To first order in 1/a: lam = p (1 + (u - <p, u>)/a) with u = v - p."""
    v, a = np.array([0.4, 0.2, -0.3, 0.1, 0.9, 0.3]), 1e5
    u = v - P
    np.testing.assert_allclose(kl(6, a, p=P).prox(jnp.asarray(v), 1.0), P * (1 + (u - P @ u) / a), rtol=1e-9)


def test_the_value_keeps_its_digits_at_both_ends():
    assert float(kl(6, 1e9).value(LOSSES)) == pytest.approx(float(jnp.mean(LOSSES) + jnp.var(LOSSES) / 2e9), rel=1e-15)
    assert float(kl(6, 1e-9).value(LOSSES)) == pytest.approx(1.2 - 1e-9 * np.log(6), rel=1e-15)
    assert float(kl(6, 1.0).value(LOSSES)) == pytest.approx(float(jnp.log(jnp.mean(jnp.exp(LOSSES)))), rel=1e-14)


def test_many_small_weights_beside_a_large_one_sum_to_one():
    """In float32 the level has too few digits for 50,000 weights that follow it one to one."""
    n = 50_000
    v = np.random.default_rng(0).random(n).astype(np.float32) * np.float32(2e-5)
    v[0] = 0.5
    lam = np.asarray(kl(n, 1e-7).prox(jnp.asarray(v), 1e-2))
    assert abs(lam.astype(np.float64).sum() - 1) < 4 * np.finfo(np.float32).eps
