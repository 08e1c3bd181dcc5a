import jax.numpy as jnp
import numpy as np
import optax
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS, with_local_schedule, with_server_optimizer
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.problems import DIM, LOCAL, N, assert_same, build, few, rows, start, unequal

TASK, EVERYONE = eq.tasks.ridge(DIM, reference.MU), eq.cohorts.everyone(N)


def run(algorithm, rounds=4, **how):
    result = eq.simulate(algorithm, start(), unequal(), 0, rounds=rounds, record=algorithm.model, **how)
    return np.asarray(result.history), algorithm.weights(result.server)


@pytest.mark.parametrize(
    "name",
    few(
        ("scaffpd", "qfedavg"),
        ["scaffold", "scaffpd", "drfa", "qfedavg", "delta_fl"],
        "::test_a_plain_step_changes_nothing[scaffpd]",
    ),
)
def test_a_plain_step_changes_nothing(name):
    plain, optimized = run(build(name)), run(with_server_optimizer(build(name), optax.sgd(1.0)))
    assert_same(*(tuple(filter(lambda a: a is not None, seen)) for seen in (plain, optimized)), rtol=1e-12)


def test_momentum_on_scaffpd():
    """x moves by v = 0.9 v + (x - x_plain), where x_plain is where SCAFF-PD would go from the same state."""
    algorithm = with_server_optimizer(build("scaffpd"), optax.sgd(1.0, momentum=0.9))
    x, _ = run(algorithm)
    clients, lam, v, at = rows(unequal()), np.full(N, 1 / N), 0, np.asarray(start())
    before = None
    for r in range(4):
        losses = np.array([reference.loss(at, client) for client in clients])
        s = 1.7 * losses - 0.7 * (losses if before is None else before)
        lam, before = reference.chi2_prox(lam + 0.5 * s, 0.5, 0.1), losses
        c_i = np.array([reference.gradient(at, client) for client in clients])
        step = 0
        for i, client in enumerate(clients):
            u = at
            for _ in range(LOCAL["steps"]):
                u = u - LOCAL["local_lr"] * (reference.gradient(u, client) - c_i[i] + lam @ c_i)
            step = step + lam[i] * (at - u)  # tau = J eta_l
        v = 0.9 * v + step
        at = at - v
        assert_same(x[r], at)


def test_a_round_without_answers_moves_nothing():
    algorithm = with_server_optimizer(build("fedavg"), optax.sgd(1.0, momentum=0.9))
    x, _ = run(algorithm, lost=lambda round, exchange, ids: jnp.broadcast_to(round == 2, jnp.shape(ids)))
    np.testing.assert_array_equal(x[2], x[1])
    assert np.abs(x[3] - x[2]).max() > 1e-3


def test_says_which_algorithms_have_no_such_model():
    with pytest.raises(InputError, match="scaffpd_ls ships another model"):
        with_server_optimizer(build("scaffpd_ls"), optax.sgd(1.0))
    averaged = eq.algorithms.afl(TASK, eq.objectives.agnostic(N), EVERYONE, local_lr=0.1, dual_lr=0.1, averaged=True)
    with pytest.raises(InputError, match="averaged=False"):
        with_server_optimizer(averaged, optax.sgd(1.0))


def test_a_local_step_size_that_falls_from_round_to_round():
    algorithm = with_local_schedule(
        lambda lr: eq.algorithms.fedavg(TASK, EVERYONE, steps=5, local_lr=lr), optax.exponential_decay(0.04, 1, 0.5)
    )
    x, _ = run(algorithm, rounds=3)
    at = np.asarray(start())
    for r in range(3):
        how = {"steps": 5, "lr": 0.04 * 0.5**r, "server_lr": 1.0, "weights": np.ones(N)}
        (at,) = reference.fedavg(at, rows(unequal()), 1, **how)
        assert_same(x[r], at, rtol=1e-6)  # optax computes its schedules in single precision


def test_a_constant_schedule_is_the_algorithm_itself():
    def scaffpd(lr):
        parts = (TASK, eq.objectives.chi2(N, 0.1), EVERYONE, ALGORITHMS["scaffpd"].example["rule"])
        return eq.algorithms.scaffpd(*parts, steps=LOCAL["steps"], local_lr=lr)

    assert_same(run(with_local_schedule(scaffpd, optax.constant_schedule(LOCAL["local_lr"]))), run(build("scaffpd")))
