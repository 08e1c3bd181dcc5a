"""How long an exchange over Flower takes: `python -m benchmarks.flower`, everything on one machine.

A server and so many sites by `equipoise flower local`, TLS and authentication on, SCAFF-PD (two exchanges a round).
Small: a linear model of 22 numbers, so that what is measured is the network and Flower. 4 MB: a million float32 down
and up, with the arithmetic and the sites' memory on disk. Warm: sites that stay, a process for each as far as the
memory goes; standard: Flower's own programs, which start a process for every message. The times are those between the
ends of exchanges, from the second round on; evaluations and checkpoints are in them.

With `--results FILE` each measurement is a line of that file, and one that stands there already is not made again: the
command can be stopped, and given again. A federation that leaves less than 2 GB of memory is ended, and has no times.
Not part of `python -m benchmarks`: it takes half an hour.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import tomli_w
from rich.console import Console
from rich.table import Table

ROUNDS = {"warm": 10, "standard": 2}
MANY = 50  # sites from which on a few rounds are enough
SIZES = {"small": {"name": "linear"}, "4MB": {"name": "mlp", "hidden": [9990]}}  # 10 -> 9990 -> 90: a million numbers
CLASSES = {"small": 2, "4MB": 90}
LIMIT = 3000  # seconds for one federation
PROCESS = {"small": 0.22e9, "4MB": 0.45e9}  # bytes of a process that holds one site
SPARE = 2e9  # bytes of memory that are left alone


class Found(NamedTuple):
    """Of one federation; None where it did not end."""

    way: str
    size: str
    sites: int
    processes: int  # of the sites
    exchange: float | None  # mean seconds
    median: float | None
    round: float | None
    total: float  # from the command to its end
    memory: float  # bytes, at most, of all that was started
    load: float  # of the machine, before


def federation(folder: Path, n: int, way: str, size: str) -> Found:
    (folder / "silos").mkdir()
    for k in range(n):
        rng, classes = np.random.default_rng(k), CLASSES[size]
        rows = max(100, 2 * classes)
        inputs = rng.normal(size=(rows, 10)).astype(np.float32)
        labels = np.arange(rows) % classes if classes > 2 else (inputs[:, 0] + rng.normal(size=rows) > 0).astype(int)
        np.savez(folder / "silos" / f"site{k:03d}.npz", inputs=inputs, labels=labels)
    rounds = min(ROUNDS[way], 4 if n >= MANY else ROUNDS[way])
    settings = {
        "name": "run",
        "data": {"task": "classification"},
        "model": SIZES[size],
        "algorithm": {"steps": 1, "local_lr": 0.01, "rule": {"sigma": 0.5, "theta": 0.5}},
        "run": {"rounds": rounds, "evaluate_every": rounds},
        "federation": {"heavy": 1.0},
    }
    (folder / "f.toml").write_text(tomli_w.dumps(settings))
    load, free = os.getloadavg()[0], psutil.virtual_memory().available
    processes = n if way == "standard" else max(1, min(n, int((free - 2 * SPARE) / PROCESS[size])))
    command = [sys.executable, "-m", "equipoise", "flower", "local", "f.toml", "--silos", "silos", "--page", "-1"]
    command += ["--stock"] if way == "standard" else ["--processes", str(processes)]
    clock, least, ended = time.perf_counter(), free, False
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while child.poll() is None:
            time.sleep(0.5)
            least = min(least, psutil.virtual_memory().available)
            if not ended and (least < SPARE or time.perf_counter() - clock > LIMIT):
                child.send_signal(signal.SIGINT)
                ended = True
    total = time.perf_counter() - clock
    if child.returncode and not ended:
        raise SystemExit((folder / "log").read_text()[-3000:])
    exchange, median, round = (None,) * 3 if ended else seconds(folder / "runs" / "run" / "log.jsonl")
    return Found(way, size, n, processes, exchange, median, round, total, free - least, load)


def seconds(log: Path) -> tuple[float, float, float]:
    """Of an exchange, in the mean and the median, and of a round."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "exchange" and line["part"] == "train"]
    ends = np.array([datetime.fromisoformat(line["time"]).timestamp() for line in trained])
    per_round = len({line["exchange"] for line in trained})
    steps = np.diff(ends[per_round - 1 :])
    return float(steps.mean()), float(np.median(steps)), per_round * float(steps.mean())


def measured(results: Path | None) -> dict[tuple, Found]:
    lines = results.read_text().splitlines() if results and results.is_file() else []
    return {found[:3]: found for found in (Found(**json.loads(line)) for line in lines)}


def table(found: list[Found]) -> Table:
    out = Table(
        "way", "message", "sites", "processes", "s/exchange", "median", "s/round", "s in all", "GB", "load before"
    )
    for row in found:
        times = ["-" if t is None else f"{t:.2f}" for t in (row.exchange, row.median, row.round)]
        rest = [f"{row.total:.0f}", f"{row.memory / 1e9:.1f}", f"{row.load:.1f}"]
        out.add_row(row.way, row.size, str(row.sites), str(row.processes), *times, *rest)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--ways", nargs="+", choices=list(ROUNDS), default=list(ROUNDS))
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--results", type=Path, help="a file of JSON lines")
    asked = parser.parse_args()
    console, known, rows = Console(), measured(asked.results), []
    console.print(f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB")
    for way, size, n in product(asked.ways, asked.sizes, asked.sites):
        found = known.get((way, size, n))
        if found is None:
            with tempfile.TemporaryDirectory() as folder:
                found = federation(Path(folder), n, way, size)
            if asked.results:
                with asked.results.open("a") as file:
                    file.write(json.dumps(found._asdict()) + "\n")
        console.print(found)
        rows.append(found)
    console.print(table(rows))


if __name__ == "__main__":
    main()
