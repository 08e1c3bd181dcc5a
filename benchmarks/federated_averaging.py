"""Softmax regression, 784 features, 10 classes, 100 clients of 600 samples, 20 per round, 25 steps of batch 120.

The shape of SPEED.md's first workload, on random data: the arithmetic does not depend on the values.
"""

import jax.numpy as jnp
import numpy as np

import equipoise as eq
from benchmarks.numpy_averaging import (
    BATCH,
    CLASSES,
    CLIENTS,
    COHORT,
    FEATURES,
    LR,
    SAMPLES,
    STEPS,
    make_data,
    numpy_round,
)
from benchmarks.timing import Row, timed

ROUNDS = 40


def run() -> list[Row]:
    rng = np.random.default_rng(0)
    inputs, labels = make_data(rng)
    shards = eq.data.Shards(jnp.asarray(inputs), jnp.asarray(labels), jnp.full(CLIENTS, SAMPLES, jnp.int32))
    task = eq.tasks.softmax_regression(FEATURES, CLASSES, batch=BATCH)
    sample = eq.cohorts.uniform(CLIENTS, COHORT)
    x0 = jnp.zeros(task.size, jnp.float32)
    rows = []
    for algorithm in (
        eq.algorithms.fedavg(task, sample, steps=STEPS, local_lr=LR),
        eq.algorithms.scaffold(task, sample, steps=STEPS, local_lr=LR),
    ):
        first = timed(lambda algorithm=algorithm: eq.simulate(algorithm, x0, shards, 0, rounds=ROUNDS))
        runs = [eq.simulate(algorithm, x0, shards, 0, rounds=ROUNDS).seconds / ROUNDS for _ in range(3)]
        rows.append(Row(f"equipoise, compiled, {algorithm.name}", sorted(runs)[1], first))
        if algorithm.name == "fedavg":
            one = [eq.simulate(algorithm, x0, shards, 0, rounds=ROUNDS, devices=1).seconds / ROUNDS for _ in range(3)]
            slow = timed(lambda algorithm=algorithm: eq.debug(algorithm, x0, shards, 0, rounds=2)) / 2
            rows.append(Row("equipoise, compiled, fedavg, one core", sorted(one)[1]))
    w, b = np.zeros((CLASSES, FEATURES), np.float32), np.zeros(CLASSES, np.float32)
    times = [timed(lambda: numpy_round(w, b, inputs, labels, rng)) for _ in range(15)]
    plain = sorted(times)[len(times) // 2]
    rows.append(Row("NumPy loop, fedavg", plain, plain * ROUNDS))
    rows.append(Row("equipoise, debug engine, fedavg", slow, slow * ROUNDS))
    return rows
