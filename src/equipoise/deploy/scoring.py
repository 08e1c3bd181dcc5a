"""How a model is evaluated over a network: one exchange, in which each site scores it on its own rows.

down    the model, and the site's weight lam_i
up      each: the scores of its held-out rows (`equipoise.evaluation`), and its training loss f_i(x)
        total: lam_i grad f_i(x), for methods with a dual and a strongly convex task: the sum certifies the gap
        (`certificates.py`)
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise import evaluation
from equipoise.cohorts import everyone
from equipoise.data.shards import Shards
from equipoise.evaluation import PerClient
from equipoise.experiment.problems import Problem
from equipoise.protocol import Algorithm, Cohort, Exchange, RandomKey, Replies, Reply, Vector


class SiteRows(NamedTuple):
    """A site's rows."""

    train: Shards
    test: Shards  # the same where none were held out


class Server(NamedTuple):
    """The model, the weights, and what was heard."""

    inner: Any  # of `evaluation`
    weights: Float[Array, " n"]  # lam
    losses: Float[Array, " n"]  # NaN: not heard
    gradient: Vector  # sum_i lam_i grad f_i(x); NaN unless all were heard

    @property
    def table(self) -> PerClient:
        return self.inner.heard


def scoring(problem: Problem, method: Algorithm, *, draws: int) -> Algorithm:
    """An algorithm of one round; the server's weights are zero unless they are put into its state."""
    task, n = problem.task, problem.n
    shard = problem.train.client(0)
    scores = evaluation.suited(task.predict, problem.x, shard)
    inner = evaluation.evaluation(task, everyone(n), None, scores=scores, draws=draws)
    judge = inner.round[0]
    certified = task.strong_convexity is not None and method.dual is not None

    def init(x: Vector) -> Server:
        unknown = jnp.full(n, jnp.nan, x.dtype)
        return Server(inner.init(x), jnp.zeros_like(unknown), unknown, jnp.full_like(x, jnp.nan))

    def prepare(rows: SiteRows) -> SiteRows:
        return rows._replace(test=inner.prepare(rows.test))

    def choose(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        opened, cohort = judge.open(server.inner, key)
        return server._replace(inner=opened), cohort

    def send(server: Server, i: Int[Array, ""]) -> tuple[Vector, Array]:
        return judge.send(server.inner, i), server.weights[i]

    def work(message: tuple[Vector, Array], _: None, rows: SiteRows, key: RandomKey) -> tuple[None, Reply]:
        x, lam_i = message
        _, reply = judge.work(x, None, rows.test, key)
        slope = lam_i * task.grad(x, rows.train) if certified else None
        return None, Reply(total=slope, each=(reply.each, task.loss(x, rows.train).astype(x.dtype)))

    def close(server: Server, replies: Replies) -> Server:
        each, losses = replies.each
        inner_server = judge.close(server.inner, Replies(None, each, replies.cohort))
        heard = replies.cohort.put(server.losses, losses)
        everybody = jnp.all(jnp.isfinite(heard))
        gradient = jnp.where(everybody, replies.total, jnp.nan) if certified else server.gradient
        return server._replace(inner=inner_server, losses=heard, gradient=gradient)

    exchange = Exchange("judge", choose, send, work, close)
    return Algorithm(
        "scoring", n, task.size, prepare, init, lambda x: None, (exchange,), lambda server: inner.model(server.inner)
    )
