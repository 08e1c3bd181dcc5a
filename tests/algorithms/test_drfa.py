import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms.messages import ModelMessage
from equipoise.errors import InputError
from equipoise.protocol import exchange_keys
from tests.algorithms import reference
from tests.problems import DIM, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
HOW = {"steps": 6, "local_lr": 0.03, "dual_lr": 0.02}
SAME = {"steps": 6, "lr": 0.03, "dual_lr": 0.02, "rho": 0.1}
KEY = jax.random.key(5)


def compare(run, cohorts, probes):
    clients = rows(unequal())
    want = list(reference.drfa(np.asarray(start()), clients, run.history.t_snap, cohorts, probes, **SAME))
    assert_same(run.history.w, np.array([w for w, _ in want]), rtol=1e-10)
    assert_same(run.history.lam, np.array([lam for _, lam in want]), rtol=1e-10)
    assert set(run.history.t_snap.tolist()) <= set(range(1, 7))


def test_full_form_follows_the_pseudo_code():
    algorithm = eq.algorithms.drfa(TASK, eq.objectives.chi2(N, 0.1), eq.cohorts.everyone(N), **HOW)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=10, record=lambda s: s)
    compare(run, [None] * 10, [range(N)] * 10)


def test_sampled_form_follows_the_pseudo_code():
    sample = eq.cohorts.by_weight(3)
    algorithm = eq.algorithms.drfa(TASK, eq.objectives.chi2(N, 0.1), sample, **HOW)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=10, record=lambda s: s)
    lam = [np.full(N, 1 / N), *run.history.lam[:-1]]
    cohorts = [
        np.asarray(sample(jax.random.split(exchange_keys(KEY, r, 0)[0])[0], jnp.asarray(lam[r])).ids) for r in range(10)
    ]
    probes = [np.asarray(eq.cohorts.uniform(N, 3)(exchange_keys(KEY, r, 1)[0]).ids) for r in range(10)]
    assert any(len(set(c.tolist())) < 3 for c in cohorts)  # a client drawn twice counts twice
    compare(run, cohorts, probes)


def test_every_snapshot_is_drawn():
    algorithm = eq.algorithms.drfa(TASK, eq.objectives.agnostic(N), eq.cohorts.everyone(N), **HOW)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=200, record=lambda s: s.t_snap)
    assert np.bincount(run.history, minlength=7)[1:].min() > 10


def test_uses_the_minibatch_loss_where_the_task_has_one():
    batched = eq.tasks.ridge(DIM, reference.MU, 2)
    algorithm = eq.algorithms.drfa(batched, eq.objectives.agnostic(N), eq.cohorts.everyone(N), **HOW)
    shard, w = unequal().client(2), start()
    losses = {
        float(algorithm.round[1].work(ModelMessage(w), None, shard, jax.random.key(k))[1].each.loss) for k in range(5)
    }
    assert len(losses) == 5


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"sample": eq.cohorts.uniform(N, 2)}, r"give by_weight\(m\), or everyone\(5\), not uniform\(5, 2\)"),
        ({"sample": eq.cohorts.everyone(N + 1)}, r"not everyone\(6\)"),
        ({"sample": eq.cohorts.by_weight(N + 1)}, "m <= 5"),
        ({"dual_lr": 0}, "dual_lr is 0"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": eq.cohorts.everyone(N), **HOW} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.drfa(TASK, eq.objectives.agnostic(N), **given)
