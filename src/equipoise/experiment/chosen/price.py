"""objective.price: the fairest model of those whose average skill is at most so much below the best average.

Along the path of the objective's number, from the average on; judged by rows left out of folds at the owners. The
fairest has the largest gain over the owners' own models in the worst fifth, and of points that are not clearly less
fair, by a standard error of the difference, the one nearest to USUAL is kept: the worst fifth is of few owners, and its
largest value along a path often the luckiest. Errors and bounds are of owners drawn anew, of the same losses.
Skill is by how much a model loses less than an owner's base rate, as a share of the mean loss of base rates: of each
owner's own, an owner where hardly anything happens would count for most.
"""

import numpy as np
from jaxtyping import Float

from equipoise.evaluation.rules import worst_mean
from equipoise.experiment.chosen.walk import Walk, of_the_heard
from equipoise.experiment.config import Config
from equipoise.experiment.records import Choice

WAY = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
USUAL = 0.1  # where folds cannot tell; docs/benchmark.md: no worse than what they choose
PATIENCE = 2  # points in a row that cost more than the price: the path ends
DRAWS = 400  # of the owners
BOUNDS = (5, 95)  # per cent of them


def chosen(config: Config, walk: Walk, more: float) -> Choice:
    price, problem = config.objective.price, walk.problem
    before = walk.rounds, walk.down, walk.up
    along: list[np.ndarray] = []
    for rho in WAY:
        along.append(walk.to(with_rho(config, rho), more).losses)
        *losses, base, own = of_the_heard(along, walk.base, problem.baselines)
        unit = float(np.mean(base)) or 1.0
        skills, gains = [(base - loss) / unit for loss in losses], [own - loss for loss in losses]
        if len(skills) > PATIENCE and not any(_affordable(skills, price)[-PATIENCE:]):
            break
    average, worst = np.mean(skills, axis=1), worst_mean(np.array(gains), True)
    drawn = _of_owners_drawn(np.array(gains))
    allowed = np.flatnonzero(_affordable(skills, price))
    fairest, top = allowed[np.argmax(worst[allowed])], int(np.argmax(average))
    error = np.std(drawn - drawn[fairest], axis=1)
    as_fair = [k for k in allowed if worst[k] >= worst[fairest] - error[k]]
    k = min(as_fair, key=lambda k: abs(np.log(WAY[k] / USUAL)))
    others = sorted((j for j in allowed if j != k), key=lambda j: -worst[j])
    low, high = np.percentile(drawn, BOUNDS, axis=1)
    most = "the largest gain over own models in the worst fifth"
    nearest = f"the nearest to {USUAL:g} within one standard error of {most} ({worst[fairest]:+.4f} at rho "
    how = f"has {most}" if k == fairest else f"is {nearest}{WAY[fairest]:g})"
    why = (
        f"of {len(skills)} points from the average to the worst owner it {how}: {worst[k]:+.4f}, bounds {low[k]:+.4f} "
        f"to {high[k]:+.4f}, at an average skill of at most {price:g} below the best ({100 * average[k]:.1f}% and "
        f"{100 * average[top]:.1f}%)"
    )
    rows = tuple(
        {
            "value": WAY[j],
            "average skill": float(average[j]),
            "below the best": float(average[top] - average[j]),
            "worst fifth gain": float(worst[j]),
            "worst fifth low": float(low[j]),
            "worst fifth high": float(high[j]),
            "behind the fairest, standard error": float(error[j]),
        }
        for j in range(len(skills))
    )
    rounds, down, up = walk.rounds - before[0], walk.down - before[1], walk.up - before[2]
    return Choice(
        key="objective.rho",
        value=WAY[k],
        why=why,
        runner_up=WAY[others[0]] if others else None,
        tried=rows,
        rounds=rounds,
        bytes_down=down,
        bytes_up=up,
    )


def with_rho(config: Config, rho: float) -> Config:
    """The configuration at a point of the path."""
    objective = config.objective.model_copy(update={"rho": rho, "price": None})
    return config.model_copy(update={"objective": objective})


def _affordable(skills: list[np.ndarray], price: float) -> np.ndarray:
    average = np.mean(skills, axis=1)
    return average >= average.max() - price


def _of_owners_drawn(gains: Float[np.ndarray, "points n"]) -> Float[np.ndarray, "points draws"]:
    """The worst fifth of owners drawn anew, the same ones at every point."""
    n = gains.shape[1]
    ids = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    return worst_mean(gains[:, ids], True)
