import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import local
from equipoise.data import synthetic
from equipoise.engines import kernel
from equipoise.errors import InputError
from equipoise.protocol import wire
from tests.algorithms import reference
from tests.problems import DIM, LOCAL, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
DUAL, EVERYONE = eq.objectives.chi2(N, 0.1), eq.cohorts.everyone(N)
RULE = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.3)
KEY = jax.random.key(5)


def gone(round, exchange, ids):
    """Client 1 is lost with its update in round 2 and client 3 in round 4."""
    ids = jnp.asarray(ids)
    return (exchange == 1) & (((round == 2) & (ids == 1)) | ((round == 4) & (ids == 3)))


def test_follows_its_description_and_commits_only_what_counted():
    algorithm = eq.algorithms.scaffpd_minibatch(TASK, DUAL, EVERYONE, RULE, **LOCAL)
    run = eq.simulate(algorithm, start(), unequal(), KEY, rounds=8, record=lambda s: (s.x, s.lam, s.table), lost=gone)
    how = {"steps": LOCAL["steps"], "lr": LOCAL["local_lr"], "rho": 0.1, "lost": {(2, 1), (4, 3)}}
    want = list(reference.scaffpd_minibatch(np.asarray(start()), rows(unequal()), [(0.1, 0.5, 0.3)] * 8, **how))
    for column in range(3):
        assert_same(run.history[column], np.array([row[column] for row in want]), rtol=1e-9)
    assert_same(run.clients.c_i, run.server.table)  # both ends hold the same


@pytest.mark.parametrize(("correction", "plain"), [("average", "scaffpd_minibatch"), ("two_point", "scaffpd")])
def test_the_secure_form_is_the_same_from_sums(correction, plain):
    """And two points with exact gradients are SCAFF-PD itself: g(u) - g(x) + c is its correction."""
    given = {"correction": correction, "secure": True}
    secure = eq.algorithms.scaffpd_minibatch(TASK, DUAL, EVERYONE, RULE, **LOCAL, **given)
    other = eq.algorithms.ALGORITHMS[plain](TASK, DUAL, EVERYONE, RULE, **LOCAL)
    a, b = (eq.simulate(algo, start(), unequal(), KEY, rounds=6).server for algo in (secure, other))
    assert_same((a.x, a.lam, a.c), (b.x, b.lam, b.c))
    assert a.table is None
    shapes = wire(secure, start(), secure.prepare(unequal().client(0)))
    assert [(w.down / 8, w.up / 8) for w in shapes] == [(DIM, 1), (1, DIM + 1), (DIM + 1, DIM + 1)]
    assert all(shape.reply.each is None for shape in shapes[1:])


def noisy(dim):
    """Quadratics with additive noise in every gradient."""
    exact = eq.tasks.quadratic(dim)

    def descend(x, shard, key, *, steps, **how):
        noise = jax.random.normal(key, (steps, dim))
        return local.descend(lambda u, e: exact.grad(u, shard) + e, x, noise, steps=steps, **how)

    return exact._replace(descend=descend)


def test_with_a_common_hessian_the_new_model_does_not_depend_on_the_control_variates():
    rng, d = np.random.default_rng(0), 3
    root = rng.normal(size=(d, d))
    data = eq.data.stack([((root @ root.T)[None], rng.normal(size=(1, d))) for _ in range(N)])
    algorithm = eq.algorithms.scaffpd_minibatch(noisy(d), DUAL, EVERYONE, RULE, steps=7, local_lr=0.05)
    federation, first = kernel.prepare(algorithm, data), kernel.init(algorithm, jnp.ones(d))

    @jax.jit
    def one_round(table):
        clients = first.clients._replace(c_i=table)
        state = first._replace(server=first.server._replace(table=table), clients=clients)
        return kernel.step(algorithm, state, federation, KEY).server

    before, after = one_round(jnp.zeros((N, d))), one_round(jnp.asarray(rng.normal(size=(N, d))))
    assert np.abs(before.c - after.c).max() > 0.1  # the corrections were different
    assert_same(before.x, after.x, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough(witness="::test_the_secure_form_is_the_same_from_sums")
def test_with_exact_gradients_it_takes_as_many_rounds_as_the_paper():
    data, task, dual = synthetic.regression(n=5, key=KEY), eq.tasks.ridge(10), eq.objectives.chi2(5, 0.1)
    saddle = jnp.asarray(synthetic.saddle_point(data, rho=0.1).x)
    rule, rounds = eq.steps.constant(tau=0.2, sigma=2.0, theta=0.0), []
    for build in (eq.algorithms.scaffpd, eq.algorithms.scaffpd_minibatch):
        algorithm = build(task, dual, eq.cohorts.everyone(5), rule, steps=10, local_lr=0.02)
        squared = eq.simulate(
            algorithm, jnp.zeros(10), data, 0, rounds=300, record=lambda s: jnp.sum((s.x - saddle) ** 2)
        ).history
        rounds.append(int(np.argmax(squared < 1e-20)))
    assert min(rounds) > 20
    assert max(rounds) <= 1.1 * min(rounds)


@pytest.mark.parametrize(("steps", "path"), [(50, 3.0), (20, 0.5)])
@pytest.mark.thorough(
    witness="laws/test_laws.py::test_absent_clients_change_neither_state_nor_result[scaffpd_minibatch]"
)
def test_noise_floors(steps, path):
    """Relative to c_i from as many minibatches as there are local steps; `path` is J eta L."""
    data, batch, everyone = synthetic.regression(n=5, shift=1.0, key=jax.random.key(0)), 4, eq.cohorts.everyone(5)
    task, dual = eq.tasks.ridge(10, batch=batch), eq.objectives.chi2(5, 2.0)
    saddle = jnp.asarray(synthetic.saddle_point(data, rho=2.0).x)
    hessians = 2 * np.einsum("nmp,nmq->npq", data.inputs, data.inputs) / data.inputs.shape[1] + 0.1 * np.eye(10)
    lr = path / (steps * np.linalg.eigvalsh(hessians).max())
    rule = eq.steps.constant(tau=steps * lr, sigma=0.02, theta=0.0)

    def many(x, shard, key=None):
        keys = jax.random.split(key, steps)
        return jnp.mean(jax.lax.map(lambda k: task.grad(x, shard, k), keys), axis=0)

    def floor(build, task, **choice):
        algorithm = build(task, dual, everyone, rule, steps=steps, local_lr=lr, **choice)
        squared = eq.simulate(
            algorithm, saddle, data, 1, rounds=1500, record=lambda s: jnp.sum((s.x - saddle) ** 2)
        ).history
        return squared[300:].mean()

    same = floor(eq.algorithms.scaffpd, task._replace(grad=many))
    one = floor(eq.algorithms.scaffpd, task) / same
    own = floor(eq.algorithms.scaffpd_minibatch, task) / same
    if path > 1:
        assert own < 1.1 < 2 < one
        assert floor(eq.algorithms.scaffpd_minibatch, task, correction="two_point") < 1e-20
    else:
        assert 0.85 < own < 1.15
        assert 0.85 < one < 1.15


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"correction": "one_point"}, "correction"),
        ({"steps": 0}, "steps is 0"),
        ({"sample": eq.cohorts.uniform(N, 2)}, r"give everyone\(5\)"),
    ],
)
def test_says_what_is_wrong(wrong, sentence):
    given = {"sample": EVERYONE, **LOCAL} | wrong
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.scaffpd_minibatch(TASK, DUAL, rule=RULE, **given)
