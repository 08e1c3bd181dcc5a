"""Losses that are given by their Hessian, as in the SCAFFOLD paper's simulations."""

import jax.numpy as jnp

from equipoise import local
from equipoise.data.shards import Shards
from equipoise.errors import require
from equipoise.protocol import RandomKey, Vector
from equipoise.tasks.task import Scalar, Task


def quadratic(dim: int) -> Task:
    """f_i(x) = 1/2 x' H_i x - b_i' x, as in SCAFFOLD's Section 7.2: a client's inputs are [H_i], its labels [b_i]."""

    def loss(x: Vector, shard: Shards, key: RandomKey | None = None) -> Scalar:
        return x @ (shard.inputs[0] @ x) / 2 - shard.labels[0] @ x

    def grad(x: Vector, shard: Shards, key: RandomKey | None = None) -> Vector:
        return shard.inputs[0] @ x - shard.labels[0]

    def prepare(shard: Shards) -> Shards:
        require(
            shard.inputs.shape[1:] == (dim, dim),
            f"the task is for {dim} x {dim} Hessians but a client's has shape {shard.inputs.shape[1:]}",
        )
        return shard

    return Task("quadratic", dim, loss, grad, local.descent(grad), lambda key: jnp.zeros(dim), None, prepare)
