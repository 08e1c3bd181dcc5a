"""Own parts against the definition: minimised by scipy, differentiated by finite differences."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import equipoise as eq
from equipoise import models
from equipoise.algorithms import ALGORITHMS
from equipoise.data.shards import Shards
from equipoise.errors import InputError
from equipoise.tasks import own_part
from tests.problems import DIM, KEY, N, assert_same, build, each_kind, few, first, play, rows, start, unequal

K, D = 3, 2


def classes(m=9, k=K, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, D)), rng.integers(0, k, m).astype(np.int32)


def shard_of(inputs, labels, padded=2):
    """With rows at the end that belong to nobody."""
    pad = np.full((padded, D), 7.0, inputs.dtype)
    more = np.concatenate([inputs, pad]), np.concatenate([labels, labels[:1].repeat(padded, axis=0)])
    return Shards(jnp.asarray(more[0]), jnp.asarray(more[1]), jnp.int32(len(labels)))


def network():
    model = models.mlp(D, (4,), K)
    return eq.tasks.task_of(model.init, model.apply, models.LOSSES["cross_entropy"], l2=0.1)


def line():
    model = models.linear(D, 1)
    return eq.tasks.task_of(
        model.init, model.apply, models.LOSSES["squared_error"], l2=0.1, bend=models.BENDS["squared_error"]
    )


TASKS = {
    "softmax": lambda: eq.tasks.softmax_regression(D, K, l2=0.1),
    "network": network,
    "squares": lambda: eq.tasks.least_squares(D, K, l2=0.1, centred=True),
    "ridge": lambda: eq.tasks.ridge(D, 0.1),
    "line": line,
}
NUMBERS = ("ridge", "line")


def rows_for(name, m=9):
    inputs, labels = classes(m)
    return inputs, (np.random.default_rng(5).normal(size=m) + 3 if name in NUMBERS else labels)


def by_hand(name, task, x, inputs, labels, own=()):
    """min_B by scipy, of losses that are written out here."""
    m, k = len(labels), 1 if name in NUMBERS else K
    z = np.asarray(task.predict(x, jnp.asarray(inputs))).reshape(m, k)
    phi = np.concatenate([np.ones((m, 1)), inputs[:, list(own)]], axis=1)

    ridge = 2 if name == "softmax" else 1

    def value(flat):
        v = z + phi @ flat.reshape(k, -1).T
        if name in ("softmax", "network"):
            top = v.max(axis=1)
            each = top + np.log(np.exp(v - top[:, None]).sum(axis=1)) - v[np.arange(m), labels]
        elif name == "squares":
            each = ((v - np.eye(K)[labels] + 1 / K) ** 2).sum(axis=1) / 2
        else:
            each = (v[:, 0] - labels) ** 2
        return each.mean() + ridge * flat @ flat / (2 * m) + 0.05 * np.sum(np.asarray(x) ** 2)

    found = minimize(value, np.zeros(k * phi.shape[1]), method="BFGS", options={"gtol": 1e-9})
    return found.fun, found.x.reshape(k, -1)


def test_a_gradient_tells_the_own_intercept():
    """What `privacy.disclosure` says of servers that see gradients."""
    task = own_part(TASKS["softmax"]())
    shard = shard_of(*rows_for("softmax"))
    x = jnp.asarray(np.random.default_rng(1).normal(size=task.size))
    slope = np.asarray(task.grad(x, shard))[-K:] - 0.1 * np.asarray(x)[-K:]
    np.testing.assert_allclose(-int(shard.sizes) * slope / 2, task.own.fit(x, shard)[:, 0], atol=1e-8)


@pytest.mark.parametrize(
    ("name", "own"),
    first(
        3,
        sorted(
            itertools.product(TASKS, [(), (1,)]),
            key=lambda case: case not in (("softmax", ()), ("softmax", (1,)), ("squares", ())),
        ),
        "::test_the_loss_is_the_least_over_the_own_part",
    ),
)
def test_the_loss_is_the_least_over_the_own_part(name, own):
    task = TASKS[name]()
    mine = own_part(task, own or "intercept")
    inputs, labels = rows_for(name)
    shard = shard_of(inputs, labels)
    x = jnp.asarray(np.random.default_rng(1).normal(size=task.size))
    value, part = by_hand(name, task, x, inputs, labels, own)
    around = np.asarray(x) + 1e-5 * np.concatenate([np.eye(task.size), -np.eye(task.size), 0 * np.eye(task.size)[:1]])
    found = jax.jit(lambda xs, data: (jax.lax.map(lambda x: mine.loss(x, data), xs), mine.grad(xs[-1], data),
                                      jax.grad(mine.loss)(xs[-1], data)))  # fmt: skip
    for data in (shard, jax.jit(mine.prepare)(shard)):
        losses, *gradients = map(np.asarray, found(around, data))
        np.testing.assert_allclose(losses[-1], value, rtol=1e-9)
        slopes = (losses[: task.size] - losses[task.size : -1]) / 2e-5
        for gradient in gradients:
            np.testing.assert_allclose(gradient, slopes, atol=1e-8)
    np.testing.assert_allclose(jax.jit(mine.own.fit)(x, shard), part, atol=1e-5)
    # Of other rows: what the part was fitted to does not change.
    other = shard_of(*rows_for(name, 5), padded=0)
    told, each = jax.jit(lambda part: (mine.own.loss(x, part, other), task.examples.losses(
        mine.own.outputs(x, part, other.inputs), other.labels)))(part)  # fmt: skip
    assert float(told) == pytest.approx(np.mean(each) + 0.05 * np.sum(np.asarray(x) ** 2))


@pytest.mark.parametrize(
    "name", few(["softmax"], ["softmax", "network", "line"], "::test_curvature_goes_through_the_own_part[softmax]")
)
def test_curvature_goes_through_the_own_part(name):
    """Hessian-vector products, from which step sizes are measured, against differences of gradients."""
    task = own_part(TASKS[name]())
    shard = shard_of(*rows_for(name))
    rng = np.random.default_rng(2)
    x, v = jnp.asarray(rng.normal(size=task.size)), jnp.asarray(rng.normal(size=task.size))
    slope = jax.jit(task.grad)
    along = jax.jit(lambda x, v: jax.jvp(lambda u: task.grad(u, shard), (x,), (v,))[1])
    np.testing.assert_allclose(along(x, v), (slope(x + 1e-5 * v, shard) - slope(x - 1e-5 * v, shard)) / 2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("far", few([40.0], [1.0, 40.0], "::test_every_owner_has_an_answer"))
def test_every_owner_has_an_answer(dtype, far):
    """One class, one row, no row of a class, outputs that are far off: optimal, by the gradient in B."""
    task = own_part(eq.tasks.softmax_regression(D, K))
    fit = jax.jit(task.own.fit)
    x = jnp.asarray(far * np.random.default_rng(3).normal(size=task.size), dtype)
    inputs, labels = classes(12)
    cases = {"one class": labels * 0 + 1, "two classes": labels % 2, "all": labels}
    shards = {what: shard_of(inputs.astype(dtype), y.astype(np.int32), 0) for what, y in cases.items()}
    shards["one row"] = shards["all"]._replace(sizes=jnp.int32(1))
    for what, shard in shards.items():
        part, m = fit(x, shard), int(shard.sizes)
        v = np.asarray(task.own.outputs(x, part, shard.inputs), np.float64)[:m]
        p = np.exp(v - v.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slope = (p - np.eye(K)[np.asarray(shard.labels)[:m]]).mean(axis=0) + 2 * np.asarray(part)[:, 0] / m
        assert np.abs(slope).max() < (3e-4 if dtype is np.float32 else 1e-9), what


def test_local_steps():
    """Without minibatches each is along the gradient; with them along that of its rows, with the part of all rows."""
    inputs, labels = classes()
    shard, x = shard_of(inputs, labels), jnp.asarray(np.random.default_rng(4).normal(size=K * (D + 1)))
    how = {"steps": 3, "lr": 0.1, "shift": jnp.full(x.size, 0.2), "pull": 0.3}
    task = own_part(eq.tasks.softmax_regression(D, K, l2=0.1))
    u, slope = np.asarray(x), jax.jit(task.grad)
    for _ in range(3):
        u = u - 0.1 * (np.asarray(slope(u, shard)) + 0.2 + 0.3 * (u - np.asarray(x)))
    key = jax.random.key(0)
    np.testing.assert_allclose(jax.jit(partial(task.descend, **how))(x, shard, key), u, rtol=1e-10)

    small = own_part(eq.tasks.softmax_regression(D, K, l2=0.1, batch=4))
    both = jax.jit(jax.vmap(lambda k: (small.loss(x, shard, k), small.grad(x, shard, k))))
    losses, many = map(np.asarray, both(jax.random.split(key, 4000)))
    np.testing.assert_allclose(many.mean(axis=0), slope(x, shard), atol=0.02)  # unbiased
    np.testing.assert_allclose(losses.mean(), jax.jit(task.loss)(x, shard), atol=0.03)
    np.testing.assert_allclose(jax.jit(small.grad)(x, shard), slope(x, shard), rtol=1e-9)
    ends = jax.eval_shape(lambda x: small.descend(x, shard, key, **how, snapshot=jnp.int32(2))[0], x)
    assert ends.shape == x.shape


def test_certificates_keep_what_they_rest_on():
    """As strongly convex, and no steeper."""
    for name in ("softmax", "squares", "ridge"):
        plain = TASKS[name]()
        mine, shard = own_part(plain), shard_of(*rows_for(name))
        x = jnp.asarray(np.random.default_rng(6).normal(size=plain.size))
        bent = [np.linalg.eigvalsh(jax.jit(jax.jacfwd(t.grad))(x, shard)) for t in (mine, plain)]
        assert mine.strong_convexity == plain.strong_convexity == 0.1
        assert bent[0][0] >= 0.1 - 1e-9
        assert bent[0][-1] <= bent[1][-1] + 1e-9


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="does not say what it is made of"):
        own_part(eq.tasks.quadratic(2))
    with pytest.raises(InputError, match="give 'intercept' or indices"):
        own_part(TASKS["softmax"](), "age")
    with pytest.raises(InputError, match="more than once"):
        own_part(TASKS["softmax"](), (1, 1))
    with pytest.raises(InputError, match="an example has shape"):
        own_part(TASKS["softmax"](), (5,)).loss(jnp.zeros(9), shard_of(*classes()))


@partial(each_kind, kinds=("scaffold", "scaffpd"))
def test_algorithms_see_a_task_like_any_other(name):
    """Squares with own intercepts are squares of rows that are partly centred, here by hand: for every algorithm."""
    data = unequal()
    centred = []
    for a, y in rows(data):
        share = 1 - 1 / np.sqrt(2 * len(y) + 1)
        centred.append((a - share * a.mean(axis=0), y - share * y.mean()))
    task = own_part(eq.tasks.ridge(DIM, 0.1))
    mine = ALGORITHMS[name].build_example(task, eq.objectives.chi2(N, 0.1), eq.cohorts.everyone(N))
    found = eq.simulate(mine, start(), data, KEY, rounds=3).server
    plain = play(name, eq.data.stack(centred)).server
    assert_same(mine.model(found), build(name).model(plain), rtol=1e-8)
    if mine.weights(found) is not None:
        assert_same(mine.weights(found), build(name).weights(plain), rtol=1e-8)
