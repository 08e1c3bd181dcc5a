"""The step size of a network: candidates race, the longest of the good ones is kept, and training goes on from there.

Powers of two all train from the first model, side by side. After a quarter of the race the five with the least mean
loss of the clients go on from where they are, after half of it three. At its end the longest is kept whose loss is at
most 1.15 times the least, and which has come down at least half as far: short horizons like short steps, and a run is
at least five times as long as its race. For the same reason nothing is judged anew later. One round says little: a
network may begin on a plateau of a dozen rounds, where every step size looks alike, and the best of a run often falls
behind at first.

The run begins where the one that is kept has ended the race, with all that its server and clients hold: those rounds
are training too. Towards the end of the run its step size falls to zero (`experiment/methods.py`), which makes a race
that kept a long one harmless.

A candidate whose loss is not finite, or of whose replies one was not, comes last. Where all that go on end so, the
choice is among those that were finite when they dropped out.

docs/algorithms.md has what was measured.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import tasks
from equipoise.data.pool import Pool
from equipoise.data.shards import Shards
from equipoise.engines.checks import total_memory
from equipoise.engines.kernel import Tally
from equipoise.engines.simulator import Result, simulate
from equipoise.errors import LostReplies, require
from equipoise.experiment.problems import Problem, Raced
from equipoise.experiment.records import Choice
from equipoise.protocol import Algorithm, RandomKey, Vector, as_key, exchange_keys, nbytes, wire_of_rows

CANDIDATES = tuple(2.0**k for k in range(-6, 2))
SHORTEST, LONGEST = 2.0**-25, 2.0**8  # of those that are added while the best one is the shortest or the longest
# Of the rounds of a race, of who goes on and of what is close, others were tried on runs whose losses were recorded for
# every step size: 12 rounds chose too short ones, and with 2 at the end a convolutional network lost 3 points.
SHARE = 5  # of the run's rounds a race takes one in so many,
MOST_ROUNDS, LEAST_ROUNDS = 16, 2  # but at most and at least these
STAY = (5, 3)  # candidates after a quarter and after half of it
CLOSE = 1.15  # times the least loss: no more is as good,
HALF = 0.5  # and of the way down from the first loss no less is: on a plateau all losses are close
DRAWS = 1  # folded into the run's key: its own rounds draw other rows
MEMORY = 0.25  # of what there is, for the states of candidates; where they do not fit, one begins again to go on


def at_hand(problem: Problem) -> bool:
    """Whether rounds can be tried: where the rows are."""
    return isinstance(problem.train, Pool | Shards)


def race_rounds(rounds: int) -> int:
    """How long the race before a run of so many rounds is."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, rounds // SHARE))


def raced(
    key: str,
    problem: Problem,
    rows: Any,
    method: Callable[[float], Algorithm],
    *,
    rounds: int,
    seed: int,
    clients_per_batch: int | None,
) -> Raced:
    """The choice of `key` for a run of `rounds`, and where to begin it; method(step) has that step size."""
    end, draws = race_rounds(rounds), jax.random.fold_in(as_key(seed), DRAWS)
    quarter = -(-end // 4)
    runs: dict[float, Result] = {}
    losses: dict[float, float] = {}
    reached: dict[float, int] = {}  # round, by each candidate
    judged: list[float] = []  # all losses that were asked for
    algorithm_with = cache(method)
    asked = _asked(algorithm_with(CANDIDATES[0]), problem, draws)

    def loss_of(x: Vector) -> float:
        judged.append(float(np.asarray(tasks.losses(problem.trained_task, x, rows), np.float64)[asked].mean()))
        return judged[-1]

    def trained(step: float, to: int) -> Result:
        """Until round `to`, from where it is."""
        return simulate(
            algorithm_with(step),
            problem.x,
            rows,
            draws,
            rounds=to,
            clients_per_batch=clients_per_batch,
            resume=runs.pop(step, None),
        )

    def train(step: float, to: int) -> None:
        run = trained(step, to)
        loss = loss_of(run.model)
        losses[step] = loss if np.isfinite(loss) and not run.tally.broken.any() else np.inf
        reached[step] = to
        if (len(runs) + 1) * nbytes((run.server, run.clients)) <= MEMORY * total_memory():
            runs[step] = run

    def by_loss(steps: Iterable[float]) -> list[float]:
        return sorted(steps, key=lambda step: (losses[step], step))

    with warnings.catch_warnings(action="ignore", category=LostReplies):
        for step in CANDIDATES:
            train(step, quarter)
        spent = quarter
        while beyond := _beyond(by_loss(losses)[0], losses):
            for step in beyond:
                train(step, quarter)
            spent += quarter
        last = max(quarter, end - spent + quarter)  # those that were added took rounds of the race
        ahead = list(losses)
        for stay, to in zip(STAY, (min(-(-end // 2), last), last), strict=True):
            ahead = by_loss(ahead)[:stay]
            runs = {step: run for step, run in runs.items() if step in ahead}
            for step in ahead:
                if to > reached[step]:
                    train(step, to)
    finite = [step for step in by_loss(losses) if np.isfinite(losses[step])]
    require(
        finite,
        f"{key} is 'auto', but no step size from {min(losses):.2g} to {max(losses):.2g} makes models of finite losses "
        f"in {end} rounds; check the data, or give {key}",
    )
    ahead = [step for step in finite if step in ahead] or finite
    least = ahead[0]
    most, first = CLOSE * losses[least], loss_of(problem.x)
    if losses[least] < first < np.inf:
        most = min(most, first - HALF * (first - losses[least]))
    chosen = max(step for step in ahead if losses[step] <= most)
    how = (
        f"it has the least mean loss ({losses[least]:.3g}) and no longer one is close"
        if chosen == least
        else f"it is the longest whose mean loss ({losses[chosen]:.3g}) is close to the least ({losses[least]:.3g}, "
        f"with {least:g}; close is at most {most:.3g})"
    )
    why = (
        f"of {len(losses)} step sizes that raced over {end} rounds, {how}; half of it is used from "
        "where the loss explodes, and training goes on from its model"
    )
    down, up, model, number = _bytes(algorithm_with(chosen), problem, rows)
    rounds_of_all = sum(reached.values())
    choice = Choice(
        key=key,
        value=chosen,
        why=why,
        runner_up=next((step for step in ahead if step != chosen), None),
        tried=tuple(
            {"value": step, "rounds": reached[step], "loss": loss if np.isfinite(loss) else None}
            for step, loss in sorted(losses.items())
        ),
        rounds=spent + last - quarter,
        bytes_down=asked.size * (rounds_of_all * down + len(judged) * model),
        bytes_up=asked.size * (rounds_of_all * up + len(judged) * number),
    )
    there = runs[chosen] if chosen in runs else trained(chosen, reached[chosen])  # it did not fit into memory
    return Raced(choice, _beginning(there, algorithm_with(chosen)), reached[chosen])


def _beginning(run: Result, algorithm: Algorithm) -> Result:
    """Of a run whose first round comes after the last one of the race."""
    server, clients, model = jax.device_get((run.server, run.clients, run.model))
    return Result(server, clients, None, 0, Tally.nothing(algorithm), 0.0, 0.0, model=model)


def _beyond(best: float, steps: Iterable[float]) -> tuple[float, ...]:
    """Two more candidates where the best one is the shortest or the longest."""
    if best == min(steps) and best > SHORTEST:
        return best / 4, best / 2
    if best == max(steps) and best < LONGEST:
        return 2 * best, 4 * best
    return ()


def _asked(algorithm: Algorithm, problem: Problem, draws: RandomKey) -> np.ndarray:
    """The clients that judge: those of the first exchange."""
    opening, _ = exchange_keys(draws, jnp.uint32(0), 0)
    _, cohort = algorithm.round[0].open(algorithm.init(problem.x), opening)
    ids = np.unique(np.asarray(cohort.ids)[np.asarray(cohort.present)])
    return ids if ids.size else np.arange(problem.n)


def _bytes(algorithm: Algorithm, problem: Problem, rows: Any) -> tuple[int, int, int, int]:
    """Down to and up from a client in a round, and those of a model and of its loss."""
    shard = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, rows.client(0)))
    wires = wire_of_rows(algorithm, problem.x, shard)
    real = problem.x.dtype.itemsize
    return sum(w.down for w in wires), sum(w.up for w in wires), real * problem.x.size, real
