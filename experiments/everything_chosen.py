"""Penalty and price of fairness chosen, beside a grid of 30 in hindsight and the numbers fixed before. Prints Markdown.

    python experiments/everything_chosen.py exam contraception
    python experiments/everything_chosen.py --workers 8

The federations of `equipoise bench`, all unless named, with 30% of every owner's rows held out. The grid is every l2 of
L2 with every rho of RHO, each trained for ROUNDS rounds from its neighbour; best in hindsight is the best average skill
of the held-out rows, and all are scored on the same rows. Fixed are l2 = .01 and rho = .1. Skill is per cent of the
mean base rate's loss, as in the benchmark; s: CPU seconds of choosing and of the grid. Won and lost: by more than TIE.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import numpy as np

from equipoise._jax import keep_programs, use_all_cores
from equipoise.bench import federations
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment import config
from equipoise.experiment.chosen import folds, penalty, price, settle
from equipoise.experiment.chosen.walk import at_hand
from equipoise.experiment.problems import build_problem, precision

L2, RHO = (0.1, 0.01, 0.003, 0.001, 0.0001), (10.0, 1.0, 0.3, 0.1, 0.03, 0.01)
BEFORE = (0.01, 0.1)
ROUNDS = 8
TIE = 0.25  # points of skill


class Line(NamedTuple):
    """What one federation came to; pairs are the average skill and that of the worst fifth."""

    text: str
    chosen: tuple[float, float]
    before: tuple[float, float]
    best: tuple[float, float]


def main() -> None:
    of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of.add_argument("data_sets", nargs="*")
    of.add_argument("--seed", type=int, default=0)
    of.add_argument("--workers", type=int, default=1, help="federations side by side")
    a = of.parse_args()
    names = federations.chosen(a.data_sets)
    print("| | chosen l2, rho | rounds for it | average / worst fifth | fixed before | best of 30 | less than it | s |")
    print("|---|---|---|---|---|---|---|---|")
    lines = []
    if a.workers == 1:
        use_all_cores()
        lines = [shown(line(name, a.seed)) for name in names]
    else:
        with ProcessPoolExecutor(a.workers, multiprocessing.get_context("spawn")) as pool:
            lines = [shown(done.result()) for done in as_completed([pool.submit(line, name, a.seed) for name in names])]
    chosen, before, best = (np.array([getattr(each, key) for each in lines]) for key in ("chosen", "before", "best"))
    less = best[:, 0] - chosen[:, 0]
    print(f"\nLess than the best average in hindsight: median {np.median(less):.2f}, most {less.max():.2f}.")
    for k, what in enumerate(("average", "worst fifth")):
        more = chosen[:, k] - before[:, k]
        won, lost = int((more > TIE).sum()), int((more < -TIE).sum())
        print(
            f"Against the fixed numbers, by the {what}: {won} won, {len(more) - won - lost} tied, {lost} lost; "
            f"median {np.median(more):+.2f}, from {more.min():+.2f} to {more.max():+.2f}."
        )


def shown(made: Line) -> Line:
    print(made.text, flush=True)
    return made


def line(name: str, seed: int) -> Line:
    keep_programs()
    started = time.process_time()
    asked = {"model": {"l2": penalty.MIDDLE, "metric": "none"}, "objective": {"price": 0.01}}
    asked_of = settle.robust(config.parse(federations.settings(name, seed, asked)))
    with precision(asked_of):
        problem = build_problem(asked_of)
        penalised = penalty.scaled(asked_of, problem)
        walk = at_hand(problem, penalised, seed)
        l2 = penalty.chosen(price.with_rho(asked_of, price.WAY[0]), walk)
        rho = price.chosen(asked_of, walk, penalty.more_of(l2.value))
        chosen_in = time.process_time() - started
        along = at_hand(problem, penalised, seed)
        mine, seen = (l2.value, rho.value), {}
        for p in sorted({*L2, l2.value}, reverse=True):
            on_the_way = RHO if p in L2 else ()
            for r in sorted({*on_the_way, *(r for q, r in (mine, BEFORE) if q == p)}, reverse=True):
                model = along.to(price.with_rho(asked_of, r), penalty.more_of(p), rounds=ROUNDS).model
                seen[p, r] = skill(*folds.held_out_losses(problem, model))
    best = max((seen[p, r] for p in L2 for r in RHO), key=lambda pair: pair[0])
    columns = " | ".join(f"{pair[0]:.1f} / {pair[1]:.1f}" for pair in (seen[mine], seen[BEFORE], best))
    text = (
        f"| {name} ({problem.n}) | {l2.value:g}, {rho.value:g} | {l2.rounds} + {rho.rounds} | {columns} | "
        f"{best[0] - seen[mine][0]:.2f} | {chosen_in:.0f} + {time.process_time() - started - chosen_in:.0f} |"
    )
    return Line(text, seen[mine], seen[BEFORE], best)


def skill(losses: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """Average and worst fifth, in per cent, of owners with held-out rows."""
    known = np.isfinite(base) & np.isfinite(losses)
    each = 100 * (base[known] - losses[known]) / base[known].mean()
    return float(np.mean(each)), float(worst_mean(each, True))


if __name__ == "__main__":
    main()
