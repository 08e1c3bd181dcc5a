"""How long an exchange over Flower takes: `python -m benchmarks.flower`, everything on one machine.

A server and so many sites by `equipoise flower local`, TLS and authentication on, SCAFF-PD (two exchanges a round).
Small: a linear model of 22 numbers, so that what is measured is the network and Flower. 4 MB: a million float32 down
and up, with the arithmetic and the sites' memory on disk. Warm: sites that stay, at most `--processes` of them in
processes of their own; standard: Flower's own programs, which start a process for every message. The times are those
between the ends of exchanges, from the second round on; checkpoints are in them. A federation is ended when enough
exchanges were timed.

How many sites fit is found out first, by what a federation of three takes: of Flower's own nodes as many are started as
there is memory for, and the table says so. A federation that leaves less than 2 GB all the same is ended, and so is one
that takes longer than `--limit`; what was timed until then counts.

With `--results FILE` each measurement is a line of that file, and one that stands there already is not made again: the
command can be stopped, and given again. Not part of `python -m benchmarks`: it takes half an hour.
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

EXCHANGES = {"warm": 16, "standard": 2}  # that are timed
MANY = 50  # sites from which on a few exchanges are enough
FEW = 3  # sites whose memory says how many fit
SIZES = {"small": {"name": "linear"}, "4MB": {"name": "mlp", "hidden": [9990]}}  # 10 -> 9990 -> 90: a million numbers
CLASSES = {"small": 2, "4MB": 90}
SPARE = 2e9  # bytes of memory that are left alone


class Found(NamedTuple):
    """Of one federation; the times are None where no exchange was timed."""

    way: str
    size: str
    sites: int  # asked for
    started: int  # as many as fit
    processes: int  # of the sites
    timed: int  # exchanges
    exchange: float | None  # mean seconds
    median: float | None
    round: float | None
    total: float  # from the command to its end
    memory: float  # bytes, at most, of all that was started
    load: float  # of the machine, before


def write_silos(folder: Path, n: int, size: str) -> None:
    folder.mkdir()
    for k in range(n):
        rng, classes = np.random.default_rng(k), CLASSES[size]
        rows = max(100, 2 * classes)
        inputs = rng.normal(size=(rows, 10)).astype(np.float32)
        labels = np.arange(rows) % classes if classes > 2 else (inputs[:, 0] + rng.normal(size=rows) > 0).astype(int)
        np.savez(folder / f"site{k:03d}.npz", inputs=inputs, labels=labels)


def federation(folder: Path, way: str, size: str, n: int, each: float, most: int, limit: float) -> Found:
    """Times exchanges with n sites, or as many as fit where a site takes `each` bytes, for `limit` seconds at most."""
    load, free = os.getloadavg()[0], psutil.virtual_memory().available
    fit = max(1, int((free - SPARE) / each)) if each else n
    started = min(n, fit) if way == "standard" else n
    processes = started if way == "standard" else min(n, most, fit)
    write_silos(folder / "silos", started, size)
    settings = {
        "name": "run",
        "data": {"task": "classification"},
        "model": {"l2": 0.01, **SIZES[size]},
        "objective": {"rho": 0.1},
        "algorithm": {"name": "scaffpd", "steps": 1, "local_lr": 0.01, "rule": {"sigma": 0.5, "theta": 0.5}},
        "run": {"rounds": 1000, "evaluate_every": 1000},  # it is ended before
        "federation": {"heavy": 1.0, "exchange": limit, "question": limit, "gather": limit, "hello": limit},
    }
    (folder / "f.toml").write_text(tomli_w.dumps(settings))
    command = [sys.executable, "-m", "equipoise", "flower", "local", "f.toml", "--silos", "silos", "--page", "-1"]
    command += ["--stock"] if way == "standard" else ["--processes", str(processes)]
    wanted, history = EXCHANGES[way] if n < MANY else min(EXCHANGES[way], 6), folder / "runs" / "run" / "log.jsonl"
    clock, least, times = time.perf_counter(), free, np.empty(0)
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while child.poll() is None and len(times) < wanted:
                time.sleep(0.5)
                times, least = seconds(history), min(least, psutil.virtual_memory().available)
                if least < SPARE or time.perf_counter() - clock > limit:
                    break
        finally:
            failed = child.poll() is not None
            child.terminate()  # as Ctrl-C would; that is not heeded in the background of a shell
            child.wait()
    total = time.perf_counter() - clock
    if failed:
        raise SystemExit((folder / "log").read_text()[-3000:])
    mean, median = (float(times.mean()), float(np.median(times))) if len(times) else (None, None)
    per_round = None if mean is None else 2 * mean
    return Found(way, size, n, started, processes, len(times), mean, median, per_round, total, free - least, load)


def seconds(log: Path) -> np.ndarray:
    """Of every exchange of training from the second round on."""
    lines = log.read_text().splitlines() if log.is_file() else []
    told = [json.loads(line) for line in lines if line.endswith("}")]
    trained = [line for line in told if line["kind"] == "exchange" and line["part"] == "train"]
    ends = [datetime.fromisoformat(line["time"]).timestamp() for line in trained]
    return np.diff(ends[1:])  # a round has two; what is compiled, and the first evaluation, is in the first


def measured(results: Path | None) -> dict[tuple, Found]:
    lines = results.read_text().splitlines() if results and results.is_file() else []
    return {found[:3]: found for found in (Found(**json.loads(line)) for line in lines)}


def table(found: list[Found]) -> Table:
    columns = "way", "message", "sites", "processes", "timed", "s/exchange", "median", "s/round", "s in all", "GB"
    out = Table(*columns, "load before")
    for row in found:
        sites = str(row.sites) if row.started == row.sites else f"{row.started} of {row.sites} fit"
        times = ["-" if t is None else f"{t:.2f}" for t in (row.exchange, row.median, row.round)]
        rest = [f"{row.total:.0f}", f"{row.memory / 1e9:.1f}", f"{row.load:.1f}"]
        out.add_row(row.way, row.size, sites, str(row.processes), str(row.timed), *times, *rest)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--ways", nargs="+", choices=list(EXCHANGES), default=list(EXCHANGES))
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--processes", type=int, default=8, help="of warm sites, at most; `flower local` has 8 too")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for one federation")
    parser.add_argument("--results", type=Path, help="a file of JSON lines")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended too
    console, known = Console(), measured(asked.results)
    console.print(f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB")

    def measure(way: str, size: str, n: int) -> Found:
        if (way, size, n) not in known:
            each = 0.0 if n <= FEW else measure(way, size, FEW).memory / FEW
            with tempfile.TemporaryDirectory() as folder:
                found = federation(Path(folder), way, size, n, each, asked.processes, asked.limit)
            known[way, size, n] = found
            console.print(found)
            if asked.results:
                with asked.results.open("a") as file:
                    file.write(json.dumps(found._asdict()) + "\n")
        return known[way, size, n]

    console.print(table([measure(*cell) for cell in product(asked.ways, asked.sizes, sorted(asked.sites))]))


if __name__ == "__main__":
    main()
