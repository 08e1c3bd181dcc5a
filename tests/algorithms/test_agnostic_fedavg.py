import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data import synthetic
from equipoise.errors import InputError
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)
HOW = {"steps": 6, "local_lr": 0.03, "dual_lr": 0.2, "server_lr": 1.1}


def by_sign(shard):
    """Three domains, by where an example lies; no client of these sizes holds the same mixture as another."""
    return (shard.inputs[:, 0] > 0).astype(jnp.int32) + (shard.inputs[:, 1] > 0.5).astype(jnp.int32)


def compare(algorithm, domains, p, window):
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, record=lambda s: (s.x, s.lam))
    how = {"p": p, "steps": 6, "lr": 0.03, "dual_lr": 0.2, "server_lr": 1.1, "window": window}
    want = list(reference_baselines.agnostic_fedavg(np.asarray(start()), rows(unequal()), domains, 8, **how))
    assert_same(run.history, tuple(np.array(column) for column in zip(*want, strict=True)), rtol=1e-10)


def test_follows_the_pseudo_code_with_clients_as_domains():
    algorithm = eq.algorithms.agnostic_fedavg(TASK, EVERYONE, **HOW, window=2)
    compare(algorithm, [np.full(len(y), i) for i, (_, y) in enumerate(rows(unequal()))], N, 2)


def test_follows_the_pseudo_code_with_clients_of_several_domains():
    algorithm = eq.algorithms.agnostic_fedavg(TASK, EVERYONE, **HOW, window=3, domains=3, domain_of=by_sign)
    domains = [np.asarray(by_sign(eq.data.Shards(jnp.asarray(a), y, len(y)))) for a, y in rows(unequal())]
    assert max(len(set(where)) for where in domains) == 3 > min(len(set(where)) for where in domains)
    compare(algorithm, domains, 3, 3)


def test_with_one_domain_is_fedavg_over_the_samples():
    how = {"steps": 5, "local_lr": 0.03}
    runs = [
        eq.simulate(algorithm, start(), unequal(), 0, rounds=6, record=lambda s: s.x).history
        for algorithm in (
            eq.algorithms.agnostic_fedavg(
                TASK,
                EVERYONE,
                **how,
                dual_lr=0.1,
                domains=1,
                domain_of=lambda shard: jnp.zeros(shard.labels.shape, jnp.int32),
            ),
            eq.algorithms.fedavg(TASK, EVERYONE, **how, weights="samples"),
        )
    ]
    assert_same(*runs, rtol=1e-12)


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code_with_clients_as_domains")
def test_one_step_ends_at_the_agnostic_saddle_point_and_more_at_a_bias():
    data = synthetic.regression(key=jax.random.key(1))
    saddle = synthetic.saddle_point(data)
    distance = {}
    for steps in (1, 20):
        algorithm = eq.algorithms.agnostic_fedavg(
            eq.tasks.ridge(10), eq.cohorts.everyone(5), steps=steps, local_lr=0.1 / steps**0.7, dual_lr=1.0
        )
        server = eq.simulate(algorithm, jnp.zeros(10), data, 0, rounds=6000).server
        distance[steps] = np.sum((np.asarray(server.x) - saddle.x) ** 2)
        if steps == 1:
            assert np.abs(np.asarray(server.lam) - saddle.lam).max() < 1e-12
    assert distance[1] < 1e-24
    assert 1e-4 < distance[20] < 4e-4


def test_minibatches_estimate_the_whole_local_gradient():
    """One batch per domain, weighted: the mean of many steps is the full-batch step, whatever the batch size."""
    given = {"steps": 1, "local_lr": 1.0, "dual_lr": 0.1, "domains": 3, "domain_of": by_sign}
    shard, moved = unequal().client(2), {}
    for batch in (None, 1):
        algorithm = eq.algorithms.agnostic_fedavg(eq.tasks.ridge(DIM, reference.MU, batch), EVERYONE, **given)
        data, server = algorithm.prepare(shard), algorithm.init(start())
        server = server._replace(lam=jnp.array([0.7, 0.1, 0.2]))
        message = algorithm.round[0].send(server, jnp.int32(2))

        def step(key, message=message, data=data, algorithm=algorithm):
            update = algorithm.round[0].work(message, None, data, key)[1].total.update
            return update.value / update.weight

        keys = jax.random.split(jax.random.key(0), 1 if batch is None else 20000)
        each = np.asarray(jax.vmap(step)(keys))
        moved[batch] = each.mean(axis=0), each.std(axis=0) / np.sqrt(len(keys))
    error = np.abs(moved[1][0] - moved[None][0])
    assert (error < 5 * moved[1][1]).all()
    assert (moved[1][1] > 0).all()


def test_a_domain_that_was_away_keeps_its_weight_and_its_count():
    def first_two(round, exchange, ids):
        return (jnp.asarray(ids) < 2) & (round > 0)

    algorithm = eq.algorithms.agnostic_fedavg(TASK, EVERYONE, steps=2, local_lr=0.02, dual_lr=0.1)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=5, lost=first_two, record=lambda s: s)
    np.testing.assert_array_equal(run.server.window[:, 0], [7, 3, 12, 5, 1])
    assert np.isfinite(run.history.lam).all()
    assert_same(run.history.lam.sum(axis=1), np.ones(5))
    ratio = run.history.lam[:, 0] / run.history.lam[:, 1]
    assert_same(ratio[1:], np.full(4, ratio[0]))  # both times exp(0)


def test_large_losses_do_not_overflow_the_weights():
    algorithm = eq.algorithms.agnostic_fedavg(TASK, EVERYONE, steps=1, local_lr=1e-3, dual_lr=1e6)
    lam = np.asarray(eq.simulate(algorithm, start(), unequal(), 0, rounds=5).server.lam)
    assert np.isfinite(lam).all()
    assert lam.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dual_lr": 0}, "dual_lr is 0"),
        ({"window": 0}, "the window is of 0 rounds"),
        ({"domains": 3}, "domains and domain_of belong together"),
        ({"domains": 0, "domain_of": by_sign}, "there are 0 domains"),
        ({"sample": eq.cohorts.by_weight(2)}, "may draw a client twice"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, "steps": 1, "local_lr": 0.1, "dual_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.agnostic_fedavg(TASK, **given)


def test_says_what_is_wrong_with_the_domains_of_the_data():
    how = {"steps": 1, "local_lr": 0.1, "dual_lr": 0.1, "domains": 2}
    shard = unequal().client(0)
    several = eq.algorithms.agnostic_fedavg(TASK, EVERYONE, **how, domain_of=by_sign)
    with pytest.raises(InputError, match="raw shard, not in Gram; give Shards"):
        several.prepare(TASK.prepare(shard))
    floats = eq.algorithms.agnostic_fedavg(TASK, EVERYONE, **how, domain_of=lambda shard: shard.labels)
    with pytest.raises(InputError, match="of float64 for 12 rows; give one integer per row"):
        floats.prepare(shard)
