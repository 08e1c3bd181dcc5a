import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.objectives import qffl

LOSSES = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])
P = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.25])


@pytest.mark.parametrize("q", [0.1, 1, 3.5])
def test_the_value_is_the_q_ffl_objective(q):
    dual = qffl(6, q, p=P)
    assert float(dual.value(LOSSES)) == pytest.approx(float((P * LOSSES ** (q + 1)).sum() / (q + 1)), rel=1e-14)
    np.testing.assert_allclose(dual.best_response(LOSSES), P * LOSSES**q, rtol=1e-14)
    assert not dual.simplex


def test_a_client_that_loses_nothing_has_no_weight():
    dual = qffl(2, 2.0)
    np.testing.assert_array_equal(dual.best_response(jnp.asarray([-3.0, 2.0])), [0, 2])
    np.testing.assert_array_equal(dual.prox(jnp.asarray([-3.0, 0.0]), 1.0), 0)


def test_the_closed_form_at_one_continues_its_neighbours():
    v = jnp.asarray([-0.4, 0.2, 1e-8, 1e8, 0.9, 0.3])
    for near in (1 - 1e-9, 1 + 1e-9):
        np.testing.assert_allclose(qffl(6, 1, p=P).prox(v, 0.7), qffl(6, near, p=P).prox(v, 0.7), rtol=1e-7)
    assert qffl(6, 1, p=P).modulus == pytest.approx(4)  # 1/p of the largest client
    assert qffl(6, 1.5, p=P).modulus == 0


def test_what_no_float_can_hold_is_the_largest_float():
    dual, losses = qffl(2, 3.0), jnp.asarray([1e20, 1.0], jnp.float32)
    assert dual.value(losses) == dual.best_response(losses)[0] == np.finfo(np.float32).max
