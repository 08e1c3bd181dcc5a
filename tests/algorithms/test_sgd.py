import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, rows, start, unequal


@pytest.mark.parametrize("batch", [None, 2])
def test_follows_the_pseudo_code_on_all_local_data(batch):
    algorithm = eq.algorithms.sgd(eq.tasks.ridge(DIM, reference.MU, batch), eq.cohorts.everyone(N), lr=0.1)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=lambda s: s.x)
    assert_same(run.history, np.array(list(reference.sgd(np.asarray(start()), rows(unequal()), 8, lr=0.1))), rtol=1e-10)


def test_is_fedavg_with_one_step():
    task, everyone = eq.tasks.ridge(DIM), eq.cohorts.everyone(N)
    runs = [
        eq.simulate(algorithm, start(), unequal(), 0, rounds=5).server.x
        for algorithm in (
            eq.algorithms.sgd(task, everyone, lr=0.05),
            eq.algorithms.fedavg(task, everyone, steps=1, local_lr=0.05),
        )
    ]
    assert_same(*runs)


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="lr is 0"):
        eq.algorithms.sgd(eq.tasks.ridge(DIM), eq.cohorts.everyone(N), lr=0)
