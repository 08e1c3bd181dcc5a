import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import InputError
from equipoise.evaluation import fairness

RNG = np.random.default_rng(0)


def test_the_papers_worst_fifth():
    accuracy = np.arange(20) / 20
    told = fairness.summary(accuracy[RNG.permutation(20)])
    assert np.isclose(told["worst20"], accuracy[:4].mean())
    assert np.isclose(told["best20"], accuracy[-4:].mean())
    assert np.isclose(told["mean"], accuracy.mean())
    assert np.isclose(told["std"], accuracy.std())
    assert np.isclose(told["gap"], 0.95)
    assert (told["min"], told["max"]) == (0.0, 0.95)
    assert list(told) == ["mean", "worst20", "best20", "min", "max", "std", "gini", "jain", "gap"]


def test_of_losses_the_highest_are_worst():
    losses = np.arange(10.0)
    told = fairness.summary(losses, higher_is_better=False)
    assert told["worst20"] == 8.5
    assert told["best20"] == 0.5


@pytest.mark.parametrize(
    ("k", "n", "count"), [(0.2, 5, 1), (0.2, 9, 1), (0.2, 10, 2), (0.29, 100, 29), (0.1, 3, 1), (1.0, 7, 7)]
)
def test_other_shares(k, n, count):
    assert np.isclose(fairness.worst(np.arange(n), k), np.arange(count).mean())
    assert f"worst{100 * k:g}" in fairness.summary(np.arange(n), k)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12))
def test_gini_and_jain_by_their_definitions(values):
    x = np.array(values)
    if x.sum() > 1e-6:
        pairs = np.abs(x[:, None] - x[None]).sum() / (2 * len(x) ** 2 * x.mean())
        assert np.isclose(fairness.gini(x), pairs, atol=1e-9)
        assert np.isclose(fairness.jain(x), x.sum() ** 2 / (len(x) * (x**2).sum()))


def test_equal_and_extreme_clients():
    one = np.eye(8)[0]
    assert np.isclose(fairness.gini(one), 1 - 1 / 8)
    assert np.isclose(fairness.jain(one), 1 / 8)
    for same in (np.full(8, 0.3), np.zeros(8)):
        assert np.isclose(fairness.gini(same), 0)
        assert np.isclose(fairness.jain(same), 1)


def test_effective_clients():
    assert np.isclose(fairness.effective_clients(np.full(10, 0.1)), 10)
    assert np.isclose(fairness.effective_clients(np.eye(10)[3]), 1)
    assert np.isclose(fairness.effective_clients(np.array([0.5, 0.25, 0.25])), 1 / 0.375)


def test_under_jit_and_in_single_precision():
    x = jnp.asarray(RNG.random(20), jnp.float32)
    compiled, plain = jax.jit(fairness.summary)(x), fairness.summary(x)
    for name, value in plain.items():
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(compiled[name], value, rtol=1e-5)
    assert fairness.summary(np.array([1, 2, 3]))["mean"] == 2


@pytest.mark.parametrize("wrong", [np.zeros(0), np.zeros((2, 2)), 0.5])
def test_not_one_number_per_client(wrong):
    with pytest.raises(InputError, match="give one per client"):
        fairness.summary(wrong)


@pytest.mark.parametrize("k", [0.0, -0.2, 20])
def test_not_a_share(k):
    with pytest.raises(InputError, match="share of the clients"):
        fairness.summary(np.ones(5), k)


def test_a_client_without_a_number_is_not_left_out_in_silence():
    """Of [0.5, NaN, 1.0] the mean was NaN and the worst fifth 0.5."""
    with pytest.raises(InputError, match="1 of 3 numbers are NaN; leave out the clients that have none"):
        fairness.summary([0.5, np.nan, 1.0])
    for up in (True, False):
        told = jax.jit(lambda x, up=up: fairness.summary(x, higher_is_better=up))(jnp.array([0.5, jnp.nan, 1.0]))
        assert all(np.isnan(value) for value in told.values())
