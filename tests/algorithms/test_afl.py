import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data import synthetic
from equipoise.errors import InputError
from equipoise.protocol import exchange_keys
from tests.algorithms import reference, reference_baselines
from tests.problems import DIM, N, assert_same, few, first, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
EVERYONE = eq.cohorts.everyone(N)
KEY = jax.random.key(5)


def test_one_step_is_projected_gradient_descent_ascent():
    algorithm = eq.algorithms.afl(TASK, eq.objectives.agnostic(N), EVERYONE, local_lr=0.05, dual_lr=0.1)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=40, record=lambda s: (s.x, s.lam))
    want = list(reference_baselines.descent_ascent(np.asarray(start()), rows(unequal()), 40, lr=0.05, dual_lr=0.1))
    assert_same(run.history, tuple(np.array(column) for column in zip(*want, strict=True)), rtol=1e-10)
    assert (run.history[1][-1] == 0).any()  # the projection was at work


@pytest.mark.parametrize(
    ("simultaneous", "sample"),
    first(
        2,
        [
            (False, EVERYONE),
            (True, eq.cohorts.uniform(N, 3)),
            (True, EVERYONE),
            (False, eq.cohorts.uniform(N, 3)),
        ],
        "::test_follows_the_pseudo_code",
    ),
)
def test_follows_the_pseudo_code(simultaneous, sample):
    algorithm = eq.algorithms.afl(
        TASK,
        eq.objectives.chi2(N, 0.1),
        sample,
        steps=6,
        local_lr=0.03,
        server_lr=1.2,
        dual_lr=0.05,
        simultaneous=simultaneous,
        averaged=True,
    )
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=10, record=lambda s: s)
    cohorts = [np.asarray(sample(exchange_keys(KEY, r, 0)[0]).ids) for r in range(10)]
    how = {"steps": 6, "lr": 0.03, "server_lr": 1.2, "dual_lr": 0.05, "rho": 0.1, "simultaneous": simultaneous}
    want = list(reference_baselines.afl(np.asarray(start()), rows(unequal()), cohorts, **how))
    for field, column in (("x", 0), ("lam", 1), ("x_bar", 2), ("lam_bar", 3)):
        assert_same(getattr(run.history, field), np.array([row[column] for row in want]), rtol=1e-10)
    np.testing.assert_array_equal(algorithm.model(run.server), run.server.x_bar)


def test_as_printed_with_one_step_and_with_the_new_weights_with_more():
    """Which of the two forms is the default shows in the message: only as printed does a client get its weight."""
    server = eq.algorithms.afl(TASK, eq.objectives.agnostic(N), EVERYONE, local_lr=1, dual_lr=1).init(start())
    for steps, simultaneous, floats in ((1, None, DIM + 1), (2, None, DIM), (2, True, DIM + 1), (1, False, DIM)):
        algorithm = eq.algorithms.afl(
            TASK,
            eq.objectives.agnostic(N),
            EVERYONE,
            local_lr=1,
            dual_lr=1,
            steps=steps,
            simultaneous=simultaneous,
        )
        assert sum(a.size for a in jax.tree.leaves(algorithm.round[0].send(server, jnp.int32(0)))) == floats


def synthetic_ends(rho, steps, lr, names, rounds=1500):
    """Where the methods end on SCAFF-PD's synthetic problem, and the problem."""
    data = synthetic.regression(key=jax.random.key(1))
    task, dual, everyone = eq.tasks.ridge(10), eq.objectives.chi2(5, rho), eq.cohorts.everyone(5)
    ends = {}
    for name in names:
        dual_lr = 1.0 / steps if name == "drfa" else 1.0  # DRFA multiplies its step by tau
        algorithm = eq.algorithms.ALGORITHMS[name](task, dual, everyone, steps=steps, local_lr=lr, dual_lr=dual_lr)
        run = eq.simulate(algorithm, jnp.zeros(10), data, 0, rounds=rounds)
        ends[name] = np.asarray(algorithm.model(run.server)), np.asarray(run.server.lam)
    return ends, data


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
def test_one_step_ends_at_the_saddle_point():
    ends, data = synthetic_ends(0.1, 1, 0.1, ("afl", "drfa", "drfa_alternative"))
    saddle = synthetic.saddle_point(data, rho=0.1)
    for x, lam in ends.values():
        assert np.sum((x - saddle.x) ** 2) < 1e-24
        assert np.abs(lam - saddle.lam).max() < 1e-12


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
def test_local_steps_end_at_their_drift_bias():
    """20 local steps: about 1e-4 from the saddle point in squared distance, exactly where the drift balances."""
    ends, data = synthetic_ends(0.1, 20, 0.01, ("afl", "drfa", "drfa_alternative"))
    saddle = synthetic.saddle_point(data, rho=0.1)
    rest = reference_baselines.drift_bias(rows(data), steps=20, lr=0.01, rho=0.1)
    for name, (x, _) in ends.items():
        assert 5e-5 < np.sum((x - saddle.x) ** 2) < 2e-4, name
        # DRFA's dual sees a random snapshot of the round, so it hovers around that point.
        assert np.sum((x - rest) ** 2) < (1e-6 if name == "drfa" else 1e-24), name


@pytest.mark.thorough(witness="::test_follows_the_pseudo_code")
def test_the_average_settles_where_the_last_iterate_circles():
    """Without a penalty and with long steps the two players chase each other; Mohri's guarantee is for the average."""
    data = synthetic.regression(key=jax.random.key(1))
    saddle = synthetic.saddle_point(data)
    algorithm = eq.algorithms.afl(
        eq.tasks.ridge(10), eq.objectives.agnostic(5), eq.cohorts.everyone(5), local_lr=0.1, dual_lr=3.0
    )
    run = eq.simulate(algorithm, jnp.zeros(10), data, 0, rounds=3000, record=lambda s: (s.x, s.x_bar))
    last, average = (np.sum((np.asarray(x) - saddle.x) ** 2, axis=1) for x in run.history)
    assert np.median(last[-500:]) > 1e-3
    assert average[-1] < 5e-4


@pytest.mark.parametrize(
    "name", few(["agnostic"], sorted(eq.objectives.DUALS), "laws/test_every_dual.py::test_stays_finite_and_on_its_set")
)
def test_takes_every_dual(name):
    """At rest sum_i lam_i grad f_i(x) = 0 and lam is the best response, which is a saddle point of that dual."""
    record = eq.objectives.DUALS[name]
    dual = record(N, **({"bound": 12.0} if name == "propfair" else record.example))
    lr = 0.1 if name == "propfair" else 0.02  # the weights of PropFair go to about 1/bound
    algorithm = eq.algorithms.afl(TASK, dual, EVERYONE, local_lr=lr, dual_lr=0.02)
    server = eq.simulate(algorithm, start(), unequal(), 0, rounds=8000).server
    slopes = np.array([reference.gradient(np.asarray(server.x), client) for client in rows(unequal())])
    assert np.abs(np.asarray(server.lam) @ slopes).max() < 1e-5
    losses = eq.tasks.losses(TASK, server.x, unequal())
    assert float(dual.value(losses) - (losses @ server.lam - dual.penalty(server.lam))) < 1e-5


UNIFORM, COIN, DRAWN = eq.cohorts.uniform(N, 2), eq.cohorts.coin(N, 0.3), eq.cohorts.by_weight(2)
SAMPLED = [
    ("afl", UNIFORM, {"steps": 1}),
    ("afl", COIN, {"steps": 3}),
    ("drfa", DRAWN, {"steps": 3}),
    ("drfa_alternative", DRAWN, {"steps": 3}),
]


@pytest.mark.parametrize(("name", "sample", "how"), first(2, SAMPLED, "::test_a_sampled_dual_stays_on_its_set"))
def test_a_sampled_dual_stays_on_its_set(name, sample, how):
    """Large dual steps leave lam on a few clients, so that most cohorts hold little or none of it; many are lost."""

    def lost(round, exchange, ids):
        key = jax.random.fold_in(jax.random.fold_in(KEY, round), exchange)
        return jax.random.bernoulli(key, 0.3, jnp.shape(ids))

    algorithm = eq.algorithms.ALGORITHMS[name](
        TASK, eq.objectives.agnostic(N), sample, local_lr=0.02, dual_lr=1.0, **how
    )
    run = eq.simulate(
        algorithm, start(), unequal(), KEY, rounds=3000, lost=lost, record=lambda s: (algorithm.model(s), s.lam)
    )
    x, lam = run.history
    assert np.isfinite(x).all()
    assert (lam >= 0).all()
    assert np.abs(lam.sum(axis=1) - 1).max() < 1e-12
    assert (np.sum(lam > 0, axis=1) == 1).any()  # sparse it was
    assert np.abs(x).max() < 10


def test_a_round_without_anybody_leaves_lam_too():
    dual = eq.objectives.chi2(N, 0.1)
    algorithm = eq.algorithms.afl(TASK, dual, EVERYONE, local_lr=0.05, dual_lr=0.1)

    def after_three(round, exchange, ids):
        return jnp.broadcast_to(round >= 3, jnp.shape(ids))

    history = eq.simulate(algorithm, start(), unequal(), 0, rounds=6, lost=after_three, record=lambda s: s.lam).history
    np.testing.assert_array_equal(history[3:], history[[2, 2, 2]])
    assert np.ptp(history[2]) > 0.1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"local_lr": 0.0}, "local_lr is 0.0; give a number above zero"),
        ({"dual_lr": -1}, "dual_lr is -1"),
        ({"steps": 0}, "steps is 0"),
        ({"sample": eq.cohorts.everyone(N + 1)}, "drawn from 6 clients but the dual is for 5"),
        ({"sample": eq.cohorts.by_weight(2)}, "may draw a client twice"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, "local_lr": 0.1, "dual_lr": 0.1} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.afl(TASK, eq.objectives.agnostic(N), **given)
