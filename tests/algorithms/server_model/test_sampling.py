"""Whom a round of few clients asks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.algorithms.server_model import state
from equipoise.algorithms.server_model.sampling import clients_to_hear, to_correct
from equipoise.objectives import chi2

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


def corrected(m, **changes):
    """Whom an `improve` of m asks; clients 0, 1 and 2 were heard at the centre, all of them somewhere."""
    whole = server()
    centre = whole.centre._replace(heard=jnp.ones(N, bool))._replace(**changes)
    whole = whole._replace(centre=centre)
    return sorted(np.asarray(jax.jit(lambda: to_correct(whole, chi2(N, 0.1), m))()).tolist())


def test_the_heaviest_take_local_steps():
    assert corrected(3) == [9, 10, 11]


def test_and_those_whose_estimates_could_be_most_wrong():
    """Client 4 was last heard far from the centre, client 1 as far, but it was heard at the centre since."""
    anchor = np.zeros((N, 3))
    anchor[[1, 4]] = 5.0
    assert corrected(4, anchor=jnp.asarray(anchor)) == [4, 9, 10, 11]
    assert corrected(1, anchor=jnp.asarray(anchor)) == [11]


def test_and_those_never_heard():
    heard = np.arange(N) != 3
    assert corrected(4, heard=jnp.asarray(heard)) == [3, 9, 10, 11]
