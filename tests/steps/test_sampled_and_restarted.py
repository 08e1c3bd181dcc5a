import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data import synthetic
from equipoise.errors import InputError
from equipoise.steps import Constants, auto, restarted, sampled, sharp_linear

CONSTANTS = Constants(L_xx=3.0, mu_x=0.5, L_lx=1.0)
DUAL = eq.objectives.chi2(5, 0.1)


def sizes(rule, rounds):
    state, out = rule.init(jnp.float64), []
    for _ in range(rounds):
        state = rule.next(state)
        out.append(tuple(map(float, state.now)))
    return np.array(out)


def test_restarted_halves_and_lengthens():
    tau, sigma, theta = sizes(restarted(CONSTANTS, DUAL, length=2.0), 400).T
    omega = 1 / (1 - theta)
    first = sizes(sharp_linear(CONSTANTS, DUAL), 1)[0]
    np.testing.assert_allclose((tau[0], sigma[0], theta[0]), first)
    values, lengths = np.unique(np.round(omega, 9), return_counts=True)
    np.testing.assert_allclose(values[1:] / values[:-1], 2)
    np.testing.assert_array_equal(lengths[:-1], np.ceil(2 * values[:-1]))
    np.testing.assert_allclose(tau * 0.5, 1 / omega)
    np.testing.assert_allclose(sigma * DUAL.modulus, 1 / (omega - 1))


def test_sampled_is_where_auto_ends_for_a_coupling_that_much_stronger():
    for share in (1.0, 0.1):
        rule = auto(CONSTANTS._replace(L_lx=1.0 / share), DUAL)
        settled = jax.jit(
            lambda rule=rule: jax.lax.fori_loop(0, 1000, lambda _, s: rule.next(s), rule.init(jnp.float64))
        )().now
        np.testing.assert_allclose(sizes(sampled(CONSTANTS, DUAL, share=share), 1)[0], (*settled[:2], 0))
    with pytest.raises(InputError, match="share of clients in a round is 0"):
        sampled(CONSTANTS, DUAL, share=0)


@pytest.mark.thorough(witness="::test_restarted_halves_and_lengthens")
def test_stochastic_gradients_converge_like_one_over_r():
    """Constant step sizes stay in their noise ball; restarts shrink it: the error halves when the rounds double."""
    data, dual = synthetic.regression(shift=0.3, key=jax.random.key(0)), eq.objectives.chi2(5, 0.5)
    saddle = synthetic.saddle_point(data, mu=0.5, rho=0.5)
    constants = eq.steps.estimate_constants(eq.tasks.ridge(10, 0.5), data, jnp.asarray(saddle.x))
    noisy, everyone = eq.tasks.ridge(10, 0.5, batch=5), eq.cohorts.everyone(5)

    def errors(rule):
        algorithm = eq.algorithms.scaffpd(noisy, dual, everyone, rule, steps=1, local_lr=0.05)
        runs = [
            eq.simulate(
                algorithm,
                jnp.zeros(10),
                data,
                seed,
                rounds=8000,
                record=lambda s: jnp.sum((s.x - jnp.asarray(saddle.x)) ** 2),
            ).history
            for seed in range(2)
        ]
        return [np.mean(runs, axis=0)[r // 2 : r].mean() for r in (500, 2000, 8000)]

    shrinking, still = errors(restarted(constants, dual)), errors(sharp_linear(constants, dual))
    assert shrinking[1] < shrinking[0] / 2.5  # 4 if exactly 1/R
    assert shrinking[2] < shrinking[1] / 2.5
    assert still[2] > 0.8 * still[0]
    assert shrinking[2] < still[2] / 100
