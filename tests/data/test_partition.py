import io

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from equipoise.data import partition
from equipoise.errors import InputError

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
label_arrays = st.lists(st.integers(0, 6), min_size=4, max_size=120).map(np.array)
alphas = st.sampled_from([1e-300, 0.001, 0.1, 1.0, 1000.0])
seeds = st.integers(0, 2**31)
TEN = np.repeat(np.arange(10), 300)

WAYS = {
    "iid": lambda y, n, key: partition.iid(y, n, key),
    "dirichlet": lambda y, n, key: partition.dirichlet(y, n, 0.1, key, min_size=1),
    "dirichlet even": lambda y, n, key: partition.dirichlet(y, n, 0.1, key, min_size=1, even=True),
    "similarity": lambda y, n, key: partition.similarity(y, n, 30, key),
    "k_classes": lambda y, n, key: partition.k_classes(y, n, 2, key),
    "one_class": lambda y, n, key: partition.one_class(y, n, key),
    "quantity": lambda y, n, key: partition.quantity(y, n, 0.5, key),
}


def each_sample_once(parts, total):
    assert all(np.all(np.diff(rows) > 0) for rows in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(total))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
class TestEveryWay:
    def test_every_sample_once_and_the_summary_counts_them(self, way):
        parts, summary = way(TEN, 20, 3)
        each_sample_once(parts, len(TEN))
        assert len(parts) == 20
        assert np.array_equal(summary.sizes, [len(rows) for rows in parts])
        assert np.array_equal(summary.histogram, [np.bincount(TEN[rows], minlength=10) for rows in parts])
        assert summary.labels == tuple("0123456789")
        assert summary.sizes.min() >= 1

    def test_same_key_same_parts(self, way):
        first, again = way(TEN, 20, jax.random.key(7)).parts, way(TEN, 20, 7).parts
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        other = way(TEN, 20, 8).parts
        assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))

    def test_raw_keys_are_keys_too(self, way):
        raw = way(TEN, 20, jax.random.PRNGKey(7)).parts
        assert all(np.array_equal(a, b) for a, b in zip(raw, way(TEN, 20, 7).parts, strict=True))

    def test_more_clients_than_samples(self, way):
        with pytest.raises(InputError, match="11 clients cannot share 10 samples"):
            way(np.arange(10), 11, 0)

    @pytest.mark.parametrize("n", [0, -2])
    def test_no_clients(self, way, n):
        with pytest.raises(InputError, match="give at least 1"):
            way(TEN, n, 0)


@quick
@given(label_arrays, st.integers(1, 30), seeds)
def test_iid_is_even(y, n, seed):
    n = min(n, len(y))
    parts, summary = partition.iid(y, n, seed)
    each_sample_once(parts, len(y))
    assert np.ptp(summary.sizes) <= 1


@quick
@given(label_arrays, st.integers(1, 30), alphas, st.integers(1, 4), st.booleans(), seeds)
def test_dirichlet_keeps_the_minimum_for_any_alpha(y, n, alpha, min_size, even, seed):
    n = min(n, len(y) // min_size)
    parts, summary = partition.dirichlet(y, n, alpha, seed, min_size=min_size, even=even)
    each_sample_once(parts, len(y))
    assert summary.sizes.min() >= min_size


@quick
@given(label_arrays, st.integers(1, 30), alphas, st.integers(1, 4), seeds)
def test_quantity_keeps_the_minimum_for_any_alpha(y, n, alpha, min_size, seed):
    n = min(n, len(y) // min_size)
    parts, summary = partition.quantity(y, n, alpha, seed, min_size=min_size)
    each_sample_once(parts, len(y))
    assert summary.sizes.min() >= min_size


@quick
@given(label_arrays, st.integers(1, 30), st.floats(0, 100), seeds)
def test_similarity_is_even(y, n, s, seed):
    n = min(n, len(y))
    parts, summary = partition.similarity(y, n, s, seed)
    each_sample_once(parts, len(y))
    assert np.ptp(summary.sizes) <= 1


@quick
@given(st.integers(1, 7), st.integers(1, 30), st.integers(1, 7), seeds)
def test_k_classes_gives_exactly_k(classes, n, k, seed):
    assume(k <= classes <= n * k)
    y = np.tile(np.arange(classes), 40)
    parts, summary = partition.k_classes(y, n, k, seed)
    each_sample_once(parts, len(y))
    assert np.all((summary.histogram > 0).sum(1) == k)
    assert np.ptp((summary.histogram > 0).sum(0)) <= 1


@quick
@given(label_arrays, st.integers(1, 30), st.floats(0.05, 0.95), seeds)
def test_split_leaves_something_on_either_side(y, n, share, seed):
    n = min(n, len(y))
    parts = partition.iid(y, n, seed).parts
    train, test = partition.split(parts, y, test=share, key=seed)
    for rows, a, b in zip(parts, train, test, strict=True):
        assert np.array_equal(np.sort(np.concatenate([a, b])), rows)
        assert len(a) >= 1
        assert len(b) == (0 if len(rows) == 1 else min(max(1, round(share * len(rows))), len(rows) - 1))


def test_dirichlet_shares_have_the_dirichlet_moments():
    n, alpha, y = 5, 0.5, np.repeat(np.arange(400), 200)
    shares = partition.dirichlet(y, n, alpha, 0).summary.histogram.T / 200  # 400 draws of a Dirichlet vector
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert np.allclose(shares.mean(0), 1 / n, atol=4 * np.sqrt(variance / 400))
    assert np.allclose(shares.var(0), variance, rtol=0.25)
    covariance = np.cov(shares.T)[~np.eye(n, dtype=bool)]
    assert np.allclose(covariance, -1 / n**2 / (n * alpha + 1), atol=0.01)


def test_dirichlet_of_scarce_classes_favours_nobody():
    # 50 samples of each class for 100 near-equal clients: rounding decides, and must not pick the same ones
    sizes = partition.dirichlet(np.repeat(np.arange(40), 50), 100, 1000.0, 0, min_size=1).summary.sizes
    assert sizes.max() < 40
    assert abs(sizes.mean() - 20) < 1e-9
    assert sizes.std() < 6


def test_small_alpha_gives_few_classes_and_large_alpha_all():
    rare = partition.dirichlet(TEN, 10, 0.001, 0, min_size=1).summary
    common = partition.dirichlet(TEN, 10, 1000.0, 0).summary
    top = rare.histogram.max(0) / rare.histogram.sum(0)  # each class sits with one client, but for what moved
    assert np.all(top > 0.9)
    assert np.all(np.abs(common.histogram - 30) <= 8)


def test_even_is_more_even():
    y = np.repeat(np.arange(100), 100)
    plain = partition.dirichlet(y, 20, 0.01, 1).summary.sizes
    even = partition.dirichlet(y, 20, 0.01, 1, even=True).summary.sizes
    assert even.std() < plain.std()


@pytest.mark.parametrize("way", [partition.dirichlet, partition.quantity])
@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_out_of_range(way, alpha):
    with pytest.raises(InputError, match="finite number above zero"):
        way(TEN, 5, alpha, 0)


def test_minimum_that_cannot_be_met():
    with pytest.raises(InputError, match="5 clients of at least 10 samples need 50, and there are 30"):
        partition.dirichlet(np.arange(30) % 3, 5, 1.0, 0)


def test_similarity_at_its_ends():
    sorted_, mixed = partition.similarity(TEN, 10, 0, 0), partition.similarity(TEN, 10, 100, 0)
    assert np.array_equal(sorted_.summary.histogram, 300 * np.eye(10))
    assert mixed.summary.histogram.min() > 10
    half = partition.similarity(TEN, 10, 50, 0).summary.histogram
    assert np.all(np.diag(half) >= 150)
    assert np.all(half[~np.eye(10, dtype=bool)] < 40)
    with pytest.raises(InputError, match="percentage"):
        partition.similarity(TEN, 10, 101, 0)


def test_one_class_is_the_class_of_that_number():
    parts, summary = partition.one_class(TEN[::-1], 10, 0)
    assert np.array_equal(summary.histogram, 300 * np.eye(10))
    assert all(np.all(TEN[::-1][rows] == i) for i, rows in enumerate(parts))
    twice = partition.one_class(TEN, 20, 0).summary
    assert np.array_equal(twice.histogram[13], 150 * np.eye(10)[3])
    with pytest.raises(InputError, match="give at least 10 clients"):
        partition.one_class(TEN, 9, 0)


def test_k_classes_says_what_cannot_be():
    with pytest.raises(InputError, match="hold at most 6 of the 10 classes"):
        partition.k_classes(TEN, 3, 2, 0)
    with pytest.raises(InputError, match="so give 1 to 10"):
        partition.k_classes(TEN, 3, 11, 0)
    with pytest.raises(InputError, match="class 1 has 1 samples for 4 clients"):
        partition.k_classes(np.array([0, 0, 0, 0, 1]), 4, 2, 0)


def test_by_column_makes_a_client_of_every_value():
    column = np.array(["b", "a", "b", "c", "a", "b"])
    parts, summary = partition.by_column(column, labels=[0, 1, 0, 1, 1, 1])
    assert [rows.tolist() for rows in parts] == [[1, 4], [0, 2, 5], [3]]
    assert summary.clients == ("a", "b", "c")
    assert summary.histogram.tolist() == [[0, 2], [2, 1], [0, 1]]
    assert partition.by_column(column, min_size=2).summary.clients == ("a", "b")
    second = partition.by_column(np.array(["a", "d"]), clients=summary.clients)
    assert [rows.tolist() for rows in second.parts] == [[0], [], []]
    with pytest.raises(InputError, match="the most frequent has 3"):
        partition.by_column(column, min_size=4)
    with pytest.raises(InputError, match="2 labels for 6 rows"):
        partition.by_column(column, labels=[0, 1])


def test_thin_takes_from_three_clients_in_ten():
    parts = partition.iid(TEN, 20, 0).parts
    thinned = partition.thin(parts, 5)
    sizes = np.array([len(rows) for rows in thinned])
    assert np.count_nonzero(sizes == 150 - 105) == 6
    assert np.count_nonzero(sizes == 150) == 14
    assert all(set(few) <= set(rows) for few, rows in zip(thinned, parts, strict=True))
    again = partition.thin(parts, jax.random.key(5))
    assert all(np.array_equal(a, b) for a, b in zip(thinned, again, strict=True))
    lonely = partition.thin([np.array([4]), np.array([7])], 0, clients=1.0, samples=1.0)
    assert [rows.tolist() for rows in lonely] == [[4], [7]]
    with pytest.raises(InputError, match="share from 0 to 1"):
        partition.thin(parts, 0, clients=30)


def test_split_is_stratified():
    parts = [np.arange(0, 1500), np.arange(1500, 3000)]
    train, test = partition.split(parts, TEN, test=0.2, key=0)
    for a, b in zip(train, test, strict=True):
        counts = np.bincount(TEN[b], minlength=10)
        assert set(counts.tolist()) == {0, 60}
        assert np.intersect1d(a, b).size == 0
    rare = np.array([0] * 9 + [1])  # the only sample of label 1 stays for training
    for seed in range(20):
        (a,), _ = partition.split([np.arange(10)], rare, test=0.5, key=seed)
        assert 9 in a
    with pytest.raises(InputError, match="between 0 and 1"):
        partition.split(parts, TEN, test=1.0, key=0)


def test_follow_gives_the_official_test_set_to_those_who_train_on_it():
    parts = partition.dirichlet(TEN, 8, 0.3, 2).parts
    official = np.tile(np.arange(10), 100)
    tests = partition.follow(parts, TEN, official, key=0)
    each_sample_once(tests, 1000)
    for rows, tested in zip(parts, tests, strict=True):
        wanted = np.bincount(TEN[rows], minlength=10) / 3
        assert np.all(np.abs(np.bincount(official[tested], minlength=10) - wanted) <= 1)


def test_follow_leaves_no_small_client_without_a_test_sample():
    y = np.zeros(1000, int)
    parts = [np.array([0]), np.array([1]), np.arange(2, 1000)]
    tests = partition.follow(parts, y, np.zeros(50, int), key=0)
    each_sample_once(tests, 50)
    assert min(len(rows) for rows in tests) == 1
    unknown = partition.follow(parts, y, np.array([0] * 50 + [1] * 5), key=0)
    assert sum(len(rows) for rows in unknown) == 50  # label 1 was never trained on
    with pytest.raises(InputError, match="same labels"):
        partition.follow(parts, y, np.ones(5, int), key=0)


def test_ten_thousand_clients():
    parts, summary = partition.quantity(np.arange(60_000) % 10, 10_000, 2.0, 0, min_size=2)
    each_sample_once(parts, 60_000)
    assert summary.sizes.min() >= 2
    assert summary.sizes.max() > 15


def test_numbers_to_predict_are_counted_in_bins():
    y = np.random.default_rng(0).normal(size=1000)
    summary = partition.iid(y, 4, 0).summary
    assert summary.histogram.shape == (4, 10)
    assert np.array_equal(summary.histogram.sum(0), [100] * 10)


@pytest.mark.parametrize("key", [1.5, "seed", np.zeros((2, 2), np.uint32)])
def test_what_is_not_a_key(key):
    with pytest.raises(InputError, match=r"jax\.random\.key"):
        partition.iid(TEN, 3, key)


def test_table_and_heatmap(tmp_path):
    names = ["ankle boot", *"123456789"]
    parts = partition.dirichlet(TEN, 6, 0.2, 0).parts
    summary = partition.summarize(parts, TEN, names=names)
    console = Console(width=200, file=io.StringIO())
    console.print(partition.table(summary))
    shown = console.file.getvalue()
    assert "3,000 samples, 6 clients" in shown
    assert "ankle boot" in shown
    assert str(summary.sizes.max()) in shown
    partition.heatmap(summary).savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_table_and_heatmap_of_many(tmp_path):
    y = np.arange(9000) % 200
    summary = partition.iid(y, 300, 0).summary
    table = partition.table(summary, rows=5)
    assert table.row_count == 5
    assert [column.header for column in table.columns][1:3] == ["samples", "labels"]
    partition.heatmap(summary).savefig(tmp_path / "map.png")


@pytest.mark.parametrize(
    ("counts", "test", "held"),
    [
        ((50, 50), 0.2, (10, 10)),
        ((90, 9, 1), 0.2, (18, 2, 0)),
        ((5, 5), 0.2, (1, 1)),
        ((1, 1, 1, 2), 0.2, (0, 0, 0, 1)),
        ((10,), 0.01, (1,)),
        ((10,), 0.99, (9,)),
        ((5, 1), 0.9, (4, 1)),
    ],
)
def test_splits_follow_the_classes(counts, test, held):
    classes = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    out = partition.stratified(classes, test, np.random.default_rng(0))
    assert tuple(np.bincount(classes[out], minlength=len(counts))) == held


def test_classes_of_one_row_are_split_at_random():
    assert partition.stratified(list("abcd"), 0.25, np.random.default_rng(0)).sum() == 1
