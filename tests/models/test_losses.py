"""Losses against their definitions, written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from equipoise.errors import InputError
from equipoise.models import LOSSES, cross_entropy, squared, squared_error

RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(6, 4))
LABELS = RNG.integers(0, 4, 6)


def test_cross_entropy():
    expected = -log_softmax(OUTPUTS, axis=1)[np.arange(6), LABELS]
    np.testing.assert_allclose(cross_entropy(jnp.asarray(OUTPUTS), jnp.asarray(LABELS)), expected, atol=1e-12)


def test_cross_entropy_of_huge_outputs():
    outputs = jnp.array([[1e30, -1e30], [-1e30, 1e30], [1e4, 0.0]])
    labels = jnp.array([0, 0, 1])
    np.testing.assert_allclose(cross_entropy(outputs, labels), [0, 2e30, 1e4])
    assert jnp.isfinite(jax.grad(lambda z: cross_entropy(z, labels).sum())(outputs)).all()


@pytest.mark.parametrize(("centred", "shift"), [(True, 1 / 4), (False, 0)])
def test_squared(centred, shift):
    expected = ((OUTPUTS - (np.eye(4)[LABELS] - shift)) ** 2).sum(1) / 2
    losses = squared(jnp.asarray(OUTPUTS), jnp.asarray(LABELS), centred=centred)
    np.testing.assert_allclose(losses, expected, atol=1e-12)


def test_squared_error():
    labels = jnp.asarray(RNG.normal(size=6))
    expected = (OUTPUTS[:, 0] - np.asarray(labels)) ** 2
    np.testing.assert_allclose(squared_error(jnp.asarray(OUTPUTS[:, :1]), labels), expected)
    np.testing.assert_allclose(squared_error(jnp.asarray(OUTPUTS[:, 0]), labels), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_wrong_shapes_are_said(name):
    with pytest.raises(InputError, match="shape"):
        LOSSES[name](jnp.zeros((6, 4)), jnp.zeros(5))
