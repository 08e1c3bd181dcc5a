import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from equipoise.evaluation import predictions

RNG = np.random.default_rng(0)


def score_by(values):
    """Outputs whose second is above the first by that much."""
    return jnp.stack([jnp.zeros(np.shape(values)), jnp.asarray(values, float)], axis=-1)


def every(labels):
    return jnp.ones(len(labels), bool)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=24, max_size=24))
def test_auroc_counts_ties_half_and_skips_padding(rows):
    values, labels, real = (np.array(column) for column in zip(*rows, strict=True))
    found = auroc(score_by(values / 5), labels.astype(int), real)
    if len(set(labels[real].tolist())) == 2:
        assert np.isclose(found, metrics.roc_auc_score(labels[real], values[real]))
    else:
        assert np.isnan(found)


auroc = jax.jit(predictions.auroc)


def test_auroc_of_long_float_scores():
    labels, values = RNG.integers(0, 2, 500), RNG.normal(size=500)
    assert np.isclose(auroc(score_by(values), labels, every(labels)), metrics.roc_auc_score(labels, values))


def test_infinite_scores_are_scores():
    values, labels = np.array([np.inf, 1.0, -np.inf, np.inf]), np.array([1, 0, 0, 0])
    assert np.isclose(auroc(score_by(values), labels, every(labels)), (0.5 + 1 + 1) / 3)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_regression_scores_are_scikit_learns(shape):
    labels, predicted = RNG.normal(size=shape), RNG.normal(size=shape)
    real = np.arange(40) < 25
    wanted = metrics.root_mean_squared_error(labels[real], predicted[real])
    assert np.isclose(predictions.rmse(predicted, labels, real), wanted)
    assert np.isclose(predictions.r2(predicted, labels, real), metrics.r2_score(labels[real], predicted[real]))
    assert np.isclose(predictions.r2(predicted, labels, every(labels)), metrics.r2_score(labels, predicted))


def test_r2_of_a_constant_is_not_defined():
    assert np.isnan(predictions.r2(jnp.arange(3.0), jnp.ones(3), jnp.ones(3, bool)))


def test_accuracy():
    outputs, labels = jax.nn.one_hot(jnp.array([1, 2, 0, 0]), 3), jnp.array([1, 2, 1, 0])
    assert predictions.accuracy(outputs, labels, every(labels)) == 0.75
    assert np.isclose(predictions.accuracy(outputs, labels, np.array([True, True, True, False])), 2 / 3)


def test_all_clients_at_once():
    labels = jnp.asarray(RNG.integers(0, 2, (6, 30)))
    values = jnp.asarray(RNG.normal(size=(6, 30)))
    sizes = jnp.asarray([30, 20, 25, 30, 12, 18])
    real = jnp.arange(30)[None, :] < sizes[:, None]
    each = jax.jit(jax.vmap(predictions.auroc))(score_by(values), labels, real)
    for i, s in enumerate(sizes.tolist()):
        assert np.isclose(each[i], metrics.roc_auc_score(labels[i, :s], values[i, :s]))


def test_single_precision_stays_single():
    values, labels = jnp.ones(4, jnp.float32), jnp.arange(4, dtype=jnp.float32)
    assert predictions.rmse(values, labels, every(labels)).dtype == jnp.float32
    assert predictions.r2(values, labels, every(labels)).dtype == jnp.float32
