import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.problems import DIM, SIZES, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)


@pytest.mark.parametrize(("weights", "p"), [("uniform", np.ones(N)), ("samples", np.array(SIZES))])
def test_follows_the_pseudo_code(weights, p):
    algorithm = eq.algorithms.fedavg(
        TASK, eq.cohorts.everyone(N), steps=6, local_lr=0.03, server_lr=1.3, weights=weights
    )
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=lambda s: s.x)
    want = reference.fedavg(np.asarray(start()), rows(unequal()), 8, steps=6, lr=0.03, server_lr=1.3, weights=p)
    assert_same(run.history, np.array(list(want)), rtol=1e-10)


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
def test_minimises_the_average_it_says_with_one_step():
    """With one local step there is no drift: the fixed point is the minimiser of that average."""
    for weights, p in (("uniform", np.ones(N)), ("samples", np.array(SIZES))):
        algorithm = eq.algorithms.fedavg(TASK, eq.cohorts.everyone(N), steps=1, local_lr=0.1, weights=weights)
        x = np.asarray(eq.simulate(algorithm, start(), unequal(), 0, rounds=3000).server.x)
        g = np.average([reference.gradient(x, client) for client in rows(unequal())], axis=0, weights=p)
        assert np.abs(g).max() < 1e-10


def test_samples_a_cohort():
    algorithm = eq.algorithms.fedavg(TASK, eq.cohorts.uniform(N, 2), steps=1, local_lr=0.1)
    result = eq.simulate(algorithm, start(), unequal(), jax.random.key(1), rounds=4)
    assert result.tally.asked.tolist() == [8]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"steps": 0}, "steps is 0; give a number above zero"),
        ({"local_lr": -0.1}, "local_lr is -0.1"),
        ({"server_lr": 0.0}, "server_lr is 0.0"),
        ({"weights": "sample"}, "no weighting 'sample'; did you mean 'samples'"),
        ({"sample": eq.cohorts.by_weight(2)}, "may draw a client twice"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": eq.cohorts.everyone(N), "steps": 1, "local_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.fedavg(TASK, **given)
