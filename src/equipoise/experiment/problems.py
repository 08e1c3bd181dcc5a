"""From settings to a problem: whose data, which model, from where."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from equipoise import evaluation, models, steps, tasks
from equipoise.artifact import Artifact
from equipoise.data import ClientData, partition, pool, silos
from equipoise.data.dataset import Dataset
from equipoise.data.datasets import catalogue, synthetic
from equipoise.data.shards import OwnerRows, Shards, client_shapes
from equipoise.data.silos.encoding import Encoding, Feature, Target
from equipoise.engines.simulator import Result, products_in
from equipoise.errors import InputError, nearest, not_none, require
from equipoise.evaluation.predictions import Score
from equipoise.evaluation.rules import COMMON
from equipoise.experiment.config import Config, DataSettings
from equipoise.experiment.personal.baselines import OwnFit, own_fits
from equipoise.experiment.records import Choice
from equipoise.models.model import Model, Params
from equipoise.protocol import Data, Vector
from equipoise.tasks import Convexity, Metric, Task, WithMetric, moreau_envelope
from equipoise.tasks.metric import ShardInMetric, stretch
from equipoise.tasks.moreau import Personal
from equipoise.tasks.squares import Gram, Kernel
from equipoise.tasks.task import least

Made = TypeVar("Made")
# Of l2, what an intercept has unless told: too little to be seen in a prediction, enough for certificates to rest on.
FREE = 1e-3
MOST_FITTED = 1e9  # clients times rows times parameters: some minutes of a core


class Sent(NamedTuple):
    """Bytes between the server and all clients."""

    down: int = 0
    up: int = 0


class Network(NamedTuple):
    """What a convex problem was made of (`convexify.py`)."""

    train: ClientData  # the rows themselves
    test: ClientData | None
    fixed: Params  # of the model, what is not trained any more
    insert: Callable[[Vector], Params]  # x -> all parameters of the model
    extract: Callable[[Params], Vector]  # and back
    sent: Sent  # until the convex problem was there


class Conditioning(NamedTuple):
    """The metric that a problem is trained in (`conditioning.py`)."""

    metric: Metric
    task: Task  # over z
    sent: Sent  # until all had it


class Raced(NamedTuple):
    """What a race for the step size of a network found, see `chosen/step_sizes.py`."""

    choice: Choice
    start: Result  # where the one that is chosen ended the race: the run begins there
    rounds: int  # that it has trained until then


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
    l2: Convexity
    x: Vector
    notes: tuple[str, ...] = ()
    validation: Any | None = None  # rows to choose the best round by, with `run.keep_best`
    curvature: float | None = None  # L, where the clients have measured it themselves
    slope: float | None = None  # and a bound on L_lx at the start
    network: Network | None = None  # None: it was not made of one
    score: evaluation.MainScore | None = None  # that runs are summed up by; None: the one that says most
    envelope: "Envelope | None" = None  # of which `task` is, where owners have models of their own
    site_scores: Mapping[str, Score] = field(default_factory=dict)  # that sites of a federation have of their own
    counted: np.ndarray | None = None  # [n], with data.unit: as how many independent rows the scored ones count
    units: tuple[np.ndarray, ...] | None = None  # with data.unit: of every owner's training rows, whose they are
    labels_told: evaluation.skill.Base | None = None  # what sites of a federation say of their labels
    divided: bool = False  # by chance or by its labels, not among owners that exist
    conditioning: Conditioning | None = None  # None: trained in x as it is
    baselines_told: np.ndarray | None = None  # [n], baselines that sites have told, where the rows are elsewhere
    filled_up: tuple[ClientData, ClientData | None] | None = None  # both in the shape of a plan's others: one program

    @property
    def n(self) -> int:
        return self.train.n

    @property
    def compiled_for(self) -> ClientData:
        """The training rows, in the shape that a run's programs are compiled for."""
        return self.train if self.filled_up is None else self.filled_up[0]

    @property
    def scored(self) -> ClientData:
        """The rows that models are scored on, in that shape."""
        train, test = self.filled_up or (self.train, self.test)
        return train if test is None else test

    @property
    def judged(self) -> ClientData:
        """The same, with the rows that parts of the owners' own are fitted to."""
        return self.with_rows(self.compiled_for, self.scored)

    @cached_property
    def scorer(self) -> Callable[[Vector], evaluation.PerClient]:
        """Scores models, one after the other."""
        return evaluation.evaluator(self.plain_task, self.judged, scores=self.scores)

    @property
    def convex(self) -> bool:
        return self.model.name == "linear" or self.network is not None

    @cached_property
    def smoothness(self) -> float:
        """L: the largest curvature of any client's loss."""
        largest = self.curvature
        if largest is None and self.conditioning is not None:  # measured where it is trained, envelope and all
            return steps.smoothness(self.conditioning.task, self.in_metric(self.compiled_for), jnp.zeros_like(self.x))
        if largest is None:
            largest = steps.smoothness(self.plain_task, self.compiled_for, self.x)
        # What sites have told in the metric bounds the envelope there too.
        return largest if self.envelope is None or self.conditioning is not None else self.envelope.damped(largest)

    @property
    def trained_task(self) -> Task:
        """`task`, in the metric where there is one."""
        return self.task if self.conditioning is None else self.conditioning.task

    def in_metric(self, rows: ClientData) -> ClientData:
        """Rows of all clients, for `trained_task`."""
        return rows if self.conditioning is None else WithMetric(rows, self.conditioning.metric)

    def shard_in_metric(self, shard: Data) -> Data:
        """One client's rows, for `trained_task`."""
        return shard if self.conditioning is None else ShardInMetric(shard, self.conditioning.metric)

    @cached_property
    def modulus(self) -> float:
        """A strong convexity that is known beforehand, of what is trained."""
        if self.conditioning is None:
            return least(self.l2)
        return least(self.l2) * stretch(not_none(self.task.linear), self.conditioning.metric)

    @property
    def sent(self) -> Sent:
        """Before the first round."""
        sent = [made.sent for made in (self.network, self.conditioning) if made is not None]
        return Sent(sum(one.down for one in sent), sum(one.up for one in sent))

    @property
    def plain_task(self) -> Task:
        """With which models are scored; `task` is trained, and may be its envelope."""
        return self.task if self.envelope is None else self.envelope.plain

    @property
    def baselines(self) -> np.ndarray:
        """[n]: the loss of every owner's own model on rows that it has not seen."""
        return np.asarray(self.own_fits.loss, np.float64) if self.baselines_told is None else self.baselines_told

    @cached_property
    def own_fits(self) -> OwnFit:
        """Every owner's own model, where the rows are at hand."""
        return own_fits(self.plain_task, self.folds_pay, self.x, self.train)

    @property
    def folds_pay(self) -> bool:
        """Whether models of every owner are fitted to five folds of its rows: of huge ones it would take hours."""
        return self.convex and self.n * client_shapes(self.train).labels.shape[0] * self.x.size <= MOST_FITTED

    @property
    def own_inputs(self) -> tuple[int, ...]:
        """Those whose slopes are the owners' own."""
        return () if self.plain_task.own is None else self.plain_task.own.inputs

    def with_rows(self, train: ClientData | None, scored: ClientData | None) -> Any:
        """What models are scored on: rows, and where owners have parts of their own those to fit them to."""
        return scored if self.plain_task.own is None else OwnerRows(train, scored)

    @cached_property
    def constants(self) -> Callable[[int], tuple[steps.Constants, float]]:
        """What step sizes are made of, and the local one, by the local steps: measured once, whatever the objective."""

        def measured(local_steps: int) -> tuple[steps.Constants, float]:
            if self.slope is None:
                x = self.x if self.conditioning is None else jnp.zeros_like(self.x)
                rows = self.in_metric(self.compiled_for)
                return steps.near_solution(self.trained_task, rows, x, steps=local_steps, mu=self.modulus)
            return steps.bounded(self.smoothness, self.slope, steps=local_steps, mu=self.modulus)

        return cache(measured)

    @cached_property
    def tried_steps(self) -> dict[str, "Raced"]:
        """Step sizes of networks, by the method."""
        return {}

    @cached_property
    def scores(self) -> dict[str, Score]:
        """What models are scored by, where the rows are at hand."""
        suited = evaluation.suited(self.task.predict, self.x, client_shapes(self.train), self.loss)
        return suited if self.score is None or self.score.own is None else suited | {self.score.name: self.score.own}

    @cached_property
    def digest_of_rows(self) -> str:
        """Of the rows that models are scored on: the same for all models that are scored on the same ones."""
        scored = self if self.network is None else self.network  # the rows themselves, not features of them
        digest = hashlib.blake2b(digest_size=16)
        for leaf in jax.tree.leaves(scored.train if scored.test is None else scored.test):
            digest.update(np.ascontiguousarray(leaf).data)
        return digest.hexdigest()

    def main_score(self, table: evaluation.PerClient) -> evaluation.MainScore:
        """The score of an evaluated model that sums it up."""
        if self.score is not None:
            return self.score
        name = evaluation.chosen(table, "skill" if "skill" in table.scores and self.one_class_is_common else None)
        return evaluation.MainScore(name, evaluation.higher_is_better(name))

    @cached_property
    def base(self) -> evaluation.skill.Base | None:
        """What is known of the owners' labels, by which a log loss becomes a skill; None: there is no such loss."""
        at_hand = isinstance(self.train, pool.Pool | Shards)  # else sites tell it
        if not at_hand or not self.classes or self.loss != "cross_entropy" or self.task.predict is None:
            return self.labels_told
        return evaluation.skill.bases(self.train, self.train if self.test is None else self.test, len(self.classes))

    @property
    def one_class_is_common(self) -> bool:
        """At some owner; of a data set that was divided for an experiment, in all of it: then accuracies say little."""
        if self.base is None:
            return False
        if self.divided:
            return evaluation.skill.common_in_all(self.train, len(self.classes)) > COMMON
        return bool((np.asarray(self.base.common) > COMMON).any())

    def artifact_params(self, x: Vector) -> Params:
        """x as the parameters of `model`: squared losses are trained without a bias, which is then zero."""
        if self.network is not None:
            return self.network.insert(x)
        size = sum(a.size for a in jax.tree.leaves(self.model.shapes))
        return np.concatenate([np.asarray(x), np.zeros(size - x.size, np.asarray(x).dtype)])

    def starting_from(self, model: Artifact) -> "Problem":
        """The same problem from another first model, of its own kind."""
        flat = ravel_pytree(model.params)[0] if self.network is None else self.network.extract(model.params)
        started = replace(self, x=jnp.asarray(flat[: self.x.size], self.x.dtype))
        if "own_fits" in vars(self):  # which do not depend on where a run starts
            vars(started)["own_fits"] = self.own_fits
        return started


class Envelope(NamedTuple):
    """The Moreau envelope that is trained instead of a task."""

    plain: Task
    personal: Personal
    mu: float

    def damped(self, curvature: float) -> float:
        """What a curvature of the plain task becomes."""
        return self.mu * curvature / (self.mu + curvature)


def with_own_models(config: Config, problem: Problem) -> Problem:
    """The problem whose shared model is trained for the models that owners make of it, where the settings say so."""
    settings = config.own_models
    if settings is None or settings.kind != "moreau":
        return problem
    task, mu = problem.task, settings.mu
    if isinstance(jax.eval_shape(lambda train: task.prepare(train.client(0)), problem.train), Gram | Kernel):
        personal = moreau_envelope(task, mu)
    else:
        lr = 1 / (problem.smoothness + mu) if settings.lr == "auto" else settings.lr
        personal = moreau_envelope(task, mu, steps=settings.steps, lr=lr)
    envelope = Envelope(task, personal, mu)
    return replace(problem, task=personal.task, l2=envelope.damped(least(problem.l2)), envelope=envelope)


@contextmanager
def precision(config: Config) -> Iterator[None]:
    """The arrays that are made in here have the precision of the run."""
    with jax.enable_x64(config.run.precision == "float64"), products_in(config.run.products):
        yield


def build_problem(config: Config) -> Problem:
    """Reads and divides the data, and builds the task on it; call it under `precision`."""
    problem = with_own_models(config, _of_data(config))
    if config.run.keep_best:  # no test row has a say in which round that is
        examples = isinstance(problem.train, pool.Pool | Shards)
        require(examples, "run.keep_best needs examples to set aside, which this data has none of; leave it out")
        share = config.run.validation
        train, validation = pool.set_aside(problem.train, share=share, key=division_seed(config))
        note = f"{share:.0%} of every client's training rows are set aside, to choose the best round by"
        problem = replace(problem, train=train, validation=validation, notes=(*problem.notes, note))
    return problem if config.run.score is None else with_main_score(config, problem, problem.scores)


def with_main_score(config: Config, problem: Problem, scores: Iterable[str]) -> Problem:
    """The problem, summed up by the score that the settings name; `scores` are those that it has."""
    if config.run.score is None:
        return problem
    score, there = evaluation.main_score_named(config.run.score), list(dict.fromkeys([*scores, "loss"]))
    there += ["skill"] if problem.classes and problem.loss == "cross_entropy" else []
    wrong = f"run.score is '{score.name}', which this problem does not have; give {', '.join(there)}, or module:name"
    require(score.own is not None or score.name in there, wrong)
    wrong = f"run.score is '{config.run.score}', but '{score.name}' is a score of the library; rename the function"
    require(score.own is None or score.name not in there, wrong)
    return replace(problem, score=score)


def _of_data(config: Config) -> Problem:
    if config.data.silos is not None:
        return _of_silos(config)
    wrong = "the data of [federation] is at its sites: `equipoise flower server` trains there; to run on this machine"
    require(config.federation is None, f"{wrong}, give data.silos, a folder with a file per site")
    return {"synthetic": _synthetic, "quadratics": _quadratics}.get(config.data.name, _of_dataset)(config)


def _of_silos(config: Config) -> Problem:
    settings, folder = config.data, Path(str(config.data.silos))
    how: dict[str, Any] = {"separator": settings.separator, "test": settings.test, "seed": config.run.seed}
    with warnings.catch_warnings(action="ignore", category=silos.SiloWarning):  # they become notes
        given = silos.read_with(folder, settings.silo_options, **how)
    what = f"{len(given.names)} silos of the folder {folder.name}, predicting {settings.label}"
    problem = problem_of(config, what, given.names, given.train, given.test, given.encoding, given.warnings)
    return replace(problem, counted=given.counted, units=given.units)


@contextmanager
def _options(wrong: str, remedy: str) -> Iterator[None]:
    """Around a call with arguments from a file, which may be none of the function's."""
    try:
        yield
    except TypeError as error:
        raise InputError(f"{wrong} ({error}); {remedy}") from None


def _synthetic(config: Config) -> Problem:
    n, key = config.partition.clients, jax.random.key(division_seed(config))
    with _options("data.options does not fit synthetic data", "known: dim, samples, scale, shift"):
        train = synthetic.regression(n=n, key=key, **config.data.options)
    names = tuple(f"client {i}" for i in range(n))
    what = f"synthetic robust regression (SCAFF-PD, section 6.1) over {n} clients"
    return problem_of(config, what, names, train, None, shape=train.inputs.shape[2:])


def _quadratics(config: Config) -> Problem:
    require(config.model.l2 == 0, f"model.l2 is {config.model.l2}, but quadratics are given whole; set model.l2 = 0")
    with _options("data.options does not fit quadratics", "known: gradient, hessian, beta"):
        train = synthetic.quadratics(**config.data.options)
    # Recorded as a line through the origin, whose slope is x. Zero is the solution, so it starts from one.
    what, names = "the two quadratics of SCAFFOLD, section 7.2", ("client 0", "client 1")
    model, task = models.linear(1, 1), tasks.quadratic(1)
    return Problem(what, names, train, None, (), model, "squared_error", None, task, 0.0, jnp.ones(1))


_kept: ContextVar[dict[str, Dataset] | None] = ContextVar("_kept", default=None)


@contextmanager
def data_set_kept() -> Iterator[None]:
    """In it, a data set that is divided in several ways is read once."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _dataset(settings: DataSettings) -> Dataset:
    kept, key = _kept.get(), settings.model_dump_json()
    if kept is not None and key in kept:
        return kept[key]
    dataset = catalogue.load(settings.name, data_dir=settings.data_dir, download=settings.download, **settings.options)
    if kept is not None:
        kept.clear()
        kept[key] = dataset
    return dataset


def _of_dataset(config: Config) -> Problem:
    settings, division, key = config.data, config.partition, division_seed(config)
    dataset = _dataset(settings)
    if config.model.name in ("linear", "mlp"):
        dataset = dataset.flat()
    divided, test_parts = divide(config, dataset)
    limits: dict[str, Any] = {"test": settings.test, "max_size": division.max_size, "thin": division.thin}
    train, test = pool.pools(dataset, divided.parts, key=key, test_parts=test_parts, **limits)
    prefix = "" if division.kind == "natural" else "client "
    names = tuple(f"{prefix}{name}" for name in divided.summary.clients)
    by = {"natural": "its own owners", "dirichlet": f"Dirichlet({division.alpha:g})", "iid": "chance"}
    by |= {"similarity": f"similarity {division.similarity:g}", "k_classes": f"{division.classes} classes each"}
    by |= {"one_class": "one class each", "quantity": f"quantities of Dirichlet({division.alpha:g})"}
    what = f"{dataset.name} over {len(names)} clients, divided by {by[division.kind]}"
    what += f", at most {division.max_size} rows each" if division.max_size else ""
    what += f", {division.thin[0]:.0%} of them without {division.thin[1]:.0%} of their rows" if division.thin else ""
    encoding, shape = _encoding_of(dataset), dataset.inputs.shape[1:]
    problem = problem_of(config, what, names, train, test, encoding, classes=dataset.classes, shape=shape)
    return replace(problem, divided=division.kind != "natural")


def divide(config: Config, dataset: Dataset) -> tuple[partition.Partition, partition.Parts | None]:
    """The rows of every client, and those of the official test set where its owners are known."""
    division = config.partition
    if division.kind == "natural":
        divided, tests = pool.natural(dataset, min_size=division.min_size)
        return divided, None if tests is None else tests.parts
    y, n, key, least = np.asarray(dataset.labels), division.clients, division_seed(config), division.min_size
    ways: dict[str, Callable[[], partition.Partition]] = {
        "iid": lambda: partition.iid(y, n, key),
        "dirichlet": lambda: partition.dirichlet(y, n, division.alpha, key, min_size=least),
        "similarity": lambda: partition.similarity(y, n, 100 * division.similarity, key),
        "k_classes": lambda: partition.k_classes(y, n, division.classes, key),
        "one_class": lambda: partition.one_class(y, n, key),
        "quantity": lambda: partition.quantity(y, n, division.alpha, key, min_size=least),
    }
    sortable = y.ndim == 1 and (y.dtype.kind in "iu" or division.kind in ("iid", "quantity"))
    require(sortable, f"the labels are numbers to predict, which {division.kind} cannot sort; use iid or quantity")
    return ways[division.kind](), None


def division_seed(config: Config) -> int:
    return config.run.seed if config.partition.seed is None else config.partition.seed


def _encoding_of(dataset: Dataset) -> Encoding | None:
    """How `equipoise predict` reads an .npz with `inputs` like the data set's; None where one number per set does
    not say how they are scaled."""
    if not dataset.classes or isinstance(dataset.scale, np.ndarray) or isinstance(dataset.offset, np.ndarray):
        return None
    scale = 1.0 if dataset.scale is None else float(dataset.scale)
    shape, dtype = tuple(dataset.inputs.shape[1:]), str(dataset.inputs.dtype)
    mean = -float(dataset.offset) / scale
    inputs = Feature("inputs", "array", mean=mean, scale=1 / scale, shape=shape, dtype=dtype)
    return Encoding("classification", Target("labels", dataset.classes), (inputs,), ())


def problem_of(
    config: Config,
    what: str,
    names: tuple[str, ...],
    train: ClientData,
    test: ClientData | None,
    encoding: Encoding | None = None,
    notes: tuple[str, ...] = (),
    *,
    classes: tuple[str, ...] = (),
    shape: tuple[int, ...] | None = None,
) -> Problem:
    """The problem on examples, which may be elsewhere; without a shape, classes and shape are those of the encoding."""
    if shape is None:
        classes, shape = not_none(encoding).target.classes, not_none(encoding).shape
    settings, outputs = config.model, len(classes) or 1
    loss = settings.loss if settings.loss != "auto" else "cross_entropy" if classes else "squared_error"
    predicted, fits = ("classes", "cross_entropy or squared") if classes else ("numbers", "squared_error")
    wrong = f"model.loss is '{loss}' but {predicted} are to be predicted; give {fits}, or auto"
    require((loss == "squared_error") == (not classes), wrong)
    model, features = _model(config, shape, outputs, train), math.prod(shape)
    line = settings.name == "linear" and loss == "squared_error" and config.data.name != "synthetic"
    l2: Convexity = settings.penalty
    # Owners' files: a penalty on the intercept would pull what is rare towards even odds.
    free = line or (settings.name == "linear" and loss == "cross_entropy" and encoding is not None)
    intercept = settings.penalty * FREE if free and settings.l2_intercept is None else settings.l2_intercept
    if intercept is not None:
        l2 = (settings.penalty,) * (features * outputs) + (intercept,) * outputs
    options: dict[str, Any] = {"l2": l2, "batch": settings.batch}
    if settings.name != "linear" or line:
        convex = settings.name == "linear"  # every loss of models.LOSSES is convex in the outputs
        score = models.LOSSES[loss]
        options |= {"convex": convex, "bend": models.BENDS[loss]}
        task = cached(tasks.task_of)(model.init, model.apply, score, name=settings.name, **options)
        if line:  # (output - label)^2 has the curvature 2
            task = task._replace(linear=tasks.Linear(features, outputs, True, 2.0, l2, task.loss))
    elif loss == "cross_entropy":
        task = cached(tasks.softmax_regression)(features, outputs, **options)
    elif loss == "squared":
        task = cached(tasks.least_squares)(features, outputs, centred=True, **options)
    else:
        task = cached(tasks.ridge)(features, settings.penalty, settings.batch)
    x = task.init(jax.random.key(config.run.seed))
    problem = Problem(what, names, train, test, classes, model, loss, encoding, task, l2, x, notes)
    return with_own_parts(config, problem)


def with_own_parts(config: Config, problem: Problem) -> Problem:
    """The problem, where owners keep a part of the model for themselves if the settings say so."""
    own = config.model.own
    if own == "none":
        return problem
    inputs = () if isinstance(own, str) else _columns(own, problem)
    return replace(problem, task=cached(tasks.own_part)(problem.task, inputs))


def _columns(names: tuple[str, ...], problem: Problem) -> tuple[int, ...]:
    """The inputs that columns become."""
    encoding = problem.encoding
    columns = encoding is not None and encoding.features[0].kind != "array"
    require(columns, f"model.own names columns ({', '.join(names)}), and this data has none; give 'intercept'")
    features = not_none(encoding).features
    ends = np.cumsum([len(feature.inputs) for feature in features])
    ranges = {f.name: range(end - len(f.inputs), end) for f, end in zip(features, ends.tolist(), strict=True)}
    for name in names:
        require(name in ranges, f"model.own names '{name}', which is not a column of the model{nearest(name, ranges)}")
    return tuple(j for name in names for j in ranges[name])


def cached(factory: Callable[..., Made]) -> Callable[..., Made]:
    """The same task or model for the same shape, so that what is compiled for it serves other divisions of the data.

    Of one precision: what brings x into the shape of a model has the type that its numbers had when it was made.
    """
    return _cached(factory, jnp.result_type(float))


@cache
def _cached(factory: Callable[..., Made], precision: object) -> Callable[..., Made]:
    return lru_cache(maxsize=16)(factory)


def _model(config: Config, shape: tuple[int, ...], outputs: int, train: ClientData) -> Model:
    settings = config.model
    arguments: tuple[object, ...]
    match settings.name:
        case "linear":
            arguments = (math.prod(shape), outputs)
        case "mlp":
            arguments = (math.prod(shape), settings.hidden, outputs)
        case "cnn" | "resnet" as name:
            wrong = f"a {name} needs images [height, width, channels]; the examples have shape {shape}"
            require(len(shape) == 3, wrong)
            arguments = (shape, outputs)
        case _:
            integers = np.issubdtype(train.client(0).inputs.dtype, np.integer)
            require(integers and len(shape) == 1, "a gru needs sequences of characters, such as shakespeare")
            arguments = (outputs, settings.hidden[0])
    make = models.MODELS[settings.name]
    with _options(f"model.options does not fit a {settings.name}", "see equipoise.models"):
        return (cached(make) if settings.name == "linear" else make)(*arguments, **settings.options)
