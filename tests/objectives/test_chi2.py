import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives import agnostic, chi2, chi2_ball

LOSSES = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])


def distance(lam):
    """1/(2n) sum_i (n lam_i - 1)^2, as SCAFF-PD prints it."""
    n = len(lam)
    return ((n * np.asarray(lam, np.longdouble) - 1) ** 2).sum() / (2 * n)


def test_penalty_is_equation_3_3():
    lam = jnp.asarray([0.5, 0.2, 0.1, 0.1, 0.1, 0.0])
    assert float(chi2(6, 0.3).penalty(lam)) == pytest.approx(float(0.3 * distance(lam)), rel=1e-15)


def test_modulus_is_the_curvature():
    dual = chi2(6, 0.3)
    x, y = jnp.asarray([0.5, 0.2, 0.1, 0.1, 0.1, 0.0]), jnp.asarray([0.0, 0.3, 0.3, 0.3, 0.1, 0.0])
    sag = (dual.penalty(x) + dual.penalty(y)) / 2 - dual.penalty((x + y) / 2)
    assert float(sag) == pytest.approx(dual.modulus / 8 * float(jnp.sum((x - y) ** 2)), rel=1e-13)


def test_between_the_average_and_the_worst():
    np.testing.assert_allclose(chi2(6, 1e9).best_response(LOSSES), 1 / 6, rtol=1e-8)
    assert float(chi2(6, 1e9).value(LOSSES)) == pytest.approx(float(jnp.mean(LOSSES)), rel=1e-8)
    np.testing.assert_array_equal(chi2(6, 1e-9).best_response(LOSSES), agnostic(6).best_response(LOSSES))


@pytest.mark.parametrize("radius", [1e-9, 1e-3, 0.05])
def test_a_small_ball_adds_standard_deviations_to_the_mean(radius):
    right = float(jnp.mean(LOSSES) + np.sqrt(2 * radius) * jnp.std(LOSSES))
    assert float(chi2_ball(6, radius).value(LOSSES)) == pytest.approx(right, rel=1e-13)


@pytest.mark.parametrize("radius", [0.05, 1.0, 2.49])
def test_the_best_response_uses_up_the_ball(radius):
    assert float(distance(chi2_ball(6, radius).best_response(LOSSES))) == pytest.approx(radius, rel=1e-9)


@pytest.mark.parametrize("radius", [2.5, 1e30])
def test_a_ball_that_holds_the_simplex_is_no_constraint(radius):
    ball, free = chi2_ball(6, radius), agnostic(6)
    np.testing.assert_allclose(ball.best_response(LOSSES), free.best_response(LOSSES), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(ball.prox(LOSSES, 1.0), free.prox(LOSSES, 1.0))


@pytest.mark.parametrize("radius", [1e-30, 1e6])
def test_equal_losses_are_answered_by_equal_weights(radius):
    dual = chi2_ball(6, radius)
    for loss in (-1e30, 0.0, 1e-30, 3.0):
        np.testing.assert_allclose(dual.best_response(jnp.full(6, loss)), 1 / 6, rtol=1e-15)


def test_the_ball_finds_its_scale_among_losses_of_all_scales():
    """Only the first two count, by their tiny difference; its square is no float32."""
    losses = jnp.asarray([1e-30, 0.0, -1e30], jnp.float32)
    lam = np.asarray(chi2_ball(3, 0.8).best_response(losses))
    assert lam[2] == 0
    assert lam[0] > lam[1] > 0.01
    assert float(distance(lam)) == pytest.approx(0.8, rel=1e-5)
