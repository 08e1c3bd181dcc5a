import jax.numpy as jnp
import numpy as np

from equipoise.objectives import agnostic


def test_the_worst_clients_share_the_weight():
    dual = agnostic(5)
    losses = jnp.asarray([1.0, 3.0, 2.0, 3.0, -1.0])
    np.testing.assert_array_equal(dual.best_response(losses), [0, 0.5, 0, 0.5, 0])
    assert dual.value(losses) == 3
    assert dual.modulus == 0


def test_the_step_does_not_matter():
    dual, v = agnostic(3), jnp.asarray([0.2, 0.9, -0.3])
    np.testing.assert_array_equal(dual.prox(v, 1e-6), dual.prox(v, 1e6))
