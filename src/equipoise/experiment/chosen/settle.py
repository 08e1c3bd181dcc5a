"""The settings of a run that say "choose": what they became, from the run's folder or by choosing now."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from equipoise import algorithms
from equipoise.engines.kernel import Lost
from equipoise.experiment import choice as default
from equipoise.experiment import records
from equipoise.experiment.chosen import effort, penalty, price
from equipoise.experiment.chosen.folds import Walk
from equipoise.experiment.config import Config, section_of
from equipoise.experiment.personal.baselines import OwnFit
from equipoise.experiment.problems import build_problem, precision
from equipoise.experiment.records import Choice

APPLIED = {
    "model.l2": float,
    "objective.rho": float,
    "algorithm.steps": int,
    "model.batch": int,
    "algorithm.cohort": int,
}


def is_open(config: Config) -> bool:
    """Whether something has to be chosen before the problem can be built."""
    return by_folds(config) or bool(default.tried_out(config))


def by_folds(config: Config) -> bool:
    return config.model.l2 == "auto" or config.objective_price is not None


class Found(NamedTuple):
    """What was chosen, and the owners' own models, which do not depend on it; None: they were not needed."""

    choices: tuple[Choice, ...]
    fits: OwnFit | None = None


def chosen_for(config: Config, earlier: dict[str, Found], lost: Lost | None) -> Found:
    """What is chosen now, or was for another run of `earlier` on the same data for the same objective."""
    key = _of(config)
    if key not in earlier:
        earlier[key] = choose(config, lost)
    return earlier[key]


def read(folder: Path) -> tuple[Choice, ...] | None:
    path = folder / records.CHOSEN
    return records.read_record(path, records.Choices).settings if path.is_file() else None


def robust(config: Config) -> Config:
    """As of the method that the path is walked by: of methods with other objectives the same penalty is chosen."""
    section = section_of("algorithm", "scaffpd_model")
    method = config.model_copy(update={"algorithm": section.model_validate({"name": "scaffpd_model"})})
    if algorithms.named(config.algorithm.name).takes_dual:
        return method
    return default.settled(method.model_copy(update={"objective": config.objective.model_copy(update={"of": "auto"})}))


def choose(config: Config, lost: Lost | None = None) -> Found:
    """What folds say, and with that what trial rounds do."""
    outcome = _by_folds(robust(config)) if by_folds(config) else Found(())
    if not default.tried_out(config):
        return outcome
    with precision(config):
        return outcome._replace(choices=(*outcome.choices, *effort.chosen(applied(config, outcome.choices), lost)))


def _by_folds(config: Config) -> Found:
    """l2 first, of the objective near the average where its price is asked for, and then the price."""
    choices: list[Choice] = []
    l2 = penalty.MIDDLE if config.model.l2 == "auto" else config.model.l2
    start = config.model_copy(update={"model": config.model.model_copy(update={"l2": l2, "metric": "none"})})
    priced = config.objective_price is not None
    with precision(config):
        problem = build_problem(start)
        walk = Walk(problem, config.run.seed)
        more: object = 0.0
        if config.model.l2 == "auto":
            choice = penalty.chosen(price.with_rho(start, price.WAY[0]) if priced else start, walk)
            choices.append(choice)
            more = penalty.extra(config, problem, float(choice.value))
        if priced:
            choices.append(price.chosen(start, walk, more))
    return Found(tuple(choices), vars(problem).get("own_fits"))


def applied(config: Config, choices: Sequence[Choice]) -> Config:
    for choice in choices:
        section, key = choice.key.split(".")
        if choice.key not in APPLIED:
            continue  # of step sizes, which are found when the method is built
        value = choice.value if APPLIED[choice.key] is float else int(choice.value)
        update = {key: value} | ({"price": None} if section == "objective" else {})
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=update)})
    return config


def _of(config: Config) -> str:
    """All that the choice depends on."""
    if default.tried_out(config):
        return config.model_dump_json()
    kept = {"seed", "precision", "keep_best", "validation"}
    settings = robust(config).model_dump(mode="json", include={"data", "partition", "model", "objective", "personal"})
    return json.dumps([settings, config.run.model_dump(mode="json", include=kept)], sort_keys=True)
