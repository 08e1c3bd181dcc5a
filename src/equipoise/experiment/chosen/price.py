"""objective.price: the fairest model of those whose average skill is at most so much below the best average.

Along the path of the objective's number, from the average on; judged by rows left out of folds at the owners. The
fairest has the largest gain over the owners' own models in the worst fifth. Skill is by how much a model loses less
than an owner's base rate, as a share of the mean loss of base rates: of each owner's own, an owner where hardly
anything happens would count for most.
"""

import numpy as np

from equipoise.evaluation.rules import worst_mean
from equipoise.experiment.chosen.folds import Walk
from equipoise.experiment.config import Config
from equipoise.experiment.records import Choice

WAY = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
PATIENCE = 2  # points in a row that cost more than the price: the path ends


def chosen(config: Config, walk: Walk, extra: object) -> Choice:
    price, problem = config.objective.price, walk.problem
    before = walk.rounds, walk.down, walk.up
    rows: list[dict[str, float | None]] = []
    skills = []
    unit = float(np.mean(walk.base)) or 1.0
    for rho in WAY:
        losses = walk.to(with_rho(config, rho), extra).losses
        skill = (walk.base - losses) / unit
        skills.append(skill)
        average, gain = float(np.mean(skill)), float(worst_mean(problem.baselines - losses, True))
        rows.append({"value": rho, "average skill": average, "worst fifth gain": gain})
        if len(rows) > PATIENCE and all(_dear(row, rows, price) for row in rows[-PATIENCE:]):
            break
    best = max(skills, key=lambda s: float(np.mean(s)))
    for row, skill in zip(rows, skills, strict=True):
        row["below the best"] = float(np.mean(best - skill))
        row["standard error"] = float(np.std(best - skill) / np.sqrt(max(problem.n - 1, 1)))
    allowed = [row for row in rows if not _dear(row, rows, price)]
    order = sorted(allowed, key=lambda row: -_number(row, "worst fifth gain"))
    top = max(rows, key=lambda row: _number(row, "average skill"))
    why = (
        f"of {len(rows)} points from the average to the worst owner it has the largest gain over own models in the "
        f"worst fifth ({_number(order[0], 'worst fifth gain'):+.4f}) at an average skill of at most {price:g} below "
        f"the best ({100 * _number(order[0], 'average skill'):.1f}% and {100 * _number(top, 'average skill'):.1f}%)"
    )
    rounds, down, up = walk.rounds - before[0], walk.down - before[1], walk.up - before[2]
    return Choice(
        key="objective.rho",
        value=_number(order[0], "value"),
        why=why,
        runner_up=_number(order[1], "value") if len(order) > 1 else None,
        tried=tuple(rows),
        rounds=rounds,
        bytes_down=down,
        bytes_up=up,
    )


def with_rho(config: Config, rho: float) -> Config:
    """The configuration at a point of the path."""
    objective = config.objective.model_copy(update={"rho": rho, "price": None})
    return config.model_copy(update={"objective": objective})


def _dear(row: dict[str, float | None], rows: list[dict[str, float | None]], price: float) -> bool:
    return _number(row, "average skill") < max(_number(other, "average skill") for other in rows) - price


def _number(row: dict[str, float | None], key: str) -> float:
    value = row[key]
    assert value is not None
    return value
