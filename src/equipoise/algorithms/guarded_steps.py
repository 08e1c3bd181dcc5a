"""Step sizes that are halved when a model's loss explodes, for any algorithm: training goes on from the best model.

Of no paper; for networks, whose step sizes are found in their first rounds and may turn out too long.

    first exchange   up, in the sum: the client's loss at the model that it was sent
    close            F_r = their mean; it has exploded if it is not finite, if no reply of an exchange is, or
                     F_r > F_best + max((F_0 - F_best)/2, F_0/4), or F_r > F_0 once F_best was clearly lower:
                     all that was learned is lost
    end of a round   exploded: the model is the best one again, step sizes are half, and everybody begins anew

What clients and server keep (control variates, weights) was made by the steps that exploded, so both begin with fresh
states; a client that was not there learns of it by the era that stands on the next message. One number goes up beside
what crosses anyway, and two go down.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree

from equipoise.algorithms.wrapping import Beside, beside_server, wrap_server
from equipoise.leaves import numbers_are_leaves, scaled
from equipoise.protocol import (
    Algorithm,
    Client,
    Cohort,
    Data,
    Exchange,
    Message,
    RandomKey,
    Replies,
    Reply,
    Server,
    Vector,
    Weighted,
    tree_where,
    weighted,
)
from equipoise.tasks import Task

LEARNED = 0.95  # of the first loss: what is below has learned something
STEP_SIZES = ("local_lr", "lr", "tau")  # by the names of arguments


class Guard(NamedTuple):
    """What it takes to go back; stands beside the server's state."""

    scale: Float[Array, ""]  # of the step sizes: 1, 1/2, 1/4, ...
    era: Int[Array, ""]  # how often they were halved; beside a client's state, the era that it is of
    best: Vector
    loss: Float[Array, ""]  # of the best
    first: Float[Array, ""]  # of the first model; infinite before it is known
    asked: Bool[Array, ""]  # whether anybody was, in this round
    exploded: Bool[Array, ""]  # in this round


class Scaled(NamedTuple):
    """The algorithm's own message, and how its step sizes are scaled, since when."""

    message: Message
    scale: Float[Array, ""]
    era: Int[Array, ""]


class WithLoss(NamedTuple):
    """The algorithm's own total, and the loss."""

    total: PyTree[Array]
    loss: Weighted


@numbers_are_leaves
def with_guarded_steps(task: Task, algorithm: Algorithm[Server, Client]) -> Algorithm[Beside[Server, Guard], PyTree]:
    """`algorithm`, whose step sizes (STEP_SIZES, of it and of what it was made from) are halved as long as it explodes.

    For algorithms whose clients are sent the model first, as `x` or `w`, and train on what `task.prepare` made.
    """
    plain = algorithm
    keeps = bool(jax.tree.leaves(jax.eval_shape(plain.init_client, jnp.zeros(plain.size))))

    def now(scale: Array, k: int) -> Exchange:
        return beside_server(scaled(plain, STEP_SIZES, scale).round[k])

    def own(client: PyTree, message: Scaled) -> PyTree:
        if not keeps:
            return client
        x = model_in(message.message)
        fresh = plain.init_client(jnp.zeros(plain.size) if x is None else x)
        return tree_where(client.own == message.era, client.inner, fresh)

    def guarded(k: int, exchange: Exchange) -> Exchange:
        last = k + 1 == len(plain.round)

        def open(server: Beside, key: RandomKey) -> tuple[Beside, Cohort]:
            server, cohort = now(server.own.scale, k).open(server, key)
            asked = jnp.any(jnp.asarray(cohort.present)) if k == 0 else server.own.asked
            return Beside(server.inner, server.own._replace(asked=asked)), cohort

        def send(server: Beside, i: Int[Array, ""]) -> Scaled:
            return Scaled(now(server.own.scale, k).send(server, i), server.own.scale, server.own.era)

        def work(message: Scaled, client: PyTree, data: Data, key: RandomKey) -> tuple[PyTree, Reply]:
            before = own(client, message)
            after, reply = now(message.scale, k).work(message.message, before, data, key)
            if k == 0:
                loss = task.loss(model_in(message.message), data)
                reply = reply._replace(total=WithLoss(reply.total, weighted(jnp.ones((), loss.dtype), loss)))
            return (Beside(after, message.era) if keeps and exchange.writes else client), reply

        def close(server: Beside, replies: Replies) -> Beside:
            if k == 0:
                heard = replies.total.loss
                server = Beside(server.inner, _judged(server.own, plain.model(server.inner), heard))
                replies = replies._replace(total=replies.total.total)
            else:  # control variates that have exploded leave the model as it is, round after round
                nobody = server.own.asked & ~jnp.any(jnp.asarray(replies.cohort.present))
                server = Beside(server.inner, server.own._replace(exploded=server.own.exploded | nobody))
            server = now(server.own.scale, k).close(server, replies)
            return ended(server) if last else server

        counts, weights = exchange.counts, exchange.weights
        changed = exchange._replace(open=open, send=send, work=work, close=close)
        if counts is not None and k == 0:
            changed = changed._replace(counts=lambda reply: counts(reply._replace(total=reply.total.total)))
        if weights is not None:
            changed = changed._replace(weights=lambda message: weights(message.message))
        return changed

    def ended(server: Beside) -> Beside:
        guard = server.own
        scale = jnp.where(guard.exploded, guard.scale / 2, guard.scale)
        inner = tree_where(guard.exploded, plain.init(guard.best), server.inner)
        return Beside(inner, guard._replace(scale=scale, era=guard.era + guard.exploded.astype(jnp.int32)))

    def init(x: Vector) -> Guard:
        no, endless = jnp.zeros((), bool), jnp.asarray(jnp.inf, x.dtype)
        return Guard(jnp.ones((), x.dtype), jnp.int32(0), x, endless, endless, no, no)

    made = wrap_server(plain, init, guarded)
    return made._replace(init_client=lambda x: Beside(plain.init_client(x), jnp.int32(0))) if keeps else made


def may_be_guarded(task: Task, algorithm: Algorithm) -> bool:
    """Whether `with_guarded_steps` takes it."""
    server, i = jax.eval_shape(lambda x: (algorithm.init(x), jnp.int32(0)), jnp.zeros(algorithm.size))
    message = jax.eval_shape(algorithm.round[0].send, server, i)
    return algorithm.prepare is task.prepare and bool(jax.tree.leaves(algorithm)) and model_in(message) is not None


def model_in(message: Message) -> Vector | None:
    """The model that a message tells; None: it tells none."""
    return next((getattr(message, name) for name in ("x", "w") if hasattr(message, name)), None)


def _judged(guard: Guard, x: Vector, heard_losses: Weighted) -> Guard:
    """What the clients' losses say of the model that the round began with."""
    heard = heard_losses.weight > 0
    loss = jnp.where(heard, heard_losses.value / jnp.where(heard, heard_losses.weight, 1), jnp.inf)
    first = jnp.where(jnp.isfinite(guard.first), guard.first, loss)
    most = guard.loss + jnp.maximum((first - guard.loss) / 2, first / 4)
    most = jnp.where(guard.loss < LEARNED * first, jnp.minimum(most, first), most)
    has_loss = jnp.isfinite(guard.loss)
    # Nobody is heard of those asked: their replies are not finite.
    exploded = guard.asked & (~heard | (has_loss & ~(loss <= most)))
    better = heard & (loss < guard.loss)
    return guard._replace(
        best=jnp.where(better, x, guard.best),
        loss=jnp.where(better, loss, guard.loss),
        first=first,
        exploded=exploded,
    )
