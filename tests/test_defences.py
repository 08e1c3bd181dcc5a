"""What a site can do to the others by lying."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import equipoise as eq
from equipoise.algorithms.clipping import clip_losses, has_field
from equipoise.objectives import cap_weights
from tests.problems import DIM, EVERY, KEY, LOCAL, RULE, N, assert_identical, build, few, start, unequal

o = eq.objectives
DUALS = [o.agnostic(N), o.chi2(N, 0.1), o.chi2_ball(N, 0.7), o.cvar(N, 0.3), o.kl(N, 0.2), o.tv(N, 0.3)]


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # of the oldest SciPy
@pytest.mark.parametrize("dual", DUALS, ids=lambda dual: dual.name)
def test_capped_prox_is_the_argmin(dual):
    capped, rng = cap_weights(dual, 0.4), np.random.default_rng(0)
    for scale in (0.3, 3.0):
        v, step = rng.normal(size=N) * scale, 0.8
        lam = np.asarray(capped.prox(jnp.asarray(v), step))
        assert lam.min() >= 0
        assert lam.max() <= 0.4 + 1e-12
        assert abs(lam.sum() - 1) < 1e-12

        def objective(w, v=v, step=step):
            return float(dual.penalty(jnp.asarray(w))) + np.sum((w - v) ** 2) / (2 * step)

        # No feasible weights nearby, and none that an independent solver finds, are better.
        inside = np.asarray(dual.prox(jnp.asarray(rng.normal(size=N)), 0.1))
        for other in (inside, np.full(N, 1 / N)):
            if other.max() <= 0.4:
                for t in (1e-3, 1e-1, 1.0):
                    assert objective(lam) <= objective(lam + t * (other - lam)) + 1e-9
        if dual.name in ("agnostic", "chi2", "kl"):  # smooth on all of the simplex
            found = minimize(
                objective,
                np.full(N, 1 / N),
                bounds=[(1e-9, 0.4)] * N,
                constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
                options={"ftol": 1e-14},
            )
            np.testing.assert_allclose(lam, found.x, atol=2e-5)


@pytest.mark.parametrize(
    "dual", few(DUALS[:2], DUALS, "::test_a_cap_that_does_not_bind_changes_nothing"), ids=lambda dual: dual.name
)
def test_a_cap_that_does_not_bind_changes_nothing(dual):
    v = jnp.asarray(np.random.default_rng(1).normal(size=N))
    np.testing.assert_allclose(cap_weights(dual, 1.0).prox(v, 0.5), dual.prox(v, 0.5), atol=1e-12)
    np.testing.assert_allclose(cap_weights(dual, 1.0).value(v), dual.value(v), atol=1e-6)


@pytest.mark.parametrize("dual", DUALS, ids=lambda dual: dual.name)
def test_an_enormous_loss_gets_the_cap_and_leaves_the_rest_to_the_others(dual):
    capped = cap_weights(dual, 0.4)
    losses = jnp.asarray([1.0, 2.0, 1e30, 0.5, 1.5])
    lam = np.asarray(capped.prox(losses, 1.0))
    assert lam[2] == pytest.approx(0.4)
    assert lam.sum() == pytest.approx(1)
    others = np.asarray(capped.prox(losses.at[2].set(1e6), 1.0))
    np.testing.assert_allclose(lam, others, atol=1e-9)


def test_the_loss_is_found_in_what_every_algorithm_reports():
    """clip_losses reads the loss by its name: for each algorithm it is f_i at the start."""
    data, task = unequal(), eq.tasks.ridge(DIM, 0.1)
    want = eq.tasks.losses(task, start(), data)
    for name in EVERY:
        algorithm = build(name)
        exchange = algorithm.round[0]

        def told(x, data, algorithm=algorithm, exchange=exchange):
            server, _ = exchange.open(algorithm.init(x), KEY)

            def of(i, shard):
                message = exchange.send(server, i)
                return exchange.work(message, algorithm.init_client(x), algorithm.prepare(shard), KEY)[1].each

            return jax.vmap(of)(jnp.arange(N, dtype=jnp.int32), data)

        reports = name in ("afl", "delta_fl", "drfa_alternative", "term") or name.startswith("scaffpd")
        found = has_field(jax.eval_shape(told, start(), data), "loss")
        assert found == (reports and name != "scaffpd_sums"), name  # which tells no single loss
        if found:
            np.testing.assert_allclose(jax.jit(told)(start(), data).loss, want)


def lying(algorithm, client, loss):
    """The algorithm at clients of which one reports another loss than its own."""
    exchange = algorithm.round[0]

    def close(server, replies):
        losses = replies.each.loss.at[client].set(loss)
        return exchange.close(server, replies._replace(each=replies.each._replace(loss=losses)))

    return algorithm._replace(round=(exchange._replace(close=close), *algorithm.round[1:]))


def test_clipping_bounds_what_a_made_up_loss_brings():
    """However large the lie, it counts for ten times the typical loss."""
    data, honest = unequal(), build("scaffpd")
    median = float(jnp.median(eq.tasks.losses(eq.tasks.ridge(DIM, 0.1), start(), data)))

    def after(algorithm, loss):
        return eq.simulate(lying(algorithm, 2, loss), start(), data, 0, rounds=1).server

    clipped = clip_losses(honest, factor=10.0)
    assert_identical(after(clipped, 1e30), after(clipped, 1e20))
    assert float(after(clipped, 1e30).losses[2]) == pytest.approx(10 * median)
    assert float(after(honest, 1e30).losses[2]) == 1e30


def test_clipping_leaves_honest_losses_alone():
    data = unequal()
    for name in ("scaffpd", "afl"):
        runs = [eq.simulate(a, start(), data, 0, rounds=3) for a in (build(name), clip_losses(build(name), factor=1e3))]
        assert_identical(runs[0].server, runs[1].server)


def test_a_capped_run_keeps_every_weight_below_the_cap():
    dual = cap_weights(eq.objectives.chi2(N, 0.1), 0.4)
    algorithm = eq.algorithms.scaffpd(eq.tasks.ridge(DIM, 0.1), dual, eq.cohorts.everyone(N), RULE, **LOCAL)
    run = eq.simulate(algorithm, start(), unequal(), 0, rounds=5, record=lambda server: server.lam)
    assert run.history.max() == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cap_weights(o.chi2(5, 0.1), 0.2), "no weights of 5 clients are below 0.2"),
        (lambda: cap_weights(o.qffl(5, 1.0), 0.5), "are not shares"),
        (lambda: clip_losses(build("scaffpd"), factor=0.5), "factor is 0.5; give at least 1"),
        (lambda: clip_losses(build("scaffpd"), quantile=1.0), "quantile is 1.0; give a share"),
    ],
)
def test_settings_that_make_no_sense(make, sentence):
    with pytest.raises(eq.errors.InputError, match=sentence):
        make()
