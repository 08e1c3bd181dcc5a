"""What a site does with rows that JAX trains on: its own, or features that it has made of them and keeps.

metric     second moments of its inputs, where the model is trained in a metric
moments    with [convexify], the sums of its features, from which all make the same scaling
train, evaluate, personal    the run itself, or the network that comes first: whatever was agreed last
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import steps, tensors
from equipoise.algorithms.moments import moments
from equipoise.algorithms.second_moments import second_moments
from equipoise.cohorts import everyone
from equipoise.data.shards import Shards
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.client import Job
from equipoise.deploy.network.envelope import NOT_TOLD
from equipoise.deploy.network.wire import refuse_unless
from equipoise.errors import not_none, require
from equipoise.experiment import records
from equipoise.experiment.config import Config
from equipoise.experiment.convexify import scaled
from equipoise.experiment.personal import OwnerRows
from equipoise.experiment.results import save_model
from equipoise.files import write_whole
from equipoise.privacy.noise import own_noise

FEATURES = "features.safetensors"  # of the site's own rows; it stays there
OWN_MODEL = "own-model.safetensors"  # for `equipoise predict`; it leaves the site with nobody's message


class RowsSite(NamedTuple):
    """A site's part in a run, as its jobs and one answer."""

    jobs: dict[str, Callable[[], Job]]
    accept_agreement: Callable[[str], str]


def rows_site(
    config: Config,
    name: str,
    folder: Path,
    rows: Callable[[Agreement], OwnerRows],
    features: Callable[[Agreement], OwnerRows],
    setup: Callable[[Agreement], Setup],
) -> RowsSite:
    """`rows` are the site's own, `features` what it makes of them, not scaled; `setup` is of the agreed stage."""

    def trained_on(known: Agreement) -> OwnerRows:
        if known.network is None or known.network.mean is None:
            return rows(known)
        made = features(known)
        scaling = agreement.scaling_of(config, known, made.train.inputs.shape[1])
        return OwnerRows(*(scaled(part, scaling) for part in made))

    def agreed() -> tuple[Agreement, Setup]:
        known = read_agreement(folder, name)
        return known, setup(known)

    def train() -> Job:
        known, now = agreed()
        shard = now.problem.shard_in_metric(trained_on(known).train)
        return Job(now.algorithm, now.problem.x, shard, config=now.digest)

    def evaluate() -> Job:
        known, now = agreed()
        return Job(now.scoring, now.problem.x, trained_on(known), config=now.digest)

    def personal() -> Job:
        known, now = agreed()
        algorithm = not_none(now.personal, "this run makes no models of the sites' own")

        def save(message: Any, own: Any) -> None:
            save_model(folder / OWN_MODEL, now.problem, own, {"site": name, "config": config.used()})

        return Job(algorithm, now.problem.x, trained_on(known), config=now.digest, then=save)

    def sums() -> Job:
        known = read_agreement(folder, name)
        require(known.network is not None, "there is no network yet to make features of")
        made = features(known).train
        algorithm = moments(made.inputs.shape[1], everyone(len(known.sites)))
        digest = agreement.digest_of(config, known)
        x = jnp.zeros(algorithm.size, made.inputs.dtype)
        return Job(algorithm, x, made, config=digest, within=lambda: jax.enable_x64(True))

    def moments_of_inputs() -> Job:
        known = read_agreement(folder, name)
        plan = agreement.metric_plan(agreement.stage(config, known), known)
        linear, rank = not_none(plan, "this run is trained in no metric")
        shard = trained_on(known).train
        algorithm = second_moments(linear, everyone(len(known.sites)), rank=rank)
        digest, x = agreement.digest_of(config, known), jnp.zeros(algorithm.size, np.dtype(config.run.precision))
        return Job(algorithm, x, shard, config=digest, within=lambda: jax.enable_x64(True))

    def accept_agreement(text: str) -> str:
        """Remembers what was agreed; answers with this site's curvature and slope where they are asked for."""
        known = Agreement.model_validate_json(text)
        answer = ""
        if known.curvature is None and agreement.needs_curvature(agreement.stage(config, known), known):
            answer = json.dumps(curvature_and_slope(config.toml(), text)(trained_on(known).train))
        elif known.network is None:
            rows(known)  # they fit the encoding
        keep_agreement(folder, name, text)
        return answer

    jobs = {"train": train, "evaluate": evaluate}
    jobs |= {} if config.personal is None else {"personal": personal}
    jobs |= {} if config.convexify is None else {"moments": sums}
    jobs |= {"metric": moments_of_inputs} if agreement.tells_moments(config) else {}
    return RowsSite(jobs, accept_agreement)


def kept_features(folder: Path, made_of: list[Any], make: Callable[[], OwnerRows]) -> OwnerRows:
    """Features that are made once and stand in the site's folder: Flower's own nodes start a process per message.

    `made_of` is all that they depend on, as texts and arrays.
    """
    digest = hashlib.sha256()
    for part in made_of:
        digest.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    path = folder / FEATURES
    names: Any = OwnerRows(*(cast(Any, Shards)(*Shards._fields) for _ in OwnerRows._fields))
    if path.is_file():
        with suppress(KeyError, TypeError, ValueError):  # it is damaged, and made again
            arrays, of = tensors.read(path)
            if of == digest.hexdigest():
                return jax.tree.unflatten(jax.tree.structure(names), [arrays[name] for name, _ in tensors.named(names)])
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    tensors.write(path, {name: np.asarray(a) for name, a in tensors.named(made)}, digest.hexdigest())
    return made


def read_agreement(folder: Path, name: str) -> Agreement:
    """What the site has been told before the first round."""
    path = folder / agreement.FILE
    refuse_unless(path.is_file(), f"'{name}' {NOT_TOLD}; the server tells it again, and it goes on from there")
    return records.read_record(path, Agreement)


def keep_agreement(folder: Path, name: str, text: str) -> None:
    require(name in Agreement.model_validate_json(text).sites, f"'{name}' is not one of the sites")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / agreement.FILE, text)


# The sites of one process make the same of the same agreement, so they share what is compiled.


@lru_cache(maxsize=4)
def planned(toml: str, agreed: str) -> Setup:
    known = Agreement.model_validate_json(agreed)
    return agreement.setup(agreement.stage(agreement.settings(toml), known), known, draw=own_noise)


@lru_cache(maxsize=4)
def curvature_and_slope(toml: str, agreed: str) -> Callable[[Shards], tuple[float, float]]:
    """How a site measures the largest curvature of its loss and the slope at the start."""
    known = Agreement.model_validate_json(agreed)
    config = agreement.stage(agreement.settings(toml), known)
    problem = agreement.with_agreed_metric(config, known, agreement.remote_problem(config, known))
    task = problem.trained_task
    x = problem.x if problem.conditioning is None else jnp.zeros_like(problem.x)
    slope = jax.jit(lambda shard: jnp.linalg.norm(task.grad(x, task.prepare(shard))))

    def measure(shard: Shards) -> tuple[float, float]:
        alone = Shards(*(jnp.asarray(a)[None] for a in shard))
        return steps.smoothness(task, problem.in_metric(alone), x), float(slope(problem.shard_in_metric(shard)))

    return measure
