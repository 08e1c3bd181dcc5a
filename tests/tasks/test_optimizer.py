import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.errors import InputError
from equipoise.tasks import with_local_optimizer
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, few, rows, start, unequal

KEY = jax.random.key(0)
FOR_PLAIN_STEPS = ["afl", "delta_fl", "drfa", "fedavg", "fedprox", "propfair", "qfedavg", "term"]


def clipped_momentum():
    return optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1.0, momentum=0.6))


def by_hand(client, steps, lr, pull=0.0):
    x = u = np.asarray(start())
    v, path = 0, []
    for _ in range(steps):
        g = reference.gradient(u, client) + pull * (u - x)
        v = 0.6 * v + g * min(1, 0.5 / np.linalg.norm(g))
        u = u - lr * v
        path.append(u)
    return path


@pytest.mark.parametrize("pull", [0.0, 0.7])
def test_steps_are_the_optimizers(pull):
    task, data = with_local_optimizer(eq.tasks.ridge(DIM, reference.MU), clipped_momentum()), unequal().client(2)
    how = {"steps": 6, "lr": 0.1, "pull": pull}
    path = by_hand(rows(unequal())[2], 6, 0.1, pull)
    for shard in (data, task.prepare(data)):
        assert_same(task.descend(start(), shard, KEY, **how), path[-1])
        assert_same(task.descend(start(), shard, KEY, **how, snapshot=jnp.int32(4)), (path[-1], path[3]))


def test_more_features_than_examples_take_the_same_steps():
    rng = np.random.default_rng(0)
    shard = eq.data.stack([(rng.normal(size=(3, 8)), rng.normal(size=3))]).client(0)
    task = with_local_optimizer(eq.tasks.ridge(8), optax.adam(0.05))
    x = jnp.ones(8)
    assert_same(*(task.descend(x, data, KEY, steps=40, lr=1.0) for data in (shard, task.prepare(shard))))


@pytest.mark.parametrize(
    "name",
    few(
        ("fedavg",),
        FOR_PLAIN_STEPS,
        "::test_plain_descent_as_an_optimizer_changes_nothing_and_another_does[fedavg]",
    ),
)
def test_plain_descent_as_an_optimizer_changes_nothing_and_another_does(name):
    def end(task):
        algorithm = ALGORITHMS[name].build_example(task, eq.objectives.chi2(N, 0.1))
        return algorithm.model(eq.simulate(algorithm, start(), unequal(), 0, rounds=2).server)

    task = eq.tasks.ridge(DIM, 0.1)
    plain = end(task)
    assert_same(end(with_local_optimizer(task, optax.sgd(1.0))), plain)
    assert np.abs(end(with_local_optimizer(task, clipped_momentum())) - plain).max() > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "scaffpd", "scaffpd_minibatch"])
def test_corrected_steps_decline(name):
    task = with_local_optimizer(eq.tasks.ridge(DIM, 0.1), optax.adam(0.1))
    algorithm = ALGORITHMS[name].build_example(task, eq.objectives.chi2(N, 0.1))
    with pytest.raises(InputError, match="read off plain gradient descent"):
        eq.simulate(algorithm, start(), unequal(), 0, rounds=1)
