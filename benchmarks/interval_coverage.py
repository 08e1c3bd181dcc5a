"""How often the 95% bounds hold that `equipoise.evaluation.intervals` gives, and how wide they are.

    python benchmarks/interval_coverage.py                    the tables of docs/fairness.md: minutes
    python benchmarks/interval_coverage.py --paired           differences of two models on the same rows
    python benchmarks/interval_coverage.py --one-client       the same, of one client by its own rows
    python benchmarks/interval_coverage.py --clients 5 20 --rows 4 10 100 --repeats 200 100

The clients' true scores are fixed, their rows are drawn again and again; what must be covered is the worst fifth of the
true scores.
"""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from equipoise.evaluation import intervals
from equipoise.evaluation.intervals import Bounds
from equipoise.evaluation.rules import worst_mean

CLIENTS, ROWS, REPEATS = (5, 20, 100, 300), (5, 30), (60, 60, 40, 20)  # many clients take long
ACCURACIES: dict[str, Callable[[int], np.ndarray]] = {
    "all at 80%": lambda n: np.full(n, 0.8),
    "50% to 95%": lambda n: np.linspace(0.5, 0.95, n),
    "one at 0, others 85%": lambda n: np.r_[0.0, np.full(n - 1, 0.85)],
    "one at 5%, others 85%": lambda n: np.r_[0.05, np.full(n - 1, 0.85)],
    "all at 100%": np.ones,
    "all at 98%": lambda n: np.full(n, 0.98),
    "half at 50%, half at 90%": lambda n: np.where(np.arange(n) < (n + 1) // 2, 0.5, 0.9),
    "a tenth at 50%, others 80%": lambda n: np.where(np.arange(n) < max(1, n // 10), 0.5, 0.8),
    "as Beta(16, 4)": lambda n: np.random.default_rng(n).beta(16, 4, n),
}
LOSSES: dict[str, Callable[[int], np.ndarray]] = {
    "exponential, all of mean 1": np.ones,
    "exponential, means 0.5 to 2": lambda n: np.linspace(0.5, 2, n),
    "exponential, one of mean 4, others 1": lambda n: np.r_[4.0, np.ones(n - 1)],
    "exponential, half 0.5, half 2": lambda n: np.where(np.arange(n) < (n + 1) // 2, 2.0, 0.5),
}


def before(values: np.ndarray, sizes: np.ndarray, up: bool, rng: np.random.Generator, draws: int = 300) -> Bounds:
    """The bounds as they were: the basic bootstrap of the rows."""
    if up:
        means = values[:, 0]
        drawn = rng.binomial(sizes, means, (draws, len(sizes))) / sizes
    else:
        means, m = values.mean(1), values.shape[1]
        drawn = np.stack([row[rng.integers(0, m, (draws, m))].mean(1) for row in values], axis=1)
    found = float(worst_mean(means, up))
    low, high = np.quantile(worst_mean(drawn, up), [0.025, 0.975])
    low, high = 2 * found - high, 2 * found - low
    return Bounds(max(low, 0.0), found, min(high, 1.0) if up else high)


def one(truth: np.ndarray, m: int, up: bool, seed: int) -> tuple[Bounds, Bounds, float]:
    """(bounds as they were, bounds, worst fifth as measured)"""
    rng, n = np.random.default_rng([seed, len(truth), m]), len(truth)
    sizes = np.full(n, m)
    if up:
        share = rng.binomial(m, truth) / m
        new = intervals.accuracy_intervals(share, sizes, key=seed).worst
        return before(share[:, None], sizes, up, rng), new, float(worst_mean(share, up))
    values = rng.exponential(size=(n, m)) * truth[:, None]
    new = intervals.intervals(values, sizes, key=seed).worst
    return before(values, sizes, up, rng), new, float(worst_mean(values.mean(1), up))


def cell(name: str, n: int, m: int, repeats: int) -> list[float]:
    """Covered, width and error of the estimate: as they were, as they are."""
    up = name in ACCURACIES
    truth = (ACCURACIES | LOSSES)[name](n)
    goal = float(worst_mean(truth, up))
    got = [one(truth, m, up, seed) for seed in range(repeats)]
    cover = [np.mean([b[side].low - 1e-9 <= goal <= b[side].high + 1e-9 for b in got]) for side in (0, 1)]
    width = [np.mean([b[side].high - b[side].low for b in got]) for side in (0, 1)]
    off = [np.mean([b[2] for b in got]) - goal, np.mean([b[1].estimate for b in got]) - goal]
    return [100 * float(v) for v in (*cover, *width, *off)]


def alone(clients: tuple[int, ...], rows: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    several = zip(clients, repeats, strict=True)
    jobs = [(name, n, m, r) for n, r in several for m in rows for name in (*ACCURACIES, *LOSSES)]
    found = {}
    with ProcessPoolExecutor() as pool:
        for job, told in zip(jobs, pool.map(cell, *zip(*jobs, strict=True)), strict=True):
            found[job[:3]] = told
            numbers = " ".join(f"{v:8.1f}" for v in told)
            print(
                f"{len(found):4}/{len(jobs)} {job[0]:38} {job[1]:4} {job[2]:4} {numbers}", file=sys.stderr, flush=True
            )

    def table(heads: tuple[str, ...], groups: dict[tuple[object, ...], list[list[float]]]) -> None:
        print(
            f"\n| {' | '.join(heads)} | covered before: mean (least) | now | width before | now | measured off by "
            "| corrected off by |"
        )
        print("|---" * len(heads) + "|---:" * 6 + "|")
        for key, values in groups.items():
            a = np.array(values)
            cover = [f"{a[:, i].mean():.0f}% ({a[:, i].min():.0f}%)" for i in (0, 1)]
            rest = [f"{v:.1f}" for v in a[:, 2:4].mean(0)] + [f"{v:+.1f}" for v in a[:, 4:].mean(0)]
            print("| " + " | ".join([*map(str, key), *cover, *rest]) + " |")

    by_shape: dict[tuple[object, ...], list[list[float]]] = {}
    by_size: dict[tuple[object, ...], list[list[float]]] = {}
    for (name, n, m), told in found.items():
        by_shape.setdefault((name,), []).append(told)
        by_size.setdefault((n, m), []).append(told)
    table(("true scores",), by_shape)
    table(("clients", "rows"), by_size)
    covered = np.array([told[:2] for told in found.values()])
    print(
        f"\nOver all {len(found)} combinations: before {covered[:, 0].mean():.1f}%, now {covered[:, 1].mean():.1f}%; "
        f"below 93%: before {(covered[:, 0] < 93).sum()}, now {(covered[:, 1] < 93).sum()}. The least now:"
    )
    for (name, n, m), told in sorted(found.items(), key=lambda item: item[1][1])[:5]:
        print(f"  {told[1]:.0f}%  {name}, {n} clients of {m} rows")


def paired(clients: tuple[int, ...], rows: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    """Two models that are right on mostly the same rows: the second is better for the worse half of the clients."""
    print("| clients | rows | covered, same rows | as if on other rows | width, same rows | as if on other rows |")
    print("|---:|---:|---:|---:|---:|---:|")
    for n, several in zip(clients, repeats, strict=True):
        old = np.linspace(0.6, 0.9, n)
        new = old + np.where(np.arange(n) < (n + 1) // 2, 0.08, -0.02)
        goal = float(worst_mean(new, True) - worst_mean(old, True))
        for m in rows:
            found = []
            for seed in range(several):
                luck = np.random.default_rng([seed, n, m]).random((n, m))
                a, b = luck < old[:, None], luck < new[:, None]
                flip = np.random.default_rng([seed, n, m, 1]).random((n, m)) < 0.1  # rows where they err on their own
                b = np.where(flip, np.random.default_rng([seed, n, m, 2]).random((n, m)) < new[:, None], b)
                sizes = np.full(n, m)
                bounds = [intervals.accuracy_intervals(v.mean(1), sizes, key=seed).worst for v in (a, b)]
                same = intervals.correlations(a.ravel(), b.ravel(), sizes, up=True, root=False).worst
                found.append([intervals.difference(*bounds, rho) for rho in (same, 0.0)])
            cover = [np.mean([f[i].low <= goal <= f[i].high for f in found]) for i in (0, 1)]
            width = [np.mean([f[i].high - f[i].low for f in found]) for i in (0, 1)]
            print(
                f"| {n} | {m} |",
                *(f"{100 * v:.0f}% |" for v in cover),
                *(f"{100 * v:.1f} |" for v in width),
                flush=True,
            )


ONE = ((0.9, 0.8, 0.77), (0.9, 0.9, 0.88), (0.7, 0.5, 0.29), (0.97, 0.95, 0.947))  # new, old, right with both


def one_client(rows: tuple[int, ...], repeats: int) -> None:
    """What one client gains by another model, judged by its own rows."""
    print("| rows | right, new and old | right with both | covered | width | as if on other rows |")
    print("|---:|---:|---:|---:|---:|---:|")
    for m in rows:
        for new, old, both in ONE:
            kind = np.random.default_rng(m).choice(
                4, (repeats, m), p=[both, new - both, old - both, 1 - new - old + both]
            )
            first, second, sizes = np.isin(kind, (0, 2)), kind < 2, np.full(repeats, m)
            together = intervals.each_correlation(first.ravel(), second.ravel(), sizes, shares=True)
            sides = [intervals.of_shares(a.sum(1), sizes) for a in (first, second)]
            bounds = [[Bounds(*b) for b in zip(e.low(0.025), e.value, e.high(0.025), strict=True)] for e in sides]
            found = [intervals.difference(a, b, r) for a, b, r in zip(*bounds, together, strict=True)]
            apart = [intervals.difference(a, b, 0.0) for a, b in zip(*bounds, strict=True)]
            cover = np.mean([f.low <= new - old <= f.high for f in found])
            width = [100 * np.mean([f.high - f.low for f in several]) for several in (found, apart)]
            print(
                f"| {m} | {new:.0%}, {old:.0%} | {both:.1%} | {100 * cover:.1f}% | {width[0]:.1f} | {width[1]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, nargs="+", default=REPEATS, help="for each of --clients, or one for all")
    asked.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    asked.add_argument("--rows", type=int, nargs="+", default=ROWS)
    asked.add_argument("--paired", action="store_true")
    asked.add_argument("--one-client", action="store_true")
    given = asked.parse_args()
    repeats = tuple(given.repeats) if len(given.repeats) > 1 else tuple(given.repeats) * len(given.clients)
    if len(repeats) != len(given.clients):
        asked.error("give --repeats once, or once for each of --clients")
    if given.one_client:
        one_client(tuple(given.rows), repeats[0])
    else:
        (paired if given.paired else alone)(tuple(given.clients), tuple(given.rows), repeats)
