"""Penalty and price of fairness chosen, beside a grid of 30 in hindsight and today's numbers. Prints Markdown.

    python experiments/everything_chosen.py exam contraception

Federations whose owners exist, 30% of every owner's rows held out. The grid is every l2 of L2 with every rho of RHO,
each trained for twenty rounds from its neighbour; best in hindsight is the best average skill of the held-out rows. The
numbers fixed before are l2 = .01 and rho = .1. Skill is per cent of the base rate's loss; s: CPU seconds.
"""

import argparse
import time

import numpy as np

from equipoise._jax import keep_programs, use_all_cores
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment import config
from equipoise.experiment.chosen import folds, penalty, price, settle
from equipoise.experiment.problems import build_problem, precision

L2, RHO = (0.1, 0.01, 0.003, 0.001, 0.0001), (10.0, 1.0, 0.3, 0.1, 0.03, 0.01)
BEFORE = (0.01, 0.1)
ROUNDS = 20


def main() -> None:
    of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of.add_argument("data_sets", nargs="+")
    of.add_argument("--min-size", type=int, default=40)
    of.add_argument("--seed", type=int, default=0)
    a = of.parse_args()
    use_all_cores()
    keep_programs()
    print("| | chosen l2, rho | rounds for it | average / worst fifth | fixed before | best of 30 | less than it | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in a.data_sets:
        print(line(name, a.min_size, a.seed), flush=True)


def line(name: str, least: int, seed: int) -> str:
    started = time.process_time()
    told = config.parse(
        {
            "data": {"name": name, "test": 0.3},
            "partition": {"kind": "natural", "min_size": least},
            "model": {"l2": penalty.MIDDLE, "metric": "none"},
            "objective": {"price": 0.01},
            "run": {"seed": seed},
        }
    )
    told = settle.robust(told)
    with precision(told):
        problem = build_problem(told)
        walk = folds.Walk(problem, seed)
        l2 = penalty.chosen(price.at(told, price.WAY[0]), walk)
        rho = price.chosen(told, walk, penalty.extra(told, problem, l2.value))
        whole = folds.Walk(problem, seed, folds.held_out(problem))
        seen = {}
        for p in sorted({*L2, l2.value, BEFORE[0]}, reverse=True):
            for r in RHO if p in L2 else (rho.value, BEFORE[1]):
                seen[p, r] = skill(whole, told, p, r)
            for wanted in ((l2.value, rho.value), BEFORE):
                if wanted[0] == p and wanted not in seen:
                    seen[wanted] = skill(whole, told, *wanted)
    best = max((seen[p, r] for p in L2 for r in RHO), key=lambda found: found[0])
    mine, before = seen[l2.value, rho.value], seen[BEFORE]
    shown = " | ".join(f"{found[0]:.1f} / {found[1]:.1f}" for found in (mine, before, best))
    return (
        f"| {name} ({problem.n}) | {l2.value:g}, {rho.value:g} | {l2.rounds} + {rho.rounds} | {shown} | "
        f"{best[0] - mine[0]:.2f} | {time.process_time() - started:.0f} |"
    )


def skill(walk: folds.Walk, told: config.Config, l2: float, rho: float) -> tuple[float, float]:
    """Average and worst fifth, in per cent."""
    extra = penalty.extra(told, walk.problem, l2)
    losses = walk.to(price.at(told, rho), extra, rounds=ROUNDS).losses
    base = walk.folds.base
    known = base > 0
    each = 100 * (1 - losses[known] / base[known])
    return float(np.mean(each)), float(worst_mean(each, True))


if __name__ == "__main__":
    main()
