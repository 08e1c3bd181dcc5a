"""The rules keep the conditions they are named after, and the constants are what dense linear algebra says."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import objectives, steps, tasks
from equipoise.data import Shards, synthetic
from equipoise.errors import InputError
from equipoise.steps import Constants
from tests.problems import few, first

DIM = 10
RIDGE = tasks.ridge(DIM, 0.1)  # one object, so that what is measured compiles once
CHI2 = objectives.chi2(n=5, rho=0.1)
AGNOSTIC = objectives.agnostic(n=5)
EXAMPLES = [
    Constants(3.5, 1.0, 2.1),
    Constants(3.5, 1.0, 2.1, 0.4),
    Constants(1000.0, 0.1, 30.0, 1e-3),
    Constants(1.0, 1.0, 1e-3),
    Constants(0.04, 0.035, 0.12, 0.03),
]
DUALS = [CHI2, objectives.chi2(n=5, rho=1e-4), AGNOSTIC]


class Task(NamedTuple):
    """The least that `estimate_constants` asks for."""

    loss: Callable
    grad: Callable


def task_of(loss):
    return Task(loss, jax.grad(loss))


def real(shard):
    return jnp.arange(shard.labels.shape[0], dtype=shard.sizes.dtype) < shard.sizes


def ridge(mu):
    def loss(x, shard):
        errors = jnp.where(real(shard), (shard.inputs @ x - shard.labels) ** 2, 0)
        return jnp.sum(errors) / shard.sizes.astype(x.dtype) + mu / 2 * (x @ x)

    return task_of(loss)


def softmax(features, classes, l2):
    def loss(x, shard):
        logits = shard.inputs @ x.reshape(features, classes)
        each = jax.nn.logsumexp(logits, axis=1) - jnp.sum(logits * jax.nn.one_hot(shard.labels, classes), axis=1)
        return jnp.sum(jnp.where(real(shard), each, 0)) / shard.sizes.astype(x.dtype) + l2 / 2 * (x @ x)

    return task_of(loss)


@partial(jax.jit, static_argnames=("count", "dtype"))
def step_sizes(rule, count, dtype):
    """One program for all rules of a kind: their numbers are operands."""

    def advance(state, _):
        state = rule.next(state)
        return state, state.now

    return jax.lax.scan(advance, rule.init(dtype), length=count)[1]


def rounds(rule, count, dtype=jnp.float64):
    """The step sizes of the first `count` rounds, as floats."""
    history = step_sizes(rule, next(some for some in (60, 400, 5000) if some >= count), dtype)
    return list(zip(*(a[:count].tolist() for a in jax.device_get(history)), strict=True))


def dense(task, shards, x):
    """Every client's Hessian and gradient."""
    both = jax.jit(jax.vmap(lambda shard: (jax.hessian(task.loss)(x, shard), jax.grad(task.loss)(x, shard))))
    return tuple(map(np.asarray, both(shards)))


# Step sizes as given


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    "rule",
    [
        steps.constant(tau=0.5, sigma=3.0, theta=0.25),
        steps.accelerated(tau=0.5, sigma=3.0, mu=0.1),
        *(steps.auto(c, d) for c in EXAMPLES[2:4] for d in (CHI2, AGNOSTIC)),
        steps.linear(EXAMPLES[0], CHI2),
        steps.sublinear(EXAMPLES[0]),
    ],
)
def test_a_state_is_three_scalars_of_the_given_dtype_and_keeps_its_type(rule, dtype):
    state = rule.init(dtype)
    after = jax.eval_shape(rule.next, state)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), state) == jax.tree.map(lambda a: (a.shape, a.dtype), after)
    assert {a.dtype for a in jax.tree.leaves(state)} == {jnp.dtype(dtype)}
    assert {a.shape for a in jax.tree.leaves(state)} == {()}
    late = rounds(rule, 400, dtype)[-1]
    assert all(math.isfinite(v) for v in late)
    np.testing.assert_allclose(late, rounds(rule, 400)[-1], rtol=1e-3)


def test_constant():
    assert rounds(steps.constant(tau=0.5, sigma=3.0, theta=0.25), 4) == [(0.5, 3.0, 0.25)] * 4


def test_accelerated_is_condition_5_1():
    tau, sigma, mu = 0.5, 3.0, 0.2
    gamma, before, expected = sigma / tau, sigma, []
    for _ in range(30):
        sigma = gamma * tau  # sigma_r = gamma_r tau_r
        expected.append((tau, sigma, before / sigma))  # theta_r = sigma_{r-1} / sigma_r, sigma_{-1} = sigma_0
        grown = gamma * (1 + mu * tau)  # gamma_{r+1}
        tau, gamma, before = tau * math.sqrt(gamma / grown), grown, sigma  # Eq. (E.33)
    np.testing.assert_allclose(rounds(steps.accelerated(tau=0.5, sigma=3.0, mu=0.2), 30), expected, rtol=1e-13)
    taus, sigmas, thetas = np.transpose(expected)
    np.testing.assert_allclose(taus * sigmas, 1.5, rtol=1e-13)
    assert thetas[0] == 1
    assert np.all(np.diff(thetas[1:]) > 0)


def test_accelerated_without_strong_convexity_is_constant():
    assert rounds(steps.accelerated(tau=0.5, sigma=3.0, mu=0.0), 3) == [(0.5, 3.0, 1.0)] * 3


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: steps.constant(tau=0.0, sigma=1.0, theta=0.5), "tau is 0.0"),
        (lambda: steps.constant(tau=1.0, sigma=-1.0, theta=0.5), "sigma is -1.0"),
        (lambda: steps.constant(tau=1.0, sigma=1.0, theta=1.5), "from 0 to 1"),
        (lambda: steps.accelerated(tau=1.0, sigma=1.0, mu=-1.0), "from zero up"),
        (lambda: steps.linear(EXAMPLES[0], AGNOSTIC), "'agnostic' is not strongly convex; use steps.auto"),
        (lambda: steps.sharp_linear(EXAMPLES[0], AGNOSTIC), "use steps.auto"),
        (lambda: steps.auto(Constants(1.0, -0.1, 1.0), CHI2), "add an l2 penalty"),
        (lambda: steps.sublinear(Constants(1.0, 2.0, 1.0)), "0 < mu_x <= L_xx"),
    ],
)
def test_wrong_values_are_named(build, says):
    with pytest.raises(InputError, match=says):
        build()


# The paper's constants


@pytest.mark.parametrize("c", EXAMPLES)
def test_linear_meets_the_conditions_of_the_proof(c):
    (tau, sigma, theta), *_ = rounds(steps.linear(c, CHI2), 1)
    mu = CHI2.modulus
    pi = theta * sigma * c.L_lx  # Eq. (E.51) with c = 1
    slack = 1 + 1e-9
    assert slack * (1 / (2 * tau) + c.mu_x / 8) >= 1 / (2 * tau * theta)  # Eq. (E.49), in order
    assert slack * (1 / (2 * sigma) + mu / 2) >= 1 / (2 * sigma * theta)
    assert slack / tau >= 12 * c.L_xx + 2 * pi * c.L_lx
    assert slack / sigma >= theta * c.L_lx / pi
    omega = 1 / (1 - theta)  # and it is the quadratic of Eq. (E.54)
    assert c.mu_x * mu * omega**2 == pytest.approx((c.mu_x * mu + 48 * mu * c.L_xx) * omega + 8 * c.L_lx**2)


@pytest.mark.parametrize("c", EXAMPLES)
@pytest.mark.parametrize("a", [None, 0.1, 10.0])
def test_sublinear_meets_the_conditions_of_the_proof_in_every_round(c, a):
    for tau, sigma, _ in rounds(steps.sublinear(c, a=a), 50):
        assert (1 - 0.1) / tau >= (12 * c.L_xx + 2 * c.L_lx**2 * sigma / 0.9) * (1 - 1e-12)  # Eq. (E.35)


# Sharp constants


@pytest.mark.parametrize("c", EXAMPLES)
def test_sharp_linear(c):
    (tau, sigma, theta), *_ = rounds(steps.sharp_linear(c, CHI2), 1)
    slack = 1 + 1e-9
    assert theta * slack >= 1 - c.mu_x * tau
    assert theta * slack >= 1 / (1 + CHI2.modulus * sigma)
    assert slack / tau >= c.L_xx + theta * sigma * c.L_lx**2
    assert theta < max(1 - c.mu_x / (20 * c.L_xx + c.L_lx * math.sqrt(c.mu_x / CHI2.modulus)), 0.999)


@pytest.mark.parametrize("c", EXAMPLES)
def test_sharp_accelerated(c):
    out = rounds(steps.sharp_accelerated(c), 50)
    for (tau, sigma, _), (tau_, sigma_, theta) in itertools.pairwise(out):
        assert 1 / tau >= (c.L_xx + sigma * c.L_lx**2) * (1 - 1e-12)
        assert theta == pytest.approx(1 / math.sqrt(1 + c.mu_x * tau))
        assert tau_ * sigma_ == pytest.approx(tau * sigma)


@pytest.mark.parametrize("c", EXAMPLES)
@pytest.mark.parametrize("dual", DUALS, ids=lambda d: f"{d.name}{d.modulus}")
def test_auto_telescopes_in_every_round(c, dual):
    """The four conditions of the proof in its docstring, with nothing assumed about how the steps were found."""
    mu = dual.modulus + c.mu_lx**2 / c.L_xx
    out = rounds(steps.auto(c, dual), 300)
    assert out[0][2] == 1
    slack = 1 + 1e-9
    for (tau, sigma, _), (tau_, sigma_, theta) in itertools.pairwise(out):
        assert slack / tau >= c.L_xx + sigma * c.L_lx**2
        assert theta * sigma_ <= slack * sigma
        assert slack * theta >= tau / tau_ * (1 - c.mu_x * tau_)
        assert slack * theta >= sigma / sigma_ / (1 + mu * sigma)
        assert sigma_ / tau_ * slack >= sigma / tau


@pytest.mark.parametrize("c", EXAMPLES)
def test_auto_comes_to_rest_at_condition_5_2_or_at_its_start(c):
    mu = CHI2.modulus + c.mu_lx**2 / c.L_xx
    start = (0.9 / c.L_xx, c.L_xx / (9 * c.L_lx**2))
    *_, before, last = rounds(steps.auto(c, CHI2), 40 + int(40 * c.L_xx / c.mu_x * 1e-2))
    if c.L_xx / c.mu_x < 100:
        np.testing.assert_allclose(before, last, rtol=1e-12)
        tau, sigma, theta = last
        assert theta == pytest.approx(max(1 - c.mu_x * tau, 1 / (1 + mu * sigma)))
        if (tau, sigma) != pytest.approx(start):
            assert sigma / tau > start[1] / start[0]
            assert c.mu_x * tau == pytest.approx(mu * sigma / (1 + mu * sigma))


positive = st.floats(-3, 3).map(lambda power: 10.0**power)


@given(scale=positive, k=st.floats(0, 6), coupling=positive, weak=st.floats(0, 1), modulus=st.just(0.0) | positive)
@settings(max_examples=60, deadline=None)
def test_the_telescoping_inequalities_of_auto_hold_for_all_constants(scale, k, coupling, weak, modulus):
    c = Constants(scale, scale / 10**k, scale * coupling, scale * coupling * weak)
    mu = modulus + c.mu_lx**2 / c.L_xx
    sizes = rounds(steps.auto(c, AGNOSTIC._replace(modulus=modulus)), 25)
    slack = 1 + 1e-9
    assert sizes[0] == pytest.approx((0.9 / c.L_xx, c.L_xx / (9 * c.L_lx**2), 1.0))
    for (tau, sigma, _), (tau_, sigma_, theta) in itertools.pairwise(sizes):
        assert theta * sigma_ <= sigma * slack
        assert slack * theta >= tau / tau_ * (1 - c.mu_x * tau_)
        assert slack * theta >= sigma / sigma_ / (1 + mu * sigma)
        assert (c.L_xx + sigma_ * c.L_lx**2) * tau_ <= slack
        assert sigma / tau <= sigma_ / tau_ * slack <= sigma / tau * (1 + c.mu_x * tau) * slack**2


@given(st.lists(st.floats(0, 4), min_size=3, max_size=12))
@settings(max_examples=40, deadline=None)
def test_the_guard_holds_sigma_where_the_losses_move_faster_than_measured(couplings):
    c = Constants(3.5, 1e-3, 2.1)
    rule = steps.auto(c, CHI2)
    state, last = rule.init(jnp.float64), None
    for coupling in couplings:
        state = rule.guard(rule.next(state), jnp.asarray(coupling))
        _, sigma, theta = map(float, state.now)
        assert sigma * 9 * coupling <= c.L_xx * (1 + 1e-9)
        assert coupling > c.L_lx**2 or sigma == pytest.approx(c.L_xx / (9 * c.L_lx**2), rel=1e-2)
        if last is not None:
            assert theta <= min(1, last / sigma) * (1 + 1e-9)
        last = sigma


def test_auto_accelerates_without_strong_concavity():
    """sigma_r / tau_r = gamma_r grows like r^2: that is the rate of Theorem 5.1."""
    out = rounds(steps.auto(Constants(3.5, 1.0, 2.1), AGNOSTIC), 800)
    gamma = np.array([sigma / tau for tau, sigma, _ in out])
    assert gamma[799] / gamma[399] == pytest.approx(4, rel=0.05)
    assert out[0][0] == pytest.approx(0.9 / 3.5)


@pytest.mark.parametrize("s", [1e-3, 1e3])
def test_auto_does_not_depend_on_the_unit_of_x(s):
    c = Constants(3.5, 1.0, 2.1, 0.4)
    scaled = Constants(s**2 * c.L_xx, s**2 * c.mu_x, s * c.L_lx, s * c.mu_lx)
    ours = np.array(rounds(steps.auto(c, AGNOSTIC), 60))
    theirs = np.array(rounds(steps.auto(scaled, AGNOSTIC), 60))
    np.testing.assert_allclose(theirs * [s**2, 1, 1], ours, rtol=1e-9)


@pytest.mark.parametrize("condition", [1.0, 1.3, 10.0, 100.0])
@pytest.mark.parametrize("nu", [0.0, 0.1])
@pytest.mark.parametrize("spread", [1.0, 3.0, 30.0])
def test_every_mode_of_a_quadratic_contracts_by_theta(condition, nu, spread):
    """min_x max_lam h/2 x^2 + s x lam - nu/2 lam^2: what `auto` claims about mu_lx, with twice as much of it."""
    L_xx, mu_x = 1.0, 1 / condition
    dual = AGNOSTIC._replace(modulus=nu)
    for L_lx in (0.1, 1.0, 10.0):
        c = Constants(L_xx, mu_x, L_lx, math.sqrt(2) * L_lx / spread)
        tau, sigma, theta = rounds(steps.auto(c, dual), 4000 if nu == 0 else 600)[-1]
        for h in np.geomspace(mu_x, L_xx, 7):
            for s in np.geomspace(L_lx / spread, L_lx, 9):
                up = np.array([sigma * s * (1 + theta), -sigma * s * theta, 1]) / (1 + sigma * nu)  # on x, x_prev, lam
                matrix = np.array([np.array([1 - tau * h, 0, 0]) - tau * s * up, [1, 0, 0], up])
                assert np.abs(np.linalg.eigvals(matrix)).max() ** 2 <= max(theta, 0.02) * (1 + 1e-6)


# Constants


@pytest.mark.parametrize(
    ("samples", "build"),
    first(
        2,
        [
            ([20, 50, 100, 7, 33], lambda mu: RIDGE),
            (100, ridge),
            (100, lambda mu: RIDGE),
            ([20, 50, 100, 7, 33], ridge),
        ],
        "::test_constants_of_ridge_regression",
    ),
    ids=["tasks.ridge-uneven", "stand-in-even", "tasks.ridge-even", "stand-in-uneven"],
)
def test_constants_of_ridge_regression(samples, build):
    shards = synthetic.regression(samples=samples, key=jax.random.key(0))
    x = jnp.linspace(-1.0, 1.0, DIM)
    found = steps.estimate_constants(build(0.1), shards, x)
    hessians, gradients = dense(ridge(0.1), shards, x)
    values = np.linalg.svd(gradients - gradients.mean(axis=0), compute_uv=False)
    assert found.L_xx == pytest.approx(np.linalg.eigvalsh(hessians).max(), rel=1e-10)
    assert found.mu_x == pytest.approx(np.linalg.eigvalsh(hessians).min(), rel=1e-10)
    assert found.L_lx == pytest.approx(values[0], rel=1e-10)
    assert found.mu_lx == pytest.approx(values[3], rel=1e-6)


def test_padding_is_not_seen():
    shards = synthetic.regression(samples=[20, 50, 100, 7, 33], key=jax.random.key(1))
    dirty = shards._replace(
        inputs=jnp.where(shards.inputs == 0, 1e3, shards.inputs),
        labels=jnp.where(shards.labels == 0, -1e3, shards.labels),
    )
    x = jnp.ones(DIM)
    clean, found = (steps.estimate_constants(ridge(0.1), s, x, steps=5) for s in (shards, dirty))
    np.testing.assert_allclose(found, clean, rtol=1e-9)


def test_constants_of_softmax_regression():
    rng = np.random.default_rng(0)
    shards = Shards(
        jnp.asarray(rng.normal(size=(3, 12, 4))), jnp.asarray(rng.integers(0, 3, (3, 12))), jnp.asarray([12, 5, 9])
    )
    task, x = softmax(4, 3, 0.05), jnp.asarray(rng.normal(size=12))
    found = steps.estimate_constants(task, shards, x)
    hessians, gradients = dense(task, shards, x)
    assert found.L_xx == pytest.approx(np.linalg.eigvalsh(hessians).max(), rel=1e-10)
    assert found.mu_x == pytest.approx(np.linalg.eigvalsh(hessians).min(), rel=1e-9)
    centred = gradients - gradients.mean(axis=0)
    assert found.L_lx == pytest.approx(np.linalg.norm(centred, 2), rel=1e-10)
    assert steps.estimate_constants(task, shards, 9 * x).L_xx < 0.9 * found.L_xx  # local to x


@pytest.mark.thorough(witness="::test_the_smoothness_of_every_client_is_bounded_from_above")
def test_more_parameters_than_lanczos_steps():
    """Outer bounds, the largest one sharp; of few examples the Krylov space ends early and all is exact."""
    x = jnp.zeros(150)
    many = synthetic.regression(n=2, dim=150, samples=200, key=jax.random.key(2))
    few = synthetic.regression(n=2, dim=150, samples=20, key=jax.random.key(2))
    for shards, rel in ((many, 0.03), (few, 1e-9)):
        spectra = np.linalg.eigvalsh(dense(ridge(0.1), shards, x)[0])
        found = steps.estimate_constants(ridge(0.1), shards, x)
        assert found.L_xx >= spectra.max() * (1 - 1e-9)
        assert found.L_xx == pytest.approx(spectra.max(), rel=rel)
        assert found.mu_x <= spectra.min() * (1 + 1e-9)
    assert found.mu_x == pytest.approx(0.1, rel=1e-9)
    assert steps.estimate_constants(ridge(0.1), many, x, mu=0.1).mu_x >= 0.1


def test_multiples_of_the_identity_end_lanczos_at_once():
    shards = Shards(jnp.broadcast_to(2 * jnp.eye(6), (2, 1, 6, 6)), jnp.ones((2, 1, 6)), jnp.ones(2, jnp.int32))
    found = steps.estimate_constants(tasks.quadratic(6), shards, jnp.ones(6), steps=3)
    assert found.L_xx == pytest.approx(found.mu_x)
    assert steps.estimate_constants(tasks.quadratic(6), shards, jnp.ones(6))[:3] == pytest.approx((2, 2, 0), abs=1e-12)


def test_single_precision():
    x = jnp.zeros(DIM, jnp.float32)
    single = synthetic.regression(key=jax.random.key(3), dtype=jnp.float32)
    double = Shards(single.inputs.astype(jnp.float64), single.labels.astype(jnp.float64), single.sizes)
    for j in (1, 20):
        found = steps.estimate_constants(RIDGE, single, x, steps=j)
        np.testing.assert_allclose(
            found, steps.estimate_constants(RIDGE, double, x.astype(jnp.float64), steps=j), rtol=1e-4
        )


@pytest.mark.parametrize("j", few([7], [2, 7, 100], "::test_constants_in_the_metric_of_the_local_steps[7]"))
def test_constants_in_the_metric_of_the_local_steps(j):
    shards = synthetic.regression(samples=[20, 50, 100, 30, 33], key=jax.random.key(4))
    x = jnp.zeros(DIM)
    hessians, gradients = dense(ridge(0.1), shards, x)
    spectra = np.linalg.eigvalsh(hessians)
    eta = 0.7 / spectra.max()
    found = steps.estimate_constants(ridge(0.1), shards, x, steps=j, local_lr=eta)
    each = [sum(np.linalg.matrix_power(np.eye(DIM) - eta * h, i) for i in range(j)) / j for h in hessians]
    metric, centred = np.mean(each, axis=0), gradients - gradients.mean(axis=0)
    own = np.array([np.linalg.eigvals(m @ h).real for m, h in zip(each, hessians, strict=True)])
    mixed = np.linalg.eigvals(metric @ hessians.mean(axis=0)).real
    assert found.L_xx == pytest.approx(max(own.max(), mixed.max()), rel=1e-9)
    assert found.mu_x == pytest.approx(own.min(), rel=1e-9)
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(centred @ metric @ centred.T), 0))
    assert found.L_lx == pytest.approx(values[-1], rel=1e-9)
    assert found.mu_lx == pytest.approx(values[1], rel=1e-6)


def test_the_smoothness_of_every_client_is_bounded_from_above():
    shards = synthetic.regression(samples=[20, 50, 100, 30, 33], key=jax.random.key(4))
    each = np.linalg.eigvalsh(dense(ridge(0.1), shards, jnp.zeros(DIM))[0])[:, -1]
    assert steps.smoothness(RIDGE, shards, jnp.zeros(DIM)) == pytest.approx(each.max(), rel=1e-9)
    smoothness = jax.jit(lambda shard: steps.client_smoothness(RIDGE, jnp.zeros(DIM), shard))
    found = [float(smoothness(shards.client(i))) for i in range(2)]
    np.testing.assert_allclose(found, each[:2], rtol=1e-9)  # as many iterations as parameters: exact
    wide = synthetic.regression(n=2, dim=150, samples=200, key=jax.random.key(2))
    top = np.linalg.eigvalsh(dense(ridge(0.1), wide, jnp.zeros(150))[0]).max()
    assert top * (1 - 1e-9) <= steps.smoothness(tasks.ridge(150, 0.1), wide, jnp.zeros(150)) <= 1.15 * top


@pytest.mark.thorough(witness="::test_constants_in_the_metric_of_the_local_steps")
def test_of_many_clients_a_few_stand_for_the_metric():
    """Clients alike in their Hessians: the constants from sixteen of them are those from all."""
    shards = synthetic.regression(n=80, dim=4, samples=400, key=jax.random.key(5))
    task, x = tasks.ridge(4, 0.1), jnp.ones(4)
    dual = objectives.chi2(n=80, rho=0.1)
    found = steps.tuned(task, shards, x, dual, steps=5).constants
    top = steps.estimate_constants(task, shards, x, steps=5)
    assert found.L_xx == pytest.approx(top.L_xx, rel=0.1)
    assert found.mu_x == pytest.approx(top.mu_x, rel=0.1)
    hessians, gradients = dense(ridge(0.1), shards, x)
    eta = 1 / np.linalg.eigvalsh(hessians).max()
    metric = np.mean([sum(np.linalg.matrix_power(np.eye(4) - eta * h, i) for i in range(5)) / 5 for h in hessians], 0)
    centred = gradients - gradients.mean(axis=0)
    assert top.L_lx == pytest.approx(np.sqrt(np.linalg.eigvalsh(centred @ metric @ centred.T).max()), rel=1e-6)
    assert top.mu_lx == 0


def test_one_client_has_no_coupling():
    shards = synthetic.regression(n=1, key=jax.random.key(5))
    found = steps.estimate_constants(ridge(0.1), shards, jnp.ones(DIM))
    assert found[2:] == (0.0, 0.0)
    assert all(map(math.isfinite, rounds(steps.auto(found, objectives.agnostic(n=1)), 300)[-1]))


def test_local_steps_that_diverge_are_refused():
    shards = synthetic.regression(key=jax.random.key(6))
    with pytest.raises(InputError, match="local steps diverge"):
        steps.estimate_constants(ridge(0.1), shards, jnp.zeros(DIM), steps=2, local_lr=1.0)


# Everything together


class Run(NamedTuple):
    distance: np.ndarray  # |x_r - x*|^2
    gap: np.ndarray  # certified at (x_r, lam_r)


def scaffpd(shards, rule, eta, j, count, *, mu=0.1, rho=0.0, cap=1.0):
    """Algorithm 1 with every local step taken, in NumPy, against the exact saddle point."""
    n, dim = shards.n, shards.inputs.shape[-1]
    star = synthetic.saddle_point(shards, mu=mu, rho=rho, cap=cap)
    ridge = synthetic._Ridge.from_shards(shards, mu)
    x, lam, before = np.zeros(dim), np.full(n, 1 / n), None
    distance, gap = [], []
    for tau, sigma, theta in rounds(rule, count):
        f, c_i = ridge.losses(x), ridge.gradients(x)
        s = f if before is None else (1 + theta) * f - theta * before
        lam = synthetic._project((lam + sigma * (s - s.max())) / (1 + sigma * rho * n), cap)
        c, u, before = lam @ c_i, np.zeros((n, dim)), f
        for _ in range(j):  # u - x of all clients at once; grad f_i(u) - c_i = H_i (u - x)
            u = u - eta * (np.einsum("nij,nj->ni", ridge.hessians, u) + c)
        x = x + tau / (j * eta) * (lam @ u)
        distance.append(np.sum((x - star.x) ** 2))
        g = lam @ ridge.gradients(x)
        psi = rho * n / 2 * np.sum((lam - 1 / n) ** 2)
        lower = lam @ ridge.losses(x) - psi - g @ np.linalg.solve(np.tensordot(lam, ridge.hessians, 1), g) / 2
        f = ridge.losses(x)
        best = synthetic._project(1 / n + (f - f.max()) / (rho * n), cap) if rho else synthetic._greedy(f, cap)
        gap.append(best @ f - rho * n / 2 * np.sum((best - 1 / n) ** 2) - lower)
    return Run(np.array(distance), np.array(gap))


@pytest.mark.parametrize(
    "rho", few([0.05], [0.01, 0.05, 0.1], "::test_tuned_solves_the_papers_problem_in_a_hundred_rounds[0.05]")
)
def test_tuned_solves_the_papers_problem_in_a_hundred_rounds(rho):
    for seed in range(3):
        shards = synthetic.regression(key=jax.random.key(seed))
        rule, local_lr, _ = steps.tuned(RIDGE, shards, jnp.zeros(DIM), objectives.chi2(5, rho), steps=100)
        out = scaffpd(shards, rule, local_lr, 100, 100, rho=rho)
        assert np.argmax(out.distance < 1e-20) in range(10, 75)
        assert out.distance[-1] < 1e-20


@pytest.mark.parametrize(
    ("dual", "cap"), [(AGNOSTIC, 1.0), (objectives.cvar(n=5, alpha=0.4), 0.5)], ids=["afl", "cvar"]
)
@pytest.mark.parametrize("j", few([20], [1, 20], "::test_tuned_is_linear_without_a_penalty_too"))
def test_tuned_is_linear_without_a_penalty_too(dual, cap, j):
    for shift in (0.1, 1.0):
        shards = synthetic.regression(shift=shift, key=jax.random.key(1))
        rule, local_lr, _ = steps.tuned(RIDGE, shards, jnp.zeros(DIM), dual, steps=j)
        out = scaffpd(shards, rule, local_lr, j, 160, cap=cap)
        assert out.gap[100] < 1e-8
        assert out.distance[-1] < 1e-18


def test_tuned_with_clients_of_little_data():
    shards = synthetic.regression(samples=[20, 50, 100, 12, 33], shift=0.3, key=jax.random.key(2))
    rule, local_lr, constants = steps.tuned(RIDGE, shards, jnp.zeros(DIM), CHI2, steps=20)
    out = scaffpd(shards, rule, local_lr, 20, 200, rho=0.1)
    assert out.distance[-1] < 1e-16
    assert constants.mu_lx > 0


@pytest.mark.thorough(witness="::test_tuned_solves_the_papers_problem_in_a_hundred_rounds")
def test_more_clients_than_parameters():
    shards = synthetic.regression(n=20, dim=4, samples=30, key=jax.random.key(3))
    dual = objectives.agnostic(n=20)
    rule, local_lr, constants = steps.tuned(tasks.ridge(4, 0.1), shards, jnp.zeros(4), dual, steps=20)
    assert constants.mu_lx < 1e-6 * constants.L_lx
    assert scaffpd(shards, rule, local_lr, 20, 300).gap[-1] < 1e-6


def test_tuned_says_what_is_wrong():
    shards = synthetic.regression(key=jax.random.key(0))
    with pytest.raises(InputError, match="the dual is for 4 clients but there are 5"):
        steps.tuned(ridge(0.1), shards, jnp.zeros(DIM), objectives.agnostic(n=4), steps=2)
    with pytest.raises(InputError, match="do not sum to one"):
        steps.tuned(ridge(0.1), shards, jnp.zeros(DIM), AGNOSTIC._replace(simplex=False), steps=2)
    flat = shards._replace(inputs=shards.inputs.at[:, :, 0].set(0))
    with pytest.raises(InputError, match="add an l2 penalty"):
        steps.tuned(ridge(0.0), flat, jnp.zeros(DIM), CHI2, steps=1)


@pytest.mark.parametrize(
    "j", few([10], [1, 10], "::test_bounded_solves_the_papers_problem_from_what_clients_tell_of_themselves[10]")
)
def test_bounded_solves_the_papers_problem_from_what_clients_tell_of_themselves(j):
    """Slower than `tuned`, and as certainly."""
    shards = synthetic.regression(key=jax.random.key(0))
    task, x, psi = tasks.ridge(DIM, 0.1), jnp.zeros(DIM), objectives.chi2(5, 0.1)
    curvature = steps.smoothness(task, shards, x)
    slopes = jnp.linalg.norm(jax.vmap(lambda shard: task.grad(x, task.prepare(shard)))(shards), axis=1)
    slope = float(jnp.linalg.norm(slopes))
    measured = steps.estimate_constants(task, shards, x, steps=j, mu=0.1)
    found, local_lr = steps.bounded(curvature, slope, steps=j, mu=0.1)
    assert found.L_lx >= measured.L_lx
    assert found.L_xx >= measured.L_xx * (1 - 1e-9)
    assert found.mu_x <= measured.mu_x * (1 + 1e-9)
    out = scaffpd(shards, steps.rule_for(found, psi), local_lr, j, 400, rho=0.1)
    assert out.distance[-1] < 1e-6 * out.distance[0]
