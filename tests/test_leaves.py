"""Numbers are leaves, structure is static."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import kernel, objectives
from equipoise.algorithms import ALGORITHMS
from equipoise.protocol import Algorithm
from tests.problems import DIM, N, assert_same, start, unequal

TASK = eq.tasks.ridge(DIM, 0.1)


def scaffpd(rho=0.1, local_lr=0.02, steps=3, n=N):
    rule = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.7)
    dual, sample = eq.objectives.chi2(n, rho), eq.cohorts.everyone(n)
    return eq.algorithms.scaffpd(TASK, dual, sample, rule, steps=steps, local_lr=local_lr)


def after_a_round(algorithm):
    federation = kernel.prepare(algorithm, unequal())
    return kernel.step(algorithm, kernel.init(algorithm, start()), federation, jax.random.key(0)).server.x


def test_the_numbers_are_the_leaves():
    one = scaffpd()
    assert sorted(jax.tree.leaves(one)) == [0.02, 0.1, 0.1, 0.5, 0.7]
    for same in (scaffpd(0.3), scaffpd(local_lr=0.01), jax.tree.map(lambda a: a / 2, one)):
        assert jax.tree.structure(same) == jax.tree.structure(one)
        assert jax.tree.leaves(same) != jax.tree.leaves(one)
    for other in (scaffpd(steps=4), scaffpd(n=4), one._replace(name="mine"), eq.algorithms.clip_losses(one)):
        assert jax.tree.structure(other) != jax.tree.structure(one)
    assert jax.tree.leaves(one._replace(name="mine")) == []  # its recipe would make another algorithm
    assert jax.tree.leaves(eq.algorithms.clip_losses(one)) == [*jax.tree.leaves(one), 10.0, 0.5]


def test_whole_numbers_count_as_numbers_where_a_float_is_meant():
    assert jax.tree.structure(eq.objectives.chi2(3, 1)) == jax.tree.structure(eq.objectives.chi2(3, 0.5))
    assert jax.tree.leaves(eq.objectives.cvar(3, 0.5)) == []  # its share shapes the program
    assert jax.tree.structure(eq.objectives.cvar(3, 0.5)) != jax.tree.structure(eq.objectives.cvar(3, 0.4))


def test_jax_takes_an_algorithm_as_an_argument():
    ends = jax.jit(jax.vmap(after_a_round))(jax.tree.map(lambda *a: jnp.stack(a), scaffpd(), scaffpd(0.3, 0.01)))
    for end, algorithm in zip(ends, (scaffpd(), scaffpd(0.3, 0.01)), strict=True):
        assert_same(end, jax.jit(after_a_round)(algorithm))
    assert not np.allclose(*ends)


def test_a_tree_of_other_things_is_a_tree():
    axes = jax.tree.map(lambda _: 0, scaffpd())
    assert isinstance(axes, Algorithm)
    assert axes.init is None
    assert jax.tree.leaves(axes) == [0] * 5
    assert jax.tree.structure(axes) == jax.tree.structure(scaffpd())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_made_again_of_traced_numbers(name):
    record = ALGORITHMS[name]
    duals = [objectives.AVERAGE, *objectives.DUALS.values()] if record.takes_dual else [objectives.CHI2]
    for dual in duals:
        if name == "scaffpd_model" and dual.name in ("qffl", "propfair"):
            continue  # whose weights are no shares
        algorithm = record.build_example(TASK, dual(N, **dual.example))
        assert jax.tree.structure(algorithm) == jax.tree.structure(record.build_example(TASK, dual(N, **dual.example)))
        jax.eval_shape(lambda algorithm: kernel.init(algorithm, start()), algorithm)


@pytest.mark.parametrize("name", ["kl", "tv", "qffl", "propfair"])
def test_prior_weights_are_part_of_the_structure(name):
    """They are checked where an object is built, which traced ones could not be."""
    p, losses = np.array([0.1, 0.2, 0.3, 0.4]), np.arange(4.0)
    record = objectives.DUALS[name]
    dual, again, other = (record(4, **record.example, p=q) for q in (p, p.copy(), p[::-1]))
    leaves, tree = jax.tree.flatten(dual)
    assert tree == jax.tree.structure(again) != jax.tree.structure(other)
    rebuilt = jax.jit(lambda leaves: jax.tree.unflatten(tree, leaves).best_response(losses))(leaves)
    np.testing.assert_allclose(rebuilt, dual.best_response(losses), rtol=1e-12)
