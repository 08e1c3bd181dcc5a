"""Step sizes that fall late, of what is made of numbers; `with_local_schedule` is in test_server_optimizer.py."""

import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS, with_guarded_steps, with_late_decay, with_local_schedule
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.problems import DIM, LOCAL, N, assert_same, start, unequal

TASK, EVERYONE = eq.tasks.ridge(DIM, reference.MU), eq.cohorts.everyone(N)
SHARES = (1.0, 1.0, 1.0, 0.5, 0.5)  # of rounds 0, 1, .. with start 2 and end 4; beyond it they stay


def fedavg(local_lr):
    return ALGORITHMS["fedavg"](TASK, EVERYONE, steps=LOCAL["steps"], local_lr=local_lr)


def scaffpd(local_lr):
    """A server step as long as the local ones, which has to fall with them."""
    rule = eq.steps.constant(tau=LOCAL["steps"] * local_lr, sigma=0.1, theta=1.0)
    return ALGORITHMS["scaffpd"].build(
        TASK, eq.objectives.chi2(N, 1.0), EVERYONE, rule, steps=LOCAL["steps"], local_lr=local_lr
    )


def shares(r):
    return LOCAL["local_lr"] * jax.numpy.asarray(SHARES)[r]


@pytest.mark.parametrize("build", [fedavg, scaffpd])
def test_it_is_the_algorithm_with_the_step_sizes_of_the_round(build):
    falling = with_late_decay(build(LOCAL["local_lr"]), start=2, end=4)
    scheduled = with_local_schedule(build, shares)
    for rounds in (3, 4, 5):
        x, y = (eq.simulate(a, start(), unequal(), 0, rounds=rounds).model for a in (falling, scheduled))
        assert_same(x, y, rtol=1e-6)
    longer = eq.simulate(build(LOCAL["local_lr"]), start(), unequal(), 0, rounds=5).model
    assert np.abs(longer - x).max() > 1e-6


def test_a_guard_inside_counts_on_and_one_program_serves_all_numbers():
    guarded = with_guarded_steps(TASK, fedavg(2.0))  # too long: it begins anew, and the rounds are counted on
    end = eq.simulate(with_late_decay(guarded, start=3, end=6), start(), unequal(), 0, rounds=6)
    assert float(end.server.inner.own.scale) < 1
    assert int(end.server.own) == 6
    one, other = (with_late_decay(fedavg(lr), start=s, end=9) for lr, s in ((0.1, 3), (0.2, 4)))
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_an_end_before_the_start_is_refused():
    with pytest.raises(InputError, match="from round 4 to 4"):
        with_late_decay(fedavg(0.1), start=4, end=4)
