from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import equipoise as eq
from equipoise.errors import InputError
from tests.problems import assert_same, in_programs

rng = np.random.default_rng(0)
SIZES = (9, 1, 6)
DATA = eq.data.stack([(rng.normal(size=(m, 3)), rng.integers(0, 4, m)) for m in SIZES])


def test_softmax_regression_follows_the_formula_on_real_rows_only():
    task = in_programs(eq.tasks.softmax_regression(3, 4, l2=0.2))
    x = rng.normal(size=task.size)
    weights, bias = x[:12].reshape(4, 3), x[12:]
    for i, m in enumerate(SIZES):
        inputs, labels = np.asarray(DATA.inputs[i, :m]), np.asarray(DATA.labels[i, :m])
        logits = inputs @ weights.T + bias
        want = -log_softmax(logits, axis=1)[np.arange(m), labels].mean() + 0.1 * x @ x
        assert_same(task.loss(jnp.asarray(x), DATA.client(i)), want, rtol=1e-12)
        assert_same(task.predict(jnp.asarray(x), jnp.asarray(inputs)), logits, rtol=1e-12)


def test_softmax_regression_stands_large_logits():
    task = in_programs(eq.tasks.softmax_regression(3, 4))
    x = jnp.full(task.size, 1e4).at[0].set(-1e4)
    assert jnp.isfinite(task.loss(x, DATA.client(0)))
    assert jnp.all(jnp.isfinite(task.grad(x, DATA.client(0))))


def test_minibatches_never_touch_the_padding():
    poisoned = DATA._replace(
        inputs=jnp.where(
            jnp.arange(9, dtype=jnp.int32)[None, :, None] >= DATA.sizes[:, None, None], jnp.nan, DATA.inputs
        )
    )
    task = in_programs(eq.tasks.softmax_regression(3, 4, batch=5))
    x = jnp.ones(task.size)
    for i in range(3):
        for seed in range(30):
            assert jnp.isfinite(task.loss(x, poisoned.client(i), jax.random.key(seed)))
    u = jax.jit(partial(task.descend, steps=4, lr=0.1))(x, poisoned.client(1), jax.random.key(0))
    assert jnp.all(jnp.isfinite(u))


def test_minibatch_gradients_are_unbiased_and_spread_over_all_rows():
    task = eq.tasks.softmax_regression(3, 4, l2=0.1, batch=2)
    x, shard = jnp.asarray(rng.normal(size=task.size)), DATA.client(0)
    draws = jax.jit(jax.vmap(lambda key: task.grad(x, shard, key)))(jax.random.split(jax.random.key(0), 20000))
    np.testing.assert_allclose(np.mean(draws, axis=0), jax.jit(task.grad)(x, shard), atol=0.03)


def test_descend_takes_its_own_minibatches():
    task = eq.tasks.softmax_regression(3, 4, batch=2)
    x = jnp.zeros(task.size)
    end = jax.jit(lambda key: task.descend(x, DATA.client(0), key, steps=3, lr=0.1)[0])
    ends = {float(end(jax.random.key(k))) for k in range(4)}
    assert len(ends) == 4


def model():
    def init(key):
        return {"hidden": jax.random.normal(key, (3, 5)), "out": jnp.ones((5, 4))}

    def apply(params, inputs):
        return jnp.tanh(inputs @ params["hidden"]) @ params["out"]

    def loss(outputs, labels):
        return jnp.sum((outputs - jax.nn.one_hot(labels, 4, dtype=outputs.dtype)) ** 2, axis=1)

    return init, apply, loss


def test_any_model_becomes_a_task():
    init, apply, loss = model()
    task = eq.tasks.task_of(init, apply, loss, l2=0.3)
    x = task.init(jax.random.key(1))
    assert x.shape == (task.size,) == (35,)
    params = init(jax.random.key(1))
    inputs, labels = DATA.inputs[2, :6], DATA.labels[2, :6]
    want = jnp.mean(loss(apply(params, inputs), labels)) + 0.15 * sum(jnp.sum(p**2) for p in params.values())
    assert_same(task.loss(x, DATA.client(2)), want)
    assert_same(task.predict(x, inputs), apply(params, inputs))
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(3), steps=5, local_lr=0.02)
    run = eq.simulate(algorithm, x, DATA, 0, rounds=60, record=lambda s: jnp.mean(eq.tasks.losses(task, s.x, DATA)))
    assert run.history[-1] < 0.6 * run.history[0]


@pytest.mark.parametrize("mean", [False, True], ids=["an example", "a batch"])
def test_a_loss_of_parameters_and_a_batch(mean):
    """As optax's users write it: one number per example, or their mean, which is then taken of one at a time."""
    init, apply, loss = model()

    def of_batch(params, batch):
        each = loss(apply(params, batch[0]), batch[1])
        return jnp.mean(each) if mean else each

    with_apply, task = (
        in_programs(eq.tasks.task_of(init, *given, loss=of)) for given, of in (((apply,), loss), ((), of_batch))
    )
    x, shard = task.init(1), DATA.client(2)
    assert_same(task.loss(x, shard), with_apply.loss(x, shard))
    assert_same(task.grad(x, shard), with_apply.grad(x, shard))
    assert task.predict is None


def test_says_what_is_wrong():
    init, apply, loss = model()
    with pytest.raises(InputError, match="was given no loss"):
        eq.tasks.task_of(init, apply)
    wide = eq.data.stack([(np.ones((2, 7)), np.zeros(2, int))])
    with pytest.raises(InputError, match=r"cannot be applied to examples of shape \(7,\)"):
        eq.tasks.task_of(init, apply, loss).prepare(wide.client(0))
    with pytest.raises(InputError, match="one number per example"):
        eq.tasks.task_of(init, apply, lambda o, y: jnp.sum(o)).prepare(DATA.client(0))
    with pytest.raises(InputError, match="batch is 0"):
        eq.tasks.softmax_regression(3, 4, batch=0)
    with pytest.raises(InputError, match="for 5 features"):
        eq.tasks.softmax_regression(5, 4).prepare(DATA.client(0))
    with pytest.raises(InputError, match="l2 coefficient is -1"):
        eq.tasks.softmax_regression(3, 4, l2=-1)
    with pytest.raises(InputError, match="1 classes"):
        eq.tasks.softmax_regression(3, 1)


def test_parameters_come_back_as_the_tree_that_they_were_given_as():
    """An equinox module with functions, sizes, whole numbers and flags in it."""

    class Model(eqx.Module):
        mlp: eqx.nn.MLP
        permutation: jax.Array  # whole numbers are not learned
        flag: bool = True

    def init(key):
        return Model(eqx.nn.MLP(3, 2, 4, 1, key=key), jnp.array([2, 0, 1]))

    def apply(model, inputs):
        return jax.vmap(model.mlp)(inputs[:, model.permutation])

    task = eq.tasks.task_of(init, apply, eq.models.LOSSES["cross_entropy"])
    x = task.init(7)
    assert x.shape == (task.size,) == (3 * 4 + 4 + 4 * 2 + 2,)
    given, back = init(jax.random.key(7)), task.unravel(x)
    assert eqx.tree_equal(given, back)
    np.testing.assert_array_equal(task.ravel(given), x)
    inputs = jnp.ones((5, 3))
    np.testing.assert_array_equal(task.predict(x, inputs), apply(given, inputs))
    shards = eq.data.stack([(np.ones((4, 3)), np.array([0, 1, 1, 0])), (np.ones((2, 3)), np.array([1, 0]))])
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(2), steps=2, local_lr=0.1)
    trained = task.unravel(algorithm.model(eq.simulate(algorithm, x, shards, 0, rounds=1).server))
    assert trained.flag
    np.testing.assert_array_equal(trained.permutation, given.permutation)
    assert not eqx.tree_equal(trained, given)


@pytest.mark.parametrize("batch", [None, 2])
def test_dropout_draws_anew_in_every_step_and_never_at_prediction(batch):
    def apply(w, inputs, key):
        if key is None:
            return inputs @ w
        kept = jax.random.bernoulli(key, 0.5, inputs.shape)
        return jnp.where(kept, 2 * inputs, 0) @ w

    def loss(outputs, labels):
        return (outputs - labels) ** 2 / 2

    task = eq.tasks.task_of(lambda key: jnp.ones(6), apply, loss, batch=batch)
    rng = np.random.default_rng(0)
    shard = eq.data.stack([(rng.normal(size=(9, 6)), rng.normal(size=9))]).client(0)
    x, key = task.init(0), jax.random.key(1)
    inputs, labels = np.asarray(shard.inputs), np.asarray(shard.labels)
    np.testing.assert_allclose(task.loss(x, shard), np.mean((inputs.sum(1) - labels) ** 2) / 2)
    np.testing.assert_allclose(task.grad(x, shard), inputs.T @ (inputs.sum(1) - labels) / 9)
    grads = [task.grad(x, shard, jax.random.key(i)) for i in range(3)]
    assert not np.allclose(grads[0], grads[1])
    np.testing.assert_array_equal(task.grad(x, shard, jax.random.key(2)), grads[2])
    one, two = (task.descend(x, shard, key, steps=k, lr=0.1) for k in (1, 2))
    again = task.descend(one, shard, key, steps=1, lr=0.1)
    assert not np.allclose(two, again)  # the second step has draws of its own
    np.testing.assert_array_equal(task.predict(x, shard.inputs), inputs @ np.ones(6))
