"""How a model fares at every client, as an exchange: the server sends it, each client scores it on its own rows.

What crosses is a model down, and up the client's number of rows and its scores; no row and no prediction. Of an RMSE
the mean fourth power of the errors crosses too, of a log loss the mean square: with it the server knows how certain the
score is.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from equipoise._jax import cached_program, compiled
from equipoise.algorithms.measurement import measurement
from equipoise.cohorts import Sample, check_distinct, everyone
from equipoise.data import ClientData
from equipoise.data.shards import OwnerRows, client_shapes
from equipoise.engines.client_data import PreparedData, SpreadData, as_given, by_client, padding
from equipoise.engines.kernel import exchange_once
from equipoise.engines.layout import Layout, lay_out
from equipoise.engines.simulator import in_precision, simulate
from equipoise.errors import require
from equipoise.evaluation.predictions import OF_ROWS, SQUARED, Predict, Score, suited
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import (
    Algorithm,
    Cohort,
    Data,
    Exchange,
    RandomKey,
    Replies,
    Reply,
    Vector,
    as_key,
    exchange_keys,
)
from equipoise.tasks import Own, Task

Scores = dict[str, Any]  # name -> an array with an entry per client
AT_ONCE = 1 << 24  # bytes of shards that are scored side by side


class PerClient(NamedTuple):
    """A row for each client; for a path of models, with a leading axis of models."""

    sizes: Int[Array, " n"]  # rows scored; 0: the client did not answer
    scores: Scores  # "loss": the task's f_i, its l2 term included, or a score given by that name; NaN: not known
    resampled: Scores  # the same [n, draws], for rows drawn with replacement
    squares: Scores  # "rmse", "loss": the mean of the squares of what each row adds, the squared errors or log losses


class Server(NamedTuple):
    """The models, which of them is out, and what was heard of it."""

    models: Float[Array, "r d"]
    current: Int[Array, ""]
    heard: PerClient


@numbers_are_leaves
def evaluation(
    task: Task | Predict,
    sample: Sample,
    models: Float[Array, "r d"] | None,
    *,
    scores: Mapping[str, Score],
    draws: int = 0,
) -> Algorithm[Server, None]:
    """An algorithm for any engine: in round r every client of the cohort scores models[r] (None: its start).

    A score that is not defined for a client's rows (AUROC of one class) is told as such; a loss that is not
    finite is a lost reply, as everywhere.
    """
    n = check_distinct(sample, "an evaluation hears of each client once")
    loss, predict = (task.loss, task.predict) if isinstance(task, Task) else (None, task)
    own = own_of(task)
    require(predict is not None or not scores, "this task makes no predictions; give scores={}")
    require(draws >= 0, f"draws is {draws}; give zero or more")
    squared = {name: SQUARED[score] for name, score in scores.items() if score in SQUARED}

    def prepare(shard: Data) -> Data:
        check_fit(task, shard)
        return shard  # scores need the rows themselves, not what training made of them

    def choose(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server._replace(current=server.current + 1), sample(key)

    def send(server: Server, i: Int[Array, ""]) -> Vector:
        return server.models[server.current]

    def score_model(x: Vector, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        part: Any = None if own is None else own.fit(x, data.train)
        data = data if own is None else data.test
        loss_told = {}
        if loss is not None:
            loss_told["loss"] = (loss(x, data) if own is None else own.loss(x, part, data)).astype(x.dtype)
        if predict is None or not scores:
            return None, Reply(each=(data.sizes, loss_told, ({}, {}), ({}, {}), ({}, {})))
        outputs, labels = predict(x, data.inputs) if own is None else own.outputs(x, part, data.inputs), data.labels
        real = jnp.arange(labels.shape[0], dtype=data.sizes.dtype) < data.sizes

        def scored(outputs: Array, labels: Array) -> Scores:
            return {name: score(outputs, labels, real).astype(x.dtype) for name, score in scores.items()}

        def resampled(key: RandomKey) -> Scores:
            rows = jax.random.randint(key, real.shape, 0, data.sizes)
            return scored(outputs[rows], labels[rows])

        def squares(of_rows: Callable[[Array, Array], Array]) -> Array:
            return jnp.sum(jnp.where(real, of_rows(outputs, labels) ** 2, 0)) / data.sizes.astype(x.dtype)

        again = jax.lax.map(resampled, jax.random.split(key, draws)) if draws else {}
        moments = {name: squares(score).astype(x.dtype) for name, score in squared.items()}
        marked = map(_marked, (scored(outputs, labels), again, moments))
        return None, Reply(each=(data.sizes, loss_told, *marked))

    def listen(server: Server, replies: Replies) -> Server:
        sizes, losses, *heard = replies.each

        def filled(rows: Array, defined: Array | bool = True) -> Array:
            blank = jnp.full((n, *rows.shape[1:]), jnp.nan, rows.dtype)
            return replies.cohort.put(blank, jnp.where(defined, rows, jnp.nan))

        scored, again, squares = (jax.tree.map(filled, values, given) for values, given in heard)
        sizes = replies.cohort.put(jnp.zeros(n, sizes.dtype), sizes)
        return server._replace(heard=PerClient(sizes, jax.tree.map(filled, losses) | scored, again, squares))

    def init(x: Vector) -> Server:
        def nothing(*shape: int) -> Array:
            return jnp.full((n, *shape), jnp.nan, x.dtype)

        names = [*(() if loss is None else ("loss",)), *scores]
        again = {name: nothing(draws) for name in scores} if draws else {}
        squares = {name: nothing() for name in squared}
        blank = PerClient(jnp.zeros(n, jnp.int32), {name: nothing() for name in names}, again, squares)
        return Server(x[None] if models is None else models, jnp.int32(-1), blank)

    return measurement(
        "evaluation",
        n,
        task.size if isinstance(task, Task) else 0 if models is None else models.shape[-1],
        Exchange("evaluate", choose, send, score_model, listen),
        init=init,
        model=lambda server: server.models[server.current],
        prepare=prepare,
    )


def _marked(values: Scores) -> tuple[Scores, Scores]:
    """(values, which are defined): a NaN in a reply would make it a lost one."""
    defined = {name: ~jnp.isnan(v) for name, v in values.items()}
    return {name: jnp.where(defined[name], v, 0) for name, v in values.items()}, defined


def evaluate(
    task: Task | Predict,
    x: Float[ArrayLike, "... d"],
    data: ClientData,
    *,
    scores: Mapping[str, Score] | None = None,
    draws: int = 0,
    key: RandomKey | int = 0,
    clients_per_batch: int | None = None,
    **options: Any,
) -> PerClient:
    """The loss and scores of the model x at every client of `data`, as one compiled program.

    Args:
        task: what was trained; or a function (x, inputs) -> outputs, which has no loss.
        x: a model; or a path [r, d] of them, such as the history of `record=algorithm.model`.
        data: the clients' test examples, Shards or Pool; of a task where owners have parts of their own, `OwnerRows`,
            to the first of which these are fitted.
        scores: name -> function of (outputs, labels, which rows are real). None: accuracy for classes, AUROC too
            for two of them, RMSE and R2 for numbers.
        draws: how many times each client also scores rows resampled from its own, for intervals of scores that are
            neither accuracy nor RMSE, which need none.
        key: for the resampling.
        clients_per_batch: how many clients are scored side by side; None: what fits into a little memory.
        options: `progress`, `lost` and `devices`, as in `simulate`.
    """
    models = jnp.asarray(x)
    require(models.ndim in (1, 2), f"x has shape {models.shape}; give a model [d], or a path of models [r, d]")
    path = models if models.ndim == 2 else models[None]
    require(len(path) > 0, "the path has no models; give at least one")
    size = task.size if isinstance(task, Task) else path.shape[1]
    require(path.shape[1] == size, f"a model has {path.shape[1]} parameters but the task has {size}; give that many")
    shard = client_shapes(data)
    check_fit(task, shard)
    if scores is None:
        scores = suited(task.predict if isinstance(task, Task) else task, path[0], scored_rows(task, shard))
    clients_per_batch = clients_per_batch or _side_by_side(shard)
    table = simulate(
        evaluation(task, everyone(data.n), path, scores=dict(scores), draws=draws),  # the models are its numbers
        path[0],
        data,
        key,
        rounds=len(path),
        record=_heard,
        clients_per_batch=clients_per_batch,
        **options,
    ).history
    return table if models.ndim == 2 else jax.tree.map(lambda a: a[0], table)


def evaluator(
    task: Task,
    data: ClientData,
    *,
    scores: Mapping[str, Score] | None = None,
    draws: int = 0,
    key: RandomKey | int = 0,
    clients_per_batch: int | None = None,
) -> Callable[[Vector], PerClient]:
    """`evaluate` for many models, one after the other: compiled once."""
    shard = client_shapes(data)
    check_fit(task, shard)
    x = jax.eval_shape(task.init, jax.random.key(0))
    if scores is None:
        scores = suited(task.predict, x, scored_rows(task, shard))
    layout = lay_out(shard, data.n, None, clients_per_batch or _side_by_side(shard), padding=padding(data))
    judged = in_precision(None, _judged(task, data.n, tuple(scores.items()), draws, layout))
    if layout.spread:
        source = PreparedData(SpreadData(layout.of_clients(by_client(data))))
    else:
        source = layout.place_shared(as_given(jax.device_put(data)))
    key = layout.place(as_key(key))
    return lambda x: jax.device_get(judged(layout.place(x), source, key))


def _heard(server: Server) -> PerClient:
    return server.heard


@cached_program
def _judged(task: Task, n: int, scores: tuple, draws: int, layout: Layout) -> Callable:
    """The program of an evaluation: one for a task and its scores, whoever asks."""
    algorithm = evaluation(task, everyone(n), None, scores=dict(scores), draws=draws)

    def judged(x: Vector, source: PreparedData, key: RandomKey) -> PerClient:
        keys = exchange_keys(key, 0, 0)
        server, _, _ = exchange_once(algorithm.round[0], algorithm.init(x), None, source, keys, layout)
        return server.heard

    return compiled(judged)


def evaluate_own(
    task: Task, models: Float[Array, "n d"], data: ClientData, *, scores: Mapping[str, Score]
) -> PerClient:
    """`evaluate` of a model of each client's own: models[i] at client i."""
    return jax.device_get(_judged_own(task, tuple(scores.items()))(models, data))


@cached_program
def _judged_own(task: Task, scores: tuple) -> Callable:
    def judged(models: Array, data: ClientData) -> PerClient:
        everybody, key = everyone(data.n), jax.random.key(0)
        algorithm = evaluation(task, everybody, None, scores=dict(scores))
        exchange = algorithm.round[0]

        each = jax.lax.map(
            lambda i: exchange.work(models[i], None, data.client(i), key)[1].each, jnp.arange(data.n, dtype=jnp.int32)
        )
        return exchange.close(algorithm.init(models[0]), Replies(None, each, everybody(key))).heard

    return compiled(judged)


def _side_by_side(shard: Data) -> int:
    return max(1, AT_ONCE // max(sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(shard)), 1))


def check_fit(task: Task | Predict, shard: Data) -> None:
    """The task's own sentence where it and the data do not fit."""
    if isinstance(task, Task):
        jax.eval_shape(task.prepare, scored_rows(task, shard))


def own_of(task: Task | Predict) -> Own | None:
    return task.own if isinstance(task, Task) else None


def scored_rows(task: Task | Predict, data: Data) -> Data:
    """Of what is evaluated, the rows that models are scored on."""
    require(
        own_of(task) is None or isinstance(data, OwnerRows),
        "owners have parts of the model of their own, which are fitted to training rows; give "
        "data.OwnerRows(train, test)",
    )
    return data if own_of(task) is None else data.test


def of_rows(task: Task, x: Vector, data: ClientData, score: str) -> Float[np.ndarray, " rows"] | None:
    """What each real row adds to the score, client after client; None where the score is not a mean over rows.

    `x` is a model, or one of each client's own [n, d].

    It stays with whoever has the rows: two models that were scored on the same ones can be compared row by row.
    """
    numbers = OF_ROWS.get(score)
    if task.predict is None or numbers is None:
        return None
    values = np.asarray(_every_row(task.own or task.predict, numbers)(x, data))
    return values[np.arange(values.shape[1]) < np.asarray(scored_rows(task, data).sizes)[:, None]]


@cached_program
def _every_row(predict: Predict | Own, numbers: Callable[[Array, Array], Array]) -> Callable:
    def every(x: Vector, data: ClientData) -> Array:
        def one(i: Array) -> Array:
            shard, model = data.client(i), x if x.ndim == 1 else x[i]
            if not isinstance(predict, Own):
                return numbers(predict(model, shard.inputs), shard.labels)
            part = predict.fit(model, shard.train)
            return numbers(predict.outputs(model, part, shard.test.inputs), shard.test.labels)

        return jax.lax.map(one, jnp.arange(data.n, dtype=jnp.int32))

    return compiled(every)
