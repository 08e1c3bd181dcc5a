"""The step size of a network: every candidate makes its model of one round, and about twice the best one is kept.

A candidate's model is that of the whole federation after one round from the first model, and its loss the mean of the
clients' losses. Candidates are powers of two, every second one first and then the neighbours of the best. Twice the
best, because one round likes shorter steps than a hundred do, unless the model of a few rounds is clearly worse for it;
where a few rounds do worse than one, half of it, and so on. It is not judged anew later: short horizons like short
steps.

A network may begin on a plateau, where a round teaches nothing and steps look good that explode once it has left. There
the better half of the candidates has a round of four times as many local steps, and if that teaches nothing either the
better half of these one of eight times; and only of a round that taught something twice the best is kept.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import tasks
from equipoise.data.pool import Pool
from equipoise.data.shards import Shards
from equipoise.engines.simulator import simulate
from equipoise.errors import LostReplies, require
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import Choice
from equipoise.protocol import Algorithm, Vector, as_key, exchange_keys, wire_of_rows

COARSE = tuple(2.0**k for k in range(-9, 2, 2))
SHORTEST = 2.0**-25
LONGER = 2.0  # than the best after one round
WATCHED = 4  # rounds in which a longer one must not do harm
WORSE = 1.1  # times the loss: more is harm
NOTHING = 0.95  # of the first model's loss: a round that leaves more has taught nothing
LONG = (4, 8)  # times the local steps, for a round that teaches something


def at_hand(problem: Problem) -> bool:
    """Whether rounds can be tried: where the rows are."""
    return isinstance(problem.train, Pool | Shards)


def tried(
    key: str,
    problem: Problem,
    rows: Any,
    method: Callable[[float, int], Algorithm],
    *,
    has_steps: bool,
    seed: int,
    clients_per_batch: int | None,
) -> Choice:
    """The choice of `key`; method(step, times) has that step size, and so many times its local steps, if it has any."""
    losses: dict[float, float] = {}
    played = 0
    algorithm = method(COARSE[0], 1)
    asked = _asked(algorithm, problem, seed)

    def loss_at(x: Vector) -> float:
        return float(np.asarray(tasks.losses(problem.trained_task, x, rows), np.float64)[asked].mean())

    def loss_after(rounds: int, step: float, times: int = 1) -> float:
        nonlocal played
        played += rounds
        end = simulate(method(step, times), problem.x, rows, seed, rounds=rounds, clients_per_batch=clients_per_batch)
        value = loss_at(end.model)
        return value if np.isfinite(value) and not end.tally.broken.any() else np.inf

    def best() -> float:
        return min(losses, key=lambda step: (losses[step], step))

    with warnings.catch_warnings(action="ignore", category=LostReplies):
        for step in COARSE:
            losses[step] = loss_after(1, step)
        while best() == min(losses) and best() > SHORTEST:
            losses[best() / 4] = loss_after(1, best() / 4)
        centre = best()
        for step in (centre / 2, centre * 2):
            losses[step] = loss_after(1, step)
        least = best()
        require(
            np.isfinite(losses[least]),
            f"{key} is 'auto', but no step size from {min(losses):.2g} to {max(losses):.2g} makes a model of a finite "
            f"loss in one round; check the data, or give {key}",
        )
        taught, times = NOTHING * loss_at(problem.x), 1
        for longer_round in LONG if has_steps else ():
            if losses[least] <= taught:
                break
            times = longer_round
            better = sorted(losses, key=lambda step: (losses[step], step))[: len(losses) // 2]
            losses = {step: loss_after(1, step, times) for step in better}
            centre = best()
            for step in sorted({centre / 2, centre * 2} - losses.keys()):
                losses[step] = loss_after(1, step, times)
            least = best()
        if times > 1:
            chosen = LONGER * least if losses[least] <= taught else least
        else:
            longer, kept = (loss_after(WATCHED, step) for step in (LONGER * least, least))
            chosen = LONGER * least if longer <= WORSE * kept else least
            while chosen > least / 8 and min(longer, kept) > losses[least]:  # a few rounds do worse than one
                chosen /= 2
                kept = loss_after(WATCHED, chosen)
    usable = sorted((value, step) for step, value in losses.items() if np.isfinite(value))
    runner_up = chosen * usable[1][1] / least if len(usable) > 1 else None
    how = "twice that is" if chosen == LONGER * least else f"{chosen / least:g} times that is"
    plateau = f" of {times} times the local steps, as shorter ones taught nothing here" if times > 1 else ""
    watched = f", as the trial of {WATCHED} rounds says" if times == 1 else ""
    why = (
        f"of {len(losses)} step sizes that were tried for one round each{plateau}, {least:g} made the model with the "
        f"least loss ({losses[least]:.3g}); {how} used{watched}, and half of it from where the loss explodes"
    )
    down, up = _bytes(algorithm, problem, rows)
    table = tuple(
        {"value": step, "loss after a round": value if np.isfinite(value) else None}
        for step, value in sorted(losses.items())
    )
    crossed = {"bytes_down": played * asked.size * down, "bytes_up": played * asked.size * up}
    return Choice(key=key, value=chosen, why=why, runner_up=runner_up, tried=table, rounds=played, **crossed)


def _asked(algorithm: Algorithm, problem: Problem, seed: int) -> np.ndarray:
    """The clients of the trial: those of its first exchange."""
    opening, _ = exchange_keys(as_key(seed), jnp.uint32(0), 0)
    _, cohort = algorithm.round[0].open(algorithm.init(problem.x), opening)
    ids = np.unique(np.asarray(cohort.ids)[np.asarray(cohort.present)])
    return ids if ids.size else np.arange(problem.n)


def _bytes(algorithm: Algorithm, problem: Problem, rows: Any) -> tuple[int, int]:
    """Down to and up from a client in a round of a trial, with a model to be judged and its loss."""
    shard = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, rows.client(0)))
    wires = wire_of_rows(algorithm, problem.x, shard)
    real = problem.x.dtype.itemsize
    return sum(w.down for w in wires) + real * problem.x.size, sum(w.up for w in wires) + real
