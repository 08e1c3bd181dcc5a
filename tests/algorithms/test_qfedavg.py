import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms.messages import ModelMessage
from equipoise.errors import InputError
from equipoise.protocol import exchange_keys
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, N, assert_same, first, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)
P = np.array([0.4, 0.1, 0.3, 0.2, 0.0])
KEY = jax.random.key(5)


@pytest.mark.parametrize(
    ("name", "q", "sample", "p"),
    first(
        2,
        [
            ("qfedsgd", 2.0, EVERYONE, None),
            ("qfedavg", 0.2, eq.cohorts.by_weight(3), P),
            ("qfedavg", 2.0, EVERYONE, None),
            ("qfedsgd", 0.2, eq.cohorts.by_weight(3), P),
        ],
        "::test_follows_the_pseudo_code",
    ),
)
def test_follows_the_pseudo_code(name, q, sample, p):
    how = {"lr": 0.03} if name == "qfedsgd" else {"steps": 6, "local_lr": 0.03}
    algorithm = eq.algorithms.ALGORITHMS[name](TASK, sample, q=q, p=p, **how)
    assert algorithm.n == N
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=10, record=lambda s: s.x)
    weights = None if p is None else jnp.asarray(p)
    cohorts = [np.asarray(sample(exchange_keys(KEY, r, 0)[0], weights).ids) for r in range(10)]
    same = {"q": q, "lr": 0.03} | ({"steps": 6} if name == "qfedavg" else {})
    want = list(reference_baselines.qffl(np.asarray(start()), rows(unequal()), cohorts, **same))
    assert_same(run.history, np.array(want), rtol=1e-10)


def test_at_q_0_is_fedavg():
    runs = [
        eq.simulate(algorithm, start(), unequal(), 0, rounds=6, record=lambda s: s.x).history
        for algorithm in (
            eq.algorithms.qfedavg(TASK, EVERYONE, q=0, steps=5, local_lr=0.03),
            eq.algorithms.fedavg(TASK, EVERYONE, steps=5, local_lr=0.03),
        )
    ]
    assert_same(*runs, rtol=1e-12)


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
def test_with_one_step_both_are_the_same_and_end_where_the_objective_is_least():
    """The gradient sum_i p_i f_i^q grad f_i vanishes: the saddle point of the qffl dual, lam_i = p_i f_i^q."""
    q = 2.0
    for algorithm in (
        eq.algorithms.qfedsgd(TASK, EVERYONE, q=q, lr=0.1),
        eq.algorithms.qfedavg(TASK, EVERYONE, q=q, steps=1, local_lr=0.1),
    ):
        x = np.asarray(eq.simulate(algorithm, start(), unequal(), 0, rounds=4000).server.x)
        lam = eq.objectives.qffl(N, q).best_response(eq.tasks.losses(TASK, jnp.asarray(x), unequal()))
        slopes = np.array([reference.gradient(x, client) for client in rows(unequal())])
        assert np.abs(np.asarray(lam) @ slopes).max() < 1e-10


def test_a_large_q_brings_the_worst_client_up():
    worst = {
        q: float(
            jnp.max(
                eq.tasks.losses(
                    TASK,
                    eq.simulate(
                        eq.algorithms.qfedavg(TASK, EVERYONE, q=q, steps=5, local_lr=0.03),
                        start(),
                        unequal(),
                        0,
                        rounds=1500,
                    ).server.x,
                    unequal(),
                )
            )
        )
        for q in (0, 5)
    }
    assert worst[5] < 0.9 * worst[0]


def test_a_client_without_loss_does_not_divide_by_zero():
    task = eq.tasks.ridge(DIM, 0.0)
    perfect = unequal()._replace(labels=jnp.zeros_like(unequal().labels))
    for q in (0.0, 0.2, 1.0, 3.0):
        algorithm = eq.algorithms.qfedavg(task, EVERYONE, q=q, steps=2, local_lr=0.03)
        reply = algorithm.round[0].work(ModelMessage(jnp.zeros(DIM)), None, perfect.client(0), KEY)[1]
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(reply))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"q": -1}, r"q is -1; give zero \(the average\) or more"),
        ({"local_lr": 0}, "local_lr is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"p": P}, r"everyone\(5\) does not draw by it"),
        ({"sample": eq.cohorts.by_weight(2)}, r"by_weight\(2\) draws clients by p; give p"),
        ({"sample": eq.cohorts.by_weight(2), "p": 2 * P}, "p sums to 2.* divide it by its sum"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, "q": 1.0, "steps": 1, "local_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.qfedavg(TASK, **given)
    if "q" in wrong:
        with pytest.raises(InputError, match=sentence):
            eq.algorithms.qfedsgd(TASK, EVERYONE, lr=0.1, **wrong)
