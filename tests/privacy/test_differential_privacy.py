"""Differential privacy at record level: the accounting, the sensitivity, the noise, and a ledger that says no."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import equipoise as eq
from equipoise.algorithms.private import private_scaffpd
from equipoise.errors import InputError, Refusal
from equipoise.experiment import config, private
from equipoise.privacy import accounting, noise
from equipoise.privacy.accounting import Budget, delta_of, epsilon_of, mu_for, spend
from equipoise.tasks.private import Noise, clipped_sums, noisy_releases, private_task

TASK = eq.tasks.softmax_regression(3, 2, l2=0.1)
RNG = np.random.default_rng(0)
SHARD = eq.data.stack([(RNG.normal(size=(70, 3)) * 3, RNG.integers(0, 2, 70))]).client(0)
X = jnp.asarray(RNG.normal(size=TASK.size))


# The accounting.


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 20), st.floats(0.05, 8))
def test_delta_is_the_closed_form_and_what_integration_gives(epsilon, mu):
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta_of(epsilon, mu) == pytest.approx(max(exact, 0), abs=1e-12)
    # delta is the integral of (p - e^epsilon q)+ over two normal densities at distance mu.
    t = np.linspace(-12, 12 + mu, 200_001)
    gap = np.maximum(norm.pdf(t - mu) - math.exp(epsilon) * norm.pdf(t), 0)
    assert delta_of(epsilon, mu) == pytest.approx(np.trapezoid(gap, t), abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 20), st.floats(1e-9, 1e-2))
def test_epsilon_and_mu_are_inverse(epsilon, delta):
    mu = mu_for(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.thorough(witness="::test_delta_is_the_closed_form_and_what_integration_gives")
def test_as_dp_accounting_has_it():
    """Google's library, where it is installed: many releases of two kinds, composed."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution", reason="pip install 'equipoise[privacy]'")
    one = pld.from_gaussian_mechanism(8.0, value_discretization_interval=1e-4).self_compose(20)
    other = pld.from_gaussian_mechanism(32.0, value_discretization_interval=1e-4).self_compose(20)
    theirs = one.compose(other).get_epsilon_for_delta(1e-5)
    mine = epsilon_of(math.sqrt(20 / 8**2 + 20 / 32**2), 1e-5)
    assert mine <= theirs * (1 + 1e-6)  # theirs is a bound from above
    assert mine == pytest.approx(theirs, rel=5e-3)


def test_a_run_s_noise_costs_what_it_promises():
    for method in ({"name": "fedavg", "steps": 3, "local_lr": 0.1}, SCAFFPD, {**SCAFFPD, "steps": 4}):
        told = config.parse({"algorithm": method, "run": {"rounds": 40}, "privacy": {"epsilon": 2.0, "delta": 1e-6}})
        mu2 = 40 * sum(private.costs(told).values())
        assert epsilon_of(math.sqrt(mu2), 1e-6) == pytest.approx(2.0, rel=1e-6)
    four = {**SCAFFPD, "steps": 4}
    told = config.parse({"algorithm": four, "run": {"rounds": 1}, "privacy": {"epsilon": 2.0}})
    assert private.releases(told) == {"collect": (1, 1), "improve": (4, 0)}


SCAFFPD = {"name": "scaffpd", "steps": 1, "local_lr": 0.1, "rule": {"sigma": 0.5, "theta": 0.0}}


# Sensitivity and noise.


@pytest.mark.parametrize("clip", [0.1, 1.0, 100.0])
def test_a_record_moves_a_clipped_sum_by_at_most_the_clip(clip):
    sums = jax.jit(lambda shard: clipped_sums(TASK, X, shard, l2=0.1, clip=clip, bound=0.5))
    loss, gradient = sums(SHARD)
    for j in (0, 33, 69):
        # Without row j: the others moved together, and one row less counts.
        keep = np.r_[np.delete(np.arange(70), j), j]
        less = eq.data.Shards(SHARD.inputs[keep], SHARD.labels[keep], SHARD.sizes - 1)
        other_loss, other_gradient = sums(less)
        assert np.linalg.norm(gradient - other_gradient) <= clip * (1 + 1e-9)
        assert abs(loss - other_loss) <= 0.5 + 1e-9
    # As a loop in NumPy has it.
    one_row = jax.jit(jax.vmap(lambda a, y: TASK.grad(X, eq.data.Shards(a[None], y[None], jnp.int32(1))) - 0.1 * X))
    grads = np.asarray(one_row(SHARD.inputs[:70], SHARD.labels[:70]))
    lengths = np.linalg.norm(grads, axis=1, keepdims=True)
    np.testing.assert_allclose(gradient, (grads * np.minimum(1, clip / lengths)).sum(0), atol=1e-10)


def test_a_row_that_overflows_adds_no_more_than_others():
    broken = SHARD._replace(inputs=SHARD.inputs.at[3].set(jnp.inf))
    loss, gradient = clipped_sums(TASK, X, broken, l2=0.1, clip=1.0, bound=0.5)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_nothing_is_told_exactly():
    task = private_task(TASK, Noise(1.0, 2.0, 4.0, 8.0), l2=0.1)
    with pytest.raises(InputError, match="without a key there is no noise"):
        task.loss(X, SHARD)
    keys = jax.random.split(jax.random.key(0), 4000)
    found = np.asarray(jax.lax.map(lambda k: task.grad(X, SHARD, k), keys))
    exact = clipped_sums(TASK, X, SHARD, l2=0.1, clip=1.0, bound=4.0)[1] / 70 + 0.1 * X
    np.testing.assert_allclose(found.mean(0), exact, atol=5 * 2 / 70 / np.sqrt(4000))
    np.testing.assert_allclose(found.std(0), 2 / 70, rtol=0.1)


def test_the_site_s_own_noise_is_normal_and_never_the_same():
    many = noise.normal((100_000,))
    assert abs(many.mean()) < 5 / math.sqrt(100_000)
    assert many.std() == pytest.approx(1, abs=0.02)
    assert abs(np.mean(np.abs(many) > 1.959964) - 0.05) < 0.005
    drawn = jax.jit(lambda key: noise.own_noise(key, (5,), jnp.float64))
    key = jax.random.key(0)
    assert not np.array_equal(drawn(key), drawn(key))


def test_one_release_in_a_round():
    """The second exchange touches no row, and the step is that of the sum of noisy gradients."""
    n, dual = 3, eq.objectives.chi2(3, 0.1)
    data = eq.data.stack([(RNG.normal(size=(20, 3)), RNG.integers(0, 2, 20)) for _ in range(n)])
    noise = Noise(50.0, 1e-9, 50.0, 1e-9)  # hardly any
    task = private_task(TASK, noise, l2=0.1)
    rule = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.0)
    sample = eq.cohorts.everyone(n)
    for steps in (3, 1):
        plain = eq.algorithms.scaffpd(TASK, dual, sample, rule, steps=steps, local_lr=0.1)
        noisy = eq.algorithms.scaffpd(task, dual, sample, rule, steps=steps, local_lr=0.1)
        hidden = private_scaffpd(noisy, noisy_releases(TASK, noise, l2=0.1), steps=steps)
        big = eq.simulate(hidden, TASK.init(jax.random.key(0)), data, 0, rounds=3)
        same = eq.simulate(plain, TASK.init(jax.random.key(0)), data, 0, rounds=3)
        np.testing.assert_allclose(big.server.x, same.server.x, atol=1e-6)  # nobody's gradient is as long as the clip
    improve = hidden.round[1]
    used = jax.make_jaxpr(lambda rows: improve.work(*improve_message(), rows, jax.random.key(0))[1])(data.client(0))
    rows = used.jaxpr.invars
    assert not any(v is r for e in used.jaxpr.eqns for v in e.invars for r in rows)


def test_every_local_step_is_a_release_with_noise_of_its_own():
    """The second exchange with two steps: two noisy gradients, whose mean the update is, in the stated strength."""
    noise = Noise(1.0, 2.0, 4.0, 8.0)
    task = private_task(TASK, noise, l2=0.1)
    rule, sample = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.0), eq.cohorts.everyone(3)
    inner = eq.algorithms.scaffpd(task, eq.objectives.chi2(3, 0.1), sample, rule, steps=2, local_lr=1e-9)
    improve = private_scaffpd(inner, noisy_releases(TASK, noise, l2=0.1), steps=2).round[1]
    keys = jax.random.split(jax.random.key(1), 3000)
    total = jax.lax.map(lambda key: improve.work(*improve_message(), SHARD, key)[1].total.value / 0.3, keys)
    np.testing.assert_allclose(np.asarray(total).std(0), 2 / 70 / math.sqrt(2), rtol=0.1)


def test_a_promise_that_is_none_is_still_a_sentence():
    told = config.parse({"algorithm": SCAFFPD, "privacy": {"epsilon": 1e6}})
    assert "e^1e+06 times as likely" in private.promise(told)


def improve_message():
    from equipoise.algorithms.scaffpd import Client, Correction

    x = jnp.zeros(TASK.size)
    return Correction(x, jnp.float64(0.3)), Client(x, x)


# The ledger.


def test_the_ledger_counts_every_reply_and_refuses_the_one_too_many(tmp_path):
    run, site = Budget(1.0, 1e-5), Budget(1.5, 1e-5)
    each = run.most / accounting.ROUNDING / 10
    for _ in range(10):
        spend(tmp_path, "one", each, run, site)
    with pytest.raises(Refusal, match="this run would have given away more than epsilon 1 at delta 1e-05"):
        spend(tmp_path, "one", each, run, site)
    assert accounting.spent(tmp_path)["replies"] == 10
    assert accounting.epsilon_of(accounting.spent(tmp_path)["mu2"] ** 0.5, 1e-5) == pytest.approx(1.0, rel=1e-6)
    left = int((site.most - run.most) / each)
    assert left > 5
    for _ in range(left):
        spend(tmp_path, "two", each, Budget(100.0, 1e-5), site)
    with pytest.raises(Refusal, match="this site, over all runs, would have given away more than epsilon"):
        spend(tmp_path, "two", each, Budget(100.0, 1e-5), site)
    assert accounting.epsilon_of(accounting.spent(tmp_path)["mu2"] ** 0.5, 1e-5) <= 1.5 * (1 + 1e-6)
    (tmp_path / accounting.FILE).write_text("{")
    with pytest.raises(Refusal, match="cannot be read"):
        spend(tmp_path, "one", each, run, site)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"algorithm": {"name": "drfa"}}, "is for fedavg and scaffpd, not for drfa"),
        ({"algorithm": {**SCAFFPD, "cohort": 2}}, "asks everybody in every round"),
        ({"algorithm": {"name": "fedavg"}}, "algorithm.local_lr would be measured on the rows"),
        ({"algorithm": SCAFFPD, "model": {"batch": 5}}, "leave out model.batch"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(told, sentence):
    with pytest.raises(InputError, match=sentence):
        config.parse({**told, "privacy": {"epsilon": 1.0}})
