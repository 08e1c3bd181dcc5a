"""What the server and all sites know before the first round, and the algorithm that both make of it."""

import base64
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from equipoise import algorithms, evaluation, objectives
from equipoise.data.shards import Shards, shard_like
from equipoise.data.silos.encoding import Encoding
from equipoise.errors import not_none, require
from equipoise.evaluation.predictions import Score
from equipoise.experiment import config as configuration
from equipoise.experiment.chosen import settle
from equipoise.experiment.chosen.point import point
from equipoise.experiment.conditioning import Plan, conditioned, planned
from equipoise.experiment.config import Config
from equipoise.experiment.convexify.stages import (
    Scaling,
    Trained,
    feature_sizes,
    linearised_problem,
    network_config,
    problem_on_features,
)
from equipoise.experiment.methods import build_dual, build_method
from equipoise.experiment.personal.models import own_models
from equipoise.experiment.personal.own_parts import mean_part
from equipoise.experiment.problems import Problem, Sent, problem_of, with_main_score, with_own_models
from equipoise.experiment.records import AGREEMENT, JsonRecord
from equipoise.experiment.scoring import Tilt, scoring
from equipoise.metric import unpacked
from equipoise.models.model import Params
from equipoise.privacy.disclosure import disclosed
from equipoise.protocol import Algorithm, Wire
from equipoise.pytorch.spec import ModuleSpec, module_problem
from equipoise.tasks import Task
from equipoise.tasks.private import Draw, normal

FILE = AGREEMENT  # in a run folder and in a site's own


class NetworkRecord(JsonRecord):
    """Train-Convexify-Train: the network of stage 1, and how the features that sites make of it are scaled.

    Vectors are base64 of numbers in the run's precision.
    """

    theta: str
    how: str  # it came about
    down: int  # bytes that stage 1 sent
    up: int
    mean: str | None = None  # None: not agreed yet, or there are no features
    scale: str | None = None


def as_text(vector: ArrayLike, config: Config) -> str:
    return base64.b64encode(np.asarray(vector, f"<f{np.dtype(config.run.precision).itemsize}").tobytes()).decode()


def as_vector(text: str, config: Config, size: int) -> np.ndarray:
    numbers = _numbers(text, config)
    require(
        len(numbers) == size,
        f"a vector of the agreement has {len(numbers)} numbers and {size} are needed; give server and sites the same "
        "version",
    )
    return numbers


def _numbers(text: str, config: Config) -> np.ndarray:
    kind = np.dtype(config.run.precision).newbyteorder("<")
    return np.frombuffer(base64.b64decode(text, validate=True), kind).astype(kind.newbyteorder("="))


class Agreement(JsonRecord):
    """The sites by name and size, how they read their tables, and what they measured."""

    run: str  # under this name sites keep what they must not forget
    sites: tuple[str, ...]  # in the order of the clients
    train: tuple[int, ...]  # rows of each
    test: tuple[int, ...]
    counted: tuple[float, ...] | None = (
        None  # with data.unit: as how many independent rows each one's scored ones count
    )
    encoding: str = ""  # as JSON
    module: ModuleSpec | None = None  # instead of an encoding, where the model is a PyTorch module at every site
    curvature: float | None = None  # the largest of any site's loss, where a step size is made of it
    slope: float | None = None  # the root of the sum of the squared gradients of all sites' losses at the start
    metric: dict[str, str] | None = None  # of `metric.packed`, where the model is trained in one
    network: NetworkRecord | None = None  # with [convexify], once it is trained; None: it is what is trained
    chosen: dict[str, float] | None = None  # what the settings leave open, by its key; None: not yet, or nothing


def addition(earlier: str, agreed: Agreement) -> str:
    """What is new in an agreement, for sites that have an earlier one: nothing is told twice."""
    before = json.loads(earlier)
    return json.dumps({"extends": before["run"], "changes": _changes(before, agreed.model_dump(mode="json"))})


def extended(earlier: str, changes: Mapping[str, object]) -> str:
    """The earlier agreement with what is new."""
    return json.dumps(_with_changes(json.loads(earlier), changes))


def _changes(before: object, after: object) -> Any:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    return {key: _changes(before.get(key), v) for key, v in after.items() if key not in before or before[key] != v}


def _with_changes(before: object, changes: object) -> Any:
    if not isinstance(before, Mapping) or not isinstance(changes, Mapping):
        return changes
    return {**before, **{key: _with_changes(before.get(key), change) for key, change in changes.items()}}


def settings(toml: str) -> Config:
    """The run's configuration, as the server has sent it."""
    return configuration.parse(tomllib.loads(toml), source="the run's settings", own_code=False)


def stage(config: Config, agreed: Agreement) -> Config:
    """What is run under an agreement: with [convexify], first the network; where folds choose, first their path."""
    if config.convexify is not None:
        return config if agreed.network is not None else network_config(config)
    if not settle.by_folds(config):
        return config
    return settle.start(config) if agreed.chosen is None else settle.with_numbers(config, agreed.chosen)


class RemoteShards(NamedTuple):
    """Shards that are somewhere else: their sizes, and a shape for each."""

    sizes: np.ndarray
    like: Shards

    @property
    def n(self) -> int:
        return len(self.sizes)

    def client(self, i: ArrayLike) -> Shards:
        return self.like


class Setup(NamedTuple):
    """What is trained, the same at the server and at every site."""

    problem: Problem
    algorithm: Algorithm
    scoring: Algorithm  # how its models are evaluated
    notes: tuple[str, ...]
    digest: str  # of all that has to be the same
    sums: Tilt | None = None  # evaluations tell sums only, weighed so
    personal: Algorithm | None = None  # how sites make models of their own, after training
    own: Algorithm | None = None  # how they tell the mean of their own parts, after training


def remote_problem(config: Config, agreed: Agreement) -> Problem:
    """The problem of a stage, without its rows; call it under `precision`."""
    problem, network = _rows_elsewhere(config, agreed), agreed.network
    if network is not None:
        trained = Trained(network_params(config, agreed, problem), network.how, Sent(network.down, network.up))
        if has_features(config):
            like = features_like(config, problem)
            scaling = scaling_of(config, agreed, like.inputs.shape[1])
            problem = problem_on_features(config, problem, trained, scaling, *_sets(agreed, like))
        else:
            problem = linearised_problem(config, problem, trained)
    counted = None if agreed.counted is None else np.array(agreed.counted)
    problem = replace(problem, curvature=agreed.curvature, slope=agreed.slope, counted=counted)
    own = {} if agreed.module is None else dict(agreed.module.scores)  # the sites' own scores: which way is better
    suited = evaluation.suited(problem.task.predict, problem.x, problem.train.client(0), problem.loss)
    problem = with_main_score(config, problem, [*suited, *own])
    if problem.score is None or problem.score.name not in own:
        return problem
    return replace(problem, score=problem.score._replace(higher_is_better=own[problem.score.name]))


def _rows_elsewhere(config: Config, agreed: Agreement) -> Problem:
    if agreed.module is not None:
        return module_problem(config, agreed.module, agreed.sites, *_sets(agreed, agreed.module.like))
    encoding = Encoding.from_json(agreed.encoding)
    like = shape_of(encoding)
    what = f"{len(agreed.sites)} sites, predicting {encoding.target.name}"
    problem = problem_of(config, what, agreed.sites, *_sets(agreed, like), encoding, encoding.notes)
    given = like.inputs.dtype
    require(
        not jnp.issubdtype(given, jnp.floating) or given == problem.x.dtype,
        f"the sites' inputs are {given} and the run is {problem.x.dtype}; set run.precision = '{given}'",
    )
    return problem


def _sets(agreed: Agreement, like: Shards) -> tuple[RemoteShards, RemoteShards | None]:
    train, test = (RemoteShards(np.array(sizes, np.int32), like) for sizes in (agreed.train, agreed.test))
    return train, test if all(agreed.test) else None


def network_problem(config: Config, agreed: Agreement) -> Problem:
    """The network's, in every stage."""
    return _rows_elsewhere(network_config(config), agreed)


def network_params(config: Config, agreed: Agreement, problem: Problem) -> Params:
    """theta, of the model of `problem`."""
    return params_of(problem, as_vector(not_none(agreed.network).theta, config, problem.x.size))


def params_of(problem: Problem, x: Any) -> Params:
    """A vector as the parameters of the problem's model."""
    return jax.tree.map(jnp.asarray, problem.model.unravel(x))


def scaling_of(config: Config, agreed: Agreement, p: int) -> Scaling:
    network = not_none(agreed.network)
    return Scaling(*(jnp.asarray(as_vector(not_none(text), config, p)) for text in (network.mean, network.scale)))


def features_like(config: Config, problem: Problem) -> Shards:
    """The shapes of a set of features; `problem` is the network's."""
    p = feature_sizes(config, problem.model, len(problem.classes) or 1)[0].size
    return shard_like((p,), problem.x.dtype, (), jnp.int32 if problem.classes else problem.x.dtype)


def setup(
    config: Config,
    agreed: Agreement,
    task: Task | None = None,
    scores: Mapping[str, Score] | None = None,
    draw: Draw = normal,
    baselines: np.ndarray | None = None,
) -> Setup:
    """The problem and the algorithm on it.

    `task` and `scores` are a site's own, with which only it can compute, `draw` is its noise. `baselines` are what all
    sites have told, which only the server knows; at a site nothing depends on them.
    """
    if task is None and scores is None:
        alike = agreed.model_copy(update={"run": ""}).model_dump_json()
        compared = None if baselines is None else tuple(baselines.tolist())
        made = _shared(config.toml(), alike, None if config.privacy is None else draw, compared)
    else:
        made = _made(config, agreed, task, scores, draw, baselines)
    return made._replace(digest=digest_of(config, agreed))


@lru_cache(maxsize=8)
def _shared(toml: str, agreed: str, draw: Draw | None, baselines: tuple[float, ...] | None) -> Setup:
    """Runs and sites that differ in their name only share what is compiled."""
    compared = None if baselines is None else np.array(baselines)
    return _made(settings(toml), Agreement.model_validate_json(agreed), None, None, draw or normal, compared)


def _made(
    config: Config,
    agreed: Agreement,
    task: Task | None,
    scores: Mapping[str, Score] | None,
    draw: Draw,
    baselines: np.ndarray | None,
) -> Setup:
    problem = remote_problem(config, agreed)
    problem = replace(problem, baselines_told=np.zeros(problem.n) if baselines is None else baselines)
    if task is not None:
        task = task if problem.task.predict is not None else task._replace(predict=None)
        problem = replace(problem, task=task)
    if agreed.module is not None and scores is not None:
        problem = replace(problem, site_scores=scores)
    problem = with_agreed_metric(config, agreed, with_own_models(config, problem))
    algorithm, notes = build_method(config, problem, draw)[:2]
    objective, sums = config.objective, None
    if not_none(config.federation).secure:  # sites weigh their own losses, so that the objective is one of sums
        sums = Tilt(exact=objective.name in ("kl", "average"), rho=objective.rho if objective.name == "kl" else None)
    personal = None if config.own_models is None else own_models(config, problem)
    own = None if problem.plain_task.own is None else mean_part(problem, tell=sums is not None)
    return Setup(problem, algorithm, scoring(problem, algorithm, sums=sums), notes, "", sums, personal, own)


def point_of_path(config: Config, agreed: Agreement) -> Algorithm:
    """Of `settle.start`, for a site, which messages tell which point it is; sites of one process share it."""
    return _point(config.toml(), agreed.model_copy(update={"run": ""}).model_dump_json())


@lru_cache(maxsize=4)
def _point(toml: str, alike: str) -> Algorithm:
    config, agreed = settings(toml), Agreement.model_validate_json(alike)
    problem = setup(config, agreed).problem
    metric = not_none(problem.conditioning, "the sites have not agreed on a metric yet").metric
    return point(problem.plain_task, build_dual(config, problem), metric, 0.0)


def metric_plan(config: Config, agreed: Agreement) -> Plan | None:
    """Which metric the run is to be trained in; None: in none, or its rows are not known yet."""
    if config.model.metric == "none" or (has_features(config) and not (agreed.network and agreed.network.mean)):
        return None
    return planned(config, remote_problem(config, agreed))


def with_agreed_metric(config: Config, agreed: Agreement, problem: Problem) -> Problem:
    """The problem in the metric of the agreement, where it has one."""
    plan = None if agreed.metric is None else planned(config, problem)
    if plan is None:
        return problem
    metric = unpacked({name: _numbers(text, config) for name, text in not_none(agreed.metric).items()}, plan.linear)
    return conditioned(problem, plan, metric, problem.train.client(0))


def digest_of(config: Config, agreed: Agreement) -> str:
    return hashlib.sha256((stage(config, agreed).toml() + agreed.model_dump_json()).encode()).hexdigest()[:16]


def shape_of(encoding: Encoding) -> Shards:
    """One row as the encoding makes it."""
    first, real = encoding.features[0], jnp.zeros(()).dtype
    raw = first.kind == "array" and (first.mean, first.scale) == (0.0, 1.0)
    kind = {"boolean": "bool"}.get(first.dtype.lower(), first.dtype.lower()) if raw else real
    label = jnp.int32 if encoding.target.classes else real
    return shard_like(encoding.shape, jax.dtypes.canonicalize_dtype(kind), (), label)


def check(config: Config) -> None:
    """What cannot be measured without all rows in one place, said before any site is asked."""
    require(
        config.federation is not None, "there is no [federation]; say who takes part: sites = ['north', 'south'], or 3"
    )
    require(not config.run.lost, "run.lost is for simulations; leave it out")


def disclosures(
    config: Config, crossing: Sequence[Wire], *, n: int, own_models: bool, own_parts: bool, moments: bool
) -> Iterator[str]:
    """What a run tells the server about single sites, in sentences."""
    settings = not_none(config.federation)
    return disclosed(
        crossing,
        masked=settings.secure,
        measured=needs_curvature(config),
        n=n,
        threshold=settings.threshold,
        bound=settings.secure_bound,
        own_models=own_models,
        features=has_features(config),
        moments=moments,
        units=config.data.unit is not None,
        baselines=needs_baselines(config),
        own_parts=own_parts,
        folds=settle.by_folds(config),
    )


def looks_at_gains(config: Config) -> bool:
    """Whether each site's own model counts in training."""
    trained_for = algorithms.named(config.algorithm.name).takes_dual
    return config.objective.of == "gains" and trained_for and not objectives.named(config.objective.name).average


def needs_baselines(config: Config) -> bool:
    """Whether sites tell the loss of their own models: not where each weighs itself and all else is sums."""
    if settle.by_folds(config) and (config.objective_price is not None or looks_at_gains(settle.start(config))):
        return True  # along the path
    hidden = algorithms.named(config.algorithm.name).weighs_itself and not_none(config.federation).secure
    return looks_at_gains(config) and not hidden


def has_features(config: Config) -> bool:
    """Whether the rows of the run are features that sites make of a network."""
    return config.convexify is not None and config.convexify.kind != "linearised"


def tells_moments(config: Config) -> bool:
    """Whether sites tell second moments of their inputs, where the model turns out to suit a metric."""
    wanted = "auto" if settle.by_folds(config) else config.model.metric
    linear = config.model.name == "linear" if config.convexify is None else has_features(config)
    return linear and wanted != "none" and config.privacy is None


def needs_curvature(config: Config, agreed: Agreement | None = None) -> bool:
    """Whether step sizes are made of what sites measure, which they can for models that are not modules of theirs.

    Not yet, where the features are not scaled that it would be measured on, or the metric is not agreed.
    """
    if config.model.name == "torch" and config.convexify is None:
        return False
    if has_features(config) and agreed is not None and (agreed.network is None or agreed.network.mean is None):
        return False
    if agreed is not None and agreed.metric is None and metric_plan(config, agreed) is not None:
        return False
    measured = any(getattr(config.algorithm, key, None) == "auto" for key in ("local_lr", "lr"))
    measured = measured or (
        config.own_models is not None and config.own_models.kind != "best" and config.own_models.lr == "auto"
    )
    return measured or getattr(config.algorithm, "rule", None) == "tuned"
