"""Exact local steps of least squares through Gram matrices against the plain loop over the data, in both regimes."""

import jax.numpy as jnp
import numpy as np

import equipoise as eq
from benchmarks.timing import Row

STEPS = 10


def rounds_of(task: eq.tasks.Task, shards: eq.data.Shards, rounds: int) -> float:
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(shards.n), steps=STEPS, local_lr=0.1)
    result = eq.simulate(algorithm, jnp.zeros(task.size, jnp.float32), shards, 0, rounds=rounds)
    return result.seconds / rounds


def compare(n: int, samples: int, features: int, outputs: int) -> list[Row]:
    rng = np.random.default_rng(0)
    inputs = (rng.normal(size=(n, samples, features)) / np.sqrt(features)).astype(np.float32)
    labels = rng.integers(0, outputs, (n, samples)).astype(np.int32)
    shards = eq.data.Shards(jnp.asarray(inputs), jnp.asarray(labels), jnp.full(n, samples, jnp.int32))
    task = eq.tasks.least_squares(features, outputs)
    plain = task._replace(prepare=lambda shard: shard)  # the same task, its shards left as they are
    return [
        Row(f"Gram matrices ({n} clients, {samples} x {features}, {outputs} outputs)", rounds_of(task, shards, 10)),
        Row("plain loop over the data", rounds_of(plain, shards, 2)),
    ]


def more_examples_than_features() -> list[Row]:
    return compare(20, 5000, 256, 200)


def more_features_than_examples() -> list[Row]:
    return compare(20, 200, 5000, 20)
