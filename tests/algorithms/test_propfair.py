import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms.messages import ModelMessage
from equipoise.errors import InputError
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, SIZES, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)


@pytest.mark.parametrize(("weights", "p"), [("uniform", np.ones(N)), ("samples", np.array(SIZES))])
def test_follows_the_pseudo_code_on_both_sides_of_the_margin(weights, p):
    how = {"bound": 3.0, "margin": 1.0, "steps": 6, "server_lr": 1.1, "weights": weights}
    algorithm = eq.algorithms.propfair(TASK, EVERYONE, local_lr=0.03, **how)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=lambda s: s.x)
    same = how | {"lr": 0.03, "weights": p}
    want = list(reference_baselines.propfair(np.asarray(start()), rows(unequal()), 8, **same))
    assert_same(run.history, np.array(want), rtol=1e-10)
    losses = np.asarray(eq.tasks.losses(TASK, start(), unequal()))
    assert losses.min() < 2 < losses.max()  # M - eps


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code_on_both_sides_of_the_margin")
def test_one_step_ends_where_the_nash_product_is_largest_and_more_at_a_bias():
    """sum_i p_i grad f_i / (M - f_i) vanishes: the saddle point of the propfair dual."""
    slope, dual = {}, eq.objectives.propfair(N, 20.0)
    for steps in (1, 5):
        algorithm = eq.algorithms.propfair(TASK, EVERYONE, bound=20.0, steps=steps, local_lr=0.5)
        x = eq.simulate(algorithm, start(), unequal(), 0, rounds=4000).server.x
        lam = dual.best_response(eq.tasks.losses(TASK, x, unequal()))
        slopes = np.array([reference.gradient(np.asarray(x), client) for client in rows(unequal())])
        slope[steps] = np.abs(np.asarray(lam) @ slopes).max()
    assert slope[1] < 1e-11 < 1e-4 < slope[5] < 0.1


def test_the_slope_is_that_of_the_minibatch_the_step_draws():
    task = eq.tasks.ridge(DIM, reference.MU, batch=2)
    algorithm = eq.algorithms.propfair(task, EVERYONE, bound=20.0, steps=1, local_lr=0.1)
    shard, key = unequal().client(2), jax.random.key(7)
    moved = algorithm.round[0].work(ModelMessage(start()), None, shard, key)[1].total.value
    drawn = jax.random.split(key, 1)[0]
    want = -0.1 * task.grad(start(), shard, drawn) / (20.0 - task.loss(start(), shard, drawn))
    assert_same(moved, want)
    assert not np.allclose(task.loss(start(), shard, drawn), task.loss(start(), shard))


def test_has_the_objective_of_the_dual():
    """Local steps follow the gradient of the dual's value, on both sides of the margin."""
    data = unequal(1)
    algorithm = eq.algorithms.propfair(TASK, eq.cohorts.everyone(1), bound=5.0, steps=1, local_lr=1.0)
    for scale in (0.1, 1.0, 10.0):
        x = scale * start()
        moved = algorithm.round[0].work(ModelMessage(x), None, data.client(0), jax.random.key(0))[1].total.value
        value = jax.grad(lambda x: eq.objectives.propfair(1, 5.0).value(TASK.loss(x, data.client(0))[None]))
        assert_same(-moved, value(x))
    assert float(TASK.loss(0.1 * start(), data.client(0))) < 5 < float(TASK.loss(10 * start(), data.client(0)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bound": 0}, "bound is 0"),
        ({"margin": 3.0}, "margin is 3.0, above the bound 2.0"),
        ({"margin": -1}, "margin is -1"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"bound": 2.0, "steps": 1, "local_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.propfair(TASK, EVERYONE, **given)


def test_a_bound_below_the_losses_is_a_line_and_stays_finite():
    algorithm = eq.algorithms.propfair(TASK, EVERYONE, bound=1e-3, steps=1, local_lr=1e-9)
    reply = algorithm.round[0].work(ModelMessage(start()), None, unequal().client(0), jax.random.key(0))[1]
    assert all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(reply))
