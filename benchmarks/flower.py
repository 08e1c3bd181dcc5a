"""How long an exchange over Flower takes: `python -m benchmarks.flower`, everything on one machine.

A server and so many sites by `equipoise flower local`, TLS and authentication on, SCAFF-PD (two exchanges a round).
Small: a linear model of 22 numbers, so that what is measured is the network and Flower. 4 MB: a million float32 down
and up, with the arithmetic and the sites' memory on disk. Warm: sites that stay; standard: Flower's own programs, which
start a process for every message. The times are those between the ends of exchanges, from the second round on;
evaluations and checkpoints are in them. Not part of `python -m benchmarks`: it takes minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tomli_w
from rich.console import Console
from rich.table import Table

ROUNDS = {"standard": 2, "warm": 10}
SIZES = {"small": {"name": "linear"}, "4MB": {"name": "mlp", "hidden": [9990]}}  # 10 -> 9990 -> 90: a million numbers
CLASSES = {"small": 2, "4MB": 90}
LIMIT = 3000  # seconds for one federation


class Found(NamedTuple):
    """Of one federation."""

    exchange: float  # mean seconds
    median: float
    round: float
    total: float  # from the command to its end
    load: float  # of the machine, at the end


def federation(folder: Path, n: int, way: str, size: str) -> Found:
    (folder / "silos").mkdir()
    for k in range(n):
        rng, classes = np.random.default_rng(k), CLASSES[size]
        rows = max(100, 2 * classes)
        inputs = rng.normal(size=(rows, 10)).astype(np.float32)
        labels = np.arange(rows) % classes if classes > 2 else (inputs[:, 0] + rng.normal(size=rows) > 0).astype(int)
        np.savez(folder / "silos" / f"site{k:03d}.npz", inputs=inputs, labels=labels)
    settings = {
        "name": "run",
        "data": {"task": "classification"},
        "model": SIZES[size],
        "algorithm": {"steps": 1, "local_lr": 0.01, "rule": {"sigma": 0.5, "theta": 0.5}},
        "run": {"rounds": ROUNDS[way], "evaluate_every": ROUNDS[way]},
        "federation": {"heavy": 1.0},
    }
    (folder / "f.toml").write_text(tomli_w.dumps(settings))
    command = [sys.executable, "-m", "equipoise", "flower", "local", "f.toml", "--silos", "silos", "--page", "-1"]
    clock = time.perf_counter()
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [*command, *(["--stock"] if way == "standard" else [])],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=LIMIT,
        )
    if done.returncode:
        raise SystemExit((folder / "log").read_text()[-3000:])
    total = time.perf_counter() - clock
    lines = [json.loads(line) for line in (folder / "runs" / "run" / "log.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "exchange" and line["part"] == "train"]
    ends = np.array([datetime.fromisoformat(line["time"]).timestamp() for line in trained])
    per_round = len({line["exchange"] for line in trained})
    steps = np.diff(ends[per_round - 1 :])
    mean = float(steps.mean())
    return Found(mean, float(np.median(steps)), per_round * mean, total, os.getloadavg()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--ways", nargs="+", choices=list(ROUNDS), default=["warm", "standard"])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--most", type=int, default=10, help="sites up to which the standard way is measured")
    asked = parser.parse_args()
    console = Console()
    console.print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    table = Table("way", "message", "sites", "s/exchange", "median", "s/round", "s in all", "load after")
    for way, size, n in product(asked.ways, asked.sizes, asked.sites):
        if way == "standard" and n > asked.most:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = federation(Path(folder), n, way, size)
        cells = [f"{found.exchange:.2f}", f"{found.median:.2f}", f"{found.round:.2f}", f"{found.total:.0f}"]
        console.print(f"{way} {size} {n}: {found}")
        table.add_row(way, size, str(n), *cells, f"{found.load:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
