"""What the server and all sites know before the first round, and the algorithm that both make of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import evaluation
from equipoise.data.shards import Shards
from equipoise.data.silos.encoding import Encoding
from equipoise.deploy.modules import ModuleSpec, module_problem
from equipoise.deploy.scoring import Tilt, scoring
from equipoise.errors import require
from equipoise.evaluation.predictions import Score
from equipoise.experiment.config import Config
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import Problem, problem_of_encoding, with_main_score
from equipoise.experiment.records import AGREEMENT, JsonRecord
from equipoise.protocol import Algorithm
from equipoise.tasks import Task
from equipoise.tasks.private import Draw, normal

FILE = AGREEMENT  # in a run folder and in a site's own


class Agreement(JsonRecord):
    """The sites by name and size, how they read their tables, and what they measured."""

    run: str  # under this name sites keep what they must not forget
    sites: tuple[str, ...]  # in the order of the clients
    train: tuple[int, ...]  # rows of each
    test: tuple[int, ...]
    encoding: str = ""  # as JSON
    module: ModuleSpec | None = None  # instead of an encoding, where the model is a PyTorch module at every site
    curvature: float | None = None  # the largest of any site's loss, where a step size is made of it
    slope: float | None = None  # the root of the sum of the squared gradients of all sites' losses at the start


class RemoteShards(NamedTuple):
    """Shards that are somewhere else: their sizes, and a shape for each."""

    sizes: np.ndarray
    like: Shards

    @property
    def n(self) -> int:
        return len(self.sizes)

    def client(self, i: Any) -> Shards:
        return self.like


class Setup(NamedTuple):
    """What is trained, the same at the server and at every site."""

    problem: Problem
    algorithm: Algorithm
    scoring: Algorithm  # how its models are evaluated
    notes: tuple[str, ...]
    digest: str  # of all that has to be the same
    sums: Tilt | None = None  # evaluations tell sums only, weighed so


def tilt_of(config: Config) -> Tilt:
    """How sites weigh their own losses in a sum, so that the objective is one of sums."""
    name = config.objective.name
    return Tilt(known=name in ("kl", "average"), rho=config.objective.rho if name == "kl" else None)


def remote_problem(config: Config, agreed: Agreement) -> Problem:
    """The problem without its rows; call it under `precision`."""

    def shards(like: Shards) -> tuple[RemoteShards, RemoteShards | None]:
        train, test = (RemoteShards(np.array(sizes, np.int32), like) for sizes in (agreed.train, agreed.test))
        return train, test if all(agreed.test) else None

    if agreed.module is not None:
        problem = module_problem(config, agreed.module, agreed.sites, *shards(agreed.module.like))
        return summed_up(config, problem, dict(agreed.module.scores))
    encoding = Encoding.from_json(agreed.encoding)
    like = shape_of(encoding)
    what = f"{len(agreed.sites)} sites, predicting {encoding.target.name}"
    problem = problem_of_encoding(config, what, agreed.sites, *shards(like), encoding, encoding.notes)
    given = like.inputs.dtype
    require(
        not jnp.issubdtype(given, jnp.floating) or given == problem.x.dtype,
        f"the sites' inputs are {given} and the run is {problem.x.dtype}; set run.precision = '{given}'",
    )
    return summed_up(config, replace(problem, curvature=agreed.curvature, slope=agreed.slope), {})


def summed_up(config: Config, problem: Problem, own: Mapping[str, bool]) -> Problem:
    """By the score that the settings name, if they do; `own` are scores of the sites' own, and which way is better."""
    suited = evaluation.suited(problem.task.predict, problem.x, problem.train.client(0))
    problem = with_main_score(config, problem, [*suited, *own])
    score = problem.score
    if score is None or score.name not in own:
        return problem
    return replace(problem, score=score._replace(higher_is_better=own[score.name]))


def setup(
    config: Config,
    agreed: Agreement,
    task: Task | None = None,
    scores: Mapping[str, Score] | None = None,
    draw: Draw = normal,
) -> Setup:
    """The problem and the algorithm on it.

    `task` and `scores` are a site's own, with which only it can compute, `draw` is its noise.
    """
    assert config.federation is not None
    problem = remote_problem(config, agreed)
    if task is not None:
        task = task if problem.task.predict is not None else task._replace(predict=None)
        problem = replace(problem, task=task, site_scores=scores or {})
    algorithm, notes = build_method(config, problem, draw)[:2]
    text = config.toml() + agreed.model_dump_json()
    digest, sums = hashlib.sha256(text.encode()).hexdigest()[:16], tilt_of(config) if config.federation.secure else None
    return Setup(problem, algorithm, scoring(problem, algorithm, sums=sums), notes, digest, sums)


def shape_of(encoding: Encoding) -> Shards:
    """One row as the encoding makes it."""
    first, real = encoding.features[0], jnp.zeros(()).dtype
    raw = first.kind == "array" and (first.mean, first.scale) == (0.0, 1.0)
    kind = {"boolean": "bool"}.get(first.dtype.lower(), first.dtype.lower()) if raw else real
    label = jnp.int32 if encoding.target.classes else real
    return Shards(
        jax.ShapeDtypeStruct((1, *encoding.shape), jax.dtypes.canonicalize_dtype(kind)),  # type: ignore[arg-type]
        jax.ShapeDtypeStruct((1,), label),  # type: ignore[arg-type]
        jax.ShapeDtypeStruct((), jnp.int32),  # type: ignore[arg-type]
    )


def check(config: Config) -> None:
    """What cannot be measured without all rows in one place, said before any site is asked."""
    require(
        config.federation is not None, "there is no [federation]; say who takes part: sites = ['north', 'south'], or 3"
    )
    require(not config.run.lost, "run.lost is for simulations; leave it out")


def needs_curvature(config: Config) -> bool:
    """Whether step sizes are made of what sites measure, which they can for models that are not modules of theirs."""
    if config.model.name == "torch":
        return False
    measured = any(getattr(config.algorithm, key, None) == "auto" for key in ("local_lr", "lr"))
    return measured or getattr(config.algorithm, "rule", None) == "tuned"
