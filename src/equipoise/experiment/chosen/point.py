"""A point of a path of runs as one round of an algorithm: a few exchanges of SCAFF-PD with a model, and the judgement.

    collect         of `scaffpd_model` in the metric, from the model of the point before
    improve         likewise
    collect again   likewise: where the model of this point is decided; and up, in the sum, the mean curvature of the
                    owner's loss there
    judge           down the mean of the curvatures, and what the owner counts; up what its rows lose, each by the model
                    without the fold that it is in, and what they do by the base rate of the others (`folds.py`)

The model is where the last trial was kept or taken back, so that nothing is trained in vain. A point is a penalty and
an objective. `more` goes down with every message: that many times what is penalised of the problem's l2 is added to it.
The numbers of the objective stand in the server's state, which engines that compile an algorithm once then go on with.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise import algorithms, local
from equipoise.algorithms.measurement import as_it_is, measurement
from equipoise.algorithms.scaffpd_model import Prepared
from equipoise.cohorts import everyone
from equipoise.errors import not_none
from equipoise.experiment.chosen.folds import Row, loss_left_out, loss_of_base_rate, mean_curvature
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives import Dual
from equipoise.protocol import (
    Algorithm,
    Cohort,
    Exchange,
    RandomKey,
    Replies,
    Reply,
    Vector,
    Weighted,
    mean,
    tree_where,
    weighted,
)
from equipoise.steps import client_smoothness, rough_smoothness
from equipoise.tasks import Task
from equipoise.tasks.metric import Metric, linear_of, model_of
from equipoise.tasks.task import Scalar

STEPS = 10  # local ones of a round
ROUNDS = 2  # of `scaffpd_model`
LOST = 1e9  # what a model that is not finite is taken to lose


class Server(NamedTuple):
    """That of `scaffpd_model`, the point, and what was heard of it."""

    inner: Any
    more: Float[Array, ""]
    objective: tuple[Array, ...]  # its numbers
    lam: Float[Array, " n"]
    curvature: Float[Array, ""]  # the mean over the owners
    losses: Float[Array, " n"]  # of every owner's rows left out; NaN: not heard
    base: Float[Array, " n"]  # by the base rate


class Client(NamedTuple):
    """That of `scaffpd_model`, and the owner's smoothness at this penalty; zero: it was not there at the start."""

    inner: Any
    L: Float[Array, ""]


class Told(NamedTuple):
    """What goes down in `scaffpd_model`, and the penalty."""

    message: Any
    more: Float[Array, ""]


class Verdict(NamedTuple):
    """Which model is judged, what the owner counts, and the mean curvature there."""

    label: Int[Array, ""]
    lam_i: Float[Array, ""]
    curvature: Float[Array, ""]


class Judged(NamedTuple):
    """What an owner's rows lose; `has_model` is false where it does not have the model."""

    loss: Float[Array, ""]
    base: Float[Array, ""]
    has_model: Bool[Array, ""]


class Penalised(NamedTuple):
    """An owner's shard, the metric, and how far the penalty is from the task's own."""

    shard: Any
    metric: Metric
    extra: Vector


@numbers_are_leaves
def point(task: Task, dual: Dual, metric: Metric, more: float) -> Algorithm[Server, Client]:
    """One point of a path; data is of `folds.Row`, whose metric is the same. Models are x."""
    linear, n, sample, penalised = linear_of(task), dual.n, everyone(dual.n), on_path(task)
    numbers = tuple(jax.tree.leaves(dual))
    structure: Any = jax.tree.structure(dual)

    def trained(objective: tuple[Array, ...]) -> Algorithm:
        return algorithms.scaffpd_model(penalised, structure.unflatten(objective), sample, steps=STEPS)

    plain = trained(numbers)

    def exchange_of(k: int, name: str, *, first: bool = False, last: bool = False) -> Exchange:
        exchange = plain.round[k]

        def open(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
            inner, cohort = trained(server.objective).round[k].open(server.inner, key)
            return server._replace(inner=inner), cohort

        def send(server: Server, i: Int[Array, ""]) -> Told:
            return Told(exchange.send(server.inner, i), server.more)

        def work(message: Told, mine: Client, row: Row, key: RandomKey) -> tuple[Client, Reply]:
            data = Penalised(task.prepare(row.shard), row.metric, row.penalty * message.more)
            start = jnp.zeros_like(row.penalty)
            if first:
                L = client_smoothness(penalised, start, data)
            else:
                L = jnp.where(mine.L > 0, mine.L, rough_smoothness(penalised, start, data))
            inner, reply = exchange.work(message.message, mine.inner, Prepared(data, L), key)
            if last:
                x = model_of(linear, row.metric, message.message.x)
                curvature = mean_curvature(task, row, x)
                reply = reply._replace(total=weighted(jnp.ones_like(curvature), curvature))
            return Client(inner, L), reply

        def close(server: Server, replies: Replies) -> Server:
            now = trained(server.objective)
            total = None if last else replies.total
            inner = now.round[k].close(server.inner, replies._replace(total=total))
            if not last:
                return server._replace(inner=inner)
            curvature: Weighted = replies.total
            return server._replace(inner=inner, lam=not_none(now.weights(inner)), curvature=mean(curvature))

        return Exchange(name, open, send, work, close, writes=True)

    def choose(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server, sample(key)

    def send_verdict(server: Server, i: Int[Array, ""]) -> Told:
        return Told(Verdict(server.inner.centre.label, server.lam[i], server.curvature), server.more)

    def judge(message: Told, mine: Client, row: Row, key: RandomKey) -> tuple[Client, Reply]:
        (label, lam_i, curvature), (trial, centre) = message.message, mine.inner[:2]
        z = tree_where(trial[0] == label, trial[1], centre[1])
        x, extra = model_of(linear, row.metric, z), row.penalty * message.more
        loss = loss_left_out(task, row, x, lam_i, curvature, extra)
        base = loss_of_base_rate(task, row, x)
        loss = jnp.where(jnp.isfinite(loss), loss, LOST).astype(x.dtype)
        has_model = (trial[0] == label) | (centre[0] == label)
        return mine, Reply(each=Judged(loss, jnp.nan_to_num(base).astype(x.dtype), has_model))

    def keep_judgement(server: Server, replies: Replies) -> Server:
        said: Judged = replies.each
        cohort = replies.cohort._replace(present=replies.cohort.present & said.has_model)
        return server._replace(losses=cohort.put(server.losses, said.loss), base=cohort.put(server.base, said.base))

    def init(z: Vector) -> Server:
        unknown, zero = jnp.full(n, jnp.nan, z.dtype), jnp.zeros((), z.dtype)
        objective = tuple(jnp.asarray(number, z.dtype) for number in numbers)
        lam = jnp.full(n, 1 / n, z.dtype)
        return Server(plain.init(z), jnp.asarray(more, z.dtype), objective, lam, zero, unknown, unknown)

    made = measurement(
        "point",
        n,
        task.size,
        exchange_of(0, "collect", first=True),
        exchange_of(1, "improve"),
        exchange_of(0, "collect again", last=True),
        Exchange("judge", choose, send_verdict, judge, keep_judgement),
        init=init,
        model=lambda server: plain.model(server.inner),
        init_client=lambda z: Client(plain.init_client(z), jnp.zeros((), z.dtype)),
    )
    return algorithms.told_in_x(made, task, metric)


def on_path(task: Task) -> Task:
    """`task` over z, x = W z, with sum_j extra_j x_j^2 / 2 beside its own penalty; data is `Penalised`."""
    linear = linear_of(task)

    def value(z: Vector, row: Penalised, slope: bool) -> Any:
        x, back = jax.vjp(lambda z: model_of(linear, row.metric, z), z)
        if slope:
            return back(task.grad(x, row.shard) + row.extra * x)[0]
        return task.loss(x, row.shard) + jnp.sum(row.extra * x * x) / 2

    def loss(z: Vector, row: Penalised, key: RandomKey | None = None) -> Scalar:
        return value(z, row, slope=False)

    def grad(z: Vector, row: Penalised, key: RandomKey | None = None) -> Vector:
        return value(z, row, slope=True)

    def descend(z: Vector, row: Penalised, key: RandomKey, *, steps: int, **options: Any) -> Any:
        return local.descend(lambda u, _: grad(u, row), z, None, steps=steps, **options)

    def init(key: RandomKey | int) -> Vector:
        return jnp.zeros(task.size)

    return Task(f"{task.name}_on_path", task.size, loss, grad, descend, init, None, as_it_is, curves=1e-3)
