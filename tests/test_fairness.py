import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import fairness
from equipoise.errors import InputError

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


def test_small_clients_have_wide_intervals_and_none_is_certain():
    bounds = fairness.accuracy_intervals([1.0, 1.0, 0.5, 0.0], [5, 500, 40, 5], key=0)
    width = bounds.high - bounds.low
    assert bounds.high[0] == bounds.high[1] == 1
    assert bounds.low[3] == 0
    assert width[0] > 0.2
    assert width[1] < 0.01
    again = fairness.accuracy_intervals([1.0, 1.0, 0.5, 0.0], [5, 500, 40, 5], key=jax.random.key(0))
    assert again.worst == bounds.worst


def test_the_interval_of_the_worst_fifth_covers_the_truth():
    # clients alike and small: the resampled worst fifth's quantiles as they stand cover it in a few percent
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p, m = rng.beta(40, 10, 20), rng.integers(10, 60, 20)
        found = fairness.accuracy_intervals(rng.binomial(m, p) / m, m, key=seed, draws=300)
        low, high = found.worst
        covered += low <= np.sort(p)[:4].mean() <= high
    assert covered >= 170


def test_intervals_of_a_mean_cover_the_truth():
    covered = np.zeros(2)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        means, sizes = np.linspace(1, 3, 10), np.full(10, 40)
        losses = means[:, None] + rng.normal(size=(10, 50))
        losses[:, 40:] = 1e9  # padding
        found = fairness.intervals(losses, sizes, key=seed, draws=300)
        covered += [
            np.mean((found.low <= means) & (means <= found.high)),
            found.worst[0] <= means[-2:].mean() <= found.worst[1],
        ]
    assert covered[0] / 60 > 0.88
    assert covered[1] / 60 > 0.85


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([0.5], [0]), "no test samples"),
        (([50.0], [3]), "not percentages"),
        (([0.5, 0.5], [3]), "give one each"),
        (([], []), "no test samples"),
    ],
)
def test_accuracies_that_cannot_be(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        fairness.accuracy_intervals(*arguments, key=0)


def test_values_that_cannot_be():
    with pytest.raises(InputError, match="beyond the values' columns"):
        fairness.intervals(np.zeros((2, 3)), [3, 4], key=0)
    with pytest.raises(InputError, match=r"give \[n, m\]"):
        fairness.intervals(np.zeros(3), [3], key=0)
    with pytest.raises(InputError, match="level"):
        fairness.intervals(np.zeros((2, 3)), [3, 3], key=0, level=95)
