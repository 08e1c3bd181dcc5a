"""What every engine checks before the first round, in sentences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.errors import require
from equipoise.protocol import Algorithm, Vector


def check_start(algorithm: Algorithm, x: Vector, rounds: int) -> None:
    require(rounds >= 0, f"{rounds} rounds cannot be run; give zero or more")
    require(
        jnp.shape(x) == (algorithm.size,),
        f"the start has shape {jnp.shape(x)} but the task has {algorithm.size} parameters; "
        f"give a flat vector of {algorithm.size}",
    )
    require(
        jnp.issubdtype(jnp.result_type(x), jnp.floating),
        f"the start is of type {jnp.result_type(x)}; give float32 or float64",
    )
    require(bool(jnp.all(jnp.isfinite(x))), "the start has NaN or infinite entries; give finite ones")


def check_run(algorithm: Algorithm, x: Vector, data: Any, rounds: int, clients_per_batch: int | None) -> None:
    check_start(algorithm, x, rounds)
    require(
        clients_per_batch is None or clients_per_batch >= 1,
        f"clients_per_batch is {clients_per_batch}; give at least 1, or None to let the engine choose",
    )
    require(
        data.n == algorithm.n,
        f"the data has {data.n} clients but {algorithm.name} was built for {algorithm.n}; "
        "build the dual and the cohorts for the data's number of clients",
    )
    sizes = np.asarray(data.sizes)
    require(
        (sizes > 0).all(),
        f"client {int(np.argmin(sizes))} has no examples; leave it out or give it at least one",
    )
    shard = jax.eval_shape(data.client, 0)  # a pool may store another type than its clients see
    for name in ("inputs", "labels"):
        values, seen = getattr(data, name), getattr(shard, name).dtype
        if jnp.issubdtype(seen, jnp.floating):
            require(
                seen == x.dtype,
                f"the {name} are {seen} and the start is {x.dtype}; give both the same precision",
            )
        if jnp.issubdtype(values.dtype, jnp.floating):
            require(
                bool(all_finite(values)),
                f"the {name} have NaN or infinite entries; clean them or leave those rows out",
            )


@jax.jit
def all_finite(values: jax.Array) -> jax.Array:
    return jnp.isfinite(jnp.sum(jnp.abs(values))) | jnp.all(jnp.isfinite(values))
