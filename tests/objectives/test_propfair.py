import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives import propfair

LOSSES = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])
P = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.25])


def test_the_value_is_the_nash_product_of_the_utilities():
    dual = propfair(6, 2.0, p=P)
    assert float(dual.value(LOSSES)) == pytest.approx(-(P * np.log(2 - LOSSES)).sum(), rel=1e-14)
    np.testing.assert_allclose(dual.best_response(LOSSES), P / (2 - LOSSES), rtol=1e-14)
    assert not dual.simplex


def test_beyond_the_margin_the_value_goes_on_as_its_tangent():
    dual = propfair(1, 2.0, margin=0.2)
    value, slope = jax.vmap(dual.value), jax.vmap(jax.grad(dual.value))
    edge = jnp.full((1, 1), 1.8)
    for losses in ([1.8], [1.9], [2.0], [5.0], [1e30]):
        losses = jnp.asarray([losses])
        line = value(edge) + 5 * (losses - edge)[0]
        np.testing.assert_allclose(value(losses), line, rtol=1e-13)
        np.testing.assert_allclose(slope(losses), 5, rtol=1e-13)
    assert value(edge - 1e-6) > value(edge) - 5e-6  # below the edge it is less steep


def test_no_weight_exceeds_its_cap():
    dual = propfair(6, 2.0, p=P, margin=0.5)
    np.testing.assert_allclose(dual.prox(jnp.full(6, 1e9), 1.0), P / 0.5, rtol=1e-15)
    np.testing.assert_allclose(dual.best_response(jnp.full(6, 1e9)), P / 0.5, rtol=1e-15)


def test_modulus_is_the_curvature_at_the_cap():
    dual = propfair(6, 2.0, p=P, margin=0.5)
    top = jnp.asarray(P / 0.5)
    curvature = jnp.diag(jax.hessian(dual.penalty)(top))
    assert float(curvature.min()) == pytest.approx(dual.modulus, rel=1e-13)
