"""From settings to a method: an objective, step sizes, an algorithm."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from equipoise import algorithms, cohorts, objectives, steps
from equipoise._jax import cached_program
from equipoise.algorithms.clipping import has_field
from equipoise.algorithms.private import private_scaffpd
from equipoise.algorithms.scaffpd_sums import MOST_TILT
from equipoise.certificates import resolution
from equipoise.data.datasets import synthetic
from equipoise.data.shards import ClientData, client_shapes
from equipoise.engines.simulator import Result
from equipoise.errors import InputError, not_none, require
from equipoise.experiment import choice
from equipoise.experiment.chosen import step_sizes
from equipoise.experiment.config import Config, OptimizerSettings, RuleSettings
from equipoise.experiment.private import noise_of, promise
from equipoise.experiment.problems import Problem, cached
from equipoise.experiment.records import Choice
from equipoise.objectives import Dual
from equipoise.protocol import Algorithm, Wire, wire_of_rows
from equipoise.tasks import Task, WithBaseline, less_baseline, with_local_optimizer
from equipoise.tasks.private import Draw, noisy_releases, normal, private_task
from equipoise.tasks.task import least

if TYPE_CHECKING:
    import optax


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
def _first_made(structure: PyTreeDef, numbers: tuple[object, ...]) -> Dual:
    """The same object for the same settings: its operators are compiled once."""
    return structure.unflatten(numbers)


def _dual_of_losses(config: Config, n: int) -> Dual:
    settings = config.objective.model_dump(exclude_none=True, exclude={"of", "price"})
    name, cap = settings.pop("name"), config.federation.cap if config.federation else None
    psi = objectives.named(name)(n, **settings)
    require(isinstance(psi, Dual), f"objective.name is '{name}', which makes no Dual; see docs/experiments.md")
    return psi if cap is None else objectives.cap_weights(psi, cap)


def training_rows(config: Config, problem: Problem, train: ClientData) -> ClientData:
    """The rows that a method is given, with the owners' baselines where it looks at gains and they alone know them."""
    base, train = baselines_of(config, problem), problem.in_metric(train)
    if base is None or not algorithms.named(config.algorithm.name).weighs_itself:
        return train
    return WithBaseline(train, jnp.asarray(base, problem.x.dtype))


class BuiltMethod(NamedTuple):
    """A method on a problem."""

    algorithm: Algorithm
    notes: tuple[str, ...]  # what was measured instead of chosen
    chosen: tuple[Choice, ...] = ()  # by a race
    start: Result | None = None  # where that race left the one that is chosen: training goes on from there


class Draft(NamedTuple):
    """A method that is being built."""

    config: Config
    problem: Problem
    record: algorithms.Record
    settings: dict[str, Any]  # arguments of the algorithm's function; those that are measured are put in
    around: dict[str, Any]  # what is done around it: AROUND
    notes: list[str]  # grows


AROUND = ("cohort", "coin", "optimizer", "server_optimizer", "schedule")  # settings that are no arguments of a function


def build_method(config: Config, problem: Problem, draw: Draw = normal) -> BuiltMethod:
    """`draw`: where noise comes from, if the run has some."""
    key = tried_step(config, problem)
    return _built(config, problem, draw) if key is None else _with_tried_step(config, problem, draw, key)


def tried_step(config: Config, problem: Problem) -> str | None:
    """The setting that a race finds, for networks whose rows are at hand; None where nothing is raced."""
    raced = not problem.convex and step_sizes.at_hand(problem)
    auto = (key for key in ("local_lr", "lr") if getattr(config.algorithm, key, None) == "auto")
    return next(auto, None) if raced else None


def _with_tried_step(config: Config, problem: Problem, draw: Draw, key: str) -> BuiltMethod:
    def method(step: float, race: int) -> BuiltMethod:
        given = config.algorithm.model_copy(update={key: step})
        return _built(config.model_copy(update={"algorithm": given}), problem, draw, race=race)

    settings = [config.algorithm.model_dump(mode="json"), config.objective.model_dump(mode="json")]
    name = json.dumps([*settings, key, config.run.rounds, config.run.seed])
    if name not in problem.tried_steps:
        problem.tried_steps[name] = step_sizes.raced(
            f"algorithm.{key}",
            problem,
            training_rows(config, problem, problem.compiled_for),
            lambda step: method(step, step_sizes.race_rounds(config.run.rounds)).algorithm,
            rounds=config.run.rounds,
            seed=config.run.seed,
            clients_per_batch=config.run.clients_per_batch,
        )
    choice, start, race = problem.tried_steps[name]
    choices = (choice,) if config.algorithm.schedule is not None else (choice, FALLS)
    made = method(float(choice.value), race)
    notes = (*made.notes, *(choice.sentence for choice in choices))
    return made._replace(notes=notes, chosen=choices, start=start)


def _built(config: Config, problem: Problem, draw: Draw, *, race: int = 0) -> BuiltMethod:
    """What is not given is measured, the algorithm is made of it, and wrapped in what else was asked for.

    `race`: how many rounds before the run find its step sizes, which are halved where the loss explodes and fall late.
    """
    draft = _draft(config, problem)
    dual, task = _objective(draft)
    sample, rule = _sample(draft), _rule(draft, dual)
    _fill_in(draft)
    for key in ("optimizer", "schedule"):
        wrong = f"algorithm.{key} is for local steps, of which {draft.record.name} takes none of its own"
        require(draft.around[key] is None or "local_lr" in draft.settings, f"{wrong}; leave it out")
    if draft.around["optimizer"] is not None:
        task = with_own_steps(task, draft.around["optimizer"])
    if config.privacy is not None:
        release = noisy_releases(task, noise_of(config), l2=problem.l2, draw=draw)
        task = private_task(task, noise_of(config), l2=problem.l2, draw=draw)
        draft.notes.append(promise(config))

    def build(**changes: Any) -> Algorithm:
        settings = draft.settings | changes
        made = draft.record.build(task, dual, sample, _with_numbers(rule, settings), **settings)
        wrong = f"algorithm.name is '{draft.record.name}', which makes no Algorithm; see docs/experiments.md"
        require(isinstance(made, Algorithm), wrong)
        if draft.around["server_optimizer"] is not None:
            optimizer = build_optimizer("algorithm.server_optimizer", draft.around["server_optimizer"])
            made = algorithms.with_server_optimizer(made, optimizer)
        may = race and algorithms.may_be_guarded(task, made)
        return algorithms.with_guarded_steps(task, made) if may else made

    schedule, rounds = draft.around["schedule"] or ("late" if race else "constant"), race + config.run.rounds
    if schedule == "constant":
        algorithm = build()
    elif schedule == "late" and jax.tree.leaves(build()):  # numbers that one program takes, whatever the step size
        start = rounds - late(config.run.rounds)
        algorithm = algorithms.with_late_decay(build(), start=float(start), end=float(rounds))
    else:
        key = "local_lr" if "local_lr" in draft.settings else "lr"
        sizes = falling(schedule, draft.settings[key], rounds)
        algorithm = algorithms.with_local_schedule(lambda step: build(**{key: step}), sizes)
    if config.privacy is not None and algorithm.corrected:
        algorithm = private_scaffpd(algorithm, release, steps=draft.settings["steps"])
    if draft.around["optimizer"] is not None:
        crossing(algorithm, problem)  # an optimizer where local steps are corrected is a mistake, found by tracing them
    return BuiltMethod(_wrapped(draft, algorithm), tuple(draft.notes))


def _draft(config: Config, problem: Problem) -> Draft:
    # A gap that no row of the history could show would never end a run.
    wanted, least_gap = config.run.until_gap, resolution(problem.x.dtype)
    more = "or run.precision = 'float64'" if config.run.precision == "float32" else "which is as exact as it gets"
    require(
        wanted is None or wanted > least_gap,
        f"run.until_gap is {wanted}, but numbers of {config.run.precision} show no gap below {least_gap:.1g} of the "
        f"objective; give a larger one, {more}",
    )
    record = algorithms.named(config.algorithm.name)
    settings = {name: value for name, value in config.algorithm if value is not None and name != "name"}
    around = {name: settings.pop(name, None) for name in AROUND}
    notes = [GAINS] if record.takes_dual and baselines_of(config, problem) is not None else []
    best = choice.best_algorithm(config.model_dump(exclude_none=True) | {"algorithm": {"cohort": around["cohort"]}})
    if best.name == record.name:
        notes.append(f"{best.name} is the method of choice: {best.why}")
    return Draft(config, problem, record, settings, around, notes)


def _objective(draft: Draft) -> tuple[Dual, Task]:
    """The dual and the task: one of them has the baselines, if there are any."""
    config, problem = draft.config, draft.problem
    if draft.record.weighs_itself and baselines_of(config, problem) is not None:  # nobody else knows its loss
        return _dual_of_losses(config, problem.n), cached(less_baseline)(problem.trained_task)
    return build_dual(config, problem), problem.trained_task


def _sample(draft: Draft) -> cohorts.Sample:
    n, cohort = draft.problem.n, draft.around["cohort"]
    if draft.around["coin"] is not None:
        return cohorts.coin(n, draft.around["coin"])
    if cohort is None:
        return cohorts.everyone(n)
    require(cohort <= n, f"algorithm.cohort is {cohort} of {n} clients; give at most {n}")
    return cohorts.by_weight(cohort) if draft.record.cohorts == "by_weight" else cohorts.uniform(n, cohort)


def _rule(draft: Draft, dual: Dual) -> steps.Rule | RuleSettings | None:
    """Takes the step sizes out of the settings; measured where they are not given, and then the local one too."""
    _, problem, record, settings, around, notes = draft
    rule = settings.pop("rule", None)
    if rule != "tuned":
        return rule
    form = record.minibatch_form
    network_rule = algorithms.named(form or record.name).network_rule
    if network_rule is not None and not problem.convex:
        given = network_rule(problem.n)
        numbers = ", ".join(f"{name} {value:g}" for name, value in given.items())
        notes.append(f"the step sizes of the weights were not given: {numbers}, which serve on networks")
        return RuleSettings(**given)
    alternative = "" if form is None else f", or model.batch, such as 32, for which {form} knows them"
    _must_be_convex(problem, "algorithm.rule is 'tuned'", "{ tau = .., sigma = .., theta = .. }" + alternative)
    constants, local_lr = problem.constants(settings["steps"])
    how = "were measured, see `steps.tuned`" if problem.slope is None else "are of what every site has measured"
    notes.append(f"the step sizes tau, sigma and theta {how}")
    if settings["local_lr"] == "auto":
        settings["local_lr"] = float(local_lr)
        notes.append(f"local_lr was measured: {settings['local_lr']:.4g}")
    return steps.rule_for(constants, dual, share=1.0 if around["cohort"] is None else around["cohort"] / problem.n)


def _with_numbers(rule: steps.Rule | RuleSettings | None, settings: dict[str, Any]) -> steps.Rule | None:
    """A rule of given numbers; the server takes the local steps as they are, unless it is told a tau."""
    if not isinstance(rule, RuleSettings):
        return rule
    tau = settings["steps"] * settings["local_lr"] if rule.tau == "auto" else rule.tau
    return steps.constant(tau=tau, sigma=rule.sigma, theta=rule.theta)


def _fill_in(draft: Draft) -> None:
    """Measures the numbers that the settings leave to it."""
    config, problem, record, settings, _, notes = draft
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


def _must_be_convex(problem: Problem, given: str, instead: str) -> None:
    wrong = f"{given}, which is tried out where all rows are at hand, and over Flower measured for linear models only"
    require(problem.convex, f"{wrong}, and this is a {problem.model.name}; give {instead}")


def _wrapped(draft: Draft, algorithm: Algorithm) -> Algorithm:
    """In what was asked for, from the inside to the outside."""
    federation, problem = draft.config.federation, draft.problem
    if federation is not None:
        if _projects(draft):
            quadratic = problem.loss in QUADRATIC
            draft.notes.append(BOUNDED if quadratic else BOUNDED_CONVEX)
            algorithm = algorithms.project_updates(algorithm, quadratic=quadratic)
        if federation.clip is not None:
            algorithm = algorithms.clip_losses(algorithm, factor=federation.clip)
        if federation.clip_gradients is not None:
            require(
                any(has_field(w.reply.each, "gradient") for w in crossing(algorithm, problem)),
                f"federation.clip_gradients looks at every site's gradient, which {algorithm.name} does not show; "
                "leave it out, or take scaffpd",
            )
            algorithm = algorithms.clip_gradients(algorithm, factor=federation.clip_gradients)
        if federation.compress is not None:
            wires = crossing(algorithm, problem)
            sums = federation.compress_sums
            algorithm = algorithms.compress_replies(algorithm, wires, dtype=federation.compress, sums=sums)
    if problem.conditioning is None:
        return algorithm
    return algorithms.told_in_x(algorithm, problem.task, problem.conditioning.metric)


# The steps of optax: of the clients, of the server, and how the clients' step size falls.


LATE = 3  # of the rounds, in so many parts, the last: the share in which a late schedule falls


def late(rounds: int) -> int:
    """How many rounds at the end are those in which a late schedule falls."""
    return max(1, rounds // LATE)


def falling(schedule: str, start: float, rounds: int) -> "optax.Schedule":
    """From `start` to zero."""
    import optax  # most runs need none of it

    if schedule == "late":
        return optax.linear_schedule(start, 0.0, late(rounds), rounds - late(rounds))
    if schedule == "linear":
        return optax.linear_schedule(start, 0.0, rounds)
    return optax.cosine_decay_schedule(start, rounds)


def build_optimizer(key: str, settings: OptimizerSettings) -> "optax.GradientTransformation":
    """`key` is where the settings stand."""
    import optax

    try:
        optimizer = getattr(optax, settings.name)(settings.learning_rate, **settings.options)
    except TypeError as error:
        raise InputError(f"{key}.options does not fit optax.{settings.name} ({error}); see its documentation") from None
    return optimizer if settings.clip is None else optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)


def with_own_steps(task: Task, settings: OptimizerSettings) -> Task:
    """The task whose local steps are the optimizer's."""
    return cached(_with_own_steps)(task, settings.model_dump_json())


def _with_own_steps(task: Task, settings: str) -> Task:
    chosen = OptimizerSettings.model_validate_json(settings)
    return with_local_optimizer(task, build_optimizer("algorithm.optimizer", chosen))


FALLS = Choice(
    key="algorithm.schedule",
    value="late",
    why="step sizes fall to zero by equal parts over the last third of the rounds, so that no noise of long steps "
    "stays; in a run that ends before that they do not",
    runner_up="constant",
    tried=({"value": "late"}, {"value": "constant"}),
    rounds=0,
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


def _projects(draft: Draft) -> bool:
    """Whether updates are projected: where it was asked for, or where honest sites are not touched by it.

    Those are quadratic losses, whose curvature is the same everywhere, with steps that are no longer than 1/L.
    """
    config, problem = draft.config, draft.problem
    wanted = not_none(config.federation).project
    if wanted or not may_project(config):
        return bool(wanted)
    if problem.loss not in QUADRATIC or problem.curvature is None:
        return False
    return draft.settings["local_lr"] * problem.curvature <= 1 + 1e-6


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
