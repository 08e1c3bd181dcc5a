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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

from equipoise.algorithms.wrapping import Beside, wrap_client, wrap_server
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Client, Data, Exchange, RandomKey, Replies, Reply, Server, Vector, Wire

TYPES = ("float32", "bfloat16")


Vectors = tuple[tuple[Float[Array, "..."], ...], ...]  # by exchange, by vector: those of `each` before those of `total`


class Sent(NamedTuple):
    """What a client has sent so far, and what it owes."""

    sent: Vectors  # h
    owed: Vectors  # e


class Shortened(NamedTuple):
    """What the server sees of every client where sums are compressed."""

    each: PyTree[Array]
    summed: PyTree[Array]  # differences of what the algorithm needs only the sum of


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
    import equinox as eqx  # as long to import as all algorithms together

    require(dtype in TYPES, f"the type is {dtype!r}; give one of {', '.join(TYPES)}")
    short = jnp.dtype(dtype)

    def is_vector(leaf: jax.ShapeDtypeStruct) -> bool:
        """Whether it is as long as the model, and of a longer type."""
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return bool(floating and leaf.shape == (algorithm.size,) and leaf.dtype.itemsize > short.itemsize)

    # Which leaves of the two parts of a reply are sent as differences.
    chosen = [
        (jax.tree.map(is_vector, w.reply.each), jax.tree.map(lambda leaf: sums and is_vector(leaf), w.reply.total))
        for w in crossing
    ]
    require(
        any(jax.tree.leaves(chosen)),
        f"{algorithm.name} sends no vectors of a type longer than {dtype}"
        + (";" if sums else " that the server sees by themselves; set compress_sums = true to compress sums too, or")
        + " leave compression out",
    )

    def nothing(x: Vector, *rows: int) -> Vectors:
        blank = jnp.zeros((*rows, *x.shape), x.dtype)
        return tuple((blank,) * sum(jax.tree.leaves(parts)) for parts in chosen)

    def shortened(k: int, exchange: Exchange) -> Exchange:
        parts, in_total = chosen[k], chosen[k][1]
        any_sums = any(jax.tree.leaves(in_total))

        def with_vectors(reply: PyTree, vectors: Sequence[Array]) -> PyTree:
            given = iter(vectors)
            return jax.tree.map(lambda yes, leaf: next(given) if yes else leaf, parts, reply)

        def work(message: PyTree, client: Beside, data: Data, key: RandomKey) -> tuple[Beside, Reply]:
            (inner, _), (total, each) = exchange.work(message, client, data, key)
            before: Sent = client.own
            full = jax.tree.leaves(eqx.filter((each, total), parts))
            missing = [v - h + e for v, h, e in zip(full, before.sent[k], before.owed[k], strict=True)]
            rounded = [d.astype(short) for d in missing]
            sent = tuple(h + q.astype(h.dtype) for h, q in zip(before.sent[k], rounded, strict=True))
            owed = tuple(d - q.astype(d.dtype) for d, q in zip(missing, rounded, strict=True))
            each, total = with_vectors((each, total), rounded)
            if any_sums:
                seen, total = eqx.partition(total, in_total)
                each = Shortened(each, seen)
            client = Beside(inner, Sent(_replaced(before.sent, k, sent), _replaced(before.owed, k, owed)))
            return client, Reply(total, each)

        def close(server: Beside, replies: Replies) -> Beside:
            total, each, cohort = replies
            if any_sums:
                each, seen = each
                total = eqx.combine(seen, total)
            ids, present = jnp.asarray(cohort.ids), jnp.asarray(cohort.present)
            differences = zip(server.own[k], jax.tree.leaves(eqx.filter((each, total), parts)), strict=True)
            full = [jnp.where(present[:, None], h[ids] + q.astype(h.dtype), 0) for h, q in differences]
            now = tuple(cohort.put(h, v) for h, v in zip(server.own[k], full, strict=True))
            each, total = with_vectors((each, total), full)
            total = jax.tree.map(lambda yes, leaf: jnp.sum(leaf, axis=0) if yes else leaf, in_total, total)
            return exchange.close(server, Replies(total, each, cohort))._replace(own=_replaced(server.own, k, now))

        return exchange._replace(
            work=work,
            close=close,
            writes=exchange.writes or any(jax.tree.leaves(parts)),
            counts=None if any_sums else exchange.counts,
        )

    at_clients = wrap_client(algorithm, lambda x: Sent(nothing(x), nothing(x)), lambda k, exchange: exchange)
    return wrap_server(at_clients, lambda x: nothing(x, algorithm.n), shortened)


def _replaced(values: tuple, k: int, value: PyTree) -> tuple:
    return (*values[:k], value, *values[k + 1 :])
