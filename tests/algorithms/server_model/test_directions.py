"""The memory of directions on quadratics, where every image is known: H_i D."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.algorithms.server_model import directions

N, K, D = 3, 3, 6
HEARD = np.ones(N, bool)
MATRICES = np.random.default_rng(0).normal(size=(6, 3, 3))


def hessians(seed=0):
    B = np.random.default_rng(seed).normal(size=(N, D, D))
    return B @ B.transpose(0, 2, 1) / D + 0.1 * np.eye(D)


@jax.jit
def moved(memory, s, coordinates, change, here, clean, since):
    found = directions.difference(
        memory, s, coordinates, change, here, clean, since, jnp.zeros(N), jnp.where(clean, 1.0, 0.0), jnp.float64(1)
    )
    return found, directions.renewed(found, s, coordinates, jnp.array(False), jnp.float64(1e-6))


def after_moves(count, H, here=HEARD):
    """The memory after random moves, at both ends of which clients `here` were heard."""
    rng = np.random.default_rng(1)
    memory = directions.empty(N, K, D, float)
    for _ in range(count):
        coordinates = np.where(memory.used, rng.normal(size=K), 0)
        s = coordinates @ memory.D + rng.normal(size=D)
        _, memory = moved(memory, s, coordinates, H @ s, here, here, np.full((N, D), np.inf))
    return memory


@pytest.mark.parametrize("count", [1, 3, 7])
def test_images_of_those_who_were_heard_are_exact_also_where_old_directions_become_one(count):
    H = hessians()
    memory = after_moves(count, H)
    used = min(count, K)
    assert memory.used.tolist() == [True] * used + [False] * (K - used)
    np.testing.assert_allclose(memory.D @ memory.D.T, np.diag(memory.used.astype(float)), atol=1e-12)
    np.testing.assert_allclose(memory.Y, memory.D @ H, atol=1e-10)
    np.testing.assert_allclose(memory.U, 0, atol=1e-20)
    inside = directions.within(memory, jnp.float64(1e-12))[:, :used, :used]
    np.testing.assert_allclose(inside, (memory.D @ H @ memory.D.T)[:, :used, :used], atol=1e-10)
    np.testing.assert_allclose(directions.cautious(memory, inside_all(memory)), inside_all(memory), atol=1e-12)


def inside_all(memory):
    return directions.within(memory, jnp.float64(1e-12))


def test_one_who_was_not_heard_is_taken_for_the_mean_of_the_others_and_is_uncertain():
    H, here = hessians(), np.array([True, True, False])
    memory = after_moves(1, H, here)
    np.testing.assert_allclose(memory.Y[2], memory.Y[:2].mean(0), atol=1e-12)
    assert memory.U[2, 0, 0] == pytest.approx(1)
    A = inside_all(memory)
    assert directions.cautious(memory, A)[2, 0, 0] == pytest.approx(2 * A[2, 0, 0])


def test_what_it_says_later_makes_its_images_right():
    """One move in D that nobody knew the image of is corrected whole, and becomes as certain as the others."""
    H, here = hessians(), np.array([True, True, False])
    memory = after_moves(1, H, here)
    since = np.zeros((N, D))
    since[2] = 0.7 * memory.D[0]  # where it was last heard, seen from here
    estimate = np.asarray(memory.Y[2, 0]) * 0.7
    surprise = np.zeros((N, D))
    surprise[2] = H[2] @ since[2] - estimate
    after = directions.corrected(memory, surprise, ~here, since, jnp.zeros(N))
    np.testing.assert_allclose(after.Y[2, 0], H[2] @ memory.D[0], atol=1e-12)
    np.testing.assert_allclose(after.U, 0, atol=1e-15)
    np.testing.assert_allclose(after.Y[:2], memory.Y[:2])


def test_a_move_along_old_directions_adds_none():
    H = hessians()
    memory = after_moves(2, H)
    coordinates = np.array([0.3, -1.0, 0.0])
    s = coordinates @ memory.D
    _, after = moved(memory, s, coordinates, H @ s, HEARD, HEARD, np.full((N, D), np.inf))
    assert after.used.tolist() == [True, True, False]
    np.testing.assert_allclose(after.Y, after.D @ H, atol=1e-10)
