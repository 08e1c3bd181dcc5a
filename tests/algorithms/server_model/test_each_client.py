"""No batch of matrices goes to LAPACK on a CPU: with a device per core JAX's threads would wait for each other.

Found with 1,000 clients on two cores.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.algorithms.server_model.each_client import for_each
from equipoise.engines import kernel
from tests.problems import build, start, unequal

MATRICES = np.random.default_rng(0).normal(size=(6, 3, 3))


def test_it_is_the_batch():
    a, b = jnp.asarray(MATRICES @ MATRICES.swapaxes(1, 2)), jnp.asarray(MATRICES[:, 0])
    values, vectors = for_each(jnp.linalg.eigh, a)
    np.testing.assert_allclose(values, np.linalg.eigh(a)[0], atol=1e-12)
    np.testing.assert_allclose(jnp.einsum("nij,nj,nkj->nik", vectors, values, vectors), a, atol=1e-12)
    np.testing.assert_allclose(for_each(jnp.linalg.solve, a, b), np.linalg.solve(a, b[..., None])[..., 0], rtol=1e-9)


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
