"""Any optax transformation as the step of the server, for algorithms that send one model and move it.

What a round of an algorithm would add to x, with its sign turned, is a pseudo-gradient (Reddi et al. 2021, "Adaptive
federated optimization"), and the transformation decides where x goes instead:

    g = x - x_plain,     x <- x + update(g)

optax.sgd(1.0) changes nothing.
"""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from equipoise.algorithms.wrapping import Beside, wrap_server
from equipoise.errors import InputError
from equipoise.leaves import numbers_are_leaves
from equipoise.local import Optimizer, optimizer_step
from equipoise.protocol import Algorithm, Client, Exchange, Replies, Server, tree_where


@numbers_are_leaves
def with_server_optimizer(
    algorithm: Algorithm[Server, Client], optimizer: Optimizer
) -> Algorithm[Beside[Server, PyTree], Client]:
    """`algorithm`, whose model moves by `optimizer` on the pseudo-gradient of each round; its state stands beside.

    Schedules count rounds. A round in which nobody answered moves neither the model nor the state of the optimizer.
    """
    field = _field_of_the_model(algorithm)

    def optimized(k: int, exchange: Exchange) -> Exchange:
        def close(server: Beside, replies: Replies) -> Beside:
            after = exchange.close(server, replies)
            x, plain = getattr(server.inner, field), getattr(after.inner, field)
            if plain is x:  # an exchange that does not move the model
                return after
            updates, state = optimizer_step(optimizer, x - plain, server.own, x)
            heard = jnp.any(jnp.asarray(replies.cohort.present))
            x, state = tree_where(heard, (x + updates, state), (x, server.own))
            return Beside(after.inner._replace(**{field: x}), state)

        return exchange._replace(close=close)

    return wrap_server(algorithm, optimizer.init, optimized)


def _field_of_the_model(algorithm: Algorithm) -> str:
    """The field of the server's state that is the model, and that clients start from."""
    server = algorithm.init(jnp.zeros(algorithm.size))
    mark = jnp.zeros(algorithm.size)  # known by its identity
    for field in getattr(server, "_fields", ()):
        if getattr(getattr(server, field), "shape", None) != mark.shape:
            continue
        marked = server._replace(**{field: mark})
        sent = [leaf for e in algorithm.round for leaf in jax.tree.leaves(e.send(marked, jnp.int32(0)))]
        if algorithm.model(marked) is mark and any(leaf is mark for leaf in sent):
            return field
    raise InputError(
        f"{algorithm.name} ships another model than the one that it moves in every round, so no optimizer can move it "
        "instead; give an algorithm whose model is what it sends (AFL: averaged=False)"
    )
