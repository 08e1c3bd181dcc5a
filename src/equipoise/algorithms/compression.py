"""Gradients and control variates in fewer bytes, with nothing lost in the limit.

A client sends, of each vector that the server sees by itself (`Reply.each`), the difference from what the server knows
of it already, rounded to a shorter type; both add the rounded difference to what they know:

    q = round(v_i - h_i)    up
    h_i <- h_i + q          at the client and at the server, which goes on with h_i in place of v_i

What rounding takes away stays in the next difference (error feedback). As v_i converges the differences vanish, and
with them the error, because a floating-point type rounds relative to what it rounds. This is EF21 (Richtarik, Sokolov
and Fatkhullin, 2021) with rounding as the compressor. Sums (`Reply.total`) are left as they are: the server knows no
single part of them. So are losses and weights.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PyTree

from equipoise.errors import require
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, Message, RandomKey, Replies, Reply, Vector, Wire

TYPES = ("float32", "bfloat16")


class Known(NamedTuple):
    """An algorithm's own state, and what has been sent so far: at a client its own, at the server a row for each."""

    inner: Any
    sent: tuple[tuple[Float[Array, "..."], ...], ...]  # by exchange, by vector


def compress_replies(algorithm: Algorithm, crossing: Sequence[Wire], *, dtype: str) -> Algorithm:
    """`algorithm`, whose clients send vectors as differences of type `dtype`; `crossing` is what `wire` says of it."""
    require(dtype in TYPES, f"the type is {dtype!r}; give one of {', '.join(TYPES)}")
    short = jnp.dtype(dtype)
    vectors = [[_is_vector(leaf, algorithm.size, short) for leaf in jax.tree.leaves(w.reply.each)] for w in crossing]
    require(
        any(map(any, vectors)),
        f"{algorithm.name} sends no vectors of a type longer than {dtype} that the server sees by themselves; leave "
        "compression out",
    )

    def nothing(x: Vector, *rows: int) -> tuple:
        return tuple(tuple(jnp.zeros((*rows, *x.shape), x.dtype) for yes in found if yes) for found in vectors)

    def init(x: Vector) -> Known:
        return Known(algorithm.init(x), nothing(x, algorithm.n))

    def init_client(x: Vector) -> Known:
        return Known(algorithm.init_client(x), nothing(x))

    def shortened(k: int, exchange: Exchange) -> Exchange:
        yes = vectors[k]

        def choose(server: Known, key: RandomKey) -> tuple[Known, Cohort]:
            inner, cohort = exchange.open(server.inner, key)
            return server._replace(inner=inner), cohort

        def send(server: Known, i: Int[Array, ""]) -> Message:
            return exchange.send(server.inner, i)

        def work(message: Message, client: Known, data: Data, key: RandomKey) -> tuple[Known, Reply]:
            inner, reply = exchange.work(message, client.inner, data, key)
            if not any(yes):
                return Known(inner, client.sent), reply
            leaves, tree = jax.tree.flatten(reply.each)
            full = [leaf for leaf, vector in zip(leaves, yes, strict=True) if vector]
            rounded = [(v - h).astype(short) for v, h in zip(full, client.sent[k], strict=True)]
            now = tuple(h + q.astype(h.dtype) for h, q in zip(client.sent[k], rounded, strict=True))
            each = jax.tree.unflatten(tree, _merged(leaves, yes, rounded))
            return Known(inner, _replaced(client.sent, k, now)), reply._replace(each=each)

        def close(server: Known, replies: Replies) -> Known:
            sent = server.sent
            if any(yes):
                leaves, tree = jax.tree.flatten(replies.each)
                rows = [leaf for leaf, vector in zip(leaves, yes, strict=True) if vector]
                ids, present = jnp.asarray(replies.cohort.ids), jnp.asarray(replies.cohort.present)
                full = [table[ids] + row.astype(table.dtype) for table, row in zip(sent[k], rows, strict=True)]
                full = [jnp.where(present[:, None], row, 0) for row in full]
                now = tuple(replies.cohort.put(t, row) for t, row in zip(sent[k], full, strict=True))
                sent = _replaced(sent, k, now)
                replies = replies._replace(each=jax.tree.unflatten(tree, _merged(leaves, yes, full)))
            return Known(exchange.close(server.inner, replies), sent)

        return Exchange(exchange.name, choose, send, work, close, writes=exchange.writes or any(yes))

    def inner(function: Any) -> Any:
        return lambda server: function(server.inner)

    return algorithm._replace(
        init=init,
        init_client=init_client,
        round=tuple(shortened(k, exchange) for k, exchange in enumerate(algorithm.round)),
        model=inner(algorithm.model),
        weights=inner(algorithm.weights),
    )


def _is_vector(leaf: Any, size: int, short: Any) -> bool:
    """Whether it is as long as the model, and of a longer type."""
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return bool(floating and leaf.shape == (size,) and leaf.dtype.itemsize > short.itemsize)


def _merged(leaves: list, chosen: list[bool], others: list) -> list:
    """`leaves` with the chosen ones replaced, in their order."""
    rest = iter(others)
    return [next(rest) if yes else leaf for leaf, yes in zip(leaves, chosen, strict=True)]


def _replaced(values: tuple, k: int, value: PyTree) -> tuple:
    return (*values[:k], value, *values[k + 1 :])
