import numpy as np
import pytest

from equipoise.bench import outside
from equipoise.bench.federations import Federation
from tests.bench import owners


def federation(data):
    rows = [data.groups == i for i in range(4)]
    return Federation(
        "f", data.classes, data.group_names, *(tuple(a[r] for r in rows) for a in (data.inputs, data.labels))
    )


@pytest.mark.parametrize("k", [2, 3])
def test_an_owners_fit_is_at_the_optimum(k):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 4)), rng.integers(k, size=80)
    w = outside._fitted(x, y, k, 0.1)
    for _ in range(20):
        near = w + 1e-3 * rng.normal(size=w.shape)
        ridge = np.append(np.full(4, 0.1), 2 / 80)
        a = np.column_stack([x, np.ones(80)])
        assert outside._objective(w, a, y, ridge) < outside._objective(near, a, y, ridge)


def test_an_owner_with_one_class():
    w = outside._fitted(np.zeros((30, 2)), np.ones(30, int), 2, 0.1)
    assert outside._outputs(w, np.zeros((1, 2)), 2)[0, 1] > 0.9


def test_one_with_nothing_to_learn_predicts_its_mean():
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.tile([0.0, 2.0], 20)
    assert outside._chosen(x, y, 0)[:-1] == pytest.approx(0, abs=0.3)


@pytest.mark.parametrize("data", [owners.coins, owners.lengths])
def test_what_sees_all_rows_is_better_than_nothing(data):
    of = federation(data())
    for fit in (outside.alone, outside.pooled_linear, outside.pooled_boosting, outside.boosting_alone):
        predict = fit(of)
        got = np.concatenate([predict(i, x) for i, x in enumerate(of.inputs)])
        y = np.concatenate(of.labels)
        if of.classes:
            assert got.shape == (240, 2)
            assert ((got[:, 1] > 0.5) == y).mean() > 0.75
        else:
            assert np.mean((got - y) ** 2) < 0.5 * y.var()
