import numpy as np
import pytest

from equipoise.evaluation import Bounds, fairness
from equipoise.evaluation.differences import (
    difference,
    each_difference,
    mean_difference,
    on_same_rows,
    worst_correlation,
)
from equipoise.evaluation.rules import worst_mean


def covered(bounds: Bounds, truth: float) -> bool:
    return bounds.low - 1e-9 <= truth <= bounds.high + 1e-9


def test_models_on_the_same_rows_are_told_apart_better():
    """Two models that are right on mostly the same rows, one of them more often."""
    hits = means = wide = narrow = 0.0
    old, sizes = np.linspace(0.6, 0.9, 20), np.full(20, 30)
    new = old + 0.05
    goal = float(worst_mean(new, True) - worst_mean(old, True))
    for seed in range(30):
        luck = np.random.default_rng(seed).random((20, 30))
        rows = [luck < p[:, None] for p in (old, new)]
        bounds = [fairness.accuracy_intervals(a.mean(1), sizes, key=seed, draws=200).worst for a in rows]
        pairs = on_same_rows(rows[0].ravel(), rows[1].ravel(), sizes, shares=True)
        together = worst_correlation(pairs, up=True)
        assert 0.2 < together <= 1
        paired, apart = (difference(*bounds, c) for c in (together, 0.0))
        hits += covered(paired, goal)
        narrow, wide = narrow + paired.high - paired.low, wide + apart.high - apart.low
        means += covered(mean_difference(pairs), 0.05)
    assert hits >= 28
    assert means >= 27
    assert narrow < 0.8 * wide


def test_one_small_client_does_not_make_the_average_gain():
    """One client of 3 rows beside four of 500, two equally good models: zero lay outside in 18.7% of the cases."""
    sizes, truth = np.array([3, 500, 500, 500, 500]), np.array([0.6, 0.9, 0.9, 0.9, 0.9])
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        old, new = (np.concatenate([rng.random(m) < p for m, p in zip(sizes, truth, strict=True)]) for _ in range(2))
        false += not covered(mean_difference(on_same_rows(old, new, sizes, shares=True)), 0.0)
    assert false <= 7


def test_models_that_agree_on_every_row_need_not_be_equal():
    """200 rows on which both are right or wrong together do not rule out that one is better by a point."""
    rows, sizes = np.random.default_rng(0).random(200) < 0.8, np.array([100, 100])
    pairs = on_same_rows(rows, rows, sizes, shares=True)
    found = mean_difference(pairs)
    assert found.estimate == 0
    assert found.low < -0.01
    assert found.high > 0.01
    low, high = each_difference(pairs)
    assert (low < -0.02).all()
    assert (high > 0.02).all()
    assert worst_correlation(pairs, up=True) < 1


@pytest.mark.parametrize(
    ("rows", "new", "old", "both"),
    [(3, 0.9, 0.8, 0.78), (20, 0.9, 0.8, 0.78), (40, 0.7, 0.5, 0.29), (40, 0.9, 0.9, 0.88)],
)
def test_the_bounds_of_one_clients_gain_hold(rows, new, old, both):
    """Two models on the same rows of a client, again and again: the truth lies between the bounds 19 times in 20."""
    chances = [both, new - both, old - both, 1 - new - old + both]
    kind = np.random.default_rng(0).choice(4, (300, rows), p=chances)
    hits = 0
    for of in kind:
        pairs = on_same_rows(np.isin(of, (0, 2)), of < 2, np.array([rows]), shares=True)
        low, high = each_difference(pairs)
        hits += low[0] <= new - old <= high[0]
    assert hits >= 279


def test_no_gain_of_any_client_is_more_than_chance_where_none_gains():
    """Bounds hold for all clients together, so that one of thirty is seldom taken for a gain."""
    sizes, false = np.full(30, 20), 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        old, new = rng.random(600) < 0.8, rng.random(600) < 0.8
        low, high = each_difference(on_same_rows(old, new, sizes, shares=True))
        false += bool(((low > 0) | (high < 0)).any())
    assert false <= 7


def test_five_rows_of_each_person_make_no_gain():
    """Two equally good models that err person by person: counted row by row one client gains far too often."""
    by_row = by_person = 0
    for seed in range(200):
        old, new = (np.repeat(np.random.default_rng([seed, k]).random(40) < 0.7, 5) for k in range(2))
        for counted in (None, np.array([40.0])):
            low, high = each_difference(on_same_rows(old, new, np.array([200]), shares=True, counted=counted))
            false = low[0] > 0 or high[0] < 0
            by_row, by_person = (by_row + false, by_person) if counted is None else (by_row, by_person + false)
    assert by_row > 40
    assert by_person <= 14


def log_loss(positive, chance):
    return -np.log(np.where(positive, chance, 1 - chance))


def test_clients_that_have_not_met_a_rare_class_are_not_certain():
    """Two models that are equally good where one row in twenty is positive: one expects 9%, the other 2.4%. On the rows
    of a client without a positive one the second is better every time."""
    sizes, false, false_mean = np.r_[np.full(5, 8), np.full(20, 50)], 0, 0
    for seed in range(100):
        positive = np.random.default_rng(seed).random(sizes.sum()) < 0.05
        pairs = on_same_rows(log_loss(positive, 0.09), log_loss(positive, 0.02362), sizes, shares=False)
        low, high = each_difference(pairs)
        false += bool(((low > 0) | (high < 0)).any())
        false_mean += not covered(mean_difference(pairs), 0.0)
    assert false <= 7
    assert false_mean <= 7


def test_one_client_whose_losses_explode_leaves_the_others_their_gains():
    rng, sizes = np.random.default_rng(0), np.full(20, 100)
    old = rng.exponential(size=2000)
    new = 0.5 * old
    new[:100] += 1000 * rng.exponential(size=100)
    low, high = each_difference(on_same_rows(old, new, sizes, shares=False))
    assert low[0] > 0
    assert (high[1:] < 0).all()


def test_rows_of_one_person_count_as_one():
    rows = np.repeat(np.random.default_rng(0).random(40) < 0.7, 5)
    other = np.repeat(np.random.default_rng(1).random(40) < 0.7, 5)
    each = on_same_rows(rows, other, np.array([200]), shares=True)
    by_person = on_same_rows(rows, other, np.array([200]), shares=True, counted=np.array([40.0]))
    narrow, wide = mean_difference(each), mean_difference(by_person)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_errors_of_two_models():
    rng, sizes = np.random.default_rng(0), np.array([40] * 6)
    errors = rng.exponential(size=240)
    pairs = on_same_rows(errors, 1.2 * errors * np.exp(rng.normal(0, 0.1, 240)), sizes, shares=False, root=True)
    found = mean_difference(pairs)
    assert covered(found, np.sqrt(1.2) - 1)
    assert found.low > 0
    assert worst_correlation(pairs, up=False) > 0.5
    same = on_same_rows(errors, 1.2 * errors, sizes, shares=False)
    assert worst_correlation(same, up=False) == 0.8  # chance makes other clients look worst for each model
    single = on_same_rows(errors[:3], errors[:3], np.array([2, 1]), shares=False)
    assert np.isnan(mean_difference(single)).all()
    assert np.isnan(each_difference(single)[0]).all()
    assert covered(mean_difference(on_same_rows(errors, errors, sizes, shares=False).in_units(3.0)), 0.0)
