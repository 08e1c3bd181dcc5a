"""From settings to the objects that they name: a federation, a task, an objective, an algorithm."""

import math
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from equipoise import algorithms, cohorts, models, objectives, steps, tasks
from equipoise.algorithms.scaffpd_sums import MOST_TILT
from equipoise.artifact import Artifact
from equipoise.data import partition, pool, silos
from equipoise.data.dataset import Dataset
from equipoise.data.datasets import catalogue, synthetic
from equipoise.data.silos.encoding import Encoding, Feature, Target
from equipoise.engines import kernel
from equipoise.errors import InputError, require
from equipoise.experiment import choice
from equipoise.experiment.config import Config, Steps
from equipoise.models import Model
from equipoise.objectives import Dual
from equipoise.protocol import Algorithm, Vector, wire
from equipoise.tasks import Task


@dataclass(frozen=True, eq=False)
class Problem:
    """What all methods of a comparison share: whose data, which model, from where."""

    what: str  # one sentence
    names: tuple[str, ...]  # of the clients
    train: Any  # Shards or Pool
    test: Any | None  # None: no rows were held out
    classes: tuple[str, ...]  # empty for a regression
    model: Model
    loss: str  # a name in models.LOSSES
    encoding: Encoding | None
    task: Task
    l2: float
    x: Vector
    notes: tuple[str, ...] = ()
    curvature: float | None = None  # L, where the clients have measured it themselves
    slope: float | None = None  # and a bound on L_lx at the start

    @property
    def n(self) -> int:
        return self.train.n

    @property
    def convex(self) -> bool:
        return self.model.name == "linear"

    @cached_property
    def smoothness(self) -> float:
        """L: the largest curvature of any client's loss."""
        if self.curvature is not None:
            return self.curvature
        return steps.smoothness(self.task, self.train, self.x)

    @cached_property
    def _constants(self) -> dict[int, tuple[steps.Constants, float]]:
        return {}

    def constants(self, local_steps: int) -> tuple[steps.Constants, float]:
        """What step sizes are made of, and the local one: measured once, whatever the objective."""
        if local_steps not in self._constants:
            self._constants[local_steps] = (
                steps.near_solution(self.task, self.train, self.x, steps=local_steps, mu=self.l2)
                if self.slope is None
                else steps.bounded(self.smoothness, self.slope, steps=local_steps, mu=self.l2)
            )
        return self._constants[local_steps]

    def artifact_vector(self, x: Vector) -> np.ndarray:
        """x as the parameters of `model`: squared losses are trained without a bias, which is then zero."""
        size = sum(a.size for a in jax.tree.leaves(jax.eval_shape(self.model.init, jax.random.key(0))))
        return np.concatenate([np.asarray(x), np.zeros(size - x.size, np.asarray(x).dtype)])

    def starting_from(self, model: Artifact) -> "Problem":
        """The same problem from another first model, of its own kind."""
        flat, _ = ravel_pytree(model.params)
        return replace(self, x=jnp.asarray(flat[: self.x.size], self.x.dtype))


@contextmanager
def precision(config: Config) -> Iterator[None]:
    """The arrays that are made in here have the precision of the run."""
    with jax.enable_x64(config.run.precision == "float64"):
        yield


def problem(config: Config) -> Problem:
    """Reads and divides the data, and builds the task on it; call it under `precision`."""
    if config.data.silos is not None:
        return _of_silos(config)
    require(
        config.federation is None,
        "the data of [federation] is at its sites: `equipoise flower server` trains there; to run on this machine, "
        "give data.silos, a folder with a file per site",
    )
    if config.data.name == "synthetic":
        return _synthetic(config)
    if config.data.name == "quadratics":
        return _quadratics(config)
    return _of_dataset(config)


def _of_silos(config: Config) -> Problem:
    settings = config.data
    with warnings.catch_warnings(action="ignore", category=silos.SiloWarning):  # they become notes
        found = silos.read_with(
            Path(str(settings.silos)),
            settings.silo_options,
            separator=settings.separator,
            test=settings.test,
            seed=config.run.seed,
        )
    what = f"{len(found.names)} silos of the folder {Path(str(settings.silos)).name}, predicting {settings.label}"
    return of_encoding(config, what, found.names, found.train, found.test, found.encoding, found.warnings)


def of_encoding(
    config: Config,
    what: str,
    names: tuple[str, ...],
    train: Any,
    test: Any,
    encoding: Encoding,
    notes: tuple[str, ...],
) -> Problem:
    """The problem of owners who have agreed on an encoding; the rows themselves may be elsewhere."""
    classes, shape = encoding.target.classes, encoding.shape
    return _problem(config, what, names, train, test, classes, shape, encoding, notes)


def _synthetic(config: Config) -> Problem:
    n, settings = config.partition.clients, config.data.options
    try:
        train = synthetic.regression(n=n, key=jax.random.key(division_seed(config)), **settings)
    except TypeError as error:
        known = "dim, samples, scale, shift"
        raise InputError(f"data.options does not fit synthetic data ({error}); known: {known}") from None
    names = tuple(f"client {i}" for i in range(n))
    what = f"synthetic robust regression (SCAFF-PD, section 6.1) over {n} clients"
    return _problem(config, what, names, train, None, (), train.inputs.shape[2:], None, ())


def _quadratics(config: Config) -> Problem:
    require(config.model.l2 == 0, f"model.l2 is {config.model.l2:g}, but quadratics are given whole; set model.l2 = 0")
    try:
        train = synthetic.quadratics(**config.data.options)
    except TypeError as error:
        known = "gradient, hessian, beta"
        raise InputError(f"data.options does not fit quadratics ({error}); known: {known}") from None
    # Recorded as a line through the origin, whose slope is x. Zero is the solution, so it starts from one.
    return Problem(
        what="the two quadratics of SCAFFOLD, section 7.2",
        names=("client 0", "client 1"),
        train=train,
        test=None,
        classes=(),
        model=models.linear(1, 1),
        loss="squared_error",
        encoding=None,
        task=tasks.quadratic(1),
        l2=0.0,
        x=jnp.ones(1),
    )


def _of_dataset(config: Config) -> Problem:
    settings, division, key = config.data, config.partition, division_seed(config)
    dataset = catalogue.load(settings.name, data_dir=settings.data_dir, download=settings.download, **settings.options)
    if config.model.name in ("linear", "mlp"):
        dataset = dataset.flat()
    divided, test_parts = divide(config, dataset)
    train, test = pool.pools(
        dataset, divided.parts, key=key, test=settings.test, test_parts=test_parts, thin=division.thin
    )
    names = tuple(divided.summary.clients)
    names = names if division.kind == "natural" else tuple(f"client {name}" for name in names)
    by = {"natural": "its own owners", "dirichlet": f"Dirichlet({division.alpha:g})", "iid": "chance"}
    by |= {"similarity": f"similarity {division.similarity:g}", "k_classes": f"{division.classes} classes each"}
    by |= {"one_class": "one class each", "quantity": f"quantities of Dirichlet({division.alpha:g})"}
    what = f"{dataset.name} over {len(names)} clients, divided by {by[division.kind]}"
    what += f", {division.thin[0]:.0%} of them without {division.thin[1]:.0%} of their rows" if division.thin else ""
    shape = dataset.inputs.shape[1:]
    return _problem(config, what, names, train, test, dataset.classes, shape, _encoding_of(dataset), ())


def divide(config: Config, dataset: Dataset) -> tuple[partition.Partition, partition.Parts | None]:
    """The rows of every client, and those of the official test set where its owners are known."""
    division = config.partition
    if division.kind == "natural":
        divided, tests = pool.natural(dataset, min_size=division.min_size)
        return divided, None if tests is None else tests.parts
    divided = partition.divide(
        dataset.labels,
        division.kind,
        division.clients,
        division_seed(config),
        alpha=division.alpha,
        share=division.similarity,
        classes=division.classes,
        min_size=division.min_size,
    )
    return divided, None


def division_seed(config: Config) -> int:
    return config.run.seed if config.partition.seed is None else config.partition.seed


def _encoding_of(dataset: Dataset) -> Encoding | None:
    """How `equipoise predict` reads an .npz with `inputs` like the data set's; None where one number per set does
    not say how they are scaled."""
    if not dataset.classes or isinstance(dataset.scale, np.ndarray) or isinstance(dataset.offset, np.ndarray):
        return None
    scale = 1.0 if dataset.scale is None else float(dataset.scale)
    inputs = Feature(
        "inputs",
        "array",
        mean=-float(dataset.offset) / scale,
        scale=1 / scale,
        shape=tuple(dataset.inputs.shape[1:]),
        dtype=str(dataset.inputs.dtype),
    )
    return Encoding("classification", Target("labels", dataset.classes), (inputs,), ())


def _problem(
    config: Config,
    what: str,
    names: tuple[str, ...],
    train: Any,
    test: Any,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    encoding: Encoding | None,
    notes: tuple[str, ...],
) -> Problem:
    settings, outputs = config.model, len(classes) or 1
    loss = settings.loss if settings.loss != "auto" else "cross_entropy" if classes else "squared_error"
    require(
        (loss == "squared_error") == (not classes),
        f"model.loss is '{loss}' but {'classes' if classes else 'numbers'} are to be predicted; "
        f"give {'cross_entropy or squared' if classes else 'squared_error'}, or auto",
    )
    model = _model(config, shape, outputs, train)
    features = math.prod(shape)
    options: dict[str, Any] = {"l2": settings.l2, "batch": settings.batch}
    if settings.name != "linear" or (loss == "squared_error" and config.data.name != "synthetic"):
        convex = settings.name == "linear"  # every loss of models.LOSSES is convex in the outputs
        score = models.LOSSES[loss]
        task = tasks.task_of(model.init, model.apply, score, name=settings.name, convex=convex, **options)
    elif loss == "cross_entropy":
        task = _cached(tasks.softmax_regression)(features, outputs, **options)
    elif loss == "squared":
        task = _cached(tasks.least_squares)(features, outputs, centred=True, **options)
    else:
        task = _cached(tasks.ridge)(features, settings.l2, settings.batch)
    x = task.init(jax.random.key(config.run.seed))
    return Problem(what, names, train, test, classes, model, loss, encoding, task, settings.l2, x, notes)


@cache
def _cached(factory: Callable[..., Task]) -> Callable[..., Task]:
    """The same task for the same shape, so that what is compiled for it serves other divisions of the data."""
    return lru_cache(maxsize=16)(factory)


def _model(config: Config, shape: tuple[int, ...], outputs: int, train: Any) -> Model:
    settings = config.model
    match settings.name:
        case "linear":
            return models.linear(math.prod(shape), outputs)
        case "mlp":
            return models.mlp(math.prod(shape), settings.hidden, outputs)
        case "cnn" | "resnet" as name:
            require(
                len(shape) == 3, f"a {name} needs images [height, width, channels]; the examples have shape {shape}"
            )
            return {"cnn": models.cnn, "resnet": models.resnet}[name](shape, outputs)
    integers = np.issubdtype(train.client(0).inputs.dtype, np.integer)
    require(integers and len(shape) == 1, "a gru needs sequences of characters, such as shakespeare")
    return models.gru(outputs, settings.hidden[0])


def dual(config: Config, n: int) -> Dual:
    settings = config.objective.model_dump(exclude_none=True)
    name, cap = settings.pop("name"), config.federation.cap if config.federation else None
    hashable = all(isinstance(value, Hashable) for value in settings.values())
    return (_dual if hashable else _dual.__wrapped__)(name, n, cap, **settings)


@lru_cache(maxsize=64)  # the same object for the same settings: what is compiled for it is compiled once
def _dual(name: str, n: int, cap: float | None, **settings: Any) -> Dual:
    psi = objectives.named(name)(n, **settings)
    require(isinstance(psi, Dual), f"objective.name is '{name}', which makes no Dual; see docs/experiments.md")
    return psi if cap is None else objectives.cap_weights(psi, cap)


def dual_family(config: Config, n: int) -> tuple[Callable[..., Dual], dict[str, Any]]:
    """What makes the dual, and the numbers that it takes: operands of the programs that it is made in."""
    settings = config.objective.model_dump(exclude_none=True)
    name, number = settings.pop("name"), TRACED.get(config.objective.name)
    if number is None or config.federation is not None:
        return _always(dual(config, n)), {}
    value = settings.pop(number)
    return _dual_of(name, n, number, **settings), {number: value}


@lru_cache(maxsize=64)
def _always(psi: Dual) -> Callable[[], Dual]:
    return lambda: psi


@lru_cache(maxsize=64)
def _dual_of(name: str, n: int, number: str, **settings: Any) -> Callable[..., Dual]:
    return lambda **given: objectives.named(name)(n, **settings, **given)


class Method(NamedTuple):
    """A method on a problem."""

    algorithm: Algorithm
    notes: tuple[str, ...]  # what was measured instead of chosen
    family: Algorithm | Partial  # for `simulate`: the algorithm; or what makes it, and its numbers, which are operands


def method(config: Config, problem: Problem) -> tuple[Algorithm, tuple[str, ...]]:
    """The algorithm on the problem, and what was measured instead of chosen."""
    found = method_of(config, problem)
    return found.algorithm, found.notes


def method_of(config: Config, problem: Problem) -> Method:
    settings = {name: value for name, value in config.algorithm if value is not None}
    record = algorithms.named(settings.pop("name"))
    cohort, coin = settings.pop("cohort", None), settings.pop("coin", None)
    psi, notes = dual(config, problem.n), []
    sample = _sample(record, problem.n, cohort, coin)
    alone = config.model_dump(exclude_none=True) | {"algorithm": {"cohort": cohort}}  # whatever is set of it
    best = choice.best_algorithm(alone)
    if best.name == record.name:
        notes.append(f"{best.name} is the method of choice: {best.why}")
    rule: Any = settings.pop("rule", None)
    if rule == "tuned":
        _must_be_convex(problem, "algorithm.rule is 'tuned'", "{ tau = .., sigma = .., theta = .. }")
        share = 1.0 if cohort is None else cohort / problem.n
        constants, local_lr = problem.constants(settings["steps"])
        rule = steps.rule_for(constants, psi, share=share)
        how = "were measured, see `steps.tuned`" if problem.slope is None else "are of what every site has measured"
        notes.append(f"the step sizes tau, sigma and theta {how}")
        if settings["local_lr"] == "auto":
            settings["local_lr"] = float(local_lr)
            notes.append(f"local_lr was measured: {settings['local_lr']:.4g}")
    for key in ("local_lr", "lr"):
        if settings.get(key) == "auto":
            _must_be_convex(problem, f"algorithm.{key} is 'auto'", "a number")
            settings[key] = 1 / problem.smoothness
            notes.append(f"{key} was measured: 1/L = {settings[key]:.4g}")
    if isinstance(rule, Steps):
        tau = settings["steps"] * settings["local_lr"] if rule.tau == "auto" else rule.tau
        rule = rule.model_copy(update={"tau": tau})
    if config.federation and config.federation.secure and "tilt_cap" in record.arguments:
        settings.setdefault("tilt_cap", MOST_TILT)
    if settings.get("mu") == "auto":
        settings["mu"] = problem.l2
    if record.minibatch_form is not None and config.model.batch is not None:
        notes.append(f"{record.name} is made for exact gradients; for minibatches there is {record.minibatch_form}")
    family = _family(config, problem, record, cohort, coin, rule, settings)
    if family is not None:
        return Method(family.func(**family.keywords), tuple(notes), family)
    if isinstance(rule, Steps):
        rule = steps.constant(**rule.model_dump())
    algorithm = record.build(problem.task, psi, sample, rule, **settings)
    require(
        isinstance(algorithm, Algorithm),
        f"algorithm.name is '{record.name}', which makes no Algorithm; see docs/experiments.md",
    )
    if config.federation and config.federation.clip is not None:
        algorithm = algorithms.clip_losses(algorithm, factor=config.federation.clip)
    if config.federation and config.federation.compress is not None:
        prepared = jax.eval_shape(algorithm.prepare, problem.train.client(0))
        crossing = wire(algorithm, problem.x, prepared)
        algorithm = algorithms.compress_replies(algorithm, crossing, dtype=config.federation.compress)
    return Method(algorithm, tuple(notes), algorithm)


TRACED = {"chi2": "rho", "kl": "rho", "tv": "rho", "propfair": "bound"}  # numbers of objectives that may be operands


def _family(
    config: Config,
    problem: Problem,
    record: algorithms.Record,
    cohort: int | None,
    coin: float | None,
    rule: Any,
    settings: dict[str, Any],
) -> Partial | None:
    """One of the library's own methods, whose numbers are operands of its program; None: of others it is not known."""
    objective = config.objective.model_dump(exclude_none=True)
    known = record.name in algorithms.ALGORITHMS and objective["name"] in objectives.DUALS
    fixed = {name: value for name, value in settings.items() if not isinstance(value, float)}
    hashable = all(isinstance(value, Hashable) for value in (*fixed.values(), *objective.values()))
    if not (known and hashable and config.federation is None and (rule is None or isinstance(rule, Steps))):
        return None
    numbers: dict[str, Any] = {
        f"algorithm.{name}": value for name, value in settings.items() if isinstance(value, float)
    }
    if rule is not None:
        numbers |= {"rule.tau": rule.tau, "rule.sigma": rule.sigma, "rule.theta": rule.theta}
    name = objective.pop("name")
    if TRACED.get(name) in objective:
        numbers[f"objective.{TRACED[name]}"] = objective.pop(TRACED[name])
    frozen = tuple(objective.items()), tuple(fixed.items())
    maker = _maker(problem.task, problem.n, record.name, cohort, coin, name, *frozen)
    return Partial(maker, **numbers) if _takes_operands(maker, numbers, problem) else None


def _takes_operands(maker: Callable[..., Algorithm], numbers: dict[str, Any], problem: Problem) -> bool:
    """Whether the method can be made inside a program, where its numbers are not known; nothing is computed."""
    x = problem.x
    operands = {name: jnp.asarray(value, x.dtype) for name, value in numbers.items()}
    try:
        jax.eval_shape(_one_round(maker), operands, x, problem.train)
    except (InputError, TypeError, ValueError):  # JAX's errors about tracers are TypeErrors; one that stays comes again
        return False
    return True


@lru_cache(maxsize=64)
def _one_round(maker: Callable[..., Algorithm]) -> Callable:
    def one_round(numbers: dict[str, Any], x: Vector, data: Any) -> Any:
        algorithm = maker(**numbers)
        state, key = kernel.init(algorithm, x), jax.random.key(0)
        return kernel.step(algorithm, state, kernel.prepare(algorithm, data), key)

    return jax.jit(one_round)  # so that it is traced once for all numbers and all data of these shapes


@lru_cache(maxsize=64)
def _maker(
    task: Task,
    n: int,
    method: str,
    cohort: int | None,
    coin: float | None,
    objective: str,
    of_objective: tuple,
    of_method: tuple,
) -> Callable[..., Algorithm]:
    record = algorithms.named(method)
    sample = _sample(record, n, cohort, coin)

    def make(**numbers: Any) -> Algorithm:
        given: dict[str, dict[str, Any]] = {"algorithm": dict(of_method), "objective": dict(of_objective), "rule": {}}
        for name, value in numbers.items():
            section, _, key = name.partition(".")
            given[section][key] = value
        psi = objectives.named(objective)(n, **given["objective"])
        rule = steps.constant(**given["rule"]) if given["rule"] else None
        return record.build(task, psi, sample, rule, **given["algorithm"])

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
        f"{given}, which is measured for linear models only, and this is a {problem.model.name}; give {instead}",
    )


def saddle(config: Config, problem: Problem) -> np.ndarray | None:
    """x*, where it is known from another solver.

    Synthetic regression with the chi2, CVaR, agnostic or average objective, and quadratics with the average.
    """
    if config.data.name == "quadratics" and config.objective.name == "average":
        return synthetic.quadratics_solution(problem.train)
    caps = {"chi2": 1.0, "agnostic": 1.0, "average": 1 / problem.n}
    settings = config.objective
    if settings.name == "cvar":
        caps["cvar"] = 1 / (settings.alpha * problem.n)
    if config.data.name != "synthetic" or settings.name not in caps:
        return None
    rho = settings.rho if settings.name == "chi2" else 0.0
    return synthetic.saddle_point(problem.train, mu=problem.l2, rho=rho, cap=caps[settings.name]).x
