"""A path of points, each from the model of the one before: one model for all of them, in a few exchanges."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from equipoise import metric as metrics
from equipoise.data.shards import client_shapes
from equipoise.engines.kernel import Lost
from equipoise.engines.simulator import simulate
from equipoise.errors import not_none, require
from equipoise.experiment.chosen.folds import row_of, rows_of
from equipoise.experiment.chosen.point import ROUNDS, point
from equipoise.experiment.config import Config
from equipoise.experiment.methods import build_dual
from equipoise.experiment.problems import Problem
from equipoise.protocol import Algorithm, Vector, wire_of_rows
from equipoise.tasks.metric import Metric, linear_of

FIRST = 3  # rounds of its algorithm that the first point takes, which begins far away; the others take one
POINTS = 14  # of the penalty's path and the price's, at most


class Point(NamedTuple):
    """What a point of a path came to."""

    losses: Float[np.ndarray, " n"]  # of every owner's rows, each by a model that has not seen it; NaN: not heard
    base: Float[np.ndarray, " n"]  # by base rates; likewise
    model: Vector


Ask = Callable[[Algorithm, Vector, int], Point]  # so many rounds of a point's algorithm from x, with whoever answers


class Walk:
    """A path over the folds of one problem, whose l2 is `problem.l2` plus `more` times the part `penalty` of it."""

    def __init__(self, problem: Problem, metric: Metric, penalty: Vector, ask: Ask):
        self.problem, self.metric, self.ask = problem, metric, ask
        self.model, self.begun = problem.x, False
        self.base: Float[np.ndarray, " n"] = np.full(problem.n, np.nan)
        like = client_shapes(problem.train)
        self.row = jax.eval_shape(lambda: row_of(problem, _one_row(like), 0, None, metric, penalty))
        rank, linear = metrics.chosen_rank(linear_of(problem.plain_task)), linear_of(problem.plain_task)
        self.rounds = 1  # the metric
        self.down, self.up = metrics.bytes_of_agreement(linear, problem.n, rank, like, problem.x.dtype)

    def to(self, config: Config, more: float, rounds: int | None = None) -> Point:
        """The point of `config`'s objective."""
        made = point(self.problem.plain_task, build_dual(config, self.problem), self.metric, float(more))
        rounds = rounds or (1 if self.begun else FIRST)
        now = self.ask(made, self.model, rounds)
        self.model, self.begun = now.model, True
        self.base = np.where(np.isfinite(now.base), now.base, self.base)
        wires = wire_of_rows(made, self.problem.x, self.row)
        self.rounds += rounds * ROUNDS
        self.down += rounds * self.problem.n * sum(wire.down for wire in wires)
        self.up += rounds * self.problem.n * sum(wire.up for wire in wires)
        return now


def _one_row(like: Any) -> Any:
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)._replace(sizes=1)


def at_hand(problem: Problem, penalty: Vector, seed: int, lost: Lost | None = None) -> Walk:
    """The walk of a problem whose rows are here."""
    linear = linear_of(problem.plain_task)
    rank = metrics.chosen_rank(linear)
    agreed = metrics.agree(problem.plain_task, problem.train, rank=rank, dtype=problem.x.dtype, key=seed)
    metric = not_none(agreed, "no owner told its second moments")
    rows = rows_of(problem, metric, penalty)

    def ask(made: Algorithm, x: Vector, rounds: int) -> Point:
        return judged(simulate(made, x, rows, seed, rounds=rounds, lost=lost).server, made)

    return Walk(problem, metric, penalty, ask)


def judged(server: Any, made: Algorithm) -> Point:
    """What the server has heard at the end of a point."""
    return Point(np.asarray(server.losses, np.float64), np.asarray(server.base, np.float64), made.model(server))


def of_the_heard(rows: list[Float[np.ndarray, " n"]], *more: Float[np.ndarray, " n"]) -> list[np.ndarray]:
    """The same of the owners that were heard at every point."""
    heard = np.isfinite([*rows, *more]).all(axis=0)
    require(
        bool(heard.any()),
        "no owner told what its rows lose at every point of the path; give numbers, model.l2 and objective.rho",
    )
    return [row[heard] for row in (*rows, *more)]
