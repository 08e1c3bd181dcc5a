"""What every client gets from a model of its own rows alone: the reference that joining is judged by.

The same task, fitted by each client for itself from the same start, and scored on its own held-out rows. Nothing is
sent. Only for convex losses, where a fit needs no step size.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from equipoise.evaluation import PerClient, standing
from equipoise.evaluation.predictions import OF_ROWS
from equipoise.experiment import records
from equipoise.experiment.problems import Problem
from equipoise.experiment.results import floats, in_units
from equipoise.protocol import Vector
from equipoise.tasks import Task

ITERATIONS = 100  # at most; most fits end earlier
SMALL = 1e-4  # of the gradient at the start: what is left is beyond what the scored rows can tell


def write(folders: Sequence[Path], problem: Problem) -> None:
    """The record of what clients get alone, into the run folders on this problem that have none yet."""
    missing = [folder for folder in folders if not (folder / records.ALONE).is_file()]
    if missing and problem.convex:
        found = record_of(problem)
        for folder in missing:
            records.write_record(folder / records.ALONE, found)


def record_of(problem: Problem) -> records.AloneRecord:
    table = in_units(problem, scored_alone(problem))
    measure, up, _ = problem.main_score(table)
    known = np.isfinite(np.asarray(table.scores[measure])).any()
    bounds = standing(table, measure, up=up) if known else None
    nothing: tuple[None, ...] = (None,) * problem.n
    return records.AloneRecord(
        measure=measure,
        scores={name: floats(values) for name, values in table.scores.items()},
        low=floats(bounds.low) if bounds else nothing,
        high=floats(bounds.high) if bounds else nothing,
    )


def scored_alone(problem: Problem) -> PerClient:
    """As `evaluation.evaluate`, of each client's own model."""
    test = problem.train if problem.test is None else problem.test
    scorer = _scorer(problem.task, tuple(problem.scores.items()))
    scores, squares = scorer(problem.x, problem.train, test)
    return PerClient(test.sizes, scores, {}, squares)


@lru_cache(maxsize=16)
def _scorer(task: Task, scores: tuple) -> Callable:
    def score(x: Vector, train: Any, test: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        def one(i: Array) -> tuple[dict[str, Array], dict[str, Array]]:
            model, rows = fitted(task, x, train.client(i)), test.client(i)
            found = {"loss": task.loss(model, rows)}
            if task.predict is None:
                return found, {}
            outputs, labels = task.predict(model, rows.inputs), rows.labels
            real = jnp.arange(labels.shape[0], dtype=rows.sizes.dtype) < rows.sizes
            found |= {name: of(outputs, labels, real) for name, of in scores}
            fourth = {
                name: jnp.sum(jnp.where(real, OF_ROWS[name](outputs, labels) ** 2, 0)) / rows.sizes
                for name in ("rmse",)
                if name in found
            }
            return found, fourth

        return jax.lax.map(one, jnp.arange(train.n))

    return jax.jit(score)


def fitted(task: Task, x: Vector, shard: Any) -> Vector:
    """The least loss of one client, by L-BFGS."""
    prepared = task.prepare(shard)
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(lambda u: task.loss(u, prepared))
    enough = SMALL * jnp.linalg.norm(task.grad(x, prepared))

    def step(carry: tuple) -> tuple:
        u, state, t, _ = carry
        value, grad = value_and_grad(u, state=state)
        updates, state = solver.update(
            grad, state, u, value=value, grad=grad, value_fn=lambda u: task.loss(u, prepared)
        )
        return u + updates, state, t + 1, jnp.linalg.norm(grad)

    def goes_on(carry: tuple) -> Array:
        _, _, t, slope = carry
        return (t < ITERATIONS) & (slope > enough)

    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers of two sizes
        start = (x, solver.init(x), jnp.int32(0), jnp.asarray(jnp.inf, x.dtype))
        return jax.lax.while_loop(goes_on, step, start)[0]
