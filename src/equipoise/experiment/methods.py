"""From settings to a method: an objective, step sizes, an algorithm."""

import json
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from equipoise import algorithms, cohorts, objectives, steps
from equipoise.algorithms.clipping import has_field
from equipoise.algorithms.private import private_scaffpd
from equipoise.algorithms.scaffpd_sums import MOST_TILT
from equipoise.certificates import resolution
from equipoise.data.datasets import synthetic
from equipoise.data.shards import client_shapes
from equipoise.engines import kernel
from equipoise.errors import InputError, not_none, require
from equipoise.experiment import choice
from equipoise.experiment.chosen import step_sizes
from equipoise.experiment.chosen.choices import Choice
from equipoise.experiment.config import Config, RuleSettings
from equipoise.experiment.optimizers import SCHEDULES, build_optimizer, with_own_steps
from equipoise.experiment.private import noise_of, promise
from equipoise.experiment.problems import Problem
from equipoise.objectives import Dual
from equipoise.protocol import Algorithm, Vector, Wire, wire
from equipoise.tasks import Task, WithBaseline, less_baseline
from equipoise.tasks.metric import metric_of, numbers_of
from equipoise.tasks.private import Draw, noisy_releases, normal, private_task
from equipoise.tasks.task import least


def baselines_of(config: Config, problem: Problem) -> np.ndarray | None:
    """What losses are compared with, [n]; None: with nothing. Of an average it would make no difference."""
    gains = config.objective.of == "gains" and not objectives.named(config.objective.name).average
    return problem.baselines if gains else None


def build_dual(config: Config, problem: Problem) -> Dual:
    """Of losses or of gains, as the settings say."""
    psi, base = _dual_of_losses(config, problem.n), baselines_of(config, problem)
    return psi if base is None else objectives.of_gains(psi, base)


def _dual_of_losses(config: Config, n: int) -> Dual:
    settings = config.objective.model_dump(exclude_none=True, exclude={"of"})
    name, cap = settings.pop("name"), config.federation.cap if config.federation else None
    hashable = all(isinstance(value, Hashable) for value in settings.values())
    return (_dual if hashable else _dual.__wrapped__)(name, n, cap, **settings)


@lru_cache(maxsize=64)  # the same object for the same settings: what is compiled for it is compiled once
def _dual(name: str, n: int, cap: float | None, **settings: Any) -> Dual:
    psi = objectives.named(name)(n, **settings)
    require(isinstance(psi, Dual), f"objective.name is '{name}', which makes no Dual; see docs/experiments.md")
    return psi if cap is None else objectives.cap_weights(psi, cap)


def dual_family(config: Config, problem: Problem) -> tuple[Callable[..., Dual], dict[str, Any]]:
    """What makes the dual, and the numbers that it takes: operands of the programs that it is made in."""
    maker, numbers = _losses_family(config, problem.n)
    base = baselines_of(config, problem)
    return (maker, numbers) if base is None else (_of_gains(maker), numbers | {"base": base})


def _losses_family(config: Config, n: int) -> tuple[Callable[..., Dual], dict[str, Any]]:
    settings = config.objective.model_dump(exclude_none=True, exclude={"of"})
    name, number = settings.pop("name"), TRACED.get(config.objective.name)
    if number is None or config.federation is not None:
        return _always(_dual_of_losses(config, n)), {}
    value = settings.pop(number)
    return _dual_of(name, n, number, **settings), {number: value}


@lru_cache(maxsize=64)
def _of_gains(maker: Callable[..., Dual]) -> Callable[..., Dual]:
    return lambda base, **given: objectives.of_gains(maker(**given), base)


@lru_cache(maxsize=16)
def _less_baseline(task: Task) -> Task:
    return less_baseline(task)


def training_rows(config: Config, problem: Problem, train: Any) -> Any:
    """The rows that a method is given, with the owners' baselines where it looks at gains and they alone know them."""
    base, train = baselines_of(config, problem), problem.in_metric(train)
    if base is None or not algorithms.named(config.algorithm.name).weighs_itself:
        return train
    return WithBaseline(train, jnp.asarray(base, problem.x.dtype))


@lru_cache(maxsize=64)
def _always(psi: Dual) -> Callable[[], Dual]:
    return lambda: psi


@lru_cache(maxsize=64)
def _dual_of(name: str, n: int, number: str, **settings: Any) -> Callable[..., Dual]:
    return lambda **given: objectives.named(name)(n, **settings, **given)


class BuiltMethod(NamedTuple):
    """A method on a problem."""

    algorithm: Algorithm
    notes: tuple[str, ...]  # what was measured instead of chosen
    family: Algorithm | Partial  # for `simulate`: the algorithm; or what makes it, and its numbers, which are operands
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
    def method(step: float) -> BuiltMethod:
        given = config.algorithm.model_copy(update={key: step})
        return _built(config.model_copy(update={"algorithm": given}), problem, draw, guarded=True)

    name = json.dumps([config.algorithm.model_dump(mode="json"), config.objective.model_dump(mode="json"), key])
    if name not in problem.tried_steps:
        rows = training_rows(config, problem, problem.compiled_for)
        problem.tried_steps[name] = step_sizes.tried(
            f"algorithm.{key}",
            problem,
            rows,
            lambda step: method(step).family,
            seed=config.run.seed,
            clients_per_batch=config.run.clients_per_batch,
        )
    choice = problem.tried_steps[name]
    made = method(choice.value)
    note = f"{key} was chosen: {choice.value:.4g}; {choice.why}"
    return made._replace(notes=(*made.notes, note), chosen=(choice,))


def _built(config: Config, problem: Problem, draw: Draw, *, guarded: bool = False) -> BuiltMethod:
    """`guarded`: step sizes are halved where the loss explodes."""
    settings = {name: value for name, value in config.algorithm if value is not None}
    record = algorithms.named(settings.pop("name"))
    cohort, coin = settings.pop("cohort", None), settings.pop("coin", None)
    own_steps = settings.pop("optimizer", None)
    server_steps, schedule = settings.pop("server_optimizer", None), settings.pop("schedule", None)
    psi, notes = build_dual(config, problem), []
    base = baselines_of(config, problem)
    if base is not None and record.takes_dual:
        notes.append(GAINS)
    sample = _sample(record, problem.n, cohort, coin)
    _check_until_gap(config, problem)
    alone = config.model_dump(exclude_none=True) | {"algorithm": {"cohort": cohort}}  # whatever is set of it
    best = choice.best_algorithm(alone)
    if best.name == record.name:
        notes.append(f"{best.name} is the method of choice: {best.why}")
    rule: Any = settings.pop("rule", None)
    measured: steps.Coefficients | None = None  # the numbers of a rule that was measured
    network_rule = algorithms.named(record.minibatch_form or record.name).network_rule
    if rule == "tuned" and network_rule is not None and not problem.convex:
        given = network_rule(problem.n)
        rule = RuleSettings(**given)
        numbers = ", ".join(f"{name} {value:g}" for name, value in given.items())
        notes.append(f"the step sizes of the weights were not given: {numbers}, which serve on networks")
    if rule == "tuned":
        form = record.minibatch_form
        alternative = "" if form is None else f", or model.batch, such as 32, for which {form} knows them"
        _must_be_convex(problem, "algorithm.rule is 'tuned'", "{ tau = .., sigma = .., theta = .. }" + alternative)
        share = 1.0 if cohort is None else cohort / problem.n
        constants, local_lr = problem.constants(settings["steps"])
        rule = steps.rule_for(constants, psi, share=share)
        measured = steps.coefficients(constants, psi) if share == 1 else None
        how = "were measured, see `steps.tuned`" if problem.slope is None else "are of what every site has measured"
        notes.append(f"the step sizes tau, sigma and theta {how}")
        if settings["local_lr"] == "auto":
            settings["local_lr"] = float(local_lr)
            notes.append(f"local_lr was measured: {settings['local_lr']:.4g}")
    for key in ("local_lr", "lr"):
        if settings.get(key) == "auto":
            _must_be_convex(problem, f"algorithm.{key} is 'auto'", "a number, such as 0.1")
            settings[key] = 1 / problem.smoothness
            notes.append(f"{key} was measured: 1/L = {settings[key]:.4g}")
    task = problem.trained_task
    if base is not None and record.weighs_itself:  # nobody else knows its loss, or needs its baseline
        task, psi, base = _less_baseline(task), _dual_of_losses(config, problem.n), None
    for key, given in (("optimizer", own_steps), ("schedule", schedule)):
        require(
            given is None or "local_lr" in settings,
            f"algorithm.{key} is for local steps, of which {record.name} takes none of its own; leave it out",
        )
    if own_steps is not None:
        task = with_own_steps(task, own_steps)
    if config.federation and config.federation.secure and "tilt_cap" in record.arguments:
        settings.setdefault("tilt_cap", MOST_TILT)
    if settings.get("mu") == "auto":
        settings["mu"] = problem.modulus
    if record.minibatch_form is not None and config.batch is not None:
        notes.append(f"{record.name} is made for exact gradients; for minibatches there is {record.minibatch_form}")
    if server_steps is None and schedule is None:
        family = _family(
            config, problem, task, record, cohort, coin, measured or _with_tau(rule, settings), settings, base, guarded
        )
        if family is not None:
            algorithm = family.func(**family.keywords)
            _check_steps(own_steps, algorithm, problem)
            return BuiltMethod(algorithm, tuple(notes), family)
    if config.privacy is not None:
        release = noisy_releases(task, noise_of(config), l2=problem.l2, draw=draw)
        task = private_task(task, noise_of(config), l2=problem.l2, draw=draw)
        notes.append(promise(config))
    optimizer = None if server_steps is None else build_optimizer("algorithm.server_optimizer", server_steps)

    def build(**changes: Any) -> Algorithm:
        return _guarded(task, partial(plain, settings | changes), guarded)

    def plain(given: dict[str, Any], scale: Any) -> Algorithm:
        given = _scaled(given, scale)
        now: Any = _with_tau(rule, given)
        if isinstance(now, RuleSettings):  # its tau may be traced
            numbers = dict(now)
            now = steps.constant(**(numbers if now is not rule else _scaled(numbers, scale)))
        made = record.build(task, psi, sample, now, **given)
        require(
            isinstance(made, Algorithm),
            f"algorithm.name is '{record.name}', which makes no Algorithm; see docs/experiments.md",
        )
        return made if optimizer is None else algorithms.with_server_optimizer(made, optimizer)

    algorithm = build()
    if schedule is not None:
        falling = SCHEDULES[schedule](settings["local_lr"], config.run.rounds)
        algorithm = algorithms.with_local_schedule(lambda local_lr: build(local_lr=local_lr), falling)
    if config.privacy is not None and record.name == "scaffpd":
        algorithm = private_scaffpd(algorithm, release, steps=settings["steps"])
    _check_steps(own_steps, algorithm, problem)
    if config.federation and _projects(config, problem, settings):
        quadratic = problem.loss in QUADRATIC
        algorithm = algorithms.project_updates(algorithm, quadratic=quadratic)
        notes.append(BOUNDED if quadratic else BOUNDED_CONVEX)
    if config.federation and config.federation.clip is not None:
        algorithm = algorithms.clip_losses(algorithm, factor=config.federation.clip)
    if config.federation and config.federation.clip_gradients is not None:
        require(
            any(has_field(w.reply.each, "gradient") for w in crossing(algorithm, problem)),
            f"federation.clip_gradients looks at every site's gradient, which {record.name} does not show; leave it "
            "out, or take scaffpd",
        )
        algorithm = algorithms.clip_gradients(algorithm, factor=config.federation.clip_gradients)
    if config.federation and config.federation.compress is not None:
        kind, sums = config.federation.compress, config.federation.compress_sums
        algorithm = algorithms.compress_replies(algorithm, crossing(algorithm, problem), dtype=kind, sums=sums)
    if problem.conditioning is not None:
        algorithm = algorithms.told_in_x(algorithm, problem.task, problem.conditioning.metric)
    return BuiltMethod(algorithm, tuple(notes), algorithm)


def _guarded(task: Task, build: Callable[[Any], Algorithm], guarded: bool) -> Algorithm:
    made = build(1.0)
    return algorithms.with_guarded_steps(task, build) if guarded and algorithms.may_be_guarded(task, made) else made


def _scaled(numbers: Mapping[str, Any], scale: Any) -> dict[str, Any]:
    """The step sizes of the model among them, times `scale`."""
    if isinstance(scale, float) and scale == 1:
        return dict(numbers)
    return {name: value * scale if name in ("local_lr", "lr", "tau") else value for name, value in numbers.items()}


def _check_until_gap(config: Config, problem: Problem) -> None:
    """A gap that no row of the history could show would never end a run."""
    wanted, least_gap = config.run.until_gap, resolution(problem.x.dtype)
    more = "or run.precision = 'float64'" if config.run.precision == "float32" else "which is as exact as it gets"
    require(
        wanted is None or wanted > least_gap,
        f"run.until_gap is {wanted}, but numbers of {config.run.precision} show no gap below {least_gap:.1g} of the "
        f"objective; give a larger one, {more}",
    )


def _check_steps(own_steps: Any, algorithm: Algorithm, problem: Problem) -> None:
    """An optimizer where local steps are corrected is a mistake, which shows when they are traced."""
    if own_steps is not None:
        crossing(algorithm, problem)


def _with_tau(rule: Any, settings: Mapping[str, Any]) -> Any:
    """Numbers of a rule, its tau among them: the server takes the local steps as they are, unless told otherwise."""
    if not isinstance(rule, RuleSettings) or rule.tau != "auto":
        return rule
    return rule.model_copy(update={"tau": settings["steps"] * settings["local_lr"]})


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
    return wire(algorithm, problem.x, jax.eval_shape(algorithm.prepare, rows))


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
    return config.algorithm.name == "scaffpd" and exact and everybody and quadratic


def _projects(config: Config, problem: Problem, settings: dict[str, Any]) -> bool:
    """Whether updates are projected: where it was asked for, or where honest sites are not touched by it.

    Those are quadratic losses, whose curvature is the same everywhere, with steps that are no longer than 1/L.
    """
    wanted = not_none(config.federation).project
    if wanted or not may_project(config):
        return bool(wanted)
    if problem.loss not in QUADRATIC:
        return False
    return problem.curvature is not None and settings["local_lr"] * problem.curvature <= 1 + 1e-6


TRACED = {"chi2": "rho", "kl": "rho", "tv": "rho", "propfair": "bound"}  # numbers of objectives that may be operands


def _family(
    config: Config,
    problem: Problem,
    task: Task,
    record: algorithms.Record,
    cohort: int | None,
    coin: float | None,
    rule: Any,
    settings: dict[str, Any],
    base: np.ndarray | None,
    guarded: bool,
) -> Partial | None:
    """One of the library's own methods, whose numbers are operands of its program; None: of others it is not known."""
    objective = config.objective.model_dump(exclude_none=True, exclude={"of"})
    registered = record.name in algorithms.ALGORITHMS and objective["name"] in objectives.DUALS
    fixed = {name: value for name, value in settings.items() if not isinstance(value, float)}
    hashable = all(isinstance(value, Hashable) for value in (*fixed.values(), *objective.values()))
    alone = config.federation is None and config.privacy is None
    of_numbers = rule is None or isinstance(rule, RuleSettings | steps.Coefficients)
    if not (registered and hashable and alone and of_numbers):
        return None
    numbers: dict[str, Any] = {
        f"algorithm.{name}": value for name, value in settings.items() if isinstance(value, float)
    }
    if rule is not None:
        of_rule = rule._asdict() if isinstance(rule, steps.Coefficients) else rule.model_dump()
        numbers |= {f"rule.{name}": value for name, value in of_rule.items()}
    name = objective.pop("name")
    if TRACED.get(name) in objective:
        numbers[f"objective.{TRACED[name]}"] = objective.pop(TRACED[name])
    if base is not None and record.takes_dual:
        numbers["gains.base"] = base
    frozen = tuple(objective.items()), tuple(fixed.items())
    model_task = None if problem.conditioning is None else problem.task
    if problem.conditioning is not None:
        numbers |= {f"metric.{key}": array for key, array in numbers_of(problem.conditioning.metric).items()}
    maker = _maker(task, model_task, problem.n, record.name, cohort, coin, name, *frozen, guarded)
    return Partial(maker, **numbers) if _takes_operands(maker, numbers, problem.x) else None


def _takes_operands(maker: Callable[..., Algorithm], numbers: dict[str, Any], x: Vector) -> bool:
    """Whether the method can be made inside a program, where its numbers are not known; nothing is computed.

    What was made then runs: the laws say so of every method of the library.
    """
    answers, kind = _answers(maker), (frozenset(numbers), x.dtype)

    def made(numbers: dict[str, Any], x: Vector) -> Any:
        return kernel.init(maker(**numbers), x)

    if kind not in answers:  # the values make no difference
        operands = {name: jnp.asarray(value, x.dtype) for name, value in numbers.items()}
        try:
            jax.eval_shape(made, operands, x)
            answers[kind] = True
        except (InputError, TypeError, ValueError):  # JAX's errors about tracers are TypeErrors; what stays comes again
            answers[kind] = False
    return answers[kind]


@lru_cache(maxsize=64)
def _answers(maker: Callable[..., Algorithm]) -> dict[Any, bool]:
    """Of `_takes_operands`, for the makers that were used last."""
    return {}


@lru_cache(maxsize=64)
def _maker(
    task: Task,
    model_task: Task | None,  # over x, where `task` is in a metric
    n: int,
    method: str,
    cohort: int | None,
    coin: float | None,
    objective: str,
    of_objective: tuple,
    of_method: tuple,
    guarded: bool,
) -> Callable[..., Algorithm]:
    record = algorithms.named(method)
    sample = _sample(record, n, cohort, coin)

    def make(**numbers: Any) -> Algorithm:
        given: dict[str, dict[str, Any]] = {"algorithm": dict(of_method), "objective": dict(of_objective), "rule": {}}
        given |= {"metric": {}, "gains": {}}
        for name, value in numbers.items():
            section, _, key = name.partition(".")
            given[section][key] = value
        traced = any(isinstance(value, jax.Array) for value in given["objective"].values())
        psi = (_dual.__wrapped__ if traced else _dual)(objective, n, None, **given["objective"])
        psi = objectives.of_gains(psi, **given["gains"]) if given["gains"] else psi

        def build(scale: Any) -> Algorithm:
            rule, numbers = None, given["rule"]
            if numbers:
                constant = numbers.keys() == RuleSettings.model_fields.keys()
                if constant:
                    rule = steps.constant(**_scaled(numbers, scale))
                else:
                    rule = steps.guarded(steps.Coefficients(**numbers))
            return record.build(task, psi, sample, rule, **_scaled(given["algorithm"], scale))

        made = _guarded(task, build, guarded)
        return made if model_task is None else algorithms.told_in_x(made, model_task, metric_of(given["metric"]))

    return make


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
