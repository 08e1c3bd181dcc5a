"""The price of differential privacy: `python experiments/privacy_price.py --data-dir FOLDER` prints a table.

Digits over 5 clients, Adult over 10, divided by Dirichlet(1); linear models, 50 rounds; epsilon of the whole run, at
delta 1e-5. The mean and the worst client's accuracy on held-out rows, mean over three seeds. Every row has the step
size of a few that is best for the average client on a seed of its own: clipped gradients bear longer steps than others,
so that one step size for all rows would measure that instead of noise. Choosing it looks at the rows without noise,
which epsilon does not cover. A row of the table is a curve: mean / worst client (step size), epsilon by epsilon.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from equipoise.experiment import config, run

CLIPPED = 1e6  # an epsilon without noise to speak of: what clipping alone does
EPSILONS = (1.0, 3.0, 10.0, CLIPPED, None)
SETS = {"digits": 5, "adult": 10}  # clients
STEPS = {"digits": (0.5, 1.0, 2.0, 4.0), "adult": (0.5, 4.0)}
TUNE, SEEDS = 100, (0, 1, 2)
NAMES = {CLIPPED: "clipped, no noise", None: "neither"}


def settings(data: str, method: str, epsilon: float | None, lr: float, seed: int, data_dir: str | None) -> dict:
    algorithm = {
        "scaffpd": {"name": "scaffpd", "steps": 1, "local_lr": lr, "rule": {"sigma": 0.2, "theta": 0.0}},
        "fedavg": {"name": "fedavg", "steps": 1, "local_lr": lr},
    }[method]
    found = {
        "data": {"name": data, **({"data_dir": data_dir} if data_dir else {})},
        "partition": {"kind": "dirichlet", "alpha": 1.0, "clients": SETS[data]},
        "model": {"l2": 0.001},
        "objective": {"name": "chi2", "rho": 0.1},
        "algorithm": algorithm,
        "run": {"rounds": 50, "seed": seed, "evaluate_every": 50},
    }
    return found if epsilon is None else {**found, "privacy": {"epsilon": epsilon, "delta": 1e-5, "clip": 1.0}}


def accuracy(*what) -> np.ndarray:
    """Of every client."""
    with tempfile.TemporaryDirectory() as folder:
        done = run.run(config.parse(settings(*what)), Path(folder) / "run")
    return np.array(done.rows[-1].scores["accuracy"], float)


def measured(data: str, method: str, epsilon: float | None, data_dir: str | None) -> str:
    tried = {lr: accuracy(data, method, epsilon, lr, TUNE, data_dir).mean() for lr in STEPS[data]}
    lr = max(tried, key=lambda step: tried[step])
    found = [accuracy(data, method, epsilon, lr, seed, data_dir) for seed in SEEDS]
    return f"{np.mean([f.mean() for f in found]):.3f} / {np.mean([f.min() for f in found]):.3f} ({lr:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    given = parser.parse_args()
    heads = [NAMES.get(epsilon, f"epsilon {epsilon:g}" if epsilon else "") for epsilon in EPSILONS]
    print(f"| data | method | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads), sep="\n", flush=True)
    for data in given.sets:
        for method in ("scaffpd", "fedavg"):
            print(f"| {data} | {method} |", end="", flush=True)
            for epsilon in EPSILONS:
                print(f" {measured(data, method, epsilon, given.data_dir)} |", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
