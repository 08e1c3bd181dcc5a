"""What a first run compiles, and what its rounds take: `python -m benchmarks.first_run [METHODS]`.

The federation `exam` (63 schools, 26 parameters), chi2, gains with own intercepts, as `equipoise run` has it; every row
is a process of its own without programs on disk. "Quickly": the first rounds in a program that compiles sooner, as it
is; "in full": all rounds in the other, as it is for much data. A round is the median of three times 100, of one
program and the other in one process.
"""

import statistics
import subprocess
import sys
import time
from typing import Any

METHODS = ("scaffpd_model", "scaffpd", "fedavg")
FIRST, MANY = 10, 100


def seconds(run: Any) -> tuple[float, float]:
    """Of the processor, and by the clock."""
    cpu, clock = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - clock


def measure(name: str, how: str) -> None:
    import jax

    import equipoise as eq
    from equipoise.engines import simulator
    from equipoise.experiment import config
    from equipoise.experiment.methods import build_method
    from equipoise.experiment.problems import build_problem

    eq.use_all_cores()
    settings = {
        "data": {"name": "exam"},
        "partition": {"kind": "natural"},
        "model": {"l2": 0.01},
        "objective": {"name": "chi2", "rho": 0.1},
        "algorithm": {"name": name},
        "run": {"rounds": FIRST},
    }
    told = config.parse(settings)
    problem = build_problem(told)
    algorithm = build_method(told, problem).algorithm

    def run(rounds: int) -> None:
        jax.block_until_ready(eq.simulate(algorithm, problem.x, problem.train, 0, rounds=rounds).server)

    simulator.quick_rounds = lambda *sizes: MANY if how == "quickly" else 0
    cpu, clock = seconds(lambda: run(FIRST))
    rounds = []
    for quick in (MANY, 0):
        simulator.quick_rounds = lambda *sizes, quick=quick: quick
        run(MANY)
        rounds.append(1000 * statistics.median(seconds(lambda: run(MANY))[0] for _ in range(3)) / MANY)
    print(f"| {name} | {how} | {cpu:.1f} | {clock:.1f} | {rounds[0]:.1f} | {rounds[1]:.1f} |", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        measure(*sys.argv[2:])
        return
    print(
        "| method | compiled | first ten rounds, CPU s | by the clock, s | a round quickly, CPU ms | in full, CPU ms |"
    )
    print("|---|---|---:|---:|---:|---:|")
    for name in sys.argv[1:] or METHODS:
        for how in ("quickly", "in full"):
            subprocess.run([sys.executable, "-m", "benchmarks.first_run", "--one", name, how], check=True)


if __name__ == "__main__":
    main()
