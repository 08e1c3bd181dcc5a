import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, LOCAL, N, assert_same, rows, start, unequal

TASK, EVERYONE = eq.tasks.ridge(DIM, reference.MU), eq.cohorts.everyone(N)


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [
        ("fedadam", "adam", {"b1": 0.8, "b2": 0.9, "tau": 0.01, "server_lr": 0.05}),
        ("fedyogi", "yogi", {"b1": 0.8, "b2": 0.9, "tau": 0.01, "server_lr": 0.05}),
        ("fedavgm", "momentum", {"momentum": 0.7, "server_lr": 0.6}),
    ],
)
def test_follows_the_pseudo_code(name, kind, given):
    algorithm = eq.algorithms.ALGORITHMS[name](TASK, EVERYONE, **LOCAL, **given)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=algorithm.model)
    how = {"steps": LOCAL["steps"], "lr": LOCAL["local_lr"], "kind": kind} | given
    how["b1"] = how.pop("momentum", how.get("b1"))
    want = np.array(list(reference_baselines.fedopt(np.asarray(start()), rows(unequal()), 8, **how)))
    assert_same(run.history, want, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("fedadam", {"b2": 1.0}, "b2 is 1.0"),
        ("fedyogi", {"tau": 0.0}, "tau is 0.0"),
        ("fedavgm", {"momentum": -0.1}, "momentum is -0.1"),
        ("fedavgm", {"server_lr": 0.0}, "server_lr is 0.0"),
    ],
)
def test_says_what_is_wrong(name, wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.ALGORITHMS[name](TASK, EVERYONE, **LOCAL, **({"server_lr": 0.1} | wrong))
