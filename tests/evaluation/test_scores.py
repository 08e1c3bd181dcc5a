import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from equipoise.evaluation import scores

RNG = np.random.default_rng(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=24, max_size=24))
def test_auroc_counts_ties_half_and_skips_padding(rows):
    values, labels, real = (np.array(column) for column in zip(*rows, strict=True))
    found = auroc(values / 5, labels.astype(int), real)
    if len(set(labels[real].tolist())) == 2:
        assert np.isclose(found, metrics.roc_auc_score(labels[real], values[real]))
    else:
        assert np.isnan(found)


auroc = jax.jit(scores.auroc)


def test_auroc_of_long_float_scores():
    labels, values = RNG.integers(0, 2, 500), RNG.normal(size=500)
    assert np.isclose(scores.auroc(values, labels), metrics.roc_auc_score(labels, values))


def test_infinite_scores_are_scores():
    values, labels = np.array([np.inf, 1.0, -np.inf, np.inf]), np.array([1, 0, 0, 0])
    assert np.isclose(scores.auroc(values, labels), (0.5 + 1 + 1) / 3)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_regression_scores_are_scikit_learns(shape):
    labels, predicted = RNG.normal(size=shape), RNG.normal(size=shape)
    real = np.arange(40) < 25
    mask = real.reshape(shape)
    assert np.isclose(
        scores.rmse(predicted, labels, mask), metrics.root_mean_squared_error(labels[real], predicted[real])
    )
    assert np.isclose(scores.r2(predicted, labels, mask), metrics.r2_score(labels[real], predicted[real]))
    assert np.isclose(scores.r2(predicted, labels), metrics.r2_score(labels, predicted))


def test_r2_of_a_constant_is_not_defined():
    assert np.isnan(scores.r2(np.arange(3.0), np.ones(3)))


def test_accuracy():
    predicted, labels = np.array([1, 2, 0, 0]), np.array([1, 2, 1, 0])
    assert scores.accuracy(predicted, labels) == 0.75
    assert np.isclose(scores.accuracy(predicted, labels, np.array([True, True, True, False])), 2 / 3)


def test_all_clients_at_once():
    labels = jnp.asarray(RNG.integers(0, 2, (6, 30)))
    values = jnp.asarray(RNG.normal(size=(6, 30)))
    sizes = jnp.asarray([30, 20, 25, 30, 12, 18])
    real = jnp.arange(30)[None, :] < sizes[:, None]
    each = jax.jit(jax.vmap(scores.auroc))(values, labels, real)
    for i, s in enumerate(sizes.tolist()):
        assert np.isclose(each[i], metrics.roc_auc_score(labels[i, :s], values[i, :s]))


def test_single_precision_stays_single():
    values, labels = jnp.ones(4, jnp.float32), jnp.arange(4, dtype=jnp.float32)
    assert scores.rmse(values, labels).dtype == jnp.float32
    assert scores.r2(values, labels).dtype == jnp.float32
