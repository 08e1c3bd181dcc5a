"""A short run from the start of its process to its end: `python -m benchmarks.whole_process`.

50 rounds of federated averaging (`numpy_averaging.py` has the sizes), by Equipoise with programs on disk and by
a NumPy loop, one process each, in turn. The whole process is timed: imports, data, compilation or its cache, rounds.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS, REPEATS = 50, 5


def by_numpy() -> None:
    import numpy as np

    from benchmarks.numpy_averaging import CLASSES, FEATURES, make_data, numpy_round

    rng = np.random.default_rng(0)
    inputs, labels = make_data(rng)
    w, b = np.zeros((CLASSES, FEATURES), np.float32), np.zeros(CLASSES, np.float32)
    for _ in range(ROUNDS):
        w, b = numpy_round(w, b, inputs, labels, rng)


def by_equipoise() -> None:
    import numpy as np

    import equipoise as eq
    from benchmarks.numpy_averaging import BATCH, CLASSES, CLIENTS, COHORT, FEATURES, LR, SAMPLES, STEPS, make_data

    eq.use_all_cores()
    inputs, labels = make_data(np.random.default_rng(0))
    shards = eq.data.Shards(inputs, labels, np.full(CLIENTS, SAMPLES, np.int32))
    task = eq.tasks.softmax_regression(FEATURES, CLASSES, batch=BATCH)
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.uniform(CLIENTS, COHORT), steps=STEPS, local_lr=LR)
    eq.simulate(algorithm, np.zeros(task.size, np.float32), shards, 0, rounds=ROUNDS)


WAYS = {"numpy": by_numpy, "equipoise": by_equipoise}


def seconds(way: str, cache: str) -> tuple[float, float]:
    """By the clock, and of the processor."""
    kept = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    before, clock = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "benchmarks.whole_process", way], check=True, env={**os.environ, **kept})
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - clock, used


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        first = seconds("equipoise", cache)[0]
        found = [(seconds("equipoise", cache), seconds("numpy", cache)) for _ in range(REPEATS)]
    ours, theirs = ([statistics.median(pair[k][j] for pair in found) for j in (0, 1)] for k in (0, 1))
    print(f"load {os.getloadavg()[0]:.1f}, {ROUNDS} rounds, median of {REPEATS} processes: wall s (CPU s)")
    print(f"equipoise, programs on disk  {ours[0]:.2f} ({ours[1]:.2f})    the first time {first:.2f}")
    print(f"NumPy loop                   {theirs[0]:.2f} ({theirs[1]:.2f})    ratio {theirs[0] / ours[0]:.2f}")


if __name__ == "__main__":
    WAYS[sys.argv[1]]() if len(sys.argv) > 1 else main()
