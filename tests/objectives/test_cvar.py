import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives import agnostic, cvar

LOSSES = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
def test_the_value_is_the_mean_of_the_worst(k):
    worst = np.sort(LOSSES)[-k:].mean()
    assert float(cvar(6, k / 6).value(LOSSES)) == pytest.approx(worst, rel=1e-14)


@pytest.mark.parametrize("alpha", [0.05, 0.21, 0.4, 0.77, 0.999])
def test_the_value_is_that_of_rockafellar_and_uryasev(alpha):
    """min_t t + mean (f - t)_+ / alpha, attained at one of the losses."""
    t = np.asarray(LOSSES)
    right = (t + np.maximum(t[None] - t[:, None], 0).mean(1) / alpha).min()
    assert float(cvar(6, alpha).value(LOSSES)) == pytest.approx(right, rel=1e-14)


def test_all_clients_are_the_average_and_less_than_one_the_worst():
    np.testing.assert_allclose(cvar(6, 1.0).best_response(LOSSES), 1 / 6, rtol=1e-15)
    np.testing.assert_allclose(cvar(6, 1.0).prox(LOSSES * 1e9, 1.0), 1 / 6, rtol=1e-15)
    np.testing.assert_array_equal(cvar(6, 0.1).best_response(LOSSES), agnostic(6).best_response(LOSSES))
    np.testing.assert_allclose(cvar(6, 0.1).prox(LOSSES, 1.0), agnostic(6).prox(LOSSES, 1.0), rtol=0, atol=1e-15)


def test_ties_at_the_quantile_share_what_is_left():
    lam = cvar(5, 0.5).best_response(jnp.asarray([2.0, 1.0, 1.0, 1.0, 0.0]))
    np.testing.assert_allclose(lam, [0.4, 0.2, 0.2, 0.2, 0.0], rtol=1e-15)
