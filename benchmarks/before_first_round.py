"""What is measured before the first round, in rounds: `python -m benchmarks.before_first_round [CLIENTS] [FOLDER]`.

Softmax regression on Fashion-MNIST over 300 clients (or so many), Dirichlet(0.1), as `equipoise compare` would have it;
from FOLDER or where the catalogue finds it. Every step size that a method of `compare` measures, and what its clients
prepare, against a round of that method: CPU time, the median of three, compiled before.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

import equipoise as eq
from equipoise.experiment import config
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import Problem, build_problem

SETTINGS: dict[str, Any] = {
    "data": {"name": "fashion-mnist"},
    "partition": {"kind": "dirichlet", "alpha": 0.1, "thin": [0.3, 0.7]},
    "objective": {"name": "chi2", "rho": 0.1},
    "run": {"rounds": 10},
}
METHODS = ("fedavg", "scaffpd", "scaffpd_model")


def cpu(call: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the processor, the first call not counted."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        clock = time.process_time()
        jax.block_until_ready(call())
        seconds.append(time.process_time() - clock)
    return statistics.median(seconds)


def in_rounds(told: config.Config, problem: Problem) -> tuple[float, float]:
    """CPU seconds of what comes before the first round, and of a round."""

    def measured() -> tuple:
        for name in ("smoothness", "_constants"):
            problem.__dict__.pop(name, None)  # measured once for all methods of a comparison, and here by each
        build_method(told, problem)
        return ()

    algorithm = build_method(told, problem).algorithm
    begin = jax.jit(lambda data: eq.kernel.prepare(algorithm, data))
    step = jax.jit(lambda state, data: eq.kernel.step(algorithm, state, data, jax.random.key(0)))
    before = cpu(measured) + cpu(lambda: begin(problem.train))
    federation = begin(problem.train)
    state = step(eq.kernel.init(algorithm, problem.x), federation)
    return before, cpu(lambda: step(state, federation))


def main() -> None:
    settings = {**SETTINGS, "partition": {**SETTINGS["partition"], "clients": int((sys.argv[1:] or [300])[0])}}
    if len(sys.argv) > 2:
        settings["data"] = {**settings["data"], "data_dir": sys.argv[2]}
    print("| method | before the first round, CPU s | a round, CPU s | in rounds |")
    print("|---|---:|---:|---:|")
    problem = None
    for name in METHODS:
        told = config.parse({**settings, "algorithm": {"name": name, "steps": 10}})
        problem = problem or build_problem(told)
        before, a_round = in_rounds(told, problem)
        print(f"| {name} | {before:.2f} | {a_round:.2f} | {before / a_round:.1f} |", flush=True)


if __name__ == "__main__":
    main()
