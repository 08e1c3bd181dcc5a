"""What every client gets from a model of its own rows alone: the reference that joining is judged by.

The same model, trained by each client for itself from the same start, and scored on its own held-out rows. Nothing is
sent. Convex losses are fitted to their optimum, which needs no step size. A network takes the local steps that a client
takes in the comparison: as many of them, of the same size, on the same minibatches of its own rows.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise import algorithms
from equipoise._jax import compiled
from equipoise.engines.simulator import Progress, simulate
from equipoise.errors import not_none
from equipoise.evaluation import PerClient, evaluate_own, of_rows
from equipoise.evaluation.predictions import log_loss
from equipoise.experiment import records
from equipoise.experiment.config import Config, OptimizerSettings
from equipoise.experiment.methods import falling, with_own_steps
from equipoise.experiment.personal.fits import least_loss
from equipoise.experiment.problems import Problem
from equipoise.experiment.results import floats, in_units, skill_of_rows, standing_of
from equipoise.protocol import Algorithm, Data, Vector
from equipoise.tasks import Task

Models = Float[Array, "n d"]  # one of every client


def write(folders: Sequence[Path], problem: Problem, configs: Sequence[Config], watch: Progress | None = None) -> None:
    """The record of what clients get alone, into the run folders on this problem; `configs` are those compared."""
    models = trained(problem, configs, watch)
    if models is None:
        return
    table, rows = scored(problem, models)
    record = record_of(problem, table)
    for folder in folders:
        write_rows(folder / records.ALONE_ROWS, problem, record.measure, rows)
        records.write_record(folder / records.ALONE, record)


def write_rows(path: Path, problem: Problem, measure: str, rows: dict[str, np.ndarray]) -> None:
    """What each row adds to the score, where that is known."""
    if measure in rows and np.isfinite(rows[measure]).all():
        records.write_row_scores(path, records.RowScores(measure, problem.digest_of_rows, rows[measure]))


def trained(problem: Problem, configs: Sequence[Config], watch: Progress | None = None) -> Models | None:
    """Every client's own model; None: of a network, if no method of the comparison has a step size to take over."""
    if problem.convex:
        if problem.plain_task.examples is not None and problem.folds_pay:
            return problem.own_fits.model
        tell = watch or (lambda done, total, _: None)
        tell(0, problem.n, None)
        models = jax.block_until_ready(_fits(problem.plain_task)(problem.x, problem.train))
        tell(problem.n, problem.n, None)
        return models
    local = local_steps(configs, problem.n)
    if local is None:
        return None
    task = problem.plain_task if local.optimizer is None else with_own_steps(problem.plain_task, local.optimizer)

    def method(local_lr: float) -> Algorithm[Any, Vector]:
        return algorithms.alone(task, problem.n, steps=local.steps, local_lr=local_lr)

    algorithm = method(local.lr)
    if local.schedule is not None:
        algorithm = algorithms.with_local_schedule(method, falling(local.schedule, local.lr, local.rounds))
    run = configs[0].run
    end = simulate(
        algorithm,
        problem.x,
        problem.train,
        run.seed,
        rounds=local.rounds,
        clients_per_batch=run.clients_per_batch,
        devices=run.devices,
        progress=watch,
    )
    return end.clients


class LocalSteps(NamedTuple):
    """How a client trains in a comparison."""

    steps: int  # of a round
    lr: float
    rounds: int  # in which it takes part
    optimizer: OptimizerSettings | None = None
    schedule: str | None = None


def local_steps(configs: Sequence[Config], n: int) -> LocalSteps | None:
    """Those of the first method that trains for the average client, or else of the first that has some."""

    def average_last(config: Config) -> bool:
        return not algorithms.named(config.algorithm.name).average

    for config in sorted(configs, key=average_last):
        settings = config.algorithm
        lr = getattr(settings, "local_lr", None) or getattr(settings, "lr", None)
        if isinstance(lr, float):
            share = getattr(settings, "coin", None) or (getattr(settings, "cohort", None) or n) / n
            rounds = max(1, round(config.run.rounds * share))
            own, schedule = (getattr(settings, name, None) for name in ("optimizer", "schedule"))
            return LocalSteps(getattr(settings, "steps", None) or 1, lr, rounds, own, schedule)
    return None


@lru_cache(maxsize=16)
def _fits(task: Task) -> Callable[[Vector, Any], Models]:
    return compiled(lambda x, train: jax.lax.map(lambda i: fitted(task, x, train.client(i)), jnp.arange(train.n)))


def fitted(task: Task, x: Vector, shard: Data) -> Vector:
    prepared = task.prepare(shard)
    return least_loss(lambda u: task.loss(u, prepared), x)


def scored(problem: Problem, models: Models) -> tuple[PerClient, dict[str, np.ndarray]]:
    """How each client's own model serves it, and what each of its rows adds to the scores."""
    test = problem.train if problem.test is None else problem.test
    pairs, task = problem.with_rows(problem.train, test), problem.plain_task
    scores = {} if task.predict is None else problem.scores
    names: list[str] = [name for name in ("accuracy", "rmse") if name in scores]
    names += ["skill"] if scores.get("loss") is log_loss else []
    rows = {name: not_none(of_rows(task, models, pairs, name)) for name in names}
    if "skill" in rows:
        rows["skill"] = skill_of_rows(problem, rows["skill"], test)
    return evaluate_own(task, models, pairs, scores=scores), rows


def record_of(problem: Problem, table: PerClient) -> records.AloneRecord:
    table = in_units(problem, table)
    stands = standing_of(problem, table)
    scores = {name: floats(values) for name, values in table.scores.items()}
    return records.AloneRecord(measure=stands.score, scores=scores, low=floats(stands.low), high=floats(stands.high))
