"""steps, batch and cohort = "auto": the round that brings most for its cost.

An exchange costs `run.exchange_seconds`, the way there and back; what crosses with all who are asked goes over one line
of `run.bytes_per_second`; a local step costs `run.step_seconds`, or what its operations take a core. Every candidate
trains for as many seconds as BUDGET rounds of the first one cost, with a step size of its own, and the least loss wins:
many local steps where rounds are dear, few owners where their replies fill the line. It goes from the first candidate
to its neighbours, and on while that pays. Nothing is timed: the same settings make the same choice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from equipoise import tasks
from equipoise.engines.kernel import Lost
from equipoise.engines.simulator import simulate
from equipoise.experiment import choice
from equipoise.experiment.conditioning import with_metric
from equipoise.experiment.config import Config
from equipoise.experiment.methods import build_dual, build_method, crossing, training_rows
from equipoise.experiment.problems import Problem, build_problem, data_set_kept
from equipoise.experiment.records import Choice
from equipoise.protocol import Algorithm

GRID = {"algorithm.steps": (1, 3, 10, 30, 100), "model.batch": (8, 32, 128)}
FIRST = {"algorithm.steps": 10, "model.batch": 32}
BUDGET, MOST = 8, 64  # rounds of the first candidate, and of any
LEAST_COHORT = 2
OPERATIONS = 1e10  # of a core in a second, where `run.step_seconds` is not told


class Tried(NamedTuple):
    """A candidate: the loss after its rounds, of so many seconds each."""

    loss: float
    rounds: int
    seconds: float


def with_values(config: Config, values: dict[str, int | None]) -> Config:
    for key, value in values.items():
        section, name = key.split(".")
        changed = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: changed})
    return config


def chosen(config: Config, lost: Lost | None) -> tuple[Choice, ...]:
    """One after the other: steps, batch, cohort."""
    keys = choice.tried_out(config)
    with data_set_kept():
        trials = _Trials(config, lost)
        now: dict[str, int | None] = {key: FIRST.get(key) for key in keys}
        out = []
        for key in keys:
            n = trials.first_problem(now).n
            grid = GRID.get(key) or _cohorts(n)
            out.append(_walked(key, grid, now, trials))
            now[key] = int(out[-1].value)
    return tuple(out)


def _cohorts(n: int) -> tuple[int, ...]:
    """All of them, half of them, and so on."""
    sizes = [n]
    while -(-sizes[-1] // 2) >= LEAST_COHORT and sizes[-1] > LEAST_COHORT:
        sizes.append(-(-sizes[-1] // 2))
    return tuple(sizes)


def _walked(key: str, grid: tuple[int, ...], now: dict[str, int | None], trials: "_Trials") -> Choice:
    before = trials.rounds, trials.down, trials.up
    seen: dict[int, Tried] = {}

    def loss(k: int) -> float:
        if grid[k] not in seen:
            seen[grid[k]] = trials.tried({**now, key: grid[k]})
        return seen[grid[k]].loss

    first = now[key]
    k = 0 if first is None else grid.index(first)
    loss(k)  # its seconds are those of all others
    for way in (1, -1):
        while 0 <= k + way < len(grid) and loss(k + way) < loss(k):
            k += way
    order = sorted(seen, key=lambda value: (seen[value].loss, value != grid[k]))
    best, others = seen[grid[k]], [value for value in order if value != grid[k]]
    beside = "".join(f"; with {value} it is {seen[value].loss:.4g}" for value in others[:1])
    why = (
        f"{best.rounds} rounds of {best.seconds:.3g} s each bring the loss to {best.loss:.4g}, the least of "
        f"{len(seen)} candidates that trained for as long{beside}; what a round costs is run.exchange_seconds, "
        "run.bytes_per_second and run.step_seconds"
    )
    rows = tuple(
        {
            "value": value,
            "loss": one.loss if np.isfinite(one.loss) else None,
            "rounds": one.rounds,
            "seconds of a round": one.seconds,
        }
        for value, one in sorted(seen.items())
    )
    rounds, down, up = trials.rounds - before[0], trials.down - before[1], trials.up - before[2]
    runner_up = others[0] if others else None
    return Choice(
        key=key, value=grid[k], why=why, runner_up=runner_up, tried=rows, rounds=rounds, bytes_down=down, bytes_up=up
    )


class _Trials:
    """Trains candidates for as long as the first one, and counts what crosses."""

    def __init__(self, config: Config, lost: Lost | None):
        self.config, self.lost = config, lost
        self.problems: dict[Any, Problem] = {}
        self.seen: dict[tuple, Tried] = {}
        self.rounds = self.down = self.up = 0
        self.budget = 0.0  # seconds

    def first_problem(self, values: dict[str, int | None]) -> Problem:
        config = with_values(self.config, values)
        if config.model.batch not in self.problems:
            self.problems[config.model.batch] = with_metric(config, build_problem(config), self.lost)
        return self.problems[config.model.batch]

    def tried(self, values: dict[str, int | None]) -> Tried:
        key = tuple(sorted(values.items()))
        if key not in self.seen:
            self.seen[key] = self._tried(values)
        return self.seen[key]

    def _tried(self, values: dict[str, int | None]) -> Tried:
        config, problem = with_values(self.config, values), self.first_problem(values)
        made = build_method(config, problem)
        asked = config.algorithm.cohort or problem.n
        wires = crossing(made.algorithm, problem)
        down, up = (asked * sum(getattr(w, name) for w in wires) for name in ("down", "up"))
        run = config.run
        local = getattr(config.algorithm, "steps", 1) * _step_seconds(config, problem)
        seconds = len(made.algorithm.round) * run.exchange_seconds + (down + up) / run.bytes_per_second + local
        self.budget = self.budget or BUDGET * seconds
        rounds = int(np.clip(round(self.budget / seconds), 1, MOST))
        rows = training_rows(config, problem, problem.compiled_for)
        options: dict[str, Any] = {"clients_per_batch": run.clients_per_batch, "lost": self.lost}
        end = simulate(made.algorithm, problem.x, rows, run.seed, rounds=rounds, **options)
        self.rounds += rounds + sum(step.rounds for step in made.chosen)
        self.down += rounds * down + sum(step.bytes_down for step in made.chosen)
        self.up += rounds * up + sum(step.bytes_up for step in made.chosen)
        return Tried(_loss(config, problem, end.model, made.algorithm), rounds, seconds)


def _loss(config: Config, problem: Problem, x: Any, algorithm: Algorithm) -> float:
    """What is trained for, of a convex problem; of a network the mean over the clients, which a few rounds tell."""
    losses = tasks.losses(problem.plain_task, x, problem.compiled_for)[: problem.n]
    robust = problem.convex and algorithm.weights is not None
    value = float(build_dual(config, problem).value(losses) if robust else losses.mean())
    return value if np.isfinite(value) else np.inf


def _step_seconds(config: Config, problem: Problem) -> float:
    if config.run.step_seconds is not None:
        return config.run.step_seconds
    step: Callable = problem.trained_task.grad
    row = jax.eval_shape(lambda: _prepared(problem))
    cost = jax.jit(step).lower(problem.x, row, jax.random.key(0)).cost_analysis()
    return float((cost or {}).get("flops", 0.0)) / OPERATIONS


def _prepared(problem: Problem) -> Any:
    rows = problem.in_metric(jax.tree.map(jax.numpy.asarray, problem.train))
    client = rows.client(0)
    prepare = problem.trained_task.prepare
    return client if prepare is None else prepare(client)
