"""Fine-tuning after training: each client starts from the shared model, and keeps what does better on its own rows.

One exchange, as evaluation is one: a model down; up the client's loss with the shared model and with its own, and which
pull it chose. The own model stays at the client, as its state.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise.algorithms.measurement import measurement
from equipoise.algorithms.messages import ModelMessage, send_model
from equipoise.cohorts import everyone
from equipoise.data.shards import OwnerRows
from equipoise.errors import all_positive, positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector
from equipoise.tasks import Task

Split = OwnerRows  # the clients' rows to tune on (`train`) and to choose by (`test`)


class FineTuned(NamedTuple):
    """What a client found; in the server's state a row for each client."""

    shared: Float[Array, "*n"]  # loss of the shared model on the validation rows
    own: Float[Array, "*n"]  # of the model that it keeps: never above `shared`
    pull: Float[Array, "*n"]  # with which that was tuned; 0: it keeps the shared model, or did not answer


class Server(NamedTuple):
    """The shared model, and what was heard."""

    x: Vector
    outcome: FineTuned


@numbers_are_leaves
def fine_tuning(
    task: Task, n: int, *, steps: int, lr: float, pulls: Sequence[float] = (0.1, 1.0, 10.0)
) -> Algorithm[Server, Vector]:
    """One round over data of `Split`: run it from the shared model; clients end with the models they keep.

    For each pull a client takes `steps` steps on f_i(v) + pull/2 |v - x|^2 with its training rows, and of all of these
    and x it keeps the one with the least loss on its validation rows.
    """
    all_positive(steps=steps, lr=lr)
    require(len(pulls) > 0, "no pull was given; give at least one, such as (0.1, 1, 10)")
    for pull in pulls:
        positive("a pull", pull)
    everybody = everyone(n)
    own = task.own

    def prepare(data: Split) -> Split:
        if own is None:
            return Split(task.prepare(data.train), task.prepare(data.test))
        # Parts of the owners' own are fitted to the rows that are tuned on, not to those that judge.
        return Split(task.prepare(data.train), OwnerRows(data.train, data.test))

    def judged(v: Vector, rows: Data) -> Array:
        return task.loss(v, rows) if own is None else own.loss(v, own.fit(v, rows.train), rows.test)

    def tune(message: ModelMessage, _: Vector, data: Data, key: RandomKey) -> tuple[Vector, Reply]:
        x, strengths = message.x, jnp.asarray([0.0, *pulls], message.x.dtype)
        tuned = [task.descend(x, data.train, key, steps=steps, lr=lr, pull=pull) for pull in pulls]
        models = jnp.stack([x, *tuned])
        losses = jax.lax.map(lambda v: judged(v, data.test), models)
        best = jnp.argmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))  # the first: x itself, if they are equal
        return models[best], Reply(each=FineTuned(losses[0], losses[best], strengths[best]))

    def note(server: Server, replies: Replies) -> Server:
        return server._replace(outcome=FineTuned(*map(replies.cohort.put, server.outcome, replies.each)))

    def init(x: Vector) -> Server:
        return Server(x, FineTuned(*(jnp.zeros(n, x.dtype) for _ in FineTuned._fields)))

    exchange = Exchange("tune", everybody.open, send_model, tune, note, writes=True)
    return measurement("fine_tuning", n, task.size, exchange, init=init, prepare=prepare, init_client=lambda x: x)
