import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, SIZES, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)


@pytest.mark.parametrize(("weights", "p"), [("uniform", np.ones(N)), ("samples", np.array(SIZES))])
def test_follows_the_pseudo_code(weights, p):
    algorithm = eq.algorithms.term(TASK, EVERYONE, t=0.7, steps=6, local_lr=0.03, server_lr=1.3, weights=weights)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=lambda s: (s.x, s.lam))
    how = {"t": 0.7, "steps": 6, "lr": 0.03, "server_lr": 1.3, "weights": p}
    want = list(reference_baselines.term(np.asarray(start()), rows(unequal()), 8, **how))
    assert_same(run.history, tuple(np.array(column) for column in zip(*want, strict=True)), rtol=1e-10)
    # The weights are the best response of the KL objective at rho = 1/t, to the losses of the model they move.
    dual = eq.objectives.kl(N, 1 / 0.7, p=p / p.sum())
    x, lam = run.history
    for before, then in zip([start(), *jnp.asarray(x[:-1])], lam, strict=True):
        assert_same(then, dual.best_response(eq.tasks.losses(TASK, before, unequal())), rtol=1e-10)


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
def test_one_step_ends_at_the_saddle_point_of_the_kl_objective_and_more_at_a_bias():
    t, data, distance = 2.0, unequal(), {}
    dual = eq.objectives.kl(N, 1 / t)
    ends = {
        steps: eq.simulate(
            eq.algorithms.term(TASK, EVERYONE, t=t, steps=steps, local_lr=0.02), start(), data, 0, rounds=6000
        ).server
        for steps in (1, 5)
    }
    for steps, server in ends.items():
        lam = dual.best_response(eq.tasks.losses(TASK, server.x, data))
        assert_same(server.lam, lam, rtol=1e-8)
        slopes = np.array([reference.gradient(np.asarray(server.x), client) for client in rows(data)])
        distance[steps] = np.abs(np.asarray(lam) @ slopes).max()
    assert distance[1] < 1e-10 < 1e-3 < distance[5] < 1
    # SCAFF-PD on that dual finds the same point, with local steps.
    rule = eq.steps.constant(tau=0.1, sigma=0.1, theta=0.8)
    saddle = eq.simulate(
        eq.algorithms.scaffpd(TASK, dual, EVERYONE, rule, steps=5, local_lr=0.02), start(), data, 0, rounds=6000
    ).server
    assert_same(ends[1].x, saddle.x, atol=1e-8)


def test_a_steep_tilt_does_not_overflow():
    algorithm = eq.algorithms.term(TASK, EVERYONE, t=1e6, steps=2, local_lr=0.02)
    server = eq.simulate(algorithm, start(), unequal(), 0, rounds=20).server
    assert np.isfinite(server.x).all()
    assert float(jnp.max(server.lam)) == pytest.approx(1.0)  # the worst client has it all


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"t": 0}, "t is 0; give a number above zero"),
        ({"weights": "n"}, "no weighting 'n'"),
        ({"sample": eq.cohorts.by_weight(2)}, "may draw a client twice"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, "t": 1.0, "steps": 1, "local_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.term(TASK, **given)
