"""model.convexified = "auto": beside a network, the convex model that [convexify] makes of it, where it is better.

Better is its score on the validation rows, on average over the clients, by more than a standard error of the
difference. It is a run of its own below the network's, with the network's settings; nobody has to be told [convexify].
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from equipoise import evaluation
from equipoise.data.pool import Pool
from equipoise.data.shards import Shards
from equipoise.errors import not_none
from equipoise.evaluation.rules import higher_is_better, worst_mean
from equipoise.experiment.config import Config, ConvexifySettings, section_of
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import Choice, Row

MOST_NUMBERS = 5e8  # features of all rows: two gigabytes
MOST_WORK = 3e9  # parameters times rows: some minutes of a core
NETWORK, CONVEX = "the network", "its convex model"


def may_pay(config: Config, problem: Problem) -> bool:
    """Whether it is asked for, there are rows to judge by, and features are made in minutes."""
    if config.model.convexified != "auto" or problem.validation is None:
        return False
    sets = [rows for rows in (problem.train, problem.validation, problem.test) if isinstance(rows, Pool | Shards)]
    rows = sum(int(np.sum(np.asarray(each.sizes))) for each in sets)
    return rows * ConvexifySettings().features <= MOST_NUMBERS and rows * problem.x.size <= MOST_WORK


def config_of(config: Config, network: Path) -> Config:
    """The run of the convex model, on the same rows."""
    cohort = config.algorithm.cohort
    method = section_of("algorithm", "scaffpd_model").model_validate({"name": "scaffpd_model", "cohort": cohort})
    model = config.model.model_copy(update={"convexified": "none"})
    convexify = ConvexifySettings(network=str(network))
    return config.model_copy(
        update={"model": model, "convexify": convexify, "algorithm": method, "personal": None, "name": "convexified"}
    )


Trained = tuple[Problem, Any]  # and the model


def judged(network: Trained, convex: Trained, rows: Sequence[Row], folder: Path) -> Choice:
    """Both on the validation rows; `rows` are of the convex run, which begins with what the network's has sent."""
    score = "accuracy" if network[0].classes else "rmse"
    up = higher_is_better(score)
    values = np.array([_scores(*each, score) for each in (network, convex)])
    gain = (values[1] - values[0]) * (1 if up else -1)
    gain = gain[np.isfinite(gain)]
    error = float(np.std(gain) / np.sqrt(max(gain.size - 1, 1)))
    better = bool(gain.size) and float(gain.mean()) > error
    table: list[dict[str, Any]] = [
        {"value": name, f"{score}, average": _finite(np.nanmean(each)), "worst fifth": _finite(worst_mean(each, up))}
        for name, each in zip((NETWORK, CONVEX), values, strict=True)
    ]
    shown = " and of ".join(
        f"{name} {np.nanmean(each):.4g} and {worst_mean(each, up):.4g}"
        for name, each in zip((NETWORK, CONVEX), values, strict=True)
    )
    how = f"better by more than chance: {folder} is its run" if better else "not better by more than chance"
    why = f"{score} of the validation rows, average and worst fifth, of {shown}; the convex model is {how}"
    return Choice(
        key="model.convexified",
        value=CONVEX if better else NETWORK,
        why=why,
        runner_up=NETWORK if better else CONVEX,
        tried=tuple(table),
        rounds=rows[-1].round,
        bytes_down=rows[-1].bytes_down,
        bytes_up=rows[-1].bytes_up,
    )


def _scores(problem: Problem, x: Any, score: str) -> np.ndarray:
    rows = problem.with_rows(problem.train, not_none(problem.validation))
    table = evaluation.evaluator(problem.plain_task, rows, scores=problem.scores)(jnp.asarray(x, problem.x.dtype))
    return np.asarray(table.scores[score], np.float64)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
