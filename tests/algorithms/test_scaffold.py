import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data import synthetic
from equipoise.errors import InputError
from equipoise.protocol import exchange_keys
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, first, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
KEY = jax.random.key(5)


@pytest.mark.parametrize(
    ("option", "sample"),
    first(
        2,
        [
            (1, eq.cohorts.everyone(N)),
            (2, eq.cohorts.uniform(N, 2)),
            (2, eq.cohorts.everyone(N)),
            (1, eq.cohorts.uniform(N, 2)),
        ],
        "::test_follows_the_pseudo_code",
    ),
)
def test_follows_the_pseudo_code(option, sample):
    algorithm = eq.algorithms.scaffold(TASK, sample, steps=6, local_lr=0.03, server_lr=1.2, option=option)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=8, record=lambda s: s)
    cohorts = [np.asarray(sample(exchange_keys(KEY, r, 0)[0]).ids) for r in range(8)]
    how = {"steps": 6, "lr": 0.03, "server_lr": 1.2, "option": option}
    want = list(reference.scaffold(np.asarray(start()), rows(unequal()), cohorts, **how))
    assert_same(run.history.x, np.array([x for x, _, _ in want]), rtol=1e-10)
    assert_same(run.history.c, np.array([c for _, c, _ in want]), rtol=1e-10)
    assert_same(run.clients, want[-1][2], rtol=1e-10)


@pytest.mark.parametrize("option", [1, 2])
def test_the_mean_of_the_control_variates_is_c(option):
    def every_third(round, exchange, ids):
        return jnp.asarray(ids) % 3 == round % 3

    algorithm = eq.algorithms.scaffold(TASK, eq.cohorts.coin(N, 0.6), steps=4, local_lr=0.03, option=option)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=20, lost=every_third)
    assert_same(run.server.c, jnp.mean(run.clients, axis=0))


def test_without_control_variates_it_is_fedavg():
    """c = c_i = 0 holds in the first round."""
    how = {"steps": 5, "local_lr": 0.03}
    runs = [
        eq.simulate(build(TASK, eq.cohorts.everyone(N), **how), start(), unequal(), KEY, rounds=1).server.x
        for build in (eq.algorithms.scaffold, eq.algorithms.fedavg)
    ]
    assert_same(*runs)


def test_reaches_the_optimum_of_the_average_where_fedavg_drifts():
    data, how = unequal(), {"steps": 10, "local_lr": 0.02}
    ends = {
        name: eq.simulate(
            eq.algorithms.ALGORITHMS[name](TASK, eq.cohorts.everyone(N), **how), start(), data, KEY, rounds=800
        ).server.x
        for name in ("scaffold", "fedavg")
    }
    slope = {
        name: np.abs(np.mean([reference.gradient(np.asarray(x), client) for client in rows(data)], axis=0)).max()
        for name, x in ends.items()
    }
    assert slope["scaffold"] < 1e-10 < 1e-3 < slope["fedavg"]


@pytest.mark.thorough(witness="::test_reaches_the_optimum_of_the_average_where_fedavg_drifts")
def test_figure_3_scaffold_is_unaffected_by_heterogeneity_and_gains_from_local_steps():
    """SCAFFOLD's Section 7.2: two quadratics, beta = 1, delta = 1, G in {1, 10, 100}."""
    task, both = eq.tasks.quadratic(1), eq.cohorts.everyone(2)

    def distances(algorithm, shards):
        best = jnp.asarray(synthetic.quadratics_solution(shards))
        return eq.simulate(
            algorithm, jnp.ones(1), shards, 0, rounds=200, record=lambda s: jnp.sum((s.x - best) ** 2)
        ).history

    def first(history, level=1e-8):
        return int(np.argmax(history < level)) + 1 if (history < level).any() else len(history) + 1

    curves = {}
    for gradient in (1, 10, 100):
        shards = synthetic.quadratics(gradient=gradient, hessian=1.0)
        curves[gradient, "sgd"] = distances(eq.algorithms.sgd(task, both, lr=0.1), shards)
        for steps in (2, 10):
            for name in ("scaffold", "fedavg"):
                algorithm = eq.algorithms.ALGORITHMS[name](task, both, steps=steps, local_lr=0.1)
                curves[gradient, name, steps] = distances(algorithm, shards)
    needed = {case: first(history) for case, history in curves.items()}
    for gradient in (1, 10, 100):
        assert needed[gradient, "scaffold", 10] < needed[gradient, "scaffold", 2] < needed[gradient, "sgd"] < 201
        # FedAvg stalls at its drift bias, further away with more local steps.
        assert curves[gradient, "fedavg", 10][-1] > curves[gradient, "fedavg", 2][-1] > 1e-8
    for steps in (2, 10):
        heterogeneous = [
            first(curves[gradient, "scaffold", steps] / curves[gradient, "scaffold", steps][0])
            for gradient in (1, 10, 100)
        ]
        assert max(heterogeneous) <= 1.2 * min(heterogeneous)  # from where round 0, still uncorrected, left it
        assert (
            curves[100, "fedavg", steps][-1]
            > 10 * curves[10, "fedavg", steps][-1]
            > 100 * curves[1, "fedavg", steps][-1]
        )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"option": 3}, "options 1 and 2"),
        ({"local_lr": 0}, "local_lr is 0"),
        ({"sample": eq.cohorts.by_weight(2)}, "SCAFFOLD keeps one control variate per client"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": eq.cohorts.everyone(N), "steps": 1, "local_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.scaffold(TASK, **given)
