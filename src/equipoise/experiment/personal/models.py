"""Models of the owners' own, beside the shared one: one exchange after training, which sets both side by side.

    best          each owner keeps what serves it best on folds of its own rows (`offers.py`)
    fine_tuning   each owner takes steps from the shared model and keeps what does better on rows that it left out
    moreau        the shared model was trained for this: the own model is v_i(x) of the Moreau envelope

down    the shared model
up      its scores and those of the own model, on the owner's held-out rows; and the pull that was chosen

The own model stays with its owner, as the client's state.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from equipoise import artifact, evaluation
from equipoise.algorithms import Split, fine_tuning
from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import ModelMessage, send_model
from equipoise.cohorts import everyone
from equipoise.data.shards import OwnerRows, Shards
from equipoise.engines.simulator import simulate
from equipoise.errors import not_none, require
from equipoise.evaluation import PerClient
from equipoise.experiment import records
from equipoise.experiment.config import Config
from equipoise.experiment.personal import alone, offers, own_parts
from equipoise.experiment.personal.baselines import own_fit
from equipoise.experiment.problems import Envelope, Problem
from equipoise.experiment.results import floats, in_units
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector


class Server(NamedTuple):
    """What was heard of each owner."""

    x: Vector
    shared: Any  # of `evaluation`
    own: Any
    pull: Float[Array, " n"]  # NaN: not heard


Keep = Callable[[Vector, Data, RandomKey], tuple[Vector, Array]]  # (shared model, rows, key) -> own model, pull


def own_models(config: Config, problem: Problem) -> Algorithm:
    """An algorithm of one round, for any engine: clients end with the models that they keep."""
    n, plain = problem.n, problem.plain_task
    if not_none(config.own_models).kind == "best":
        prepare_rows, keep = lambda shard: shard, _best(problem)
    elif problem.envelope is not None:
        prepare_rows, keep = problem.envelope.personal.task.prepare, _of_envelope(problem.envelope)
    else:
        prepare_rows, keep = _fine_tuned(config, problem)
    scores = evaluation.suited(plain.predict, problem.x, problem.train.client(0), problem.loss)
    if problem.score is not None and problem.score.own is not None:
        scores = scores | {problem.score.name: problem.score.own}
    inner = evaluation.evaluation(plain, everyone(n), None, scores=scores)
    judge = inner.round[0]

    def init(x: Vector) -> Server:
        return Server(x, inner.init(x), inner.init(x), jnp.full(n, jnp.nan, x.dtype))

    def prepare(rows: OwnerRows) -> OwnerRows:
        scored = problem.with_rows(rows.train, rows.test)
        return OwnerRows(prepare_rows(rows.train), inner.prepare(scored))

    def make(message: ModelMessage, _: Vector, rows: OwnerRows, key: RandomKey) -> tuple[Vector, Reply]:
        v, pull = keep(message.x, rows.train, key)
        both = (judge.work(model, None, rows.test, key)[1].each for model in (message.x, v))
        return v, Reply(each=(*both, pull))

    def note(server: Server, replies: Replies) -> Server:
        shared, own, pull = replies.each
        return server._replace(
            shared=judge.close(server.shared, Replies(None, shared, replies.cohort)),
            own=judge.close(server.own, Replies(None, own, replies.cohort)),
            pull=replies.cohort.put(server.pull, pull),
        )

    exchange = Exchange("own", everyone(n).open, send_model, make, note, writes=True)
    return measurement("own_models", n, plain.size, exchange, init=init, prepare=prepare, init_client=lambda x: x)


def _best(problem: Problem) -> Keep:
    def keep(x: Vector, shard: Data, key: RandomKey) -> tuple[Vector, Array]:
        return offers.best_of(task, x, shard, own_fit(task, problem.convex, x, shard))

    task = problem.plain_task
    return keep


def _of_envelope(envelope: Envelope) -> Keep:
    def keep(x: Vector, data: Data, key: RandomKey) -> tuple[Vector, Array]:
        return envelope.personal.model(x, data, key), jnp.full((), envelope.mu, x.dtype)

    return keep


def _fine_tuned(config: Config, problem: Problem) -> tuple[Callable[[Data], Data], Keep]:
    settings, task = not_none(config.own_models), problem.task
    lr = 1 / (problem.smoothness + max(settings.pulls)) if settings.lr == "auto" else settings.lr
    tuning = fine_tuning(task, problem.n, steps=settings.steps, lr=lr, pulls=settings.pulls)

    def prepare(shard: Shards) -> Split:
        return tuning.prepare(divided(shard, settings.validation))

    def keep(x: Vector, data: Split, key: RandomKey) -> tuple[Vector, Array]:
        v, reply = tuning.round[0].work(ModelMessage(x), x, data, key)
        return v, reply.each.pull

    return prepare, keep


def divided(shard: Shards, share: float) -> Split:
    """An owner's rows, of which a share of at least one is left out by chance, the same every time."""
    rows, size = shard.labels.shape[0], shard.sizes
    real = jnp.arange(rows, dtype=size.dtype) < size
    order = jnp.argsort(jnp.where(real, jax.random.uniform(jax.random.key(0), (rows,)), 2.0))
    left_out = jnp.clip(jnp.rint(share * size.astype(jnp.float32)).astype(size.dtype), 1, jnp.maximum(size - 1, 1))
    kept = jnp.maximum(size - left_out, 0)

    def part(order: Array, count: Array) -> Shards:
        mine = jnp.arange(rows, dtype=size.dtype) < count

        def taken(a: Array) -> Array:
            return jnp.where(mine.reshape(-1, *[1] * (a.ndim - 1)), a[order], 0)

        return Shards(taken(shard.inputs), taken(shard.labels), count)

    return Split(part(order, kept), part(jnp.roll(order, -kept), left_out))


def made(config: Config, problem: Problem, x: Vector) -> tuple[records.PersonalRecord, Array]:
    """Where all rows are at hand: how every owner fares, and the own models [n, d]; of kind "best" see `offered`."""
    algorithm = own_models(config, problem)
    end = simulate(
        algorithm,
        x,
        OwnerRows(problem.compiled_for, problem.scored),
        config.run.seed,
        rounds=1,
        clients_per_batch=config.run.clients_per_batch,
        devices=config.run.devices,
    )
    return recorded(config, problem, end.server), end.clients


def offered(folder: Path, problem: Problem, x: Vector) -> tuple[records.PersonalRecord, Array]:
    """As `made`, of kind "best"; the scores row by row are kept, and what owners get alone is recorded beside them."""
    offers_made = offers.best_of_each(problem.plain_task, x, problem.train, problem.own_fits)
    shared, _ = alone.scored(problem, jnp.stack([x] * problem.n))
    own, rows = alone.scored(problem, offers_made.model)
    shared, own = (in_units(problem, table) for table in (shared, own))
    measure = problem.main_score(shared).name
    alone.write_rows(folder / records.OWN_ROWS, problem, measure, rows)
    alone.write([folder], problem, [])
    scores = {name: floats(values) for name, values in own.scores.items()}
    return _recorded("best", problem, shared, own, offers_made.pull, scores), offers_made.model


def recorded(config: Config, problem: Problem, server: Server) -> records.PersonalRecord:
    kind = not_none(config.own_models).kind
    shared, own = (in_units(problem, table.heard) for table in (server.shared, server.own))
    return _recorded(kind, problem, shared, own, None if kind == "moreau" else server.pull, {})


def _recorded(
    kind: str, problem: Problem, shared: PerClient, own: PerClient, pull: Array | None, scores: dict[str, Any]
) -> records.PersonalRecord:
    measure, up, _ = problem.main_score(shared)
    return records.PersonalRecord(
        kind=kind,
        measure=measure,
        higher_is_better=up,
        shared=floats(shared.scores[measure]),
        own=floats(own.scores[measure]),
        pull=None if pull is None else floats(pull),
        scores=scores,
    )


def own_model(folder: Path, owner: str) -> artifact.Artifact:
    """An owner's model, of a run folder that has them."""
    parts = own_parts.read(folder)
    models = own_parts.read_of_owners(folder / records.OWN_MODELS, "models")
    wrong = f"{folder} has no models of the owners' own: set model.own or [personal] for the run"
    require(parts is not None or models is not None, f"{wrong}; over Flower they stay at the sites")
    shared = artifact.load(folder / records.MODEL)
    for owned, put in ((parts, artifact.Artifact.with_part), (models, artifact.Artifact.with_parameters)):
        if owned is not None:
            require(owner in owned, f"{folder} has no owner '{owner}'; it has {', '.join(map(str, list(owned)[:10]))}")
            shared = put(shared, owned[owner])
    return shared


def write(
    folder: Path, problem: Problem, record: records.PersonalRecord, models: Array | None, parts: Any | None = None
) -> None:
    """The models first: whoever sees the record sees them too. `parts` are the owners' own of their own models."""
    if parts is not None:
        own_parts.write(folder, problem, parts)
    if models is not None:
        vectors = np.stack([np.asarray(ravel_pytree(problem.artifact_params(v))[0]) for v in np.asarray(models)])
        own_parts.write_of_owners(folder / records.OWN_MODELS, "models", problem.names, vectors)
    records.write_record(folder / records.PERSONAL, record)
