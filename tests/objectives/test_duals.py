"""What holds for every dual: its operators solve what they state, at every scale, however they are called."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.objectives import DUALS
from equipoise.objectives.capping import cap_weights
from equipoise.protocol import Cohort
from tests.objectives.dual_cases import CASES, ONE_EACH, STEPLESS, build, feasible, nasty, prox_error, violation
from tests.problems import few


def every_case(test):
    """One case of each dual in `make test`, which is as far as other numbers go in there."""
    return pytest.mark.parametrize("case", few(ONE_EACH, CASES, f"::{test.__name__}"), ids=str)(test)


one_each = pytest.mark.parametrize("case", ONE_EACH, ids=str)
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
SIMPLICES = [c for c in ONE_EACH if c.name not in ("qffl", "propfair")]
simplices = pytest.mark.parametrize("case", SIMPLICES, ids=str)
MAXIMISER = pytest.mark.thorough(witness="::test_best_response_is_a_maximiser_and_value_its_maximum")
TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
N = 6


def test_every_dual_is_under_its_name_and_has_a_case():
    assert set(DUALS) == {case.name for case in ONE_EACH}
    for case in ONE_EACH:
        dual = build(case, N)
        assert (dual.name, dual.n) == (case.name, N)


@both_dtypes
@every_case
def test_prox_solves_its_problem_on_nasty_inputs(case, dtype):
    n = 40
    steps = [1.0] if case.name in STEPLESS else [1e-12, 1e-2, 1.0, 1e12]
    prox = jax.vmap(build(case, n).prox)
    for step in steps:
        v = nasty(n, dtype)
        answers = np.asarray(prox(jnp.asarray(v), jnp.full(len(v), step, dtype)))
        errors = [prox_error(case, lam, row, step) for lam, row in zip(answers, v, strict=True)]
        assert max(errors) < TOLERANCE[dtype], f"step {step}, row {int(np.argmax(errors))}: {max(errors)}"


scales = st.builds(lambda m, e, s: s * m * 10.0**e, st.floats(1, 10), st.integers(-30, 29), st.sampled_from([1, -1]))
numbers = st.one_of(st.floats(-3, 3), scales, st.just(0.0))
with_ties = st.tuples(st.lists(numbers, min_size=1, max_size=N), st.lists(st.integers(0, N), min_size=N, max_size=N))
vectors = with_ties.map(lambda pool: np.array([pool[0][i % len(pool[0])] for i in pool[1]]))


@pytest.mark.parametrize(
    "dtype",
    few([np.float64], [np.float64, np.float32], "::test_prox_solves_its_problem_on_nasty_inputs"),
    ids=["f64", "f32"],
)
@one_each
@settings(max_examples=40, deadline=None, derandomize=True)
@given(v=vectors, exponent=st.floats(-12, 12))
def test_prox_solves_its_problem_on_any_input(case, dtype, v, exponent):
    v, step = v.astype(dtype), 10.0**exponent
    assert prox_error(case, np.asarray(build(case, N).prox(jnp.asarray(v), step)), v, step) < TOLERANCE[dtype]


@every_case
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.floats(-2, 2))
def test_prox_is_the_minimiser_that_it_says(case, seed, exponent):
    """By the definition alone, and with the growth that strong convexity promises away from the minimiser."""
    dual, step = build(case, N), 10.0**exponent
    v = np.random.default_rng(seed).normal(size=N)
    lam = np.asarray(dual.prox(jnp.asarray(v), step))
    others = feasible(case, N, 40, seed)
    others = np.concatenate([others, lam + 1e-3 * (others - lam)])

    def objective(x):
        return jax.vmap(dual.penalty)(jnp.asarray(x)) + ((x - v) ** 2).sum(1) / (2 * step)

    assert violation(case, lam) < 1e-14
    growth = (1 / step + dual.modulus) / 2 * ((others - lam) ** 2).sum(1)
    here = objective(lam[None])[0]
    assert np.all(objective(others) >= here + growth - 1e-12 * (1 + abs(here) + 1 / step))


@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(c, np.float64, marks=[] if c in ONE_EACH else [MAXIMISER]) for c in CASES]
    + [pytest.param(c, np.float32, marks=[MAXIMISER]) for c in ONE_EACH],
    ids=[f"{c}-f64" for c in CASES] + [f"{c}-f32" for c in ONE_EACH],
)
def test_best_response_is_a_maximiser_and_value_its_maximum(case, dtype):
    """lam is a maximiser if and only if it is the prox of lam + step losses, for any step at all."""
    dual, eps = build(case, N), np.finfo(dtype).eps
    losses = nasty(N, dtype)
    if case.name == "qffl":  # whose best response is a power: not every one is a float
        losses = np.clip(losses, -1e30, 100)
    size = np.abs(losses).max(1)
    step = np.ones_like(size) if case.name == "qffl" else np.clip(1 / np.maximum(size, 1e-12), 0, 1e12)

    def respond(losses, step):
        lam = dual.best_response(losses)
        return lam, dual.value(losses), dual.penalty(lam), dual.prox(lam + step * losses, step)

    answers = jax.vmap(jax.jit(respond))(jnp.asarray(losses), jnp.asarray(step.astype(dtype)))
    lam, values, penalties, again = map(np.asarray, answers)
    assert lam.dtype == values.dtype == penalties.dtype == dtype
    assert np.isfinite(lam).all()
    assert np.isfinite(values).all()
    assert max(violation(case, row) for row in lam) < 100 * eps

    moved = np.abs(again - lam) / (1 + np.abs(lam) + (step * size)[:, None])
    assert moved.max() < 1e3 * eps, f"row {moved.argmax() // N}: {moved.max() / eps} eps"

    terms = losses.astype(np.float64) * lam
    gap = np.abs(values - (terms.sum(1) - penalties))
    assert np.all(gap <= 50 * eps * (1 + np.abs(terms).sum(1) + np.abs(penalties)))


@one_each
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_nobody_does_better_than_the_best_response(case, seed):
    dual = build(case, N)
    losses = np.random.default_rng(seed).normal(size=N)
    others = feasible(case, N, 60, seed)
    attained = others @ losses - np.asarray(jax.vmap(dual.penalty)(jnp.asarray(others)))
    assert attained.max() <= float(dual.value(jnp.asarray(losses))) + 1e-12


@every_case
def test_the_penalty_is_strongly_convex_with_the_stated_modulus(case):
    dual = build(case, N)
    x, y = (jnp.asarray(feasible(case, N, 200, seed)) for seed in (1, 2))
    x = jnp.concatenate([x, y + 1e-2 * (x - y)])
    y = jnp.concatenate([y, y])
    psi = jax.vmap(dual.penalty)
    sag = (psi(x) + psi(y)) / 2 - psi((x + y) / 2)
    size = 1 + np.abs(psi(x)) + np.abs(psi(y))
    assert np.all(sag >= dual.modulus / 8 * jnp.sum((x - y) ** 2, 1) - 1e-14 * size)


@one_each
def test_the_gradient_of_value_is_the_best_response(case):
    dual = build(case, N)
    losses = jnp.asarray([0.3, 1.2, 0.7, 0.1, 1.1, 0.5])
    if case.name == "propfair":
        losses = losses * case.value / 2
    np.testing.assert_array_equal(jax.jit(jax.grad(dual.value))(losses), dual.best_response(losses))
    change = jnp.asarray([0.1, -0.2, 0.3, 0.1, -0.1, 0.2]) * 1e-6 * losses
    slope = float(dual.value(losses + change) - dual.value(losses - change)) / 2
    assert slope == pytest.approx(float(jnp.sum(dual.best_response(losses) * change)), rel=1e-4, abs=1e-13)


@pytest.mark.parametrize(
    "case",
    few(
        [c for c in ONE_EACH if c.name in ("chi2", "tv", "qffl")],
        ONE_EACH,
        "::test_best_response_is_a_maximiser_and_value_its_maximum",
    ),
    ids=str,
)
def test_compiled_plain_and_batched_calls_agree(case):
    dual = build(case, N)
    v, steps = jnp.asarray(np.random.default_rng(0).normal(size=(3, N))), jnp.asarray([0.1, 1.0, 1e3])
    close = {"rtol": 1e-14, "atol": 1e-15}
    alone = [dual.prox(row, step) for row, step in zip(v, steps, strict=True)]
    np.testing.assert_allclose(jax.vmap(dual.prox)(v, steps), alone, **close)
    np.testing.assert_allclose(jax.jit(dual.prox)(v[1], 1.0), alone[1], **close)
    with jax.disable_jit():
        np.testing.assert_allclose(dual.prox(v[1], 1.0), alone[1], **close)
    for operator in (dual.best_response, dual.value):
        np.testing.assert_allclose(jax.vmap(operator)(v), [operator(row) for row in v], **close)


@one_each
def test_nothing_finite_is_answered_by_infinity_or_nan(case):
    dtype = np.float32  # which has the least room
    dual, top = build(case, N), np.finfo(dtype).max
    pool = np.array([0, top, -top, top / 2, np.finfo(dtype).tiny, 1, -1, 1e-30], dtype)
    rows = jnp.asarray(np.concatenate([np.random.default_rng(0).choice(pool, (30, N)), np.tile(pool[:3, None], N)]))
    steps = [1.0] if case.name in STEPLESS else [1e-30, 1e-12, 1.0, 1e12, 1e30]
    for step in steps:
        assert np.isfinite(jax.vmap(dual.prox)(rows, jnp.full(len(rows), step, dtype))).all(), step
    assert np.isfinite(jax.vmap(dual.best_response)(rows)).all()


@simplices
def test_one_client_has_all_the_weight(case):
    dual, dtype = build(case, 1), np.float32
    for v in (-1e30, -1.0, 0.0, 1e-30, 7.0, 1e30):
        v = jnp.full(1, v, dtype)
        np.testing.assert_allclose(dual.prox(v, 0.1), 1, rtol=2 * np.finfo(dtype).eps)
        np.testing.assert_allclose(dual.best_response(v), 1, rtol=2 * np.finfo(dtype).eps)
        np.testing.assert_allclose(dual.value(v), v[0], rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    "case",
    few(
        [c for c in SIMPLICES if c.name in ("agnostic", "chi2", "kl")],
        SIMPLICES,
        "::test_prox_solves_its_problem_on_nasty_inputs",
    ),
    ids=str,
)
def test_weights_of_a_hundred_thousand_clients_are_exact_and_sum_to_one(case):
    n, dtype = 100_000, np.float32  # which has the fewest digits
    dual, rng = build(case, n), np.random.default_rng(0)
    half = rng.random(n) / n  # one client with half of the weight: its digits crowd out the others'
    half[0] = 0.5
    for v in (half, rng.normal(size=n)):
        v = v.astype(dtype)
        lam = np.asarray(dual.prox(jnp.asarray(v), 0.1))
        assert abs(lam.astype(np.longdouble).sum() - 1) < 4 * np.finfo(dtype).eps
        best = np.asarray(dual.best_response(jnp.asarray(v)))
        assert abs(best.astype(np.longdouble).sum() - 1) < 10 * np.finfo(dtype).eps
        assert violation(case, best) < 10 * np.finfo(dtype).eps
    v = half.astype(dtype)
    if case.name not in ("kl", "chi2_ball"):  # whose references take their time
        assert prox_error(case, np.asarray(dual.prox(jnp.asarray(v), 0.1)), v, 0.1) < 4 * np.finfo(dtype).eps


@one_each
def test_relabelled_clients_get_relabelled_weights(case):
    dual = build(case._replace(uneven=False), N)
    order = np.array([3, 0, 5, 1, 4, 2])
    for v in ([0.3, 0.3, 0.1, 0.3, -0.2, 0.1], [0.0] * N, [0.9, 0.1, 0.9, 0.9, 0.1, 0.4]):
        v = jnp.asarray(v)
        for operator in (dual.best_response, lambda x: dual.prox(x, 0.5)):
            np.testing.assert_allclose(operator(v[order]), operator(v)[order], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "case",
    few(
        [c for c in ONE_EACH if c.name in ("agnostic", "chi2", "kl", "qffl", "propfair")],
        ONE_EACH,
        "::test_a_step_in_few_weights_is_the_prox_of_the_sum",
    ),
    ids=str,
)
def test_a_step_in_few_weights_is_the_prox_of_the_sum(case):
    dual, rng = build(case, N), np.random.default_rng(6)
    cohort = Cohort(jnp.asarray([4, 1, 3]), jnp.asarray([True, False, True]))
    lam, change = jnp.asarray(rng.dirichlet(np.ones(N))), jnp.asarray([0.4, 9.0, -0.1])
    moved = lam.at[jnp.asarray([4, 3])].add(jnp.asarray([0.4, -0.1]))
    for of in (dual, cap_weights(dual, 0.5)) if dual.simplex else (dual,):
        step = jax.jit(lambda lam, change, of=of: (of.ascend(lam, cohort, change, 0.3), of.prox(moved, 0.3)))
        np.testing.assert_allclose(*step(lam, change), rtol=0, atol=1e-14)
