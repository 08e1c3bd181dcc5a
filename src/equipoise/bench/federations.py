"""The federations of the benchmark, and a split of one as methods see it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from equipoise.data.datasets import catalogue
from equipoise.data.pool import Pool
from equipoise.errors import not_none, one_of, require
from equipoise.experiment import config
from equipoise.experiment.problems import Problem, build_problem, precision
from equipoise.extensions import is_reference

# What is said of a federation in the same words as in a file for `equipoise run`, and nothing else: the rest are the
# library's defaults. No owner trains on more than 2,000 rows, which keeps the whole benchmark within an hour. What each
# owner should use is chosen after training and leaves the shared model as it is, which is what is scored here.
Sections = dict[str, dict[str, Any]]
COMMON: Sections = {
    "data": {"test": 0.3},
    "partition": {"kind": "natural", "min_size": 20, "max_size": 2000},
    "personal": {"kind": "none"},
}
SMALL: Sections = {"partition": {"min_size": 10}}  # where half of the owners have fewer than 20 rows
FEDERATIONS: dict[str, Sections] = {  # those that take longest first, as several are run at a time
    "adult": {},  # not part of the package: only where its files are found
    "voters": {},
    "pharmacy": {},
    "wages": {},
    "chemistry": {},
    "insteval": {},
    "flights": {},
    "mathachieve": {},
    "covid": {},
    "language": SMALL,
    "star": {},
    "loans": {},
    "lending": {},
    "contraception": {},
    "counties": {},
    "stays": {},
    "poverty": {},
    "exam": {},  # where methods of somebody else are looked at before they enter
}


class Federation(NamedTuple):
    """The training rows of one split, by owner: what a function that fits a model gets."""

    name: str
    classes: tuple[str, ...]  # of labels 0, 1, ...; empty: a number is predicted
    owners: tuple[str, ...]
    inputs: tuple[np.ndarray, ...]  # [rows, features] of every owner
    labels: tuple[np.ndarray, ...]  # [rows]


class Split(NamedTuple):
    """A federation, and its held-out rows, which no method sees the labels of."""

    federation: Federation
    test_inputs: tuple[np.ndarray, ...]
    test_labels: tuple[np.ndarray, ...]
    rows: str  # a digest of all of it: entries of the same split have the same one


def available() -> list[str]:
    """Those whose files are here."""
    return [name for name in FEDERATIONS if not catalogue.entry(name).files or catalogue.where(name)]


def chosen(names: Sequence[str] | None) -> list[str]:
    """Those of these names, each of which has to be here, or a data set of one's own, module:name; or all that are."""
    for name in names or ():
        if not is_reference(name):
            one_of("federation", name, FEDERATIONS)
            require(name in available(), catalogue.absent(name))
    return list(names or available())


def settings(name: str, split: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Of a run on this federation, for `config.parse`; `changes` are a method's."""
    entry = catalogue.CATALOGUE.get(name)
    options = (entry.natural if entry is not None else None) or {}
    own: Sections = {"data": {"name": name, "options": options}, "run": {"seed": split}}
    chosen: dict[str, Any] = {"name": name.replace(":", "-")}
    for sections in (COMMON, FEDERATIONS.get(name, {}), own, changes or {}):
        for section, values in sections.items():
            chosen[section] = {**chosen.get(section, {}), **values}
    return chosen


def problem_of(name: str, split: int) -> Problem:
    """All training rows: with rounds that are given, none are set aside to choose one by."""
    changes = {"run": {"seed": split, "rounds": 1}}
    parsed = config.parse(settings(name, split, changes), source=f"the benchmark's {name}")
    with precision(parsed):
        return build_problem(parsed)


def split_of(name: str, problem: Problem) -> Split:
    train, test = _by_owner(problem.train), _by_owner(not_none(problem.test))
    digest = hashlib.blake2b(digest_size=8)
    for array in (*train[0], *train[1], *test[0], *test[1]):
        digest.update(np.ascontiguousarray(array).data)
    federation = Federation(name, problem.classes, problem.names, *train)
    return Split(federation, *test, digest.hexdigest())


def _by_owner(pool: Pool) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    inputs, labels = np.asarray(pool.inputs), np.asarray(pool.labels)
    rows = [slice(a, a + m) for a, m in zip(np.asarray(pool.starts), np.asarray(pool.sizes), strict=True)]
    return tuple(inputs[owned] for owned in rows), tuple(labels[owned] for owned in rows)
