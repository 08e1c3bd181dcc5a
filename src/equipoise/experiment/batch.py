"""Runs of one method with other settings and seeds: their programs are compiled once, and run side by side if it pays.

What they share depends on the plan alone, not on how many of them are finished, so that a plan that was stopped and
resumed ends bit for bit like one that was not.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import jax

from equipoise.data.pool import alike
from equipoise.engines.checks import total_memory
from equipoise.engines.sweep import Trial, side_by_side
from equipoise.errors import InputError, not_none
from equipoise.experiment import records, run
from equipoise.experiment.config import Config
from equipoise.experiment.methods import BuiltMethod, build_method, training_rows
from equipoise.experiment.problems import Problem, precision
from equipoise.experiment.results import git_commit
from equipoise.experiment.run import RunSpec, Session, Shared
from equipoise.protocol import nbytes

MOST = 200  # runs whose folders are held at a time
SHARE = 0.125  # of the memory there is, for the data of several seeds


def is_done(spec: RunSpec) -> bool:
    return not spec.overwrite and records.finished(spec.folder)


def data_of(config: Config) -> str:
    """All that `run.problem_of` looks at."""
    settings = config.model_dump(mode="json", include={"data", "partition", "model", "convexify", "personal"})
    run = config.run
    held = run.validation if run.keep_best else None
    return json.dumps([settings, run.seed, run.precision, run.score, held, run.lost])


def run_batch(
    specs: Sequence[RunSpec], problems: dict[str, Problem], begin: Callable[[], None], *, in_turn: bool = False
) -> int:
    """Runs those that are not done, all of one precision; `begin` is called when the first data makes sense.

    `problems`, by their data, are those of an earlier batch, of which this one uses what it can; afterwards, those of
    this one. `in_turn`: never side by side. Returns how many programs were made for one run only.
    """
    unshared = 0
    with precision(specs[0].config):

        def keep_only(divisions: dict[str, RunSpec]) -> None:
            if problems.keys() == divisions.keys():
                return
            for key in problems.keys() - divisions.keys():
                del problems[key]
            for key, spec in divisions.items():
                if key not in problems:
                    problems[key] = run.problem_of(spec, begin)
            problems.update(_of_one_shape(problems))

        key = data_of(specs[0].config)
        if key not in problems:
            keep_only({key: specs[0]})
        begin()
        first = problems[key]
        for part in _parts(specs, nbytes((first.train, first.test))):
            if not all(is_done(spec) for spec in part):
                keep_only({data_of(spec.config): spec for spec in part})
                unshared += _run_part(part, problems, in_turn)
    return unshared


def _parts(specs: Sequence[RunSpec], size: int) -> Iterator[Sequence[RunSpec]]:
    """At most MOST together; if their data, of about `size` bytes each, is too much for the memory, those with one."""
    divisions = list(dict.fromkeys(data_of(spec.config) for spec in specs))
    fits = len(divisions) * size <= SHARE * total_memory()
    for group in [specs] if fits else [[m for m in specs if data_of(m.config) == key] for key in divisions]:
        for k in range(0, len(group), MOST):
            yield group[k : k + MOST]


def _run_part(specs: Sequence[RunSpec], problems: dict[str, Problem], in_turn: bool) -> int:
    git = git_commit()

    def opened(spec: RunSpec, method: BuiltMethod | None) -> AbstractContextManager[Session]:
        return run.opened(spec, Shared(problems[data_of(spec.config)], method, git))

    families: dict[object, list[tuple[RunSpec, BuiltMethod | None]]] = {}
    for spec in specs:
        method = build_method(spec.config, problems[data_of(spec.config)]) if _may_share(spec.config) else None
        family = len(families) if method is None else _family(spec, method)
        families.setdefault(family, []).append((spec, method))
    for runs in families.values():
        left = [(spec, method) for spec, method in runs if not is_done(spec)]
        width = _width(runs, problems) if len(runs) > 1 and not in_turn else 1
        if width == 1:
            for spec, method in left:
                with opened(spec, method) as session:
                    run.run_alone(session)
        elif left:
            with ExitStack() as held:
                run.run_together([held.enter_context(opened(*one)) for one in left], width)
    return sum(len(runs) == 1 for runs in families.values())


def _of_one_shape(problems: dict[str, Problem]) -> dict[str, Problem]:
    """With the rows of every problem filled up to the largest: one program serves them all."""
    trains, tests = [p.train for p in problems.values()], [p.test for p in problems.values()]
    try:
        trains = alike(trains)
        tests = tests if any(test is None for test in tests) else alike(tests)
    except InputError:  # data of a kind that cannot be filled up has programs of its own
        pass
    placed = jax.device_put(list(zip(trains, tests, strict=True)))
    pairs = zip(problems.items(), placed, strict=True)
    return {key: replace(problem, filled_up=rows) for (key, problem), rows in pairs}


def _may_share(config: Config) -> bool:
    """Whether a run may go side by side with others: it ends when they do, and nothing is measured for it first."""
    measured = getattr(config.algorithm, "rule", None) == "tuned"
    network = config.model.name != "linear" and config.convexify is None
    measured = measured or (network and "auto" in (getattr(config.algorithm, key, None) for key in ("local_lr", "lr")))
    ends_early = config.run.until_gap is not None or config.run.patience is not None
    return not ends_early and config.run.devices in (None, 1) and not measured


def _family(spec: RunSpec, method: BuiltMethod) -> tuple[object, ...]:
    """Equal for runs that one program serves."""
    settings, structure = spec.config.run, jax.tree.structure(method.algorithm)
    return structure, settings.rounds, settings.evaluate_every, settings.clients_per_batch, bool(settings.lost)


def _width(family: Sequence[tuple[RunSpec, BuiltMethod | None]], problems: dict[str, Problem]) -> int:
    """How many of a family run side by side."""
    spec, method = family[0]
    problem = problems[data_of(spec.config)]
    data = training_rows(spec.config, problem, problem.compiled_for)
    trial = Trial(not_none(method).algorithm, problem.x, data, spec.config.run.seed)
    together = max(Counter(data_of(spec.config) for spec, _ in family).values())  # those with other data come after
    return side_by_side(trial, together)
