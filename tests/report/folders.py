"""Run folders with realistic contents, written as `equipoise run` writes them."""

import math
from pathlib import Path

import numpy as np

from equipoise.experiment import records

ENVIRONMENT = records.Environment(
    equipoise="0.1.0",
    python="3.12.4",
    jax="0.10.2",
    numpy="2.4.6",
    platform="Linux x86_64",
    device="cpu",
    devices=2,
    precision="float32",
    git="4f2a9c1+",
    started="2025-03-01T09:30:00Z",
)
PARAMETERS = 650


def federation(n, *, task="classification", names=None, held_out=True, exchanges=2, seed=0):
    sizes = np.random.default_rng(seed).lognormal(5, 0.8, n).astype(int) + 20
    names = names or [f"hospital {i + 1}" for i in range(n)]
    return records.FederationRecord(
        what="Readmission within 30 days, from the records of regional hospitals",
        task=task,
        classes=("home", "readmitted") if task == "classification" else (),
        members=tuple(
            records.ClientRecord(name=name, train=int(m), test=int(m) // 4)
            for name, m in zip(names, sizes, strict=True)
        ),
        held_out=held_out,
        parameters=PARAMETERS,
        exchanges=("losses", "steps")[-exchanges:],
        notes=("The column 'patient' looks like an identifier and was left out.",),
    )


def config(algorithm, objective="chi2", rounds=100, label="run"):
    return (
        f'name = "{label}"\n\n[data]\nsilos = "hospitals"\nlabel = "readmitted"\ntest = 0.2\n\n'
        f'[model]\nname = "linear"\nl2 = 0.01\n\n[objective]\nname = "{objective}"\nrho = 0.1\n\n'
        f'[algorithm]\nname = "{algorithm}"\nsteps = 10\nlocal_lr = "auto"\n\n'
        f'[run]\nrounds = {rounds}\nseed = 0\nprecision = "float32"\n'
    )


def write(
    root,
    label="SCAFF-PD",
    *,
    n=12,
    algorithm="scaffpd",
    objective="chi2",
    rounds=100,
    rows=26,
    task="classification",
    end=(0.78, 0.05),
    weighted=True,
    finished=True,
    names=None,
    held_out=True,
    exchanges=2,
    broken=0,
    missing=(),
    events=(),
    seed=0,
    bytes_per_round=2 * 4 * PARAMETERS,
):
    """A folder; `end` is the mean and the deviation of the clients' last scores, `missing` has none."""
    path = Path(root) / "".join(c if c.isalnum() else "-" for c in f"{label}-{seed}")
    path.mkdir(parents=True)
    members = federation(n, task=task, names=names, held_out=held_out, exchanges=exchanges)
    (path / records.CONFIG).write_text(config(algorithm, objective, rounds))
    records.write_record(path / records.ENVIRONMENT, ENVIRONMENT)
    records.write_record(path / records.FEDERATION, members)
    up = task == "classification"
    measure = "accuracy" if up else "rmse"
    rng = np.random.default_rng(seed + 1)
    hard = np.sort(np.random.default_rng(7).normal(size=n))[np.random.default_rng(8).permutation(n)]  # the same for all
    last = np.clip(end[0] + end[1] * hard, 0.02, 0.99) if up else np.abs(end[0] + end[1] * hard)
    start = np.full(n, 0.5) if up else np.full(n, 3 * end[0])
    at = np.unique(np.linspace(0, rounds if finished else rounds * 0.4, rows).astype(int))
    row = None
    for r in at:
        done = 1 - math.exp(-5 * r / rounds)
        noise = 0 if r == at[-1] else rng.normal(scale=0.004, size=n)
        score = np.clip(start + (last - start) * done + noise, 0, 1 if up else None)
        score = [None if i in missing else float(s) for i, s in enumerate(score)]
        loss = [0.7 - 0.5 * done + 0.05 * float(h) for h in -hard]
        tilt = np.exp(-1.2 * done * hard)
        row = records.Row(
            round=int(r),
            seconds=0.02 * int(r),
            asked=(n * int(r),) * exchanges,
            answered=(n * int(r),) * (exchanges - 1) + (n * int(r) - broken * bool(r),),
            broken=broken * bool(r),
            bytes_down=int(r) * n * bytes_per_round * exchanges // 2,
            bytes_up=int(r) * n * bytes_per_round * exchanges // 2,
            loss=tuple(loss),
            scores={"loss": tuple(loss), measure: tuple(score)},
            lam=tuple((tilt / tilt.sum()).tolist()) if weighted else None,
            objective=1.0 - 0.6 * done if weighted else None,
            gap=0.9 * math.exp(-6 * r / rounds) if weighted else None,
            distance=4 * math.exp(-9 * r / rounds) if weighted else None,
        )
        records.append_row(path / records.HISTORY, row)
    if finished:
        records.write_record(path / records.RESULT, outcome(label, row, measure, up, members, events))
    return records.read(path)


def outcome(label, row, measure, up, members, events):
    values = np.array([np.nan if v is None else v for v in row.scores[measure]])
    known = np.sort(values[np.isfinite(values)])[:: 1 if up else -1]
    fifth = max(1, len(known) // 5)
    summary = {
        "mean": known.mean(),
        "worst20": known[:fifth].mean(),
        "best20": known[-fifth:].mean(),
        "min": known.min(),
        "max": known.max(),
        "std": known.std(),
    }
    half = 1.96 * np.sqrt(np.clip(values * (1 - values), 0.01, None) / [max(m.test, 1) for m in members.members])
    worst = float(summary["worst20"])
    low, high = np.maximum(values - half, 0), np.minimum(values + half, 1 if up else np.inf)
    return records.RunResult(
        label=label,
        rounds=row.round,
        seconds=row.seconds,
        compile_seconds=1.25,
        measure=measure,
        higher_is_better=up,
        summary={name: float(v) for name, v in summary.items()},
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        worst_low=worst - 0.021,
        worst_high=worst + 0.019,
        worst_estimate=worst + 0.003,
        mean_low=float(summary["mean"]) - 0.01,
        mean_high=float(summary["mean"]) + 0.01,
        events=tuple(events),
    )


METHODS = (
    ("FedAvg", {"algorithm": "fedavg", "end": (0.796, 0.12), "weighted": False, "exchanges": 1}),
    ("SCAFF-PD", {"algorithm": "scaffpd", "end": (0.789, 0.055)}),
    ("SCAFFOLD", {"algorithm": "scaffold", "end": (0.802, 0.11), "weighted": False}),
    ("DRFA", {"algorithm": "drfa", "end": (0.77, 0.07), "broken": 3}),
    ("q-FedAvg", {"algorithm": "qfedavg", "end": (0.76, 0.08), "weighted": False, "exchanges": 1}),
)


def several(root, n=12, methods=METHODS, **more):
    return [write(root, label, n=n, seed=k, **(options | more)) for k, (label, options) in enumerate(methods)]
