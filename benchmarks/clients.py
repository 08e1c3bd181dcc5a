"""100 clients asked of many: what a round costs when 10^4 and when 10^6 are there, and the memory of the latter.

10 rows of 32 features each, 5 steps of batch 5. Every size runs in a process of its own, so that its memory is its own.
"""

import json
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from benchmarks.timing import Row
from equipoise.data.shards import aligned_zeros

ASKED, ROUNDS = 100, 30
METHODS = ("scaffold", "drfa", "scaffpd_partial")


def build(name: str, task: eq.tasks.Task, n: int) -> object:
    local = {"steps": 5, "local_lr": 0.1}
    dual, sample = eq.objectives.chi2(n, 0.1), eq.cohorts.uniform(n, ASKED)
    if name == "scaffold":
        return eq.algorithms.scaffold(task, sample, **local)
    if name == "drfa":
        return eq.algorithms.drfa(task, dual, eq.cohorts.by_weight(ASKED), **local, dual_lr=0.01)
    rule = eq.steps.constant(tau=0.1, sigma=0.1, theta=0.0)
    return eq.algorithms.scaffpd_partial(task, dual, sample, rule, **local)


def measure(name: str, n: int) -> dict[str, float]:
    inputs = aligned_zeros((n, 10, 32), np.float32)
    np.random.default_rng(0).standard_normal(out=inputs, dtype=np.float32)
    data = eq.data.Shards(jax.device_put(inputs), jnp.zeros((n, 10), jnp.int32), jnp.full(n, 10, jnp.int32))
    del inputs
    task = eq.tasks.softmax_regression(32, 2, batch=5)
    algorithm, x = build(name, task, n), jnp.zeros(task.size, jnp.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = eq.simulate(algorithm, x, data, 0, rounds=1)
    states = sum(a.nbytes for a in jax.tree.leaves((result.server, result.clients)))
    del result
    seconds = min(eq.simulate(algorithm, x, data, 0, rounds=ROUNDS).seconds for _ in range(3)) / ROUNDS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "held": sum(a.nbytes for a in data) + states, "peak": peak, "before": before}


def run() -> list[Row]:
    rows = []
    for name in METHODS:
        for n in (10**4, 10**6):
            command = [sys.executable, "-m", "benchmarks.clients", name, str(n)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            memory = f"peak {found['peak'] / 1e9:.1f} GB for {found['held'] / 1e9:.2f} GB of data and states"
            rows.append(Row(f"{name}, {ASKED} of {n:,} clients; {memory}", found["seconds"]))
    return rows


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
