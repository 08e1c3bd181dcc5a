"""What the server may see of a cohort's replies, in every engine: a sum, some rows, and who answered."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from equipoise.engines.summation import Summation, plain_sum
from equipoise.protocol import Cohort, Replies, Reply


def fold(replies: Reply, cohort: Cohort, arrived: Bool[jax.Array | np.ndarray, " m"]) -> Replies:
    """Of replies with a row per slot: `total` summed, `each` row by row, zeros for what did not arrive."""

    numpy = np if all(isinstance(a, np.ndarray) for a in jax.tree.leaves(replies)) else jnp

    def kept(a: jax.Array) -> jax.Array:
        return numpy.where(arrived.reshape(-1, *[1] * (a.ndim - 1)), a, a.dtype.type(0))

    total, each = jax.tree.map(kept, replies)
    return Replies(jax.tree.map(lambda a: a.sum(axis=0, dtype=a.dtype), total), each, Cohort(cohort.ids, arrived))


class Collected:
    """The same of replies that come one by one, in any order, with memory for one total; `like` has a reply's shapes.

    `summation` takes the place of the plain sum: a masked one, whose single totals nobody can read.
    """

    def __init__(self, like: Reply, cohort: Cohort, summation: Summation | None = None):
        self.cohort, self.summation = cohort, summation or plain_sum()
        self.slots: list[int] = []  # of those that answered
        self.each = jax.tree.map(lambda s: np.zeros((len(cohort.ids), *s.shape), s.dtype), like.each)
        self.total = self.summation.start(like.total)

    def add(self, slot: int, reply: Reply) -> None:
        self.slots.append(slot)
        self.total = self.summation.add(self.total, reply.total)
        for rows, row in zip(jax.tree.leaves(self.each), jax.tree.leaves(reply.each), strict=True):
            rows[slot] = row

    def folded(self) -> Replies:
        present = np.isin(np.arange(len(self.cohort.ids)), self.slots)
        total, each = jax.tree.map(jnp.asarray, (self.summation.finish(self.total), self.each))
        return Replies(total, each, Cohort(self.cohort.ids, present))


def fold_slots(replies: Mapping[int, Reply], like: Reply, cohort: Cohort) -> Replies:
    """Of replies by their slots."""
    collected = Collected(like, cohort)
    for slot, reply in replies.items():
        collected.add(slot, reply)
    return collected.folded()
