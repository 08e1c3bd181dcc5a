"""Own models that are linear in their inputs: found together, they are those found one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.data.shards import Shards
from equipoise.experiment.personal import linear
from equipoise.experiment.personal.paths import path
from equipoise.tasks import least_squares, own_part, ridge, softmax_regression

PENALTIES = (1.0, 0.1, 0.001)
WITNESS = "test_together_as_one_by_one[three classes, own slopes]"
TASKS = {
    "three classes, own slopes": own_part(softmax_regression(4, 3, l2=0.1), [1]),
    "two classes": softmax_regression(4, 2, l2=0.1),
    "two classes, own intercept": own_part(softmax_regression(4, 2, l2=0.1)),
    "squares": ridge(4, mu=0.1),
    "squares of three outputs, own intercept": own_part(least_squares(4, 3, l2=0.1)),
}


def rows(outputs, squares):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(90, 4))
    a[:, 3] = a[:, 2]  # the same column twice
    z = a @ rng.normal(size=(4, outputs)) + rng.logistic(size=(90, outputs)) + np.arange(outputs)
    y = (z[:, 0] if outputs == 1 else z) if squares else np.argmax(z, axis=1).astype(np.int32)
    return Shards(jnp.asarray(a), jnp.asarray(y), jnp.int32(83))


@pytest.mark.parametrize(
    "name",
    [
        name if j == 0 else pytest.param(name, marks=pytest.mark.thorough(witness=f"::{WITNESS}"))
        for j, name in enumerate(TASKS)
    ],
)
def test_together_as_one_by_one(name, monkeypatch):
    """Of a federation in blocks of rows, with one curvature for all six; without centre and around one."""
    task = TASKS[name]
    monkeypatch.setattr(linear, "BLOCK", 30)
    monkeypatch.setattr(linear, "FEW", 0)
    shard = rows(task.linear.outputs, not isinstance(task.examples.bend, str))
    centre = jnp.asarray(np.random.default_rng(1).normal(size=task.size))
    together = jax.jit(lambda x: path(task, x, shard, PENALTIES))(centre)
    monkeypatch.setattr(linear, "suits", lambda task, shard: False)
    one_by_one = jax.jit(lambda x: path(task, x, shard, PENALTIES))(centre)
    tried = np.isfinite(np.asarray(together.losses[0]))
    assert tried[0]
    np.testing.assert_allclose(together.losses[:, tried], one_by_one.losses[:, tried], rtol=1e-2)
    totals = (np.sum(p.losses[:, tried], axis=0) for p in (together, one_by_one))
    np.testing.assert_allclose(*totals, rtol=3e-3)
    np.testing.assert_allclose(together.models[tried], one_by_one.models[tried], atol=1e-2)


def test_a_path_ends_where_less_of_a_penalty_is_worse():
    """Labels that are noise: the strongest penalty is best, and what follows the first worse one is not tried."""
    rng = np.random.default_rng(2)
    task = TASKS["two classes, own intercept"]
    noise = Shards(jnp.asarray(rng.normal(size=(40, 4))), jnp.asarray(rng.integers(0, 2, 40)), jnp.int32(40))
    losses = np.sum(jax.jit(lambda x: path(task, x, noise, PENALTIES))(jnp.zeros(task.size)).losses, axis=0)
    assert losses[0] < losses[1]
    assert losses[2] == np.inf


def test_of_too_many_parameters_they_are_found_one_by_one():
    shard = Shards(jnp.zeros((3, 600)), jnp.zeros(3, jnp.int32), jnp.int32(3))
    assert linear.suits(softmax_regression(500, 2), shard._replace(inputs=shard.inputs[:, :500]))
    assert not linear.suits(softmax_regression(600, 2), shard)
    assert not linear.suits(softmax_regression(500, 2), shard)  # not the rows of this model
