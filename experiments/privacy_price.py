"""The price of differential privacy: `python experiments/privacy_price.py --data-dir FOLDER` prints a table.

Digits over 5 clients, Adult over 10, divided by Dirichlet(1); linear models, 50 rounds; epsilon of the whole run, at
delta 1e-5. The mean and the worst client's accuracy on held-out rows, mean over three seeds.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from equipoise.experiment import config, run

EPSILONS = (1.0, 3.0, 10.0, None)
SETS = {"digits": {"clients": 5, "lr": 1.0}, "adult": {"clients": 10, "lr": 2.0}}


def settings(data: str, method: str, epsilon: float | None, seed: int, data_dir: str | None) -> dict:
    lr = SETS[data]["lr"]
    algorithm = {
        "scaffpd": {"name": "scaffpd", "steps": 1, "local_lr": lr, "rule": {"sigma": 0.2, "theta": 0.0}},
        "fedavg": {"name": "fedavg", "steps": 1, "local_lr": lr},
    }[method]
    found = {
        "data": {"name": data, **({"data_dir": data_dir} if data_dir else {})},
        "partition": {"kind": "dirichlet", "alpha": 1.0, "clients": SETS[data]["clients"]},
        "model": {"l2": 0.001},
        "objective": {"name": "chi2", "rho": 0.1},
        "algorithm": algorithm,
        "run": {"rounds": 50, "seed": seed, "evaluate_every": 50},
    }
    return found if epsilon is None else {**found, "privacy": {"epsilon": epsilon, "delta": 1e-5, "clip": 1.0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    given = parser.parse_args()
    print("| data | method | epsilon | mean accuracy | worst client |")
    print("|---|---|---:|---:|---:|")
    for data in given.sets:
        for method in ("scaffpd", "fedavg"):
            for epsilon in EPSILONS:
                found = []
                for seed in range(3):
                    told = config.parse(settings(data, method, epsilon, seed, given.data_dir))
                    with tempfile.TemporaryDirectory() as folder:
                        done = run.run(told, Path(folder) / "run")
                    found.append(np.array(done.rows[-1].scores["accuracy"], float))
                mean, worst = np.mean([f.mean() for f in found]), np.mean([f.min() for f in found])
                said = "none" if epsilon is None else f"{epsilon:g}"
                print(f"| {data} | {method} | {said} | {mean:.3f} | {worst:.3f} |", flush=True)


if __name__ == "__main__":
    main()
