import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import InputError
from equipoise.evaluation import Bounds, fairness, intervals
from equipoise.evaluation.rules import worst_mean


def test_small_clients_have_wide_intervals_and_none_is_certain():
    bounds = fairness.accuracy_intervals([1.0, 1.0, 0.5, 0.0], [5, 500, 40, 5], key=0)
    width = bounds.high - bounds.low
    assert bounds.high[0] == bounds.high[1] == 1
    assert bounds.low[3] == 0
    assert width[0] > 0.2
    assert width[1] < 0.01
    again = fairness.accuracy_intervals([1.0, 1.0, 0.5, 0.0], [5, 500, 40, 5], key=jax.random.key(0))
    assert again.worst == bounds.worst


def test_bounds_are_never_of_zero_width_where_rows_are_few():
    one_at_zero = fairness.accuracy_intervals([0.0, 0.8, 1.0, 0.8, 0.6], [5] * 5, key=0).worst
    assert one_at_zero.low == 0
    assert one_at_zero.high > 0.2
    perfect = fairness.accuracy_intervals([1.0] * 5, [4] * 5, key=0).worst
    assert perfect.high == 1
    assert perfect.low < 0.8


def test_the_worst_fifth_of_many_small_clients_is_corrected():
    """As measured it lies below its bounds: choosing the worst of noisy scores is no accident."""
    rng = np.random.default_rng(0)
    truth = rng.beta(40, 17, 300)
    share = rng.binomial(30, truth) / 30
    found = fairness.accuracy_intervals(share, np.full(300, 30), key=0).worst
    goal = worst_mean(truth, True)
    assert worst_mean(share, True) < found.low < goal < found.high
    assert abs(found.estimate - goal) < 0.5 * abs(worst_mean(share, True) - goal)


def covered(bounds: Bounds, truth: float) -> bool:
    return bounds.low - 1e-9 <= truth <= bounds.high + 1e-9


def test_the_interval_of_the_worst_fifth_covers_the_truth():
    # clients alike and small: the resampled worst fifth's quantiles as they stand cover it in a few percent
    hits = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        p, m = rng.beta(40, 10, 20), rng.integers(10, 60, 20)
        found = fairness.accuracy_intervals(rng.binomial(m, p) / m, m, key=seed, draws=300)
        hits += covered(found.worst, np.sort(p)[:4].mean())
    assert hits >= 44


@pytest.mark.parametrize("kind", ["alike", "one at 0", "exponential", "exponential, one high"])
@pytest.mark.parametrize(("n", "m"), [(5, 5), (20, 10)])
def test_bounds_cover_where_resampling_did_not(kind, n, m):
    """A few cells of `benchmarks/interval_coverage.py`; 40 repeats that hold 93 times in 100 give 33 or more."""
    hits = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, n, m])
        if kind.startswith("exp"):
            truth = np.r_[4.0 if "high" in kind else 1.0, np.ones(n - 1)]
            found = fairness.intervals(rng.exponential(size=(n, m)) * truth[:, None], np.full(n, m), key=seed)
        else:
            truth = np.r_[0.0 if "0" in kind else 0.8, np.full(n - 1, 0.8)]
            found = fairness.accuracy_intervals(rng.binomial(m, truth) / m, np.full(n, m), key=seed)
        hits += covered(found.worst, float(worst_mean(truth, not kind.startswith("exp"))))
    assert hits >= 33


def test_intervals_of_a_mean_cover_the_truth():
    hits = np.zeros(2)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        means, sizes = np.linspace(1, 3, 10), np.full(10, 40)
        losses = means[:, None] + rng.normal(size=(10, 50))
        losses[:, 40:] = 1e9  # padding
        found = fairness.intervals(losses, sizes, key=seed, draws=300)
        hits += [
            np.mean((found.low <= means) & (means <= found.high)),
            covered(found.worst, means[-2:].mean()),
        ]
    assert hits[0] / 60 > 0.88
    assert hits[1] / 60 > 0.85


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_the_scores_bounds_are_in_order_and_within_reason(data):
    n = data.draw(st.integers(1, 12))
    sizes = np.array(data.draw(st.lists(st.integers(1, 40), min_size=n, max_size=n)))
    up = data.draw(st.booleans())
    if up:
        right = np.array([data.draw(st.integers(0, int(m))) for m in sizes])
        found = fairness.accuracy_intervals(right / sizes, sizes, key=0, draws=100)
        value = right / sizes
        assert 0 <= found.worst.low <= found.worst.high <= 1
    else:
        rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
        lowest, scale = data.draw(st.sampled_from([0.0, 2.0, -1.0])), data.draw(st.sampled_from([0.0, 1e-9, 1.0, 1e3]))
        rows = lowest + scale * rng.gamma(data.draw(st.sampled_from([0.1, 1.0, 50.0])), size=(n, 40))
        found = fairness.intervals(rows, sizes, key=0, draws=100)
        value = np.array([row[:m].mean() for row, m in zip(rows, sizes, strict=True)])
    doubt = up or (scale >= 1 and sizes.max() > 1)  # finitely many rows, which are not all alike
    for bounds in (found.mean, found.worst):
        assert np.isfinite(bounds).all()
        assert bounds.low <= bounds.estimate <= bounds.high
        assert bounds.low < bounds.high or not doubt
    slack = 1e-6 * (1 + np.abs(value))
    assert (found.low <= value + slack).all()
    assert (value - slack <= found.high).all()


def test_models_on_the_same_rows_are_told_apart_better():
    """Two models that are right on mostly the same rows, one of them more often."""
    hits = wide = narrow = 0.0
    old, sizes = np.linspace(0.6, 0.9, 20), np.full(20, 30)
    new = old + 0.05
    goal = float(worst_mean(new, True) - worst_mean(old, True))
    for seed in range(30):
        luck = np.random.default_rng(seed).random((20, 30))
        rows = [luck < p[:, None] for p in (old, new)]
        bounds = [fairness.accuracy_intervals(a.mean(1), sizes, key=seed).worst for a in rows]
        together = intervals.correlations(rows[0].ravel(), rows[1].ravel(), sizes, up=True, root=False).worst
        assert 0.3 < together <= 1
        paired, apart = (intervals.difference(*bounds, c) for c in (together, 0.0))
        hits += covered(paired, goal)
        narrow, wide = narrow + paired.high - paired.low, wide + apart.high - apart.low
    assert hits >= 26
    assert narrow < 0.8 * wide


def test_a_model_and_itself_do_not_differ():
    rng = np.random.default_rng(0)
    rows, sizes = rng.random(60) < 0.7, np.array([10, 20, 30])
    own = intervals.correlations(rows, rows, sizes, up=True, root=False)
    assert own == (1, 1)
    share = [part.mean() for part in np.split(rows, [10, 30])]
    bounds = fairness.accuracy_intervals(share, sizes, key=0).worst
    found = intervals.difference(bounds, bounds, 1.0)
    assert found.estimate == 0
    assert found.low <= 0 <= found.high
    with_root = intervals.correlations(rng.random(60), rng.random(60), sizes, up=False, root=True)
    assert all(abs(c) < 0.5 for c in with_root)


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


@pytest.mark.parametrize(
    ("rows", "new", "old", "both"), [(20, 0.9, 0.8, 0.78), (40, 0.7, 0.6, 0.55), (40, 0.9, 0.9, 0.88)]
)
def test_the_bounds_of_one_clients_gain_hold(rows, new, old, both):
    """Two models on the same rows of a client, again and again: the truth lies between the bounds 19 times in 20."""
    times = 400
    chances = [both, new - both, old - both, 1 - new - old + both]
    kind = np.random.default_rng(0).choice(4, (times, rows), p=chances)
    first, second = np.isin(kind, (0, 2)), kind < 2
    sizes = np.full(times, rows)
    together = intervals.each_correlation(first.ravel(), second.ravel(), sizes, shares=True)
    sides = [intervals.of_shares(a.sum(1), sizes) for a in (first, second)]
    bounds = [list(zip(e.low(0.025), e.value, e.high(0.025), strict=True)) for e in sides]
    found = [intervals.difference(Bounds(*a), Bounds(*b), r) for a, b, r in zip(*bounds, together, strict=True)]
    inside = np.mean([f.low <= new - old <= f.high for f in found])
    assert inside > 0.93
    apart = [intervals.difference(Bounds(*a), Bounds(*b), 0.0) for a, b in zip(*bounds, strict=True)]
    assert np.mean([f.high - f.low for f in found]) < 0.95 * np.mean([f.high - f.low for f in apart])


def test_few_rows_that_agree_do_not_make_two_models_equal():
    right = np.array([1, 1, 1, 0, 0])
    (together,) = intervals.each_correlation(right, right, np.array([5]), shares=True)
    assert 0 < together < 0.7
    assert intervals.each_correlation(right[:3], right[:3], np.array([3]), shares=True) == [
        0
    ]  # all right: nothing said
    errors = np.array([0.1, 0.5, 2.0])
    assert intervals.each_correlation(errors, 3 * errors, np.array([3]), shares=False) == pytest.approx([1])
