"""How long an exchange over Flower takes: `python -m benchmarks.flower [SITES ...]` (3 and 10 if not given).

A SuperLink and so many SuperNodes on this machine, TLS and authentication on, SCAFF-PD (two exchanges a round) on small
tables, so that what is measured is the network and Flower, not the arithmetic. Not part of `python -m benchmarks`: it
takes minutes.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tomli_w
from rich.console import Console
from rich.table import Table

from equipoise.experiment import records
from equipoise.experiment.federated import keys
from equipoise.experiment.federated.launch import free_port, process

ROUNDS, EXCHANGES = 2, 2
EQUIPOISE = [sys.executable, "-m", "equipoise", "flower"]
CPU = {
    "Flower's client starts": "import flwr.supernode.cli.flwr_clientapp",
    "and loads Equipoise": "import flwr.supernode.cli.flwr_clientapp, equipoise.experiment.federated.apps",
}


def federation(folder: Path, n: int) -> tuple[float, float, float]:
    """Seconds per exchange and per round of training, and from the first command to the result."""
    names = [f"site{k:02d}" for k in range(n)]
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        inputs = rng.normal(size=(100, 10))
        np.savez(folder / f"{name}.npz", inputs=inputs, labels=(inputs[:, 0] + rng.normal(size=100) > 0).astype(int))
    keys.make(folder / "keys", names)
    settings = {
        "algorithm": {"steps": 5, "local_lr": 0.1, "rule": {"sigma": 0.5, "theta": 0.5}},
        "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS},
        "federation": {"sites": names},
    }
    (folder / "f.toml").write_text(tomli_w.dumps(settings))
    port, clock = str(free_port()), time.perf_counter()
    with ExitStack() as stack, (folder / "log").open("w") as log:
        for name in names:
            site = [*EQUIPOISE, "site", name, f"{name}.npz", "--server", f"127.0.0.1:{port}"]
            how = {"cwd": folder, "stdout": log, "stderr": log, "patience": 60.0}
            stack.enter_context(process(site, {}, **how))
        server = [*EQUIPOISE, "server", "f.toml", "--port", port, "--out", "run"]
        subprocess.run(server, cwd=folder, stdout=log, stderr=log, check=True, timeout=1800)
    seconds = records.read(folder / "run").rows[-1].seconds / ROUNDS
    return seconds / EXCHANGES, seconds, time.perf_counter() - clock


def cpu(code: str) -> float:
    """Seconds of a core."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def main() -> None:
    console = Console()
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load before: {load:.1f}")
    for what, code in CPU.items():
        cpu(code)
        console.print(f"CPU of one message, {what}: {cpu(code):.2f} s")
    table = Table("sites", "s/exchange", "s/round", "s in all", "load after")
    for n in [int(a) for a in sys.argv[1:]] or [3, 10]:
        with tempfile.TemporaryDirectory() as folder:
            found = federation(Path(folder), n)
        table.add_row(str(n), *(f"{s:.1f}" for s in found), f"{os.getloadavg()[0]:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
