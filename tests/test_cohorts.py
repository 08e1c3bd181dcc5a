import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import cohorts
from equipoise.algorithms import ALGORITHMS
from equipoise.errors import InputError
from tests.problems import few

KEYS = jax.random.split(jax.random.key(0), 4000)


def test_everyone_is_everyone_in_order():
    cohort = cohorts.everyone(4)(jax.random.key(0))
    assert cohort.ids.tolist() == [0, 1, 2, 3]
    assert cohort.present.all()


@pytest.mark.parametrize("record", [r for r in ALGORITHMS.values() if r.takes_dual], ids=lambda record: record.name)
def test_who_has_a_dual_need_not_say_n_again(record):
    task, dual = eq.tasks.ridge(2, mu=0.1), eq.objectives.DUALS[record.only_dual or "chi2"](3, rho=0.1)
    algorithm = record.build_example(task, dual, sample=cohorts.everyone(3))
    rule = {"rule": eq.steps.constant(tau=0.1, sigma=0.1, theta=0.0)} if record.takes_rule else {}
    short = record.build(task, dual, cohorts.everyone(), **{**record.example, **rule})
    assert short.n == algorithm.n == 3


def test_uniform_draws_without_repeats_and_fairly():
    ids = np.asarray(jax.vmap(lambda key: cohorts.uniform(6, 3)(key).ids)(KEYS))
    assert all(len(set(row)) == 3 for row in ids)
    np.testing.assert_allclose(np.bincount(ids.ravel(), minlength=6) / ids.size, 1 / 6, atol=0.01)


def test_uniform_among_many_draws_without_repeats_and_fairly():
    """Few enough values for chance to repeat some in every draw."""
    draw = jax.jit(jax.vmap(lambda key: cohorts._distinct(key, 12, 6)))
    ids = np.asarray(draw(KEYS))
    assert all(len(set(row)) == 6 for row in ids)
    assert ids.min() >= 0
    assert ids.max() < 12
    np.testing.assert_allclose(np.bincount(ids.ravel(), minlength=12) / ids.size, 1 / 12, atol=0.01)
    together = np.mean([(0 in row) and (1 in row) for row in ids])
    assert abs(together - 6 * 5 / (12 * 11)) < 0.02
    np.testing.assert_allclose(np.bincount(ids[:, 5], minlength=12) / len(ids), 1 / 12, atol=0.015)
    cohort = cohorts.uniform(10**6, 300)(jax.random.key(1))
    assert len(set(cohort.ids.tolist())) == 300
    assert cohort.ids.max() < 10**6


def test_by_weight_among_many_never_draws_a_weight_of_zero():
    rng = np.random.default_rng(0)
    lam = rng.random(2000) * (rng.random(2000) < 0.1)
    ids = np.asarray(cohorts.by_weight(50_000)(jax.random.key(0), jnp.asarray(lam)).ids)
    found = np.bincount(ids, minlength=2000) / ids.size
    assert (found[lam == 0] == 0).all()
    np.testing.assert_allclose(found, lam / lam.sum(), atol=0.002)


draw_many = jax.jit(cohorts.by_weight(60_000).draw)


@pytest.mark.parametrize(
    "n",
    few(
        [20_011],
        [1025, 20_011],
        "::test_by_weight_among_many_draws_by_the_weights_in_blocks_of_blocks[20011]",
    ),
)
def test_by_weight_among_many_draws_by_the_weights_in_blocks_of_blocks(n):
    """A chi-square test over groups of clients, few of whom hold weights of very different size."""
    rng = np.random.default_rng(n)
    lam = (rng.random(n) ** 8 * (rng.random(n) < 0.3)).astype(np.float32)
    lam[-1] = lam.sum() / 10
    ids = np.asarray(draw_many(jax.random.key(1), jnp.asarray(lam)).ids)
    assert (lam[ids] > 0).all()
    groups = rng.permutation(n) % 20
    found, due = np.bincount(groups[ids], minlength=20), np.bincount(groups, lam, 20) / lam.sum() * ids.size
    assert ((found - due) ** 2 / due).sum() < 45  # 19 degrees of freedom: once in a thousand seeds
    heavy = lam > 0.5
    np.testing.assert_allclose(np.bincount(ids, minlength=n)[-1] / ids.size, 1 / 11, atol=0.006)
    assert len(set(ids[heavy[ids]])) > 0.9 * heavy.sum()


def test_by_weight_never_draws_a_weight_of_zero_that_rounding_gives_a_share():
    """Sums of tenths in single precision are not the same in every order."""
    lam = np.where(np.arange(900) % 3 == 0, np.float32(0.1), np.float32(0))
    ids = np.asarray(draw_many(jax.random.key(2), jnp.asarray(lam)).ids)
    assert (ids % 3 == 0).all()
    assert len(set(ids.tolist())) == 300
    alone = np.zeros(20_011, np.float32)
    alone[20_007] = 1e-30
    assert set(np.asarray(draw_many(jax.random.key(3), jnp.asarray(alone)).ids).tolist()) == {20_007}


def test_coin_among_many_asks_each_with_the_same_probability():
    sample = cohorts.coin(4000, 0.01)
    assert sample.m < 400
    ids, present = jax.jit(jax.vmap(sample.draw, (0, None)))(KEYS, None)
    sizes = np.asarray(present).sum(axis=1)
    assert abs(sizes.mean() - 40) < 0.4
    assert abs(sizes.var() - 4000 * 0.01 * 0.99) < 4
    asked = np.asarray(ids)[np.asarray(present)]
    tenths = np.bincount(asked // 400, minlength=10) / asked.size
    np.testing.assert_allclose(tenths, 0.1, atol=0.004)
    assert all(len(set(i[p])) == p.sum() for i, p in zip(np.asarray(ids[:50]), np.asarray(present[:50]), strict=True))


def test_by_weight_draws_with_replacement_by_the_weights():
    lam = jnp.array([0.5, 0.0, 0.3, 0.2])
    ids = np.asarray(jax.vmap(lambda key: cohorts.by_weight(3)(key, lam).ids)(KEYS))
    counts = np.bincount(ids.ravel(), minlength=4)
    assert counts[1] == 0  # a client without weight is never asked
    np.testing.assert_allclose(counts / ids.size, lam, atol=0.015)
    assert any(len(set(row)) < 3 for row in ids)


def test_by_weight_takes_weights_that_do_not_sum_to_one():
    lam = jnp.array([5.0, 0.0, 3.0, 2.0])
    ids = np.asarray(jax.vmap(lambda key: cohorts.by_weight(3)(key, lam).ids)(KEYS))
    np.testing.assert_allclose(np.bincount(ids.ravel(), minlength=4) / ids.size, lam / 10, atol=0.015)


def test_coin_has_a_varying_size():
    present = np.asarray(jax.vmap(lambda key: cohorts.coin(5, 0.3)(key).present)(KEYS))
    np.testing.assert_allclose(present.mean(axis=0), 0.3, atol=0.03)
    assert present.shape == (4000, 5)
    assert len(set(present.sum(axis=1))) > 3


def test_put_add_and_mark_touch_present_rows_only():
    cohort = cohorts.Cohort(jnp.array([2, 0]), jnp.array([True, False]))
    assert cohort.put(jnp.ones(3), jnp.array([5.0, 7.0])).tolist() == [1, 1, 5]
    assert cohort.add(jnp.ones(3), jnp.array([5.0, 7.0])).tolist() == [1, 1, 6]
    assert cohort.mark(3).tolist() == [False, False, True]


def test_share_rescales_to_those_present():
    cohort = cohorts.Cohort(jnp.array([2, 0, 1]), jnp.array([True, False, True]))
    np.testing.assert_allclose(cohort.share(jnp.array([0.5, 0.3, 0.2])), [0.4, 0, 0.6])
    nobody = cohort._replace(present=jnp.zeros(3, bool))
    assert nobody.share(jnp.array([0.5, 0.3, 0.2])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cohorts.everyone(0), "0 clients cannot make a federation"),
        (lambda: cohorts.uniform(4, 5), "a cohort of 5 out of 4 clients .* give 1 <= m <= 4"),
        (lambda: cohorts.uniform(4, 0), "give 1 <= m <= 4"),
        (lambda: cohorts.by_weight(0), "give m >= 1"),
        (lambda: cohorts.coin(4, 1.5), "give 0 < p <= 1"),
        (lambda: cohorts.by_weight(2)(jax.random.key(0)), "this algorithm has none"),
        (
            lambda: eq.algorithms.scaffold(eq.tasks.ridge(2, mu=0.1), cohorts.everyone(), steps=1, local_lr=0.1),
            "does not say how many clients there are, .* give everyone\\(n\\)",
        ),
    ],
)
def test_says_what_is_wrong(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
