"""What the server of `scaffpd_model` takes for a round: judging, the dual step and the trial, over N clients.

    python -m benchmarks.server_time                    # N = 20, 100, 1000 and d = 10^3, 10^5 parameters
    python -m benchmarks.server_time 20 50000 100       # whole rounds: N clients, features, classes (for a GPU)

Replies are those of random quadratics with diagonal Hessians, made on the spot, so that only the server is timed. The
memory is full before the clock starts, and the time is the median over rounds.
"""

import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

import equipoise as eq
from equipoise.engines import kernel
from equipoise.protocol import Cohort, Replies

ROUNDS, BEFORE = 5, 7
SIZES = [(n, d) for n in (20, 100, 1000) for d in (10**3, 10**5)]


def server_only(n: int, d: int) -> tuple[float, float]:
    """Seconds of one round's two server steps, and CPU seconds."""
    key = jax.random.key(0)
    curvature = 10 ** jax.random.uniform(key, (n, d), jnp.float32, -2.0, 0.0)
    solution = jax.random.normal(jax.random.fold_in(key, 1), (n, d), jnp.float32)

    def loss(x: Any, i: Any) -> Any:
        return jnp.sum(curvature[i] * (x - solution[i]) ** 2) / 2

    algorithm = eq.algorithms.scaffpd_model(_task(d), eq.objectives.chi2(n, 0.1), eq.cohorts.everyone(n), steps=1)
    collect, improve = algorithm.round
    everybody = Cohort(jnp.arange(n), jnp.ones(n, bool))

    @jax.jit
    def hear(x: Any) -> tuple[Any, Any]:
        return jax.lax.map(lambda i: (loss(x, i), curvature[i] * (x - solution[i])), jnp.arange(n))

    @jax.jit
    def judge(server: Any, losses: Any, gradients: Any) -> Any:
        replies = (losses, gradients, jnp.ones(n, jnp.float32))
        return collect.close(server, Replies(None, replies, everybody))

    @jax.jit
    def trial(server: Any, move: Any) -> Any:
        return improve.close(server, Replies((jnp.float32(1), move), None, everybody))

    server = algorithm.init(jnp.zeros(d, jnp.float32))
    seconds, busy = [], []
    for round in range(BEFORE + ROUNDS):
        replies = jax.block_until_ready(hear(server.trial.x))
        clock, cpu = time.perf_counter(), time.process_time()
        server = jax.block_until_ready(judge(server, *replies))
        server = jax.block_until_ready(trial(server, server.c))
        if round >= BEFORE:
            seconds.append(time.perf_counter() - clock)
            busy.append(time.process_time() - cpu)
    return statistics.median(seconds), statistics.median(busy)


def _task(d: int) -> eq.tasks.Task:
    return eq.tasks.ridge(d, 0.1)


def whole_rounds(n: int, features: int, classes: int, rows: int = 100) -> None:
    """Rounds of softmax regression, clients and server, and what they hold in memory."""
    key = jax.random.key(0)
    inputs = jax.random.normal(key, (n, rows, features), jnp.float32)
    labels = jax.random.randint(jax.random.fold_in(key, 1), (n, rows), 0, classes)
    task, dual = eq.tasks.softmax_regression(features, classes, l2=1e-2), eq.objectives.chi2(n, 0.1)
    algorithm = eq.algorithms.scaffpd_model(task, dual, eq.cohorts.everyone(n), steps=10)
    shards = eq.data.Shards(inputs, labels, jnp.full(n, rows, jnp.int32))
    clock = time.perf_counter()
    federation = jax.block_until_ready(jax.jit(lambda data: kernel.prepare(algorithm, data))(shards))
    print(f"prepared in {time.perf_counter() - clock:.1f} s, compiling included", flush=True)
    step = jax.jit(lambda state, data: kernel.step(algorithm, state, data, key), donate_argnums=0)
    state = jax.jit(lambda x: kernel.init(algorithm, x))(jnp.zeros(task.size, jnp.float32))
    seconds = []
    for _ in range(BEFORE + ROUNDS):
        clock = time.perf_counter()
        state = jax.block_until_ready(step(state, federation))
        seconds.append(time.perf_counter() - clock)
        print(f"round of {seconds[-1]:.3f} s, robust loss {dual.value(state.server.centre.f.sum(-1)):.5f}", flush=True)
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    print(
        f"{n} clients x {features} features x {classes} classes ({task.size:.1e} parameters): "
        f"{statistics.median(seconds[BEFORE:]):.3f} s per round, {seconds[0]:.1f} s for the first, {used:.1f} GiB"
    )


def main() -> None:
    eq.use_all_cores()  # as the commands do
    print(f"{jax.local_devices()[0].device_kind}, single precision outside the server")
    if len(sys.argv) > 1:
        whole_rounds(*map(int, sys.argv[1:]))
        return
    print("| N | d | server, s per round | CPU s |")
    print("|---:|---:|---:|---:|")
    for n, d in SIZES:
        seconds, busy = server_only(n, d)
        print(f"| {n} | {d} | {seconds:.3f} | {busy:.3f} |", flush=True)


if __name__ == "__main__":
    main()
