from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from equipoise.tasks.squares import Gram, Kernel
from tests.problems import assert_same

rng = np.random.default_rng(0)
SIZES = (9, 4, 6)


def federation(features, outputs=None):
    def labels(m):
        return rng.normal(size=m if outputs is None else (m, outputs))

    return eq.data.stack([(rng.normal(size=(m, features)), labels(m)) for m in SIZES])


# Few features (a Gram matrix of the features) and many (one of the examples).
CASES = [
    (eq.tasks.ridge(3, 0.2), federation(3), Gram),
    (eq.tasks.ridge(40, 0.2), federation(40), Kernel),
    (eq.tasks.least_squares(3, 4, l2=0.1), federation(3, 4), Gram),
    (eq.tasks.least_squares(40, 4, l2=0.1), federation(40, 4), Kernel),
    (eq.tasks.least_squares(40, 4), federation(40, 4), Kernel),
]


@cache  # one program for all clients
def everything(task):
    """Loss, both ways to the gradient, and every kind of descent."""

    @jax.jit
    def of(x, shard, shift):
        hows = ({}, {"shift": shift}, {"pull": 0.7}, {"shift": shift, "pull": 0.7, "snapshot": jnp.int32(3)})
        # few steps, where the coefficients do not pay, and many
        ends = [task.descend(x, shard, None, steps=steps, lr=0.05, **how) for how in hows for steps in (1, 12)]
        return task.loss(x, shard), (task.grad(x, shard), jax.grad(task.loss)(x, shard)), ends

    return jax.jit(task.prepare), of


@pytest.mark.parametrize(("task", "data", "kind"), CASES)
@pytest.mark.parametrize("i", range(3))
def test_prepared_equals_plain(task, data, kind, i):
    prepare, of = everything(task)
    raw, x, shift = data.client(i), rng.normal(size=task.size), rng.normal(size=task.size)
    ready = prepare(raw)
    assert isinstance(ready, kind)
    got, want = (of(x, shard, shift) for shard in (ready, raw))
    for mine, plain, rtol in zip(got, want, (1e-12, 1e-11, 1e-10), strict=True):
        assert_same(mine, plain, rtol=rtol)
    assert_same(got[1][1], want[1][0], rtol=1e-11)


@pytest.mark.parametrize(("task", "data", "kind"), CASES)
def test_follows_the_formula_on_real_rows_only(task, data, kind):
    x = rng.normal(size=task.size)
    scale, l2 = (1.0, 0.2) if task.name == "ridge" else (0.5, 0.1 if data is not CASES[4][1] else 0.0)
    for i, m in enumerate(SIZES):
        a, y = np.asarray(data.inputs[i, :m]), np.asarray(data.labels[i, :m]).reshape(m, -1)
        big_x = x.reshape(-1, a.shape[1])
        want = scale / m * np.sum((a @ big_x.T - y) ** 2) + l2 / 2 * x @ x
        assert_same(task.loss(jnp.asarray(x), data.client(i)), want, rtol=1e-12)


def test_integer_labels_stand_for_one_hot_rows():
    inputs, labels = rng.normal(size=(6, 3)), np.array([0, 2, 1, 1, 0, 2])
    for centred in (False, True):
        rows = np.eye(4)[labels] - (0.25 if centred else 0)
        task = eq.tasks.least_squares(3, 4, centred=centred)
        x = jnp.asarray(rng.normal(size=12))
        by_class, by_row = (eq.data.stack([(inputs, y)]).client(0) for y in (labels, rows))
        assert_same(task.loss(x, task.prepare(by_class)), task.loss(x, by_row))
        assert_same(task.grad(x, by_class), task.grad(x, task.prepare(by_row)))


def test_a_perfect_fit_has_no_negative_loss():
    a, x = rng.normal(size=(50, 3)).astype(np.float32), np.array([100.0, -30, 7], np.float32)
    task = eq.tasks.ridge(3, 0.0)
    ready = task.prepare(eq.data.stack([(a, a @ x)]).client(0))
    for nudge in range(20):
        assert float(task.loss(jnp.asarray(x) + jnp.float32(1e-4 * nudge), ready)) >= 0


def test_sums_over_many_rows_are_rounded_once():
    """In single precision they would be off by ten roundings and more."""
    a = (0.9 + 0.1 * rng.random((30_000, 3))).astype(np.float32)
    y = a[:, :1] * np.float32(0.7)
    task = eq.tasks.least_squares(3, 1)
    with jax.enable_x64(False):
        ready = task.prepare(eq.data.stack([(a, y)]).client(0))
    wide_a, wide_y = a.astype(np.float64), y.astype(np.float64)
    exact = (wide_a.T @ wide_a / len(a), wide_y.T @ wide_a / len(a), (wide_y**2).sum() / 2 / len(a))
    for got, want in zip(ready[:3], exact, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=6e-8)


def test_minibatches_use_no_gram_matrix():
    data = federation(3)
    task = eq.tasks.ridge(3, 0.2, batch=2)
    assert task.prepare(data.client(0)) is not None
    assert not isinstance(task.prepare(data.client(0)), Gram)


@pytest.mark.parametrize(
    ("task", "data", "sentence"),
    [
        (eq.tasks.ridge(4), federation(3), r"for 4 features but the examples have shape \(3,\)"),
        (eq.tasks.least_squares(3, 2), federation(3), r"2 outputs but a label has shape \(\)"),
        (eq.tasks.ridge(3), federation(3, 2), r"1 outputs but a label has shape \(2,\)"),
    ],
)
def test_says_what_is_wrong(task, data, sentence):
    with pytest.raises(InputError, match=sentence):
        task.prepare(data.client(0))
