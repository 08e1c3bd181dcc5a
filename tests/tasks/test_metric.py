"""The metric, against the same losses in x and against NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms.second_moments import second_moments
from equipoise.errors import InputError
from equipoise.tasks.metric import Metric, from_model, full_metric, low_rank_metric, to_model
from equipoise.tasks.squares import Gram, Kernel
from tests.problems import first

N, D = 3, 7


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def rows(m=12, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(N, m, D)) * np.geomspace(1, 30, D) + 2
    return inputs, rng.normal(size=(N, m)), rng.integers(0, 3, size=(N, m))


def moments_of(inputs):
    """In NumPy: the means over the clients of the second moments and of the means."""
    return np.mean([a.T @ a / len(a) for a in inputs], axis=0), np.mean([a.mean(0) for a in inputs], axis=0)


def low_rank(linear, moments, centre, rank):
    """Of the exact images of a random basis with as many directions as there are inputs."""
    about = moments - np.outer(centre, centre) if linear.intercept else moments
    basis = np.linalg.qr(np.random.default_rng(3).normal(size=(D, D)))[0]
    return low_rank_metric(linear, basis, about @ basis, centre, rank, jnp.float64)


CASES = {
    "gram": (lambda: eq.tasks.ridge(D, 0.1), 12, 1),
    "few rows": (lambda: eq.tasks.ridge(D, 0.1), 4, 1),
    "classes of squares": (lambda: eq.tasks.least_squares(D, 3, l2=0.01, centred=True), 12, 2),
    "minibatch": (lambda: eq.tasks.ridge(D, 0.1, batch=100), 12, 1),
    "softmax": (lambda: eq.tasks.softmax_regression(D, 3, l2=0.01), 12, 2),
    "free intercept": (lambda: eq.tasks.softmax_regression(D, 3, l2=(0.01,) * 3 * D + (1e-5,) * 3), 12, 2),
    "own intercept": (lambda: eq.tasks.own_part(eq.tasks.softmax_regression(D, 3, l2=0.01)), 12, 2),
    "own slopes of squares": (lambda: eq.tasks.own_part(eq.tasks.ridge(D, 0.1), (1,)), 12, 1),
    "envelope": (lambda: eq.tasks.moreau_envelope(eq.tasks.ridge(D, 0.1), 1.0).task, 12, 1),
}


@pytest.mark.parametrize(
    ("name", "rank"),
    first(
        10,
        sorted(
            itertools.product(CASES, [None, 3]),
            key=lambda case: case[1] is not None and case not in (("softmax", 3), ("few rows", 3)),
        ),
        "::test_losses_gradients_and_local_steps_are_those_of_x",
    ),
)
def test_losses_gradients_and_local_steps_are_those_of_x(name, rank):
    make, m, labels = CASES[name]
    task, given = make(), rows(m)
    shards = eq.data.stack(list(zip(given[0], given[labels], strict=True)))
    moments, centre = moments_of(given[0])
    metric = (full_metric if rank is None else low_rank)(
        task.linear, moments, centre, *([jnp.float64] if rank is None else [rank])
    )
    moved, shard = eq.tasks.in_metric(task), shards.client(1)
    data = jax.jit(moved.prepare)(eq.tasks.WithMetric(shards, metric).client(1))
    kinds = {"gram": Gram, "few rows": Gram if rank is None else Kernel}
    assert isinstance(data, kinds.get(name, tuple))
    assert int(data.sizes) == m
    z, lr = np.random.default_rng(1).normal(size=task.size), 1e-3

    @jax.jit
    def in_x(z):
        x = to_model(task.linear, metric, z)
        W = jax.jacobian(lambda z: to_model(task.linear, metric, z))(z)  # x is linear in z
        return from_model(task.linear, metric, x), task.loss(x, shard), W.T @ task.grad(x, shard)

    @jax.jit
    def in_z(z, data):
        done = moved.descend(z, data, jax.random.key(0), steps=3, lr=lr, shift=jnp.ones_like(z))
        return moved.loss(z, data), moved.grad(z, data), done

    back, loss, slope = in_x(z)
    np.testing.assert_allclose(back, z, rtol=1e-9)
    found = in_z(z, data)
    np.testing.assert_allclose(found[0], loss, rtol=1e-12)
    np.testing.assert_allclose(found[1], slope, rtol=1e-8, atol=1e-10)
    if name == "minibatch":
        return
    u = z
    for _ in range(3):
        u = u - lr * (np.asarray(in_x(u)[2]) + 1)
    np.testing.assert_allclose(found[2], u, rtol=1e-9, atol=1e-10)


def hessian(task, metric):
    """Of the pooled squared loss in z, by the map from z to x alone."""
    W = np.asarray(jax.jacobian(lambda z: to_model(task.linear, metric, z))(jnp.zeros(task.size)))
    return lambda H: W.T @ H @ W


def test_the_pooled_curvature_is_one():
    task, (inputs, _, _) = eq.tasks.ridge(D, 0.1), rows()
    moments, centre = moments_of(inputs)
    H = 2 * moments + 0.1 * np.eye(D)
    full = hessian(task, full_metric(task.linear, moments, centre, jnp.float64))(H)
    np.testing.assert_allclose(full, np.eye(D), atol=1e-9)
    values = np.linalg.eigvalsh(H)[::-1]
    ranked = np.linalg.eigvalsh(hessian(task, low_rank(task.linear, moments, centre, 3))(H))[::-1]
    np.testing.assert_allclose(ranked, [*values[[3, 3, 3]], *values[3:]], rtol=1e-6)


def test_with_an_intercept_it_is_that_of_inputs_and_a_one():
    task, (inputs, _, _) = eq.tasks.softmax_regression(D, 2, l2=0.01), rows()
    moments, centre = moments_of(inputs)
    ones = np.concatenate([inputs, np.ones((N, inputs.shape[1], 1))], axis=2)
    H = 0.1 * moments_of(ones)[0] + 0.01 * np.eye(D + 1)
    order = np.r_[0 : 2 * D].reshape(2, D)
    both = np.zeros((task.size, task.size))
    for k in range(2):
        at = [*order[k], 2 * D + k]
        both[np.ix_(at, at)] = H
    found = hessian(task, full_metric(task.linear, moments, centre, jnp.float64))(both)
    np.testing.assert_allclose(found, 0.11 * np.eye(task.size), atol=1e-9)


@pytest.mark.parametrize("what", ["constant", "zero", "duplicated", "huge", "few rows", "no l2"])
def test_degenerate_inputs_have_a_metric(what):
    inputs, _, _ = rows(2 if what == "few rows" else 12)
    inputs[..., 0] = {"constant": 5.0, "zero": 0.0, "duplicated": inputs[..., 1], "huge": 1e9 * inputs[..., 0]}.get(
        what, inputs[..., 0]
    )
    if what == "no l2":
        inputs[..., 0] = 0
        inputs[..., 1] = inputs[..., 2]
    l2 = 0.0 if what == "no l2" else 1e-3
    for task in (eq.tasks.ridge(D, l2), eq.tasks.softmax_regression(D, 2, l2=l2)):
        metric = full_metric(task.linear, *moments_of(inputs), jnp.float64)
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(metric))
        z = jnp.ones(task.size)
        back = from_model(task.linear, metric, to_model(task.linear, metric, z))
        np.testing.assert_allclose(back, z, rtol=1e-5)


def test_one_input():
    task = eq.tasks.ridge(1, 0.1)
    metric = full_metric(task.linear, np.full((1, 1), 8.0), np.zeros(1), jnp.float64)
    np.testing.assert_allclose(to_model(task.linear, metric, jnp.ones(1)), [1 / np.sqrt(16.1)])


@pytest.mark.parametrize("rank", [None, 2])
def test_the_exchange_is_the_mean_over_those_who_answered(rank):
    task, (inputs, _, classes) = eq.tasks.softmax_regression(D, 3, l2=0.01), rows()
    shards = eq.data.stack(list(zip(inputs, classes, strict=True)))

    def lost(r, exchange, ids):
        return jnp.asarray(ids) == 0

    for gone, there in ((None, inputs), (lost, inputs[1:])):
        moments, centre = moments_of(there)
        found = eq.metric.agree(task, shards, rank=rank, lost=gone, engine=eq.debug)
        wanted = full_metric(task.linear, moments, centre, jnp.float64)
        if rank is not None:
            wanted = low_rank(task.linear, moments, centre, rank)
        z = jnp.asarray(np.random.default_rng(5).normal(size=task.size))
        np.testing.assert_allclose(
            to_model(task.linear, found, z), to_model(task.linear, wanted, z), rtol=1e-6, atol=1e-8
        )
    assert eq.metric.agree(task, shards, rank=rank, lost=lambda r, e, ids: jnp.ones(N, bool), engine=eq.debug) is None


def test_bytes_and_packing():
    task, (inputs, _, classes) = eq.tasks.softmax_regression(D, 3, l2=0.01), rows()
    like = eq.data.stack(list(zip(inputs, classes, strict=True))).client(0)
    moments, centre = moments_of(inputs)
    half = D * (D + 1) // 2
    for metric, rank, up in (
        (full_metric(task.linear, moments, centre, jnp.float64), None, 8 * (1 + D + half)),
        (low_rank(task.linear, moments, centre, 3), 3, 8 * (2 + D + 2 * D * D)),
    ):
        packed = eq.metric.packed(metric)
        back = eq.metric.unpacked(packed, task.linear)
        assert jax.tree.structure(back) == jax.tree.structure(metric)
        assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (back, metric)), strict=True))
        down = sum(a.nbytes for a in packed.values()) + (0 if rank is None else 8 * D * D)
        assert eq.metric.bytes_of_agreement(task.linear, N, rank, like, jnp.float64) == (N * down, N * up)


def test_the_rule():
    linear = eq.tasks.softmax_regression(240, 2).linear
    assert eq.metric.chosen_rank(linear) is None
    assert eq.metric.chosen_rank(linear._replace(features=241)) == 30
    assert eq.metric.chosen_rank(linear._replace(features=5000)) == 64


def test_what_does_not_fit_is_said():
    with pytest.raises(InputError, match="linear in its inputs"):
        eq.tasks.in_metric(eq.tasks.quadratic(2))
    with pytest.raises(InputError, match="WithMetric"):
        eq.tasks.in_metric(eq.tasks.ridge(D)).prepare(eq.data.stack([(np.ones((2, D)), np.ones(2))]).client(0))
    with pytest.raises(InputError, match="less than 7"):
        second_moments(eq.tasks.ridge(D).linear, eq.cohorts.everyone(N), rank=D)
    with pytest.raises(InputError, match="parameters"):
        to_model(eq.tasks.ridge(D).linear, Metric(None, None), jnp.zeros(2))
