"""Whom a round of few clients asks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.algorithms.server_model import state
from equipoise.algorithms.server_model.sampling import clients_to_hear, heaviest

N = 12


def server(known=(0, 1, 2), age=None):
    rng = np.random.default_rng(0)
    lam = np.arange(N, dtype=float) / np.arange(N).sum()
    whole = state.initial(jnp.zeros(3), N, 2)
    centre = whole.centre._replace(heard_here=jnp.asarray(np.isin(np.arange(N), known)))
    age = rng.integers(0, 5, N).astype(float) if age is None else age
    return whole._replace(centre=centre, lam=jnp.asarray(lam), age=jnp.asarray(age))


@pytest.mark.parametrize("m", [1, 2, 4, 7, 11])
def test_as_many_as_asked_for_and_some_who_were_heard_at_the_centre(m):
    ask = jax.jit(lambda key: clients_to_hear(server(), key, m))
    for seed in range(20):
        picked = np.asarray(ask(jax.random.key(seed)))
        assert picked.sum() == m
        assert picked[:3].sum() >= min(-(-m // 4), 3)


def test_who_has_not_been_heard_for_long_is_drawn_more_often():
    age = np.where(np.arange(N) == 3, 9.0, 0.0)  # a client of little weight
    ask = jax.jit(lambda key: clients_to_hear(server(age=age), key, 4))
    drawn = np.mean([np.asarray(ask(jax.random.key(seed))) for seed in range(200)], axis=0)
    others = np.delete(drawn[3:9], 0)
    assert drawn[3] > 0.7 > 0.3 > others.max()


def test_the_heaviest_take_local_steps():
    assert np.asarray(heaviest(server(), 3)).tolist() == [11, 10, 9]
