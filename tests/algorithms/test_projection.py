import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import clip_gradients, project_updates
from equipoise.algorithms.messages import LossAndGradient
from equipoise.data import synthetic
from equipoise.errors import InputError
from equipoise.protocol import Replies
from tests.problems import assert_same, build, few

N, D = 4, 3
DATA = synthetic.regression(n=N, dim=D, samples=20, shift=1.0, key=jax.random.key(0))
SADDLE, WEIGHTS = synthetic.saddle_point(DATA, rho=0.5)[:2]
LIAR = int(np.argmax(WEIGHTS))  # whose word counts for most
RULE = eq.steps.constant(tau=0.25, sigma=0.3, theta=0.0)
PLAIN = eq.algorithms.scaffpd(
    eq.tasks.ridge(D), eq.objectives.chi2(N, 0.5), eq.cohorts.everyone(N), RULE, steps=5, local_lr=0.05
)
LIES = {
    "flipped": lambda value, key: -5 * value,
    "boosted": lambda value, key: 100 * value,
    "random": lambda value, key: 10 * jax.random.normal(key, value.shape),
}


def with_liar(lie):
    """PLAIN, in which one client, known by its data, sends a false update."""
    honest, energy = PLAIN.round[1], PLAIN.prepare(DATA.client(LIAR)).energy

    def work(message, mine, data, key):
        mine, reply = honest.work(message, mine, data, key)
        said = reply.total.value
        value = jnp.where(jnp.isclose(data.energy, energy), LIES[lie](said, key), said)
        return mine, reply._replace(total=reply.total._replace(value=value))

    return PLAIN._replace(round=(PLAIN.round[0], honest._replace(work=work)))


def end(algorithm, rounds=600, **how):
    return eq.simulate(algorithm, jnp.zeros(D), DATA, 0, rounds=rounds, **how)


@pytest.mark.parametrize("quadratic", few([True], [True, False], "::test_honest_runs_stay_as_they_are[True]"))
def test_honest_runs_stay_as_they_are(quadratic):
    def some(round, exchange, ids):
        return jnp.asarray(ids) == round % N

    runs = [end(a, 12, record=lambda s: s, lost=some) for a in (PLAIN, project_updates(PLAIN, quadratic=quadratic))]
    assert_same(runs[0].history, runs[1].history, rtol=1e-11)


@pytest.mark.parametrize("lie", few(["flipped"], LIES, "::test_a_liar_cannot_move_the_saddle_point[flipped]"))
def test_a_liar_cannot_move_the_saddle_point(lie):
    trusted = end(with_liar(lie), rounds=40).server.x
    assert np.abs(np.asarray(trusted) - SADDLE).max() > 0.1
    assert_same(end(project_updates(with_liar(lie), quadratic=True)).server.x, SADDLE, rtol=0, atol=1e-8)


def test_the_ball_of_convex_losses_holds_a_light_liar():
    assert_same(end(project_updates(with_liar("boosted"), quadratic=False)).server.x, SADDLE, rtol=0, atol=1e-8)


def test_gradients_are_clipped_at_a_multiple_of_the_median():
    collect, _ = clip_gradients(project_updates(PLAIN, quadratic=True), factor=2.0).round
    server, cohort = collect.open(PLAIN.init(jnp.zeros(D)), jax.random.key(0))
    gradient = jnp.asarray(np.diag([1.0, 1.0, 1.0, 0.0])[:, :3]).at[3].set(jnp.array([0.0, 0.0, 50.0]))
    each = LossAndGradient(jnp.ones(N), gradient)
    c = collect.close(server, Replies(None, each, cohort)).c
    assert_same(c, np.array([1, 1, 3]) / N)  # the last one counts as two


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="not for scaffpd_secure"):
        project_updates(build("scaffpd_secure"), quadratic=True)
    with pytest.raises(InputError, match=r"factor is 0\.5; give at least 1, how many times the median"):
        clip_gradients(PLAIN, factor=0.5)
