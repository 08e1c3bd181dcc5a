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

from equipoise import algorithms, steps, tensors
from equipoise.algorithms.moments import moments
from equipoise.algorithms.second_moments import second_moments
from equipoise.cohorts import everyone
from equipoise.data.shards import OwnerRows, Shards
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.site.memory import forget_old
from equipoise.deploy.site.messages import Job
from equipoise.deploy.wire.arrays import refuse_unless
from equipoise.deploy.wire.envelope import NAME, NOT_TOLD, of_run
from equipoise.errors import not_none, require
from equipoise.experiment import records
from equipoise.experiment.baselines import own_loss
from equipoise.experiment.config import Config
from equipoise.experiment.convexify import scaled
from equipoise.experiment.results import save_model
from equipoise.files import write_whole
from equipoise.privacy.noise import own_noise
from equipoise.tasks import WithBaseline

AGREEMENTS = "agreements"  # a folder with a file for each of the last runs
FEATURES = "features.safetensors"  # of the site's own rows; it stays there
BASELINE = "baseline.json"  # the loss of its own model
OWN_MODEL = "own-model.safetensors"  # for `equipoise predict`; it leaves the site with nobody's message


class RowsSite(NamedTuple):
    """A site's part in a run, as its jobs and one answer."""

    jobs: dict[str, Callable[[], Job]]
    accept_agreement: Callable[[str], str]
    tell_baseline: Callable[[str], str]


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

    def baseline(known: Agreement) -> float:
        """The loss of its own model, found once: it stands in the site's folder."""
        now, shard = setup(known), trained_on(known).train

        def find() -> float:
            problem = now.problem
            return own_loss(problem.plain_task, problem.convex, problem.x, jax.tree.map(jnp.asarray, shard))

        return kept_number(folder / BASELINE, [config.toml(), *(np.asarray(a) for a in shard)], find)

    def compared(known: Agreement, rows: OwnerRows) -> OwnerRows:
        """With what only the site knows, where it weighs itself."""
        if not (agreement.looks_at_gains(config) and algorithms.named(config.algorithm.name).weighs_itself):
            return rows
        return rows._replace(train=WithBaseline(rows.train, jnp.asarray(baseline(known), setup(known).problem.x.dtype)))

    def train() -> Job:
        known, now = agreed()
        rows = trained_on(known)
        rows = compared(known, rows._replace(train=now.problem.shard_in_metric(rows.train)))
        return Job(now.algorithm, now.problem.x, rows.train, config=now.digest)

    def evaluate() -> Job:
        known, now = agreed()
        rows = trained_on(known)
        rows = rows if now.sums is None else compared(known, rows)
        return Job(now.scoring, now.problem.x, rows, config=now.digest)

    def own() -> Job:
        known, now = agreed()
        algorithm = not_none(now.own, "no part of this model is the sites' own")

        def save(message: Any, part: Any) -> None:
            about = {"site": name, "config": config.used()}
            save_model(folder / OWN_MODEL, now.problem, message.x, about, part)

        return Job(algorithm, now.problem.x, trained_on(known).train, config=now.digest, then=save)

    def personal() -> Job:
        known, now = agreed()
        algorithm = not_none(now.personal, "this run makes no models of the sites' own")

        def save(message: Any, own: Any) -> None:
            of = now.problem.plain_task.own
            part = None if of is None else of.fit(jnp.asarray(own), jax.tree.map(jnp.asarray, trained_on(known).train))
            save_model(folder / OWN_MODEL, now.problem, own, {"site": name, "config": config.used()}, part)

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

    def tell_baseline(run: str) -> str:
        refuse_unless(NAME.fullmatch(run), "the message names no run that could be kept")
        of_run.set(run)
        require(agreement.needs_baselines(config), "this run looks at losses, and nobody needs to know it")
        return json.dumps(baseline(read_agreement(folder, name)))

    jobs = {"train": train, "evaluate": evaluate}
    jobs |= {} if config.model.own == "none" else {"own": own}
    jobs |= {} if config.personal is None else {"personal": personal}
    jobs |= {} if config.convexify is None else {"moments": sums}
    jobs |= {"metric": moments_of_inputs} if agreement.tells_moments(config) else {}
    return RowsSite(jobs, accept_agreement, tell_baseline)


def digest_of(made_of: list[Any]) -> str:
    digest = hashlib.sha256()
    for part in made_of:
        digest.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def kept_number(path: Path, made_of: list[Any], make: Callable[[], float]) -> float:
    """A number that is found once; `made_of` is all that it depends on."""
    digest = digest_of(made_of)
    if path.is_file():
        with suppress(KeyError, TypeError, ValueError):  # it is damaged, and made again
            found = json.loads(path.read_text())
            if found["of"] == digest:
                return float(found["number"])
    number = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"of": digest, "number": number}))
    return number


def kept_features(folder: Path, made_of: list[Any], make: Callable[[], OwnerRows]) -> OwnerRows:
    """Features that are made once and stand in the site's folder: Flower's own nodes start a process per message.

    `made_of` is all that they depend on, as texts and arrays.
    """
    digest = digest_of(made_of)
    path = folder / FEATURES
    names: Any = OwnerRows(*(cast(Any, Shards)(*Shards._fields) for _ in OwnerRows._fields))
    if path.is_file():
        with suppress(KeyError, TypeError, ValueError):  # it is damaged, and made again
            arrays, of = tensors.read(path)
            if of == digest:
                return jax.tree.unflatten(jax.tree.structure(names), [arrays[name] for name, _ in tensors.named(names)])
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    tensors.write(path, {name: np.asarray(a) for name, a in tensors.named(made)}, digest)
    return made


def read_agreement(folder: Path, name: str) -> Agreement:
    """What the site has been told before the first round."""
    path = agreement_of(folder, of_run.get())
    refuse_unless(path.is_file(), f"'{name}' {NOT_TOLD}; the server tells it again, and it goes on from there")
    return records.read_record(path, Agreement)


def keep_agreement(folder: Path, name: str, text: str) -> None:
    known = Agreement.model_validate_json(text)
    require(name in known.sites, f"'{name}' is not one of the sites")
    refuse_unless(NAME.fullmatch(known.run), "the agreement names no run that could be kept")
    path = agreement_of(folder, known.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    forget_old(path.parent.glob("*.json"))


def agreement_of(folder: Path, run: str) -> Path:
    """Each run has its own, which no other run can change."""
    return folder / AGREEMENTS / f"{run}.json"


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
