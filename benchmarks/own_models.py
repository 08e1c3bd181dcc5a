"""What gains cost: `python -m benchmarks.own_models [NAME ...]`, of data sets whose owners exist.

The owners' own models and their folds, from which gains are measured, against three rounds of the method that
`equipoise run NAME` takes; and a round of FedAvg with own intercepts against one without, of the shape of SPEED.md's
first workload (100 clients of 600 rows of 784 numbers, ten classes; 20 a round, 25 steps of 120). CPU time, the median
of three, compiled before.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from benchmarks.before_first_round import cpu
from equipoise.cli.experiments import _settings
from equipoise.experiment import config
from equipoise.experiment.methods import build_method, training_rows
from equipoise.experiment.problems import build_problem, precision

ROUNDS, CLIENTS, ASKED, SAMPLES, FEATURES, CLASSES = 10, 100, 20, 600, 784, 10


def of_gains(name: str) -> tuple[int, float, float]:
    """Owners, and the CPU seconds of all their own models and of three rounds."""
    settings = _settings(Path(name), None, None, ["model.l2=0.01", f"run.rounds={ROUNDS}"], chosen=True)
    parsed = config.parse(settings)
    with precision(parsed):
        problem = build_problem(parsed)

        def own_models() -> Any:
            vars(problem).pop("own_fits", None)
            return problem.own_fits

        models = cpu(own_models)
        algorithm = build_method(parsed, problem).algorithm
        rows = jax.tree.map(jnp.asarray, training_rows(parsed, problem, problem.train))
        x = jnp.zeros_like(problem.x)  # in the metric
        return problem.n, models, 3 * cpu(lambda: eq.simulate(algorithm, x, rows, 0, rounds=ROUNDS).server) / ROUNDS


def of_own_part() -> tuple[float, float]:
    """CPU seconds of a round of W1, without an own intercept and with one."""
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.random((CLIENTS, SAMPLES, FEATURES)), jnp.float32)
    labels = jnp.asarray(np.sort(rng.integers(CLASSES, size=CLIENTS * SAMPLES)).reshape(CLIENTS, -1), jnp.int32)
    shards = eq.data.Shards(inputs, labels, jnp.full(CLIENTS, SAMPLES, jnp.int32))
    plain = eq.tasks.softmax_regression(FEATURES, CLASSES, batch=120)

    def of_round(task: Any) -> float:
        algorithm = eq.algorithms.fedavg(task, eq.cohorts.uniform(CLIENTS, ASKED), steps=25, local_lr=0.1)
        return cpu(lambda: eq.simulate(algorithm, jnp.zeros(task.size), shards, 0, rounds=ROUNDS).server) / ROUNDS

    return of_round(plain), of_round(eq.tasks.own_part(plain))


def main() -> None:
    for name in sys.argv[1:] or ["exam", "contraception", "insteval", "adult"]:
        n, models, rounds = of_gains(name)
        print(f"{name}, {n} owners: own models {models:.3f} s, three rounds {rounds:.3f} s", flush=True)
    without, within = of_own_part()
    print(f"W1: a round {without:.4f} s, with own intercepts {within:.4f} s ({within / without:.2f} times)")


if __name__ == "__main__":
    main()
