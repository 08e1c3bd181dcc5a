"""How a model is evaluated over a network: one exchange, in which each site scores it on its own rows.

down    the model, and the site's weight lam_i
up      each: the scores of its held-out rows (`equipoise.evaluation`), and its training loss f_i(x); of classes with a
        cross-entropy the log loss of its own base rate on the same rows, and the share of its most common class
        (`evaluation/skill.py`)
        total: lam_i grad f_i(x), for methods with a dual and a strongly convex task: the sum certifies the gap
        (`certificates.py`)

Where totals are masked, a site tells nothing but its part of sums:

down    the model, and a level m
up      total: 1, f_i(x), its scores and its skill, and for the objectives rho log 1/n sum exp(f_i/rho) and
        1/n sum f_i: t_i = exp(f_i/rho - m) or 1, and t_i grad f_i(x); of gains, f_i less what only the site knows

The gradient of those objectives at x is sum t_i grad f_i / sum t_i, and they are as strongly convex as the f_i, so that
|gradient|^2 / (2 mu) bounds how far the objective is from its optimum: a certificate from sums alone.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from equipoise import evaluation
from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.scaffpd_sums import LEAST_TILT, MOST_TILT
from equipoise.certificates import resolution
from equipoise.cohorts import everyone
from equipoise.data.shards import OwnerRows
from equipoise.errors import not_none
from equipoise.evaluation.predictions import log_loss
from equipoise.evaluation.skill import Base, base_of, skill_of
from equipoise.experiment.problems import Problem
from equipoise.protocol import Algorithm, Cohort, Exchange, RandomKey, Replies, Reply, Vector
from equipoise.tasks import Convexity, WithBaseline, less_baseline


class Tilt(NamedTuple):
    """Which objective sums can tell: rho log 1/n sum exp(f_i/rho), or the mean where rho is None."""

    exact: bool  # whether the run's objective is one of them
    rho: float | None


class Server(NamedTuple):
    """The model, the weights, and what was heard."""

    inner: Any  # of `evaluation`
    weights: Float[Array, " n"]  # lam
    losses: Float[Array, " n"]  # NaN: not heard
    gradient: Vector  # sum_i lam_i grad f_i(x); NaN unless all were heard
    level: Float[Array, ""]  # m; near log sum exp(f_i/rho)
    base: Base | None = None  # what each site says of its labels; NaN: not heard, or no base rate to be better than
    sums: "SumTable | None" = None  # where sites tell sums only

    @property
    def table(self) -> evaluation.PerClient:
        return self.inner.heard


class SumTable(NamedTuple):
    """What sites tell where no site's own number may be seen; in the server's state, of all that answered."""

    sites: Float[Array, ""]  # that answered
    loss: Float[Array, ""]
    scores: dict[str, Array]
    defined: dict[str, Array]  # sites where a score is defined
    tilted: Float[Array, ""]  # t_i
    gradient: Vector  # t_i grad f_i
    beyond: Float[Array, ""]  # sites whose t_i is out of range


def scoring(problem: Problem, method: Algorithm, *, sums: Tilt | None = None) -> Algorithm:
    """An algorithm of one round; the server's weights are zero unless they are put into its state."""
    task, n = less_baseline(problem.task), problem.n
    shard = problem.train.client(0)
    scores = evaluation.suited(task.predict, problem.x, shard, problem.loss) | dict(problem.site_scores)
    classes = len(problem.classes) if scores.get("loss") is log_loss else 0
    inner = evaluation.evaluation(problem.plain_task, everyone(n), None, scores=scores)
    evaluate = inner.round[0]
    certified = task.strong_convexity is not None and method.dual is not None
    rho = None if sums is None else sums.rho

    def init(x: Vector) -> Server:
        unknown, zero = jnp.full(n, jnp.nan, x.dtype), jnp.zeros((), x.dtype)
        blank = None
        if sums is not None:
            nothing = dict.fromkeys([*scores, *(["skill"] if classes else [])], zero)
            blank = SumTable(zero, zero, nothing, nothing, zero, jnp.zeros_like(x), zero)
        base = Base(unknown, unknown) if classes else None
        return Server(inner.init(x), jnp.zeros_like(unknown), unknown, jnp.full_like(x, jnp.nan), zero, base, blank)

    def prepare(rows: OwnerRows) -> OwnerRows:
        train = rows.train.data if isinstance(rows.train, WithBaseline) else rows.train
        return rows._replace(test=inner.prepare(problem.with_rows(train, rows.test)))

    def choose(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        opened, cohort = evaluate.open(server.inner, key)
        return server._replace(inner=opened), cohort

    def send(server: Server, i: Int[Array, ""]) -> tuple[Vector, Array]:
        return evaluate.send(server.inner, i), server.weights[i] if sums is None else server.level

    def work(message: tuple[Vector, Array], _: None, rows: OwnerRows, key: RandomKey) -> tuple[None, Reply]:
        x, lam_i = message
        _, reply = evaluate.work(x, None, rows.test, key)
        slope = lam_i * task.grad(x, rows.train) if certified else None
        base = _told(rows, classes, x) if classes else None
        return None, Reply(total=slope, each=(reply.each, task.loss(x, rows.train).astype(x.dtype), base))

    def close(server: Server, replies: Replies) -> Server:
        each, losses, labels = replies.each
        inner_server = evaluate.close(server.inner, Replies(None, each, replies.cohort))
        heard = replies.cohort.put(server.losses, losses)
        everybody = jnp.all(jnp.isfinite(heard))
        gradient = jnp.where(everybody, replies.total, jnp.nan) if certified else server.gradient
        base = server.base
        if classes:
            put = Base(*(replies.cohort.put(a, b) for a, b in zip(not_none(base), labels, strict=True)))
            base = put._replace(loss=jnp.where(put.loss > 0, put.loss, jnp.nan))
        return server._replace(inner=inner_server, losses=heard, gradient=gradient, base=base)

    def work_in_sums(message: tuple[Vector, Array], _: None, rows: OwnerRows, key: RandomKey) -> tuple[None, Reply]:
        x, level = message
        _, reply = evaluate.work(x, None, rows.test, key)
        _, _, (values, defined), *_ = reply.each
        if classes:
            base = _told(rows, classes, x).loss
            values = values | {"skill": jnp.where(base > 0, skill_of(values["loss"], jnp.where(base > 0, base, 1)), 0)}
            defined = defined | {"skill": base > 0}
        loss, one = task.loss(x, rows.train).astype(x.dtype), jnp.ones((), x.dtype)
        exponent = jnp.zeros_like(loss) if rho is None else loss / rho - level
        tilted = jnp.exp(jnp.minimum(exponent, math.log(MOST_TILT)))
        beyond = jnp.where(exponent > math.log(MOST_TILT), one, 0)
        numbers = {name: defined[name].astype(x.dtype) for name in values}
        total = SumTable(one, loss, values, numbers, tilted, tilted * task.grad(x, rows.train), beyond)
        return None, Reply(total=total)

    def close_sums(server: Server, replies: Replies) -> Server:
        return server._replace(sums=replies.total)

    work_of, close_of = (work, close) if sums is None else (work_in_sums, close_sums)
    exchange = Exchange("evaluate", choose, send, work_of, close_of)
    model = lambda server: inner.model(server.inner)  # noqa: E731
    return measurement("scoring", n, task.size, exchange, init=init, model=model, prepare=prepare)


def _told(rows: OwnerRows, classes: int, x: Vector) -> Base:
    """Of a site's labels; zero where it is not defined: a NaN in a reply would make it a lost one."""
    train = rows.train.data if isinstance(rows.train, WithBaseline) else rows.train
    base = base_of(train, rows.test.test if isinstance(rows.test, OwnerRows) else rows.test, classes)
    return Base(jnp.nan_to_num(base.loss).astype(x.dtype), base.common.astype(x.dtype))


class Summed(NamedTuple):
    """What the sums of an evaluation say."""

    objective: float  # NaN: not known
    gap: float
    scores: dict[str, float]  # the mean over sites
    level: float  # to send next time


def read_sums(table: SumTable, tilt: Tilt, level: float, *, n: int, mu: Convexity | None) -> Summed:
    """The objective and its certificate are those of all n sites, or not known."""
    sums: Any = jax.tree.map(lambda a: np.asarray(a, np.float64), table)
    count = round(float(sums.sites))
    if count == 0:
        return Summed(np.nan, np.nan, {}, level)
    loss, defined = float(sums.loss) / count, sums.defined
    scores = {name: float(v / defined[name]) if defined[name] > 0 else np.nan for name, v in sums.scores.items()}
    scores["loss"] = loss
    objective, new, in_range = loss, level, bool(sums.tilted > LEAST_TILT and sums.beyond == 0)
    if tilt.rho is not None:
        log_sum = math.log(float(sums.tilted)) + level if sums.tilted > LEAST_TILT else -math.inf
        objective, new = tilt.rho * (log_sum - math.log(n)), max(log_sum, loss / tilt.rho)
    if not tilt.exact or count < n or not in_range:
        return Summed(np.nan, np.nan, scores, new)
    slope = sums.gradient / sums.tilted
    gap = np.nan if mu is None else float(np.sum(slope**2 / np.asarray(mu)) / 2)
    # What sites computed is known up to rounding, and so is what is certified.
    return Summed(objective, gap + resolution(table.loss.dtype) * abs(objective), scores, new)
