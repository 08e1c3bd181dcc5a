"""Routines of linear algebra, and that none of them makes a program stand still."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import equipoise as eq
from equipoise import linear_algebra
from equipoise.engines import kernel
from tests.problems import few

ROUTINES = {
    "cholesky": (linear_algebra.cholesky, np.linalg.cholesky),
    "eigvalsh": (linear_algebra.eigvalsh, np.linalg.eigvalsh),
    "inverse": (linear_algebra.inverse, np.linalg.inv),
    "solve": (lambda a: linear_algebra.solve(a, a[..., 0] + 1), lambda a: np.linalg.solve(a, a[..., :1] + 1)[..., 0]),
    "solve_positive": (
        lambda a: linear_algebra.solve_positive(a, a[..., 0] + 1),
        lambda a: np.linalg.solve(a, a[..., :1] + 1)[..., 0],
    ),
}
LARGE = 33  # two such matrices are more than is given at once


def positive(*shape):
    a = np.random.default_rng(0).normal(size=(*shape, shape[-1]))
    return a @ a.swapaxes(-1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize(
    "shape",
    few(
        [(2, 3, 4), (2, 2, LARGE)],
        [(3,), (2, 3, 4), (3, LARGE), (2, 2, LARGE)],
        "::test_as_numpy_has_it_whatever_the_batch",
    ),
)
def test_as_numpy_has_it_whatever_the_batch(name, shape):
    ours, numpys = ROUTINES[name]
    a = positive(*shape)
    mapped = ours
    for _ in shape[1:]:
        mapped = jax.vmap(mapped)
    for routine in (ours, mapped):
        np.testing.assert_allclose(jax.jit(routine)(a), numpys(a), rtol=1e-9, atol=1e-11)


def test_eigenvectors():
    a = jnp.asarray(positive(3, LARGE))
    values, vectors = jax.jit(jax.vmap(linear_algebra.eigh))(a)
    np.testing.assert_allclose(jnp.einsum("nij,nj,nkj->nik", vectors, values, vectors), a, atol=1e-9)


def test_one_matrix_for_many_right_sides():
    a, b = positive(4), np.arange(12.0).reshape(3, 4)
    solved = jax.vmap(linear_algebra.solve, in_axes=(None, 0))(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(solved, np.linalg.solve(a, b.T).T, rtol=1e-9)


def test_derivatives_flow_through_the_right_side():
    a = jnp.asarray(positive(3, 4))
    check_grads(lambda b: jax.vmap(linear_algebra.solve_positive)(a, b), (jnp.ones((3, 4)),), 1, atol=1e-6, rtol=1e-6)


def batches(program):
    """The calls of LAPACK, and the shapes of those on more matrices than are given at once."""
    calls = [line for line in program.as_text().splitlines() if "lapack" in line]
    shapes = [
        [int(n) for n in shape.split("x")] for line in calls for shape in re.findall(r"tensor<([\dx]+)xf64>", line)
    ]
    large = [
        shape
        for shape in shapes
        if len(shape) > 2 and np.prod(shape[:-2]) > 1 and np.prod(shape) * shape[-1] > linear_algebra.AT_ONCE
    ]
    return len(calls), large


def test_no_large_batch_goes_to_lapack():
    a = jnp.asarray(positive(3, LARGE))
    calls, large = batches(jax.jit(jnp.linalg.cholesky).lower(a))
    assert calls
    assert large  # so that a batch would be seen
    calls, large = batches(jax.jit(jax.vmap(linear_algebra.cholesky)).lower(a))
    assert calls
    assert large == []


def test_a_round_of_the_model_gives_lapack_no_large_batch():
    n, d = 300, 6  # so many clients that their curvatures, 5 x 5 each, are more than is given at once
    data = eq.data.Shards(jnp.ones((n, 2, d)), jnp.ones((n, 2)), jnp.full(n, 2))
    algorithm = eq.algorithms.scaffpd_model(
        eq.tasks.ridge(d, mu=0.1), eq.objectives.chi2(n, 0.1), eq.cohorts.everyone(n), steps=2
    )

    def round(state, data):
        return kernel.step(algorithm, state, kernel.prepare(algorithm, data), jax.random.key(0))

    calls, large = batches(jax.jit(round).lower(kernel.init(algorithm, jnp.zeros(d)), data))
    assert calls
    assert large == []


STANDS_STILL = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import jax, jax.numpy as jnp
from equipoise.linear_algebra import cholesky
several = [jnp.stack([jnp.eye(100) * (i + 1)] * 6) for i in range(6)]
program = jax.jit(lambda several: [jax.vmap(cholesky)(H) for H in several])
for _ in range(30):
    jax.block_until_ready(program(several))
"""


def test_several_batches_at_once_do_not_stop_two_cores():
    """With `jnp.linalg.cholesky` in its place JAX 0.10 never ends this, nor `equipoise compare adult` on two cores."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", STANDS_STILL], env=environment, check=True)
