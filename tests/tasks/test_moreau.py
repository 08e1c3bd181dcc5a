import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from equipoise.tasks import moreau_envelope
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
X = start()


def direct(client, mu, x=X):
    """v_i by a linear solve, and the envelope as the quadratic x'H'x/2 - b'x + e'."""
    a, y = client
    hessian, b = 2 / len(y) * a.T @ a + reference.MU * np.eye(a.shape[1]), 2 / len(y) * a.T @ y
    inverse = np.linalg.inv(hessian + mu * np.eye(a.shape[1]))
    x = np.asarray(x)
    value = x @ (mu * inverse @ hessian) @ x / 2 - mu * b @ inverse @ x + np.mean(y**2) - b @ inverse @ b / 2
    return inverse @ (b + mu * x), value


@pytest.mark.parametrize("i", [2, 1])  # more examples than features, and fewer
def test_squares_are_exact(i):
    personal, shard, mu = moreau_envelope(TASK, 0.7), unequal().client(i), 0.7
    shard = jax.tree.map(lambda a: a[: int(shard.sizes)] if a.ndim else a, shard)  # no padding: the shape decides
    v, value = direct(rows(unequal())[i], mu)
    of = jax.jit(lambda x, data: (personal.model(x, data), personal.task.loss(x, data), personal.task.grad(x, data)))
    for data in (shard, jax.jit(personal.task.prepare)(shard)):
        assert_same(of(X, data), (v, value, mu * (np.asarray(X) - v)), rtol=1e-10)
    assert personal.task.strong_convexity == pytest.approx(0.7 * 0.1 / 0.8)


def softmax():
    rng = np.random.default_rng(0)
    shard = eq.data.stack([(rng.normal(size=(9, 2)), rng.integers(0, 3, 9).astype(np.int32))]).client(0)
    return eq.tasks.softmax_regression(2, 3, l2=0.1), shard


def test_the_gradient_is_that_of_the_envelope():
    """Against finite differences, with inner steps enough to be exact."""
    task, shard = softmax()
    envelope = moreau_envelope(task, 1.5, steps=300, lr=0.3).task
    x, loss = np.random.default_rng(1).normal(size=task.size), jax.jit(lambda x: envelope.loss(x, shard))
    slopes = [(float(loss(x + step)) - float(loss(x - step))) / 2e-5 for step in 1e-5 * np.eye(task.size)]
    np.testing.assert_allclose(jax.jit(envelope.grad)(x, shard), slopes, atol=1e-8)


def test_local_steps_start_the_inner_ones_where_they_were():
    """One inner step a time, taken over from step to step, against the same in NumPy."""
    client, mu, lr = rows(unequal())[0], 0.7, 0.05
    envelope = moreau_envelope(TASK, mu, steps=1, lr=lr).task
    how = {"steps": 5, "lr": 0.1, "shift": np.full(DIM, 0.2), "pull": 0.3, "snapshot": np.int32(3)}
    u, seen = jax.jit(lambda x: envelope.descend(x, unequal().client(0), jax.random.key(0), **how))(X)
    x = w = v = np.asarray(X)
    path = []
    for _ in range(5):
        v = v - lr * (reference.gradient(v, client) + mu * (v - w))
        w = w - 0.1 * (mu * (w - v) + 0.2 + 0.3 * (w - x))
        path.append(w)
    assert_same((u, seen), (path[-1], path[2]))


@pytest.mark.thorough(witness="::test_squares_are_exact")
def test_from_the_shared_model_to_every_client_by_itself():
    """mu -> infinity: the saddle point of the plain losses; mu -> 0: every v_i is its client's own optimum."""
    data, dual, ends = unequal(), eq.objectives.chi2(N, 0.1), {}
    for mu in (None, 1e7, 1e-6):
        personal = None if mu is None else moreau_envelope(TASK, mu)
        task = TASK if personal is None else personal.task
        rule = eq.steps.constant(tau=0.1 if mu != 1e-6 else 1e4, sigma=0.5, theta=0.0)
        algorithm = eq.algorithms.scaffpd(
            task, dual, eq.cohorts.everyone(N), rule, steps=2, local_lr=0.05 if mu != 1e-6 else 1e4
        )
        ends[mu] = eq.simulate(algorithm, X, data, 0, rounds=400).server
    assert_same(ends[1e7].x, ends[None].x, rtol=1e-4, atol=1e-5)
    assert_same(ends[1e7].lam, ends[None].lam, rtol=1e-3, atol=1e-4)
    alone = moreau_envelope(TASK, 1e-6)
    for i, client in enumerate(rows(data)):
        v = alone.model(ends[1e-6].x, data.client(i))
        assert np.abs(reference.gradient(np.asarray(v), client)).max() < 1e-4


def test_says_what_is_wrong():
    task, shard = softmax()
    with pytest.raises(InputError, match="no closed form"):
        moreau_envelope(task, 1.0).task.prepare(shard)
    with pytest.raises(InputError, match="both `steps` and `lr`"):
        moreau_envelope(task, 1.0, steps=3)
    with pytest.raises(InputError, match="mu is 0"):
        moreau_envelope(task, 0)
