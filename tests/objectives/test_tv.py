import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives import tv

LOSSES = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])
P = np.array([0.0, 0.1, 0.2, 0.2, 0.25, 0.25])


def test_weight_more_than_two_rho_below_the_worst_moves_there():
    dual = tv(6, 0.3, p=P)
    np.testing.assert_allclose(dual.best_response(LOSSES), [0, 0.1 + 0.2 + 0.25, 0.2, 0, 0.25, 0], rtol=1e-15)
    right = (P * np.maximum(LOSSES, 1.2 - 2 * 0.3)).sum()
    assert float(dual.value(LOSSES)) == pytest.approx(right, rel=1e-15)


@pytest.mark.parametrize("step", [1e-3, 1.0, 1e9])
def test_nobody_moves_for_less_than_the_price(step):
    """lam = p is the answer as long as v - p spans at most 2 rho step."""
    v = jnp.asarray(P) + 0.2 * step * (LOSSES - 0.5)  # which spans 0.22 step
    np.testing.assert_allclose(tv(6, 0.11001, p=P).prox(v, step), P, rtol=0, atol=1e-15 * (1 + step))
    assert np.abs(tv(6, 0.1, p=P).prox(v, step) - P).max() > min(1e-3 * step, 0.05)


def test_a_client_of_no_reference_weight_can_get_some():
    lam = tv(6, 0.1, p=P).prox(jnp.asarray([2.0, 0, 0, 0, 0, 0]), 1.0)
    assert lam[0] > 0.9
