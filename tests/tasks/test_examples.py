import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import equipoise as eq
from equipoise.errors import InputError
from tests.problems import assert_same

rng = np.random.default_rng(0)
SIZES = (9, 1, 6)
DATA = eq.data.stack([(rng.normal(size=(m, 3)), rng.integers(0, 4, m)) for m in SIZES])


def test_softmax_regression_follows_the_formula_on_real_rows_only():
    task = eq.tasks.softmax_regression(3, 4, l2=0.2)
    x = rng.normal(size=task.size)
    weights, bias = x[:12].reshape(4, 3), x[12:]
    for i, m in enumerate(SIZES):
        inputs, labels = np.asarray(DATA.inputs[i, :m]), np.asarray(DATA.labels[i, :m])
        logits = inputs @ weights.T + bias
        want = -log_softmax(logits, axis=1)[np.arange(m), labels].mean() + 0.1 * x @ x
        assert_same(task.loss(jnp.asarray(x), DATA.client(i)), want, rtol=1e-12)
        assert_same(task.predict(jnp.asarray(x), jnp.asarray(inputs)), logits, rtol=1e-12)


def test_softmax_regression_stands_large_logits():
    task = eq.tasks.softmax_regression(3, 4)
    x = jnp.full(task.size, 1e4).at[0].set(-1e4)
    assert jnp.isfinite(task.loss(x, DATA.client(0)))
    assert jnp.all(jnp.isfinite(task.grad(x, DATA.client(0))))


def test_minibatches_never_touch_the_padding():
    poisoned = DATA._replace(
        inputs=jnp.where(
            jnp.arange(9, dtype=jnp.int32)[None, :, None] >= DATA.sizes[:, None, None], jnp.nan, DATA.inputs
        )
    )
    task = eq.tasks.softmax_regression(3, 4, batch=5)
    x = jnp.ones(task.size)
    for i in range(3):
        for seed in range(30):
            assert jnp.isfinite(task.loss(x, poisoned.client(i), jax.random.key(seed)))
    u = task.descend(x, poisoned.client(1), jax.random.key(0), steps=4, lr=0.1)
    assert jnp.all(jnp.isfinite(u))


def test_minibatch_gradients_are_unbiased_and_spread_over_all_rows():
    task = eq.tasks.softmax_regression(3, 4, l2=0.1, batch=2)
    x, shard = jnp.asarray(rng.normal(size=task.size)), DATA.client(0)
    draws = jax.vmap(lambda key: task.grad(x, shard, key))(jax.random.split(jax.random.key(0), 20000))
    np.testing.assert_allclose(jnp.mean(draws, axis=0), task.grad(x, shard), atol=0.03)


def test_descend_takes_its_own_minibatches():
    task = eq.tasks.softmax_regression(3, 4, batch=2)
    x = jnp.zeros(task.size)
    ends = {float(task.descend(x, DATA.client(0), jax.random.key(k), steps=3, lr=0.1)[0]) for k in range(4)}
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


def test_says_what_is_wrong():
    init, apply, loss = model()
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
