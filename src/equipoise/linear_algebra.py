"""Routines of linear algebra on matrices [..., n, n], by themselves or under `vmap`, that never make a program stop.

On a CPU JAX 0.10 cuts a batch of matrices into pieces, hands them to the threads that programs run on, and waits for
them on such a thread. Where a program has as many batches at the same time as there are threads, all threads wait and
none is left that works: it stands still for ever, on two cores often. (JAX 0.11.2 does not cut them.) So only batches
too small to be cut are given at once, larger ones in pieces of that size, one after the other.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

AT_ONCE = 1 << 15  # n^3 of all matrices together: a quarter of the smallest batch that was seen to be cut

Matrices = Float[Array, "*batch n n"]
Vectors = Float[Array, "*batch n"]


def _in_pieces(routine: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`routine` takes arrays with the same leading axes, the first of them square matrices."""

    def run(*arrays: Array) -> PyTree:
        *batch, n, _ = arrays[0].shape
        if math.prod(batch) == 1 or math.prod(batch) * n**3 <= AT_ONCE:
            return routine(*arrays)
        length = AT_ONCE // (math.prod(batch[1:]) * n**3)

        def on_cpu(*arrays: Array) -> PyTree:
            return jax.lax.map(lambda each: whole(*each), arrays, batch_size=length if length > 1 else None)

        return jax.lax.platform_dependent(*arrays, cpu=on_cpu, default=routine)

    whole = jax.custom_batching.custom_vmap(run)

    @whole.def_vmap
    def batched(size: int, in_batch: list[bool], *arrays: Array) -> tuple[PyTree, PyTree]:
        stacked = [
            a if leads else jnp.broadcast_to(a, (size, *a.shape)) for a, leads in zip(arrays, in_batch, strict=True)
        ]
        result = whole(*stacked)
        return result, jax.tree.map(lambda _: True, result)

    return whole


# The lower factor of a symmetric positive definite H, of which the lower half is read; NaN for another.
cholesky: Callable[[Matrices], Matrices] = _in_pieces(lambda H: jax.lax.linalg.cholesky(H, symmetrize_input=False))
# Eigenvalues, ascending, of a symmetric H; and its eigenvectors.
eigvalsh: Callable[[Matrices], Vectors] = _in_pieces(jnp.linalg.eigvalsh)
eigh: Callable[[Matrices], tuple[Vectors, Matrices]] = _in_pieces(lambda H: tuple(jnp.linalg.eigh(H)))
inverse: Callable[[Matrices], Matrices] = _in_pieces(jnp.linalg.inv)
_solve = _in_pieces(jnp.linalg.solve)


def solve(A: Matrices, b: Vectors) -> Vectors:
    """A^-1 b."""
    return _solve(A, b[..., None])[..., 0]


def solve_positive(H: Matrices, b: Vectors) -> Vectors:
    """H^-1 b of a symmetric positive definite H; derivatives flow through b, and not through H."""
    return solve_factored(cholesky(jax.lax.stop_gradient(H)), b)


def solve_factored(root: Matrices, b: Vectors) -> Vectors:
    """H^-1 b by the Cholesky factor of H."""
    half = jax.lax.linalg.triangular_solve(root, b[..., None], left_side=True, lower=True)
    return jax.lax.linalg.triangular_solve(root, half, left_side=True, lower=True, transpose_a=True)[..., 0]
