"""Step sizes of networks: what is chosen before the first round, beside seven that were tried by hand. Prints Markdown.

    python experiments/network_steps.py mlp digits
    python experiments/network_steps.py cnn fashion-mnist --max-size 300 --seeds 3 --data DATA
    python experiments/network_steps.py resnet cifar-10 --max-size 500 --rounds 60 --seeds 2 --data DATA
    python experiments/network_steps.py gru shakespeare --natural --max-size 500 --seeds 1 --data DATA

Accuracy of the held-out rows in percent, average over the clients and over the worst fifth of them, both averaged over
the seeds; a seed divides the data too. The best by hand is the one with the best average in hindsight, for the worst
fifth the one with the best worst fifth. A seed has failed that ends, with what it chose, below half of the average of
the median seed.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise._jax import keep_programs, use_all_cores
from equipoise.experiment import plan, records

KEY = "algorithm.local_lr"
STEPS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def settings(a: argparse.Namespace, steps: Sequence[float | str]) -> dict[str, Any]:
    division = {"kind": "dirichlet", "clients": a.clients, "alpha": a.alpha}
    data: dict[str, Any] = {"name": a.data_set, "test": 0.3, "data_dir": a.data}
    if a.natural:
        division, data["options"] = {"kind": "natural"}, json.loads(a.options)
    if a.max_size:
        division["max_size"] = a.max_size
    return {
        "name": "steps",
        "data": {key: value for key, value in data.items() if value is not None},
        "partition": division,
        "model": {"name": a.model, "batch": a.batch, "l2": a.l2, "options": json.loads(a.model_options)},
        "objective": {"name": "chi2", "rho": 0.1},
        "algorithm": {"steps": a.steps},
        "run": {"rounds": a.rounds, "evaluate_every": a.rounds, "score": "accuracy"},
        "compare": {name: {"name": name} for name in a.methods},
        "sweep": {"seeds": list(range(a.seeds)), "grid": {KEY: list(steps)}},
    }


def main() -> None:
    of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of.add_argument("model", choices=("mlp", "cnn", "resnet", "gru"))
    of.add_argument("data_set")
    of.add_argument("--data", help="the folder of data sets")
    of.add_argument("--methods", nargs="+", default=["fedavg", "scaffpd_minibatch"])
    of.add_argument("--grid", nargs="*", type=float, default=STEPS)
    of.add_argument("--options", default="{}", help="of the data set's loader, as JSON")
    of.add_argument("--model-options", default="{}", help="of the model, as JSON")
    of.add_argument("--natural", action="store_true", help="the data set's own owners")
    for name, value in (("seeds", 10), ("rounds", 80), ("clients", 20), ("batch", 32), ("steps", 10), ("max-size", 0)):
        of.add_argument(f"--{name}", type=int, default=value)
    for name, number in (("alpha", 0.3), ("l2", 1e-4)):
        of.add_argument(f"--{name}", type=float, default=number)
    a = of.parse_args()
    use_all_cores()
    keep_programs()
    started = time.monotonic()
    chosen = ran(a, ["auto"])
    for method in a.methods:
        ends = [f"{step:g} {100 * mean:.1f} / {100 * low:.1f}" for mean, low, step in chosen[method, "auto"]]
        print(f"{a.model} on {a.data_set}, {method}, every seed: {', '.join(ends)}", flush=True)
    by = chosen | (ran(a, a.grid) if a.grid else {})
    print(f"\n{a.model} on {a.data_set}, {a.seeds} seeds, {a.rounds} rounds, {time.monotonic() - started:.0f} s\n")
    print(
        f"| | {' | '.join(f'{step:g}' for step in a.grid)} | chosen | chosen less best | worst seed | failed | steps |"
    )
    print("|---|" + "---|" * (len(a.grid) + 5))
    for method in a.methods:
        tables = {step: 100 * by[method, step][:, :2].mean(0) for step in (*a.grid, "auto")}
        hand = np.array([tables[step] for step in a.grid] or [[np.nan, np.nan]])
        less = tables["auto"] - np.nanmax(hand, axis=0)
        cells = [f"{mean:.1f} / {low:.1f}" for mean, low in tables.values()]
        mean, low, steps = by[method, "auto"].T
        failed = np.flatnonzero(~(mean > np.nanmedian(mean) / 2))
        print(
            f"| {method} | {' | '.join(cells)} | {less[0]:+.1f} / {less[1]:+.1f} "
            f"| {100 * mean.min():.1f} / {100 * low.min():.1f} | {', '.join(map(str, failed)) or 'none'} "
            f"| {', '.join(f'{step:g}' for step in sorted({*steps}))} |"
        )


def ran(a: argparse.Namespace, steps: Sequence[float | str]) -> dict[tuple[str, float | str], np.ndarray]:
    """What every seed ends with, by method and step: average, worst fifth, and the step if it was chosen."""
    jobs = plan.sweep(settings(a, steps)).trials
    ends: dict[tuple[str, float | str], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for job, run in zip(jobs, plan.run_all(jobs, Path(folder)), strict=True):
            ends.setdefault((job.label, job.chosen.get(KEY, steps[0])), []).append(standing(run))
    return {key: np.array(rows) for key, rows in ends.items()}


def standing(run: records.Run) -> tuple[float, float, float]:
    """The average and the worst fifth of the accuracy, NaN of a model that is not finite; and the step, if chosen."""
    assert run.outcome is not None
    scores = run.rows[-1].scores.get("accuracy", ())
    values = np.array([np.nan if value is None else value for value in scores], float)
    low = np.sort(values)[: max(1, round(0.2 * values.size))]
    notes = [note for note in run.federation.notes if ".local_lr was chosen: " in note]
    step = float(notes[0].split("chosen: ")[1].split(";")[0]) if notes else np.nan
    return float(values.mean()), float(low.mean()), step


if __name__ == "__main__":
    main()
