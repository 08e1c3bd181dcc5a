"""The settings of a run that say "choose": what they became, from the run's folder or by choosing now."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from equipoise import algorithms
from equipoise.engines.kernel import Lost
from equipoise.experiment import choice as default
from equipoise.experiment import records
from equipoise.experiment.chosen import effort, penalty, price
from equipoise.experiment.chosen.walk import Walk, at_hand
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
    outcome = _by_folds(config, lost) if by_folds(config) else Found(())
    if not default.tried_out(config):
        return outcome
    with precision(config):
        return outcome._replace(choices=(*outcome.choices, *effort.chosen(applied(config, outcome.choices), lost)))


def _by_folds(config: Config, lost: Lost | None) -> Found:
    begun = start(config)
    with precision(begun):
        problem = build_problem(begun)
        walk = at_hand(problem, penalty.scaled(begun, problem), config.run.seed, lost)
        return Found(along(config, walk), vars(problem).get("own_fits"))


def start(config: Config) -> Config:
    """What the path is walked on: with numbers, which it scales."""
    l2 = penalty.MIDDLE if config.model.l2 == "auto" else config.model.l2
    begun = robust(config).model_copy(update={"personal": None})
    begun = begun.model_copy(update={"model": config.model.model_copy(update={"l2": l2, "metric": "auto"})})
    return begun if config.objective_price is None else price.with_rho(begun, price.WAY[0])


def along(config: Config, walk: Walk) -> tuple[Choice, ...]:
    """l2 first, of the objective near the average where its price is asked for, and then the price."""
    choices: list[Choice] = []
    more = 0.0
    if config.model.l2 == "auto":
        choice = penalty.chosen(start(config), walk)
        choices.append(choice)
        more = penalty.more_of(float(choice.value))
    if config.objective_price is not None:
        choices.append(price.chosen(robust(config), walk, more))
    return tuple(choices)


def applied(config: Config, choices: Sequence[Choice]) -> Config:
    return with_numbers(config, numbers_of(choices))


def numbers_of(choices: Sequence[Choice]) -> dict[str, float]:
    """By key; not step sizes, which are found when the method is built."""
    return {choice.key: float(choice.value) for choice in choices if choice.key in APPLIED}


def with_numbers(config: Config, numbers: Mapping[str, float]) -> Config:
    """The configuration with what was chosen, by its key."""
    for key, value in numbers.items():
        section, name = key.split(".")
        update = {name: APPLIED[key](value)} | ({"price": None} if section == "objective" else {})
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=update)})
    return config


def _of(config: Config) -> str:
    """All that the choice depends on."""
    if default.tried_out(config):
        return config.model_dump_json()
    kept = {"seed", "precision", "keep_best", "validation"}
    settings = robust(config).model_dump(mode="json", include={"data", "partition", "model", "objective", "personal"})
    return json.dumps([settings, config.run.model_dump(mode="json", include=kept)], sort_keys=True)
