"""Gradients, control variates and updates in fewer bytes, with nothing lost in the limit.

A client sends, of each vector v_i of a reply, the difference from what the server had of it last time, rounded to a
shorter type, and keeps what rounding took away for the next time:

    d = v_i - h_i + e_i     what the server does not know
    q = round(d)            up
    e_i <- d - q            at the client
    h_i <- h_i + q          at the client and at the server, which goes on with h_i in place of v_i

So h_i = v_i plus the error before minus the error now. Where the algorithm adds up what it is sent, as a server adds
updates to its model and to its control variate, the errors cancel: what is left of them is the last one. Where it uses
what it is sent as it is, h_i follows v_i. As v_i converges d vanishes, and the errors with it, because a floating-point
type rounds relative to what it rounds: |d'| <= |v_i' - v_i| + 3 delta max |d|, delta = 2^-9 of bfloat16. This is EF21
(Richtarik, Sokolov and Fatkhullin, 2021) with rounding as the compressor, and on top the error feedback of Seide et al.
(2014). Losses and weights are left as they are.

The server has to know the h_i of those who answered. So what it needs only the sum of (`Reply.total`) is left as it is
too, unless `sums` is asked for: then it sees the differences of every client, and adds up what it knows of them itself.
"""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PyTree

from equipoise.algorithms.wrapping import Beside, wrap_client, wrap_server
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import (
    Algorithm,
    Client,
    Data,
    Exchange,
    Message,
    RandomKey,
    Replies,
    Reply,
    Server,
    Vector,
    Wire,
)

TYPES = ("float32", "bfloat16")


Vectors = tuple[tuple[Float[Array, "..."], ...], ...]  # by exchange, by vector


class Sent(NamedTuple):
    """What a client has sent so far, and what it owes."""

    sent: Vectors  # h
    owed: Vectors  # e


class Shortened(NamedTuple):
    """What the server sees of every client where sums are compressed."""

    each: PyTree[Array]
    summed: tuple[Array, ...]  # differences of what the algorithm needs only the sum of


class Chosen(NamedTuple):
    """Which leaves of a reply are sent as differences."""

    each: list[bool]
    total: list[bool]


@numbers_are_leaves
def compress_replies(
    algorithm: Algorithm[Server, Client], crossing: Sequence[Wire], *, dtype: str, sums: bool = False
) -> Algorithm[Beside[Server, Vectors], Beside[Client, Sent]]:
    """`algorithm`, whose clients send vectors as differences of type `dtype`; what was sent stands beside its states.

    Args:
        crossing: what `wire` says of the algorithm.
        dtype: float32 or bfloat16.
        sums: also vectors of which the server needs only the sum; it then keeps one of each client, and sees it.
    """
    require(dtype in TYPES, f"the type is {dtype!r}; give one of {', '.join(TYPES)}")
    short = jnp.dtype(dtype)

    def chosen(tree: PyTree, wanted: bool = True) -> list[bool]:
        return [wanted and _is_vector(leaf, algorithm.size, short) for leaf in jax.tree.leaves(tree)]

    vectors = [Chosen(chosen(w.reply.each), chosen(w.reply.total, sums)) for w in crossing]
    require(
        any(any(leaves) for blocks in vectors for leaves in blocks),
        f"{algorithm.name} sends no vectors of a type longer than {dtype}"
        + (";" if sums else " that the server sees by themselves; set compress_sums = true to compress sums too, or")
        + " leave compression out",
    )

    def nothing(x: Vector, *rows: int) -> Vectors:
        blank = jnp.zeros((*rows, *x.shape), x.dtype)
        return tuple((blank,) * (sum(blocks.each) + sum(blocks.total)) for blocks in vectors)

    def shortened(k: int, exchange: Exchange) -> Exchange:
        blocks, total_tree = vectors[k], jax.tree.structure(crossing[k].reply.total)
        any_sums = any(blocks.total)

        def work(message: Message, client: Beside, data: Data, key: RandomKey) -> tuple[Beside, Reply]:
            (inner, _), reply = exchange.work(message, client, data, key)
            before: Sent = client.own
            (leaves, tree), totals = jax.tree.flatten(reply.each), jax.tree.leaves(reply.total)
            full = [*compress(leaves, blocks.each), *compress(totals, blocks.total)]
            missing = [v - h + e for v, h, e in zip(full, before.sent[k], before.owed[k], strict=True)]
            rounded = [d.astype(short) for d in missing]
            sent = tuple(h + q.astype(h.dtype) for h, q in zip(before.sent[k], rounded, strict=True))
            owed = tuple(d - q.astype(d.dtype) for d, q in zip(missing, rounded, strict=True))
            each = jax.tree.unflatten(tree, _merged(leaves, blocks.each, rounded))
            if any_sums:
                rest = tuple(compress(totals, [not yes for yes in blocks.total]))
                reply = Reply(rest, Shortened(each, tuple(rounded[sum(blocks.each) :])))
            else:
                reply = reply._replace(each=each)
            return Beside(inner, Sent(_replaced(before.sent, k, sent), _replaced(before.owed, k, owed))), reply

        def close(server: Beside, replies: Replies) -> Beside:
            each, summed = replies.each if any_sums else (replies.each, ())
            leaves, tree = jax.tree.flatten(each)
            ids, present = jnp.asarray(replies.cohort.ids), jnp.asarray(replies.cohort.present)
            differences = zip(server.own[k], [*compress(leaves, blocks.each), *summed], strict=True)
            full = [jnp.where(present[:, None], h[ids] + q.astype(h.dtype), 0) for h, q in differences]
            now = tuple(replies.cohort.put(h, v) for h, v in zip(server.own[k], full, strict=True))
            restored = replies._replace(each=jax.tree.unflatten(tree, _merged(leaves, blocks.each, full)))
            if any_sums:
                sums, rest = iter([jnp.sum(v, axis=0) for v in full[sum(blocks.each) :]]), iter(replies.total)
                total = [next(sums if yes else rest) for yes in blocks.total]
                restored = restored._replace(total=jax.tree.unflatten(total_tree, total))
            return exchange.close(server, restored)._replace(own=_replaced(server.own, k, now))

        return exchange._replace(
            work=work,
            close=close,
            writes=exchange.writes or any(blocks.each + blocks.total),
            counts=None if any(blocks.total) else exchange.counts,
        )

    at_clients = wrap_client(algorithm, lambda x: Sent(nothing(x), nothing(x)), lambda k, exchange: exchange)
    return wrap_server(at_clients, lambda x: nothing(x, algorithm.n), shortened)


def _is_vector(leaf: jax.ShapeDtypeStruct, size: int, short: np.dtype) -> bool:
    """Whether it is as long as the model, and of a longer type."""
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return bool(floating and leaf.shape == (size,) and leaf.dtype.itemsize > short.itemsize)


def _merged(leaves: list, chosen: list[bool], others: list) -> list:
    """`leaves` with the chosen ones replaced, in their order."""
    rest = iter(others)
    return [next(rest) if yes else leaf for leaf, yes in zip(leaves, chosen, strict=True)]


def _replaced(values: tuple, k: int, value: PyTree) -> tuple:
    return (*values[:k], value, *values[k + 1 :])
