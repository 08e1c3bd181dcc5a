import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, SIZES, N, assert_identical, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)


@pytest.mark.parametrize(("weights", "p"), [("uniform", np.ones(N)), ("samples", np.array(SIZES))])
def test_follows_the_pseudo_code(weights, p):
    algorithm = eq.algorithms.fedprox(TASK, EVERYONE, mu=0.7, steps=6, local_lr=0.03, server_lr=1.3, weights=weights)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=lambda s: s.x)
    how = {"mu": 0.7, "steps": 6, "lr": 0.03, "server_lr": 1.3, "weights": p}
    want = list(reference_baselines.fedprox(np.asarray(start()), rows(unequal()), 8, **how))
    assert_same(run.history, np.array(want), rtol=1e-10)


@pytest.mark.parametrize("batch", [None, 2])
def test_without_the_pull_is_fedavg_bit_for_bit(batch):
    task, how = eq.tasks.ridge(DIM, reference.MU, batch), {"steps": 5, "local_lr": 0.03}
    runs = [
        eq.simulate(algorithm, start(), unequal(), 0, rounds=5).server.x
        for algorithm in (
            eq.algorithms.fedprox(task, EVERYONE, mu=0, **how),
            eq.algorithms.fedavg(task, EVERYONE, **how),
        )
    ]
    assert_identical(*runs)


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="mu is -1; give zero"):
        eq.algorithms.fedprox(TASK, EVERYONE, mu=-1, steps=1, local_lr=0.1)
    with pytest.raises(InputError, match="no weighting 'sample'"):
        eq.algorithms.fedprox(TASK, EVERYONE, mu=1, steps=1, local_lr=0.1, weights="sample")
