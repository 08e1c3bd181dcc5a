"""From settings to a method: an objective, step sizes, an algorithm."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import algorithms, cohorts, objectives, steps
from equipoise._jax import cached_program
from equipoise.algorithms.clipping import has_field
from equipoise.algorithms.private import private_scaffpd
from equipoise.algorithms.scaffpd_sums import MOST_TILT
from equipoise.certificates import resolution
from equipoise.data import ClientData
from equipoise.data.datasets import synthetic
from equipoise.data.shards import client_shapes
from equipoise.errors import not_none, require
from equipoise.experiment import choice
from equipoise.experiment.chosen import step_sizes
from equipoise.experiment.config import Config, RuleSettings
from equipoise.experiment.optimizers import SCHEDULES, build_optimizer, with_own_steps
from equipoise.experiment.private import noise_of, promise
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import Choice
from equipoise.objectives import Dual
from equipoise.protocol import Algorithm, Wire, wire_of_rows
from equipoise.tasks import Task, WithBaseline, less_baseline
from equipoise.tasks.private import Draw, noisy_releases, normal, private_task
from equipoise.tasks.task import least


def baselines_of(config: Config, problem: Problem) -> np.ndarray | None:
    """What losses are compared with, [n]; None: with nothing. Of an average it would make no difference."""
    gains = config.objective.of == "gains" and not objectives.named(config.objective.name).average
    return problem.baselines if gains else None


def build_dual(config: Config, problem: Problem) -> Dual:
    """Of losses or of gains, as the settings say."""
    psi, base = _dual_of_losses(config, problem.n), baselines_of(config, problem)
    if base is not None:
        return objectives.of_gains(psi, base)
    numbers, structure = jax.tree.flatten(psi)
    return _first_made(structure, tuple(numbers))


@cached_program
def _first_made(structure: Any, numbers: tuple) -> Dual:
    """The same object for the same settings: its operators are compiled once."""
    return structure.unflatten(numbers)


def _dual_of_losses(config: Config, n: int) -> Dual:
    settings = config.objective.model_dump(exclude_none=True, exclude={"of", "price"})
    name, cap = settings.pop("name"), config.federation.cap if config.federation else None
    psi = objectives.named(name)(n, **settings)
    require(isinstance(psi, Dual), f"objective.name is '{name}', which makes no Dual; see docs/experiments.md")
    return psi if cap is None else objectives.cap_weights(psi, cap)


@lru_cache(maxsize=16)
def _less_baseline(task: Task) -> Task:
    return less_baseline(task)


def training_rows(config: Config, problem: Problem, train: ClientData) -> Any:
    """The rows that a method is given, with the owners' baselines where it looks at gains and they alone know them."""
    base, train = baselines_of(config, problem), problem.in_metric(train)
    if base is None or not algorithms.named(config.algorithm.name).weighs_itself:
        return train
    return WithBaseline(train, jnp.asarray(base, problem.x.dtype))


class BuiltMethod(NamedTuple):
    """A method on a problem."""

    algorithm: Algorithm
    notes: tuple[str, ...]  # what was measured instead of chosen
    chosen: tuple[Choice, ...] = ()  # by trial rounds


def build_method(config: Config, problem: Problem, draw: Draw = normal) -> BuiltMethod:
    """`draw`: where noise comes from, if the run has some."""
    key = tried_step(config, problem)
    return _built(config, problem, draw) if key is None else _with_tried_step(config, problem, draw, key)


def tried_step(config: Config, problem: Problem) -> str | None:
    """The step size that is found by trial rounds: of networks, whose rows are at hand; None: there is none."""
    auto = [key for key in ("local_lr", "lr") if getattr(config.algorithm, key, None) == "auto"]
    return auto[0] if auto and not problem.convex and step_sizes.at_hand(problem) else None


def _with_tried_step(config: Config, problem: Problem, draw: Draw, key: str) -> BuiltMethod:
    def method(step: float, **more: Any) -> BuiltMethod:
        given = config.algorithm.model_copy(update={key: step, **more})
        return _built(config.model_copy(update={"algorithm": given}), problem, draw, guarded=True)

    name = json.dumps([config.algorithm.model_dump(mode="json"), config.objective.model_dump(mode="json"), key])
    if name not in problem.tried_steps:
        steps = getattr(config.algorithm, "steps", None)
        rows = training_rows(config, problem, problem.compiled_for)
        problem.tried_steps[name] = step_sizes.tried(
            f"algorithm.{key}",
            problem,
            rows,
            lambda step, times: method(step, **({"steps": times * steps} if steps else {})).algorithm,
            has_steps=steps is not None,
            seed=config.run.seed,
            clients_per_batch=config.run.clients_per_batch,
        )
    choice = problem.tried_steps[name]
    made = method(choice.value)
    return made._replace(notes=(*made.notes, choice.sentence), chosen=(choice,))


def _built(config: Config, problem: Problem, draw: Draw, *, guarded: bool = False) -> BuiltMethod:
    """What is not given is measured, the algorithm is made of it, and wrapped in what else was asked for.

    `guarded`: step sizes are halved where the loss explodes.
    """
    record = algorithms.named(config.algorithm.name)
    settings = {name: value for name, value in config.algorithm if value is not None and name != "name"}
    around = {name: settings.pop(name, None) for name in AROUND}
    _check_until_gap(config, problem)
    notes = _notes_of_choices(config, problem, record, around["cohort"])
    dual, task = _objective(config, problem, record)
    sample = _sample(record, problem.n, around["cohort"], around["coin"])
    rule = _rule(problem, record, dual, around["cohort"], settings, notes)
    _fill_in(config, problem, record, settings, notes)
    task = _with_local_steps(task, record, settings, around)
    if config.privacy is not None:
        release = noisy_releases(task, noise_of(config), l2=problem.l2, draw=draw)
        task = private_task(task, noise_of(config), l2=problem.l2, draw=draw)
        notes.append(promise(config))

    def build(**changes: Any) -> Algorithm:
        given = settings | changes
        made = record.build(task, dual, sample, _with_numbers(rule, given), **given)
        require(
            isinstance(made, Algorithm),
            f"algorithm.name is '{record.name}', which makes no Algorithm; see docs/experiments.md",
        )
        if around["server_optimizer"] is not None:
            optimizer = build_optimizer("algorithm.server_optimizer", around["server_optimizer"])
            made = algorithms.with_server_optimizer(made, optimizer)
        may = guarded and algorithms.may_be_guarded(task, made)
        return algorithms.with_guarded_steps(task, made) if may else made

    if around["schedule"] is None:
        algorithm = build()
    else:
        falling = SCHEDULES[around["schedule"]](settings["local_lr"], config.run.rounds)
        algorithm = algorithms.with_local_schedule(lambda local_lr: build(local_lr=local_lr), falling)
    if config.privacy is not None and algorithm.corrected:
        algorithm = private_scaffpd(algorithm, release, steps=settings["steps"])
    if around["optimizer"] is not None:
        crossing(algorithm, problem)  # an optimizer where local steps are corrected is a mistake, found by tracing them
    for wrap in (_projected, _clipped, _clipped_gradients, _compressed, _told_in_x):
        algorithm = wrap(algorithm, config, problem, settings, notes)
    return BuiltMethod(algorithm, tuple(notes))


AROUND = ("cohort", "coin", "optimizer", "server_optimizer", "schedule")  # settings that are no arguments of a factory


def _notes_of_choices(config: Config, problem: Problem, record: algorithms.Record, cohort: int | None) -> list[str]:
    gains = baselines_of(config, problem) is not None and record.takes_dual
    alone = config.model_dump(exclude_none=True) | {"algorithm": {"cohort": cohort}}  # whatever is set of it
    best = choice.best_algorithm(alone)
    chosen = [f"{best.name} is the method of choice: {best.why}"] if best.name == record.name else []
    return [*([GAINS] if gains else []), *chosen]


def _objective(config: Config, problem: Problem, record: algorithms.Record) -> tuple[Dual, Task]:
    """The dual and the task: one of them has the baselines, if there are any."""
    if record.weighs_itself and baselines_of(config, problem) is not None:  # nobody else knows its loss
        return _dual_of_losses(config, problem.n), _less_baseline(problem.trained_task)
    return build_dual(config, problem), problem.trained_task


def _rule(
    problem: Problem,
    record: algorithms.Record,
    dual: Dual,
    cohort: int | None,
    settings: dict[str, Any],
    notes: list[str],
) -> steps.Rule | RuleSettings | None:
    """Takes the step sizes out of the settings; measured where they are not given, and then the local one too."""
    rule = settings.pop("rule", None)
    if rule != "tuned":
        return rule
    network_rule = algorithms.named(record.minibatch_form or record.name).network_rule
    if network_rule is not None and not problem.convex:
        given = network_rule(problem.n)
        numbers = ", ".join(f"{name} {value:g}" for name, value in given.items())
        notes.append(f"the step sizes of the weights were not given: {numbers}, which serve on networks")
        return RuleSettings(**given)
    form = record.minibatch_form
    alternative = "" if form is None else f", or model.batch, such as 32, for which {form} knows them"
    _must_be_convex(problem, "algorithm.rule is 'tuned'", "{ tau = .., sigma = .., theta = .. }" + alternative)
    constants, local_lr = problem.constants(settings["steps"])
    how = "were measured, see `steps.tuned`" if problem.slope is None else "are of what every site has measured"
    notes.append(f"the step sizes tau, sigma and theta {how}")
    if settings["local_lr"] == "auto":
        settings["local_lr"] = float(local_lr)
        notes.append(f"local_lr was measured: {settings['local_lr']:.4g}")
    return steps.rule_for(constants, dual, share=1.0 if cohort is None else cohort / problem.n)


def _with_numbers(rule: Any, settings: Mapping[str, Any]) -> steps.Rule | None:
    """A rule of given numbers; the server takes the local steps as they are, unless it is told a tau."""
    if not isinstance(rule, RuleSettings):
        return rule
    tau = settings["steps"] * settings["local_lr"] if rule.tau == "auto" else rule.tau
    return steps.constant(tau=tau, sigma=rule.sigma, theta=rule.theta)


def _fill_in(
    config: Config, problem: Problem, record: algorithms.Record, settings: dict[str, Any], notes: list[str]
) -> None:
    """Measures the numbers that the settings leave to it."""
    for key in ("local_lr", "lr"):
        if settings.get(key) == "auto":
            _must_be_convex(problem, f"algorithm.{key} is 'auto'", "a number, such as 0.1")
            settings[key] = 1 / problem.smoothness
            notes.append(f"{key} was measured: 1/L = {settings[key]:.4g}")
    if config.federation and config.federation.secure and "tilt_cap" in record.arguments:
        settings.setdefault("tilt_cap", MOST_TILT)
    if settings.get("mu") == "auto":
        settings["mu"] = problem.modulus
    if record.minibatch_form is not None and config.batch is not None:
        notes.append(f"{record.name} is made for exact gradients; for minibatches there is {record.minibatch_form}")


def _with_local_steps(
    task: Task, record: algorithms.Record, settings: Mapping[str, Any], around: Mapping[str, Any]
) -> Task:
    for key in ("optimizer", "schedule"):
        require(
            around[key] is None or "local_lr" in settings,
            f"algorithm.{key} is for local steps, of which {record.name} takes none of its own; leave it out",
        )
    return task if around["optimizer"] is None else with_own_steps(task, around["optimizer"])


# What an algorithm is wrapped in, each where it was asked for: from the inside to the outside.


def _projected(
    algorithm: Algorithm, config: Config, problem: Problem, settings: Mapping[str, object], notes: list[str]
) -> Algorithm:
    if not (config.federation and _projects(config, problem, settings)):
        return algorithm
    quadratic = problem.loss in QUADRATIC
    notes.append(BOUNDED if quadratic else BOUNDED_CONVEX)
    return algorithms.project_updates(algorithm, quadratic=quadratic)


def _clipped(algorithm: Algorithm, config: Config, *_: Any) -> Algorithm:
    factor = config.federation.clip if config.federation else None
    return algorithm if factor is None else algorithms.clip_losses(algorithm, factor=factor)


def _clipped_gradients(algorithm: Algorithm, config: Config, problem: Problem, *_: Any) -> Algorithm:
    factor = config.federation.clip_gradients if config.federation else None
    if factor is None:
        return algorithm
    require(
        any(has_field(w.reply.each, "gradient") for w in crossing(algorithm, problem)),
        f"federation.clip_gradients looks at every site's gradient, which {algorithm.name} does not show; leave it "
        "out, or take scaffpd",
    )
    return algorithms.clip_gradients(algorithm, factor=factor)


def _compressed(algorithm: Algorithm, config: Config, problem: Problem, *_: Any) -> Algorithm:
    settings = config.federation
    if settings is None or settings.compress is None:
        return algorithm
    wires = crossing(algorithm, problem)
    return algorithms.compress_replies(algorithm, wires, dtype=settings.compress, sums=settings.compress_sums)


def _told_in_x(algorithm: Algorithm, config: Config, problem: Problem, *_: Any) -> Algorithm:
    if problem.conditioning is None:
        return algorithm
    return algorithms.told_in_x(algorithm, problem.task, problem.conditioning.metric)


def _check_until_gap(config: Config, problem: Problem) -> None:
    """A gap that no row of the history could show would never end a run."""
    wanted, least_gap = config.run.until_gap, resolution(problem.x.dtype)
    more = "or run.precision = 'float64'" if config.run.precision == "float32" else "which is as exact as it gets"
    require(
        wanted is None or wanted > least_gap,
        f"run.until_gap is {wanted}, but numbers of {config.run.precision} show no gap below {least_gap:.1g} of the "
        f"objective; give a larger one, {more}",
    )


GAINS = (
    "the objective is of gains: every loss less that of the owner's own model on rows that it has not seen, so that "
    "nobody counts more for labels that are hard to predict"
)
QUADRATIC = ("squared", "squared_error")
BOUNDED = (
    "every site's update is moved into the ball of those that an honest site could have sent: a site that lies about "
    "its update can slow the run and cannot move where it ends; honest updates stay as they are"
)
BOUNDED_CONVEX = (
    "every site's update is cut to the length of the longest that an honest site could have sent: sites that lie about "
    "their updates cannot move where the run ends while their weight is small (docs/privacy.md)"
)


def crossing(algorithm: Algorithm, problem: Problem) -> list[Wire]:
    """What crosses in a round."""
    rows = client_shapes(problem.in_metric(problem.compiled_for))
    return wire_of_rows(algorithm, problem.x, rows)


def may_project(config: Config) -> bool:
    """Whether updates are projected if the losses turn out to be quadratic and the steps short, or anyway."""
    settings = not_none(config.federation)
    if settings.project is not None or settings.secure or config.privacy is not None:
        return bool(settings.project)
    exact = config.model.batch is None and settings.compress is None and config.model.name == "linear"
    exact = exact and (config.own_models is None or config.own_models.kind != "moreau")
    everybody = config.algorithm.cohort is None and config.algorithm.coin is None
    classes = config.data.task == "classification" and config.model.loss == "auto"
    quadratic = config.model.loss != "cross_entropy" and not classes
    return algorithms.named(config.algorithm.name).corrected and exact and everybody and quadratic


def _projects(config: Config, problem: Problem, settings: Mapping[str, Any]) -> bool:
    """Whether updates are projected: where it was asked for, or where honest sites are not touched by it.

    Those are quadratic losses, whose curvature is the same everywhere, with steps that are no longer than 1/L.
    """
    wanted = not_none(config.federation).project
    if wanted or not may_project(config):
        return bool(wanted)
    if problem.loss not in QUADRATIC:
        return False
    return problem.curvature is not None and settings["local_lr"] * problem.curvature <= 1 + 1e-6


def _sample(record: algorithms.Record, n: int, cohort: int | None, coin: float | None) -> cohorts.Sample:
    if coin is not None:
        return cohorts.coin(n, coin)
    if cohort is None:
        return cohorts.everyone(n)
    require(cohort <= n, f"algorithm.cohort is {cohort} of {n} clients; give at most {n}")
    return cohorts.by_weight(cohort) if record.cohorts == "by_weight" else cohorts.uniform(n, cohort)


def _must_be_convex(problem: Problem, given: str, instead: str) -> None:
    require(
        problem.convex,
        f"{given}, which is tried out where all rows are at hand, and over Flower measured for linear models only, and "
        f"this is a {problem.model.name}; give {instead}",
    )


def known_saddle(config: Config, problem: Problem) -> np.ndarray | None:
    """x*, where it is known from another solver.

    Synthetic regression with the chi2, CVaR, agnostic or average objective, and quadratics with the average.
    """
    if problem.envelope is not None or problem.task.own is not None or config.objective.of == "gains":
        return None
    if config.data.name == "quadratics" and config.objective.name == "average":
        return synthetic.quadratics_solution(problem.train)
    caps = {"chi2": 1.0, "agnostic": 1.0, "average": 1 / problem.n}
    settings = config.objective
    if settings.name == "cvar":
        caps["cvar"] = 1 / (settings.alpha * problem.n)
    if config.data.name != "synthetic" or settings.name not in caps:
        return None
    rho = settings.rho if settings.name == "chi2" else 0.0
    return synthetic.saddle_point(problem.train, mu=least(problem.l2), rho=rho, cap=caps[settings.name]).x
