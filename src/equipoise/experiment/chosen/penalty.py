"""model.l2 = "auto": the largest penalty within one standard error of the best, and a quarter point, by folds.

What it takes are sums over the owners: of their losses at every l2, and of the products of these, from which the
standard error of a difference follows. No single owner's is needed.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from equipoise.experiment.chosen.walk import Walk, of_the_heard
from equipoise.experiment.config import Config
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import Choice
from equipoise.protocol import Vector

GRID = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
MIDDLE = 0.003  # the problem is built with it
MOST = 0.0025  # of the base rate's loss, that the larger penalty may cost: with few owners a standard error is large
WORSE = 2.0  # standard errors behind the best: what is smaller still is not tried


def scaled(config: Config, problem: Problem) -> Vector:
    """[d]: of the problem's penalty, which is of MIDDLE, what another l2 scales: not an intercept with its own."""
    own = np.broadcast_to(np.asarray(problem.l2), problem.x.shape).astype(problem.x.dtype)
    linear = problem.plain_task.linear
    if config.model.l2_intercept is not None and linear is not None and linear.intercept:
        own = np.append(own[: -linear.outputs], np.zeros(linear.outputs, own.dtype))
    return jnp.asarray(own)


def more_of(l2: float) -> float:
    """How many times that is added to it."""
    return l2 / MIDDLE - 1


def chosen(config: Config, walk: Walk) -> Choice:
    """Along the grid, from the largest on; ends where it gets worse."""
    tried: list[float] = []
    sums = Sums()
    for l2 in GRID:
        sums.add(walk.to(config, more_of(l2)).losses)
        tried.append(l2)
        behind, error = sums.behind(len(tried) - 1)
        if behind > WORSE * error > 0:
            break
    best = sums.best
    most = MOST * float(np.nanmean(walk.base))
    within = [k for k in range(len(tried)) if sums.behind(k)[0] <= min(sums.behind(k)[1], most)]
    k = min(within)  # the largest: the grid falls
    others = sorted((j for j in range(len(tried)) if j != k), key=lambda j: sums.mean(j))
    what = "is the best" if k == best else "is the largest within one standard error of the best"
    beside = "".join(f"; {tried[j]:g} has {sums.mean(j):.4f}" for j in others[:1])
    why = (
        f"of {len(tried)} penalties it {what} by the loss of rows left out, in five folds at the owners "
        f"({sums.mean(k):.4f}{beside})"
    )
    rows = tuple(
        {"value": l2, "loss": sums.mean(j), "behind": sums.behind(j)[0], "standard error": sums.behind(j)[1]}
        for j, l2 in enumerate(tried)
    )
    return Choice(
        key="model.l2",
        value=tried[k],
        why=why,
        runner_up=tried[others[0]] if others else None,
        tried=rows,
        rounds=walk.rounds,
        bytes_down=walk.down,
        bytes_up=walk.up,
    )


class Sums:
    """Of the owners' losses at every candidate, and of their products."""

    def __init__(self) -> None:
        self.answers: list[Float[np.ndarray, " n"]] = []
        self.rows: list[Float[np.ndarray, " n"]] = []  # of the owners that were heard at all of them

    def add(self, losses: Float[np.ndarray, " n"]) -> None:
        self.answers.append(losses)
        self.rows = of_the_heard(self.answers)

    def mean(self, k: int) -> float:
        return float(np.mean(self.rows[k]))

    @property
    def best(self) -> int:
        return int(np.argmin([self.mean(k) for k in range(len(self.rows))]))

    def behind(self, k: int) -> tuple[float, float]:
        """By how much it is worse than the best, and the standard error of that."""
        a, b, n = self.rows[k], self.rows[self.best], len(self.rows[k])
        total, products = float(np.sum(a) - np.sum(b)), float(a @ a - 2 * (a @ b) + b @ b)
        variance = max(products / n - (total / n) ** 2, 0.0) / max(n - 1, 1)
        return total / n, float(np.sqrt(variance))
