"""The memory of directions on quadratics, where every image is known: H_i D."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.algorithms.server_model import directions
from equipoise.engines import kernel
from tests.problems import build, start, unequal

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


# No batch of matrices goes to LAPACK on a CPU: with a device per core JAX's threads would wait for each other, which
# was found with 1,000 clients on two cores.


def test_a_routine_for_each_client_is_that_of_the_batch():
    a, b = jnp.asarray(MATRICES @ MATRICES.swapaxes(1, 2)), jnp.asarray(MATRICES[:, 0])
    values, vectors = directions.for_each(jnp.linalg.eigh, a)
    np.testing.assert_allclose(values, np.linalg.eigh(a)[0], atol=1e-12)
    np.testing.assert_allclose(jnp.einsum("nij,nj,nkj->nik", vectors, values, vectors), a, atol=1e-12)
    np.testing.assert_allclose(
        directions.for_each(jnp.linalg.solve, a, b), np.linalg.solve(a, b[..., None])[..., 0], rtol=1e-9
    )


def batches(program):
    """The calls of LAPACK whose arrays have more than two axes with more than one entry."""
    calls = [line for line in program.as_text().splitlines() if "lapack" in line]
    found = [shape for line in calls for shape in re.findall(r"tensor<([\dx]+)xf64>", line)]
    shapes = [[int(n) for n in shape.split("x")] for shape in found]
    return len(calls), [shape for shape in shapes if sum(n > 1 for n in shape) > 2]


def test_no_batch_goes_to_lapack():
    calls, found = batches(jax.jit(jnp.linalg.eigh).lower(jnp.asarray(MATRICES)))
    assert calls
    assert found  # so that a batch would be seen
    algorithm, data = build("scaffpd_model"), unequal()

    def round(state, data):
        return kernel.step(algorithm, state, kernel.prepare(algorithm, data), jax.random.key(0))

    calls, found = batches(jax.jit(round).lower(kernel.init(algorithm, start()), data))
    assert calls
    assert found == []
