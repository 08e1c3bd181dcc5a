"""How a model fares at every client, as an exchange: the server sends it, each client scores it on its own rows.

What crosses is a model down, and up the client's number of rows and its scores; no row and no prediction.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from equipoise import fairness
from equipoise import scores as measures
from equipoise.cohorts import Sample, check_distinct, everyone
from equipoise.engines.feed import Feed, feed
from equipoise.engines.kernel import exchange_once
from equipoise.engines.layout import lay_out
from equipoise.engines.simulator import simulate
from equipoise.errors import require, unknown
from equipoise.protocol import (
    Algorithm,
    Cohort,
    Data,
    Exchange,
    RandomKey,
    Replies,
    Reply,
    Vector,
    exchange_keys,
)
from equipoise.tasks import Task

Predict = Callable[[Vector, Array], Array]  # model, inputs [m, ...] -> outputs [m, ...]
Score = Callable[[Array, Array, Array], Array]  # outputs, labels, which rows are real -> a number; NaN: not defined
Scores = dict[str, Any]  # name -> an array with an entry per client
LOWER = ("loss", "rmse")  # scores of which less is better
AT_ONCE = 1 << 24  # bytes of shards that are scored side by side
FEW = 5  # resampling fewer rows than this says nothing about them


class PerClient(NamedTuple):
    """A row for each client; for a path of models, with a leading axis of models."""

    sizes: Int[Array, " n"]  # rows scored; 0: the client did not answer
    scores: Scores  # "loss" is the task's f_i, its l2 term included; NaN: not defined there, or no answer
    resampled: Scores  # the same [n, draws], for rows drawn with replacement


class Server(NamedTuple):
    """The models, which of them is out, and what was heard of it."""

    models: Float[Array, "r d"]
    at: Int[Array, ""]
    heard: PerClient


def evaluation(
    task: Task | Predict,
    sample: Sample,
    models: Float[Array, "r d"] | None,
    *,
    scores: Mapping[str, Score],
    draws: int = 0,
) -> Algorithm:
    """An algorithm for any engine: in round r every client of the cohort scores models[r] (None: its start).

    A score that is not defined for a client's rows (AUROC of one class) is told as such; a loss that is not
    finite is a lost reply, as everywhere.
    """
    n = check_distinct(sample, "an evaluation hears of each client once")
    loss, predict = (task.loss, task.predict) if isinstance(task, Task) else (None, task)
    require(predict is not None or not scores, "this task makes no predictions; give scores={}")
    require(draws >= 0, f"draws is {draws}; give zero or more")

    def prepare(shard: Data) -> Data:
        check_fit(task, shard)
        return shard  # scores need the rows themselves, not what training made of them

    def choose(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server._replace(at=server.at + 1), sample(key)

    def send(server: Server, i: Int[Array, ""]) -> Vector:
        return server.models[server.at]

    def judge(x: Vector, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        own = {} if loss is None else {"loss": loss(x, data).astype(x.dtype)}
        if predict is None or not scores:
            return None, Reply(each=(data.sizes, own, ({}, {}), ({}, {})))
        outputs, labels = predict(x, data.inputs), data.labels
        real = jnp.arange(labels.shape[0], dtype=data.sizes.dtype) < data.sizes

        def scored(outputs: Array, labels: Array) -> Scores:
            return {name: score(outputs, labels, real).astype(x.dtype) for name, score in scores.items()}

        def resampled(key: RandomKey) -> Scores:
            rows = jax.random.randint(key, real.shape, 0, data.sizes)
            return scored(outputs[rows], labels[rows])

        again = jax.lax.map(resampled, jax.random.split(key, draws)) if draws else {}
        return None, Reply(each=(data.sizes, own, _marked(scored(outputs, labels)), _marked(again)))

    def listen(server: Server, replies: Replies) -> Server:
        sizes, own, *told = replies.each

        def filled(rows: Array, known: Array | bool = True) -> Array:
            blank = jnp.full((n, *rows.shape[1:]), jnp.nan, rows.dtype)
            return replies.cohort.put(blank, jnp.where(known, rows, jnp.nan))

        found, again = (jax.tree.map(filled, values, known) for values, known in told)
        sizes = replies.cohort.put(jnp.zeros(n, sizes.dtype), sizes)
        return server._replace(heard=PerClient(sizes, jax.tree.map(filled, own) | found, again))

    def init(x: Vector) -> Server:
        def nothing(*shape: int) -> Array:
            return jnp.full((n, *shape), jnp.nan, x.dtype)

        names = [*(() if loss is None else ("loss",)), *scores]
        again = {name: nothing(draws) for name in scores} if draws else {}
        blank = PerClient(jnp.zeros(n, jnp.int32), {name: nothing() for name in names}, again)
        return Server(x[None] if models is None else models, jnp.int32(-1), blank)

    return Algorithm(
        name="evaluation",
        n=n,
        size=task.size if isinstance(task, Task) else 0 if models is None else models.shape[-1],
        prepare=prepare,
        init=init,
        init_client=lambda x: None,
        round=(Exchange("judge", choose, send, judge, listen),),
        model=lambda server: server.models[server.at],
    )


def _marked(values: Scores) -> tuple[Scores, Scores]:
    """(values, which are defined): a NaN in a reply would make it a lost one."""
    known = {name: ~jnp.isnan(v) for name, v in values.items()}
    return {name: jnp.where(known[name], v, 0) for name, v in values.items()}, known


def evaluate(
    task: Task | Predict,
    x: Float[ArrayLike, "... d"],
    data: Any,
    *,
    scores: Mapping[str, Score] | None = None,
    draws: int = 0,
    key: RandomKey | int = 0,
    clients_per_batch: int | None = None,
    **how: Any,
) -> PerClient:
    """The loss and scores of the model x at every client of `data`, as one compiled program.

    Args:
        task: what was trained; or a function (x, inputs) -> outputs, which has no loss.
        x: a model; or a path [r, d] of them, such as the history of `record=algorithm.model`.
        data: the clients' test examples, Shards or Pool.
        scores: name -> function of (outputs, labels, which rows are real). None: accuracy for classes, AUROC too
            for two of them, RMSE and R2 for numbers.
        draws: how many times each client also scores rows resampled from its own, for intervals.
        key: for the resampling.
        clients_per_batch: how many clients are scored side by side; None: what fits into a little memory.
        how: `progress`, `lost` and `devices`, as in `simulate`.
    """
    models = jnp.asarray(x)
    require(models.ndim in (1, 2), f"x has shape {models.shape}; give a model [d], or a path of models [r, d]")
    path = models if models.ndim == 2 else models[None]
    require(len(path) > 0, "the path has no models; give at least one")
    size = task.size if isinstance(task, Task) else path.shape[1]
    require(path.shape[1] == size, f"a model has {path.shape[1]} parameters but the task has {size}; give that many")
    shard = jax.eval_shape(data.client, 0)
    check_fit(task, shard)
    if scores is None:
        scores = suited(task.predict if isinstance(task, Task) else task, path[0], shard)
    clients_per_batch = clients_per_batch or _side_by_side(shard)
    algorithm = evaluation(task, everyone(data.n), path, scores=scores, draws=draws)
    table = simulate(
        algorithm,
        path[0],
        data,
        key,
        rounds=len(path),
        record=lambda server: server.heard,
        clients_per_batch=clients_per_batch,
        **how,
    ).history
    return table if models.ndim == 2 else jax.tree.map(lambda a: a[0], table)


def evaluator(
    task: Task, data: Any, *, scores: Mapping[str, Score] | None = None, clients_per_batch: int | None = None
) -> Callable[[Vector], PerClient]:
    """`evaluate` for many models, one after the other: compiled once."""
    shard = jax.eval_shape(data.client, 0)
    x = jax.eval_shape(task.init, jax.random.key(0))
    if scores is None:
        scores = suited(task.predict, x, shard)
    algorithm = evaluation(task, everyone(data.n), None, scores=scores)
    source = feed(algorithm, data)
    layout = lay_out(shard, data.n, None, clients_per_batch or _side_by_side(shard))
    source, keys = layout.share(source), layout.place(exchange_keys(jax.random.key(0), 0, 0))

    @jax.jit
    def judged(x: Vector, source: Feed) -> PerClient:
        server, _, _ = exchange_once(algorithm.round[0], algorithm.init(x), None, source, keys, layout)
        return server.heard

    return lambda x: jax.tree.map(np.asarray, judged(layout.place(x), source))


def _side_by_side(shard: Data) -> int:
    return max(1, AT_ONCE // max(sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(shard)), 1))


def check_fit(task: Task | Predict, shard: Data) -> None:
    """The task's own sentence where it and the data do not fit."""
    if isinstance(task, Task):
        jax.eval_shape(task.prepare, shard)


def suited(predict: Predict | None, x: Vector, shard: Data) -> dict[str, Score]:
    """The scores that fit what is predicted."""
    if predict is None:
        return {}
    classes = jnp.issubdtype(shard.labels.dtype, jnp.integer)
    outputs = jax.eval_shape(predict, x, shard.inputs).shape
    if not classes or len(outputs) < 2 or outputs[1] < 2:
        return {"rmse": rmse, "r2": r2}
    return {"accuracy": accuracy, "auroc": auroc} if outputs[1] == 2 else {"accuracy": accuracy}


def accuracy(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    return measures.accuracy(jnp.argmax(outputs, axis=-1).astype(labels.dtype), labels, real)


def auroc(outputs: Float[Array, "m 2"], labels: Array, real: Bool[Array, " m"]) -> Array:
    return measures.auroc(outputs[:, 1] - outputs[:, 0], labels, real)


def rmse(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    return measures.rmse(*_numbers(outputs, labels, real))


def r2(outputs: Array, labels: Array, real: Bool[Array, " m"]) -> Array:
    return measures.r2(*_numbers(outputs, labels, real))


def _numbers(outputs: Array, labels: Array, real: Array) -> tuple[Array, Array, Array]:
    mask = real.reshape(-1, *[1] * (labels.ndim - 1))
    return outputs.reshape(labels.shape), labels.astype(outputs.dtype), jnp.broadcast_to(mask, labels.shape)


class Standing(NamedTuple):
    """How evenly a model serves its clients by one score."""

    score: str
    summary: dict[str, float]  # as `fairness.summary`
    low: np.ndarray  # [n], bounds of each client's score; NaN: not known
    high: np.ndarray
    worst: tuple[float, float]  # bounds of the mean over the worst share
    left_out: tuple[int, ...]  # clients without the score


def standing(
    table: PerClient, score: str | None = None, *, k: float = 0.2, level: float = 0.95, key: Any = 0
) -> Standing:
    """The summary of one score over the clients that have it, and what their finite test sets leave open.

    Accuracies bring their bounds with them (`fairness.accuracy_intervals`); other scores need `draws` when they
    are evaluated. `score` is accuracy, else RMSE, else the loss, unless given.
    """
    score = chosen(table, score)
    values, sizes = np.asarray(table.scores[score], np.float64), np.asarray(table.sizes)
    require(values.ndim == 1, "this table is of a path of models; take one: jax.tree.map(lambda a: a[-1], table)")
    known = np.flatnonzero(np.isfinite(values))
    require(known.size, f"no client has a score '{score}'; evaluate again, or choose another")
    up = score not in LOWER
    told = {name: float(v) for name, v in fairness.summary(values[known], k, higher_is_better=up).items()}
    low, high = np.full((2, len(values)), np.nan)
    worst = (float("nan"), float("nan"))
    if score == "accuracy":
        low[known], high[known], worst = fairness.accuracy_intervals(
            values[known], sizes[known], key=key, k=k, level=level
        )
    elif score in table.resampled:
        drawn = np.asarray(table.resampled[score], np.float64)[known]
        drawn = np.where(np.isnan(drawn), values[known, None], drawn)
        tail = (1 - level) / 2
        low[known], high[known] = np.quantile(drawn, [tail, 1 - tail], axis=1)
        low[sizes < FEW], high[sizes < FEW] = np.nan, np.nan
        each = jax.vmap(lambda a: fairness.worst(a, k, higher_is_better=up))(jnp.asarray(drawn.T))
        # Reflected at what was found: choosing the worst of noisy clients is counted once, not twice.
        below, above = np.quantile(np.asarray(each), [tail, 1 - tail])
        found = told[f"worst{100 * k:g}"]
        worst = (2 * found - float(above), 2 * found - float(below))
    left_out = tuple(int(i) for i in np.flatnonzero(~np.isfinite(values)))
    return Standing(score, told, low, high, worst, left_out)


def chosen(table: PerClient, score: str | None) -> str:
    """`score`, or the one that says most."""
    if score is None:
        score = next(name for name in ("accuracy", "rmse", *table.scores) if name in table.scores)
    if score not in table.scores:
        raise unknown("score", score, table.scores)
    return score


def report(
    table: PerClient,
    names: Sequence[str] | None = None,
    *,
    score: str | None = None,
    k: float = 0.2,
    level: float = 0.95,
    key: Any = 0,
    rows: int = 50,
    title: str | None = None,
) -> Any:
    """What to print (with rich): a row per client, the worst ones beyond `rows` clients; then the summary."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    found = standing(table, score, k=k, level=level, key=key)
    n = len(table.sizes)
    names = [str(i) for i in range(n)] if names is None else names
    require(len(names) == n, f"there are {len(names)} names for {n} clients; give one each")
    values = np.asarray(table.scores[found.score], np.float64)
    order = np.argsort(values if found.score not in LOWER else -values, kind="stable")  # NaN last
    shown = np.sort(order[:rows]) if n <= rows else order[:rows]
    worst = set(order[: max(1, int(k * (n - len(found.left_out)) + 1e-9))].tolist())

    columns = {name: table.scores[name] for name in sorted(table.scores, key=lambda s: s != "loss")}
    clients = Table(title=title, caption=f"the {rows} worst of {n:,} clients" if n > rows else None)
    clients.add_column("client")
    for heading in ("rows", *columns, f"{found.score}, {level:.0%} interval"):
        clients.add_column(heading, justify="right")
    for i in shown:
        cells = [_cell(float(column[i])) for column in columns.values()]
        bounds = _bounds(found.low[i], found.high[i])
        rest = [f"{int(table.sizes[i]):,}", *cells, bounds] if table.sizes[i] else ["no answer"]
        clients.add_row(escape(names[i]), *rest, style="red" if int(i) in worst else None)

    summary = Table(title=f"{found.score} over the clients", show_header=False)
    for name, value in found.summary.items():
        bounds = _bounds(*found.worst) if name.startswith("worst") else ""
        summary.add_row(name, _cell(value), "" if bounds == "-" else bounds)
    if found.left_out:
        summary.add_row("left out", f"{len(found.left_out)} clients", "")
    return Group(clients, summary)


def _cell(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def _bounds(low: float, high: float) -> str:
    return "-" if np.isnan(low) else f"{_cell(float(low))} .. {_cell(float(high))}"
