"""What the server may see of a cohort's replies, in every engine: a sum, some rows, and who answered."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PyTree

from equipoise.engines.summation import Summation, plain_sum
from equipoise.protocol import Cohort, Replies, Reply


def fold(replies: Reply, arrived: Bool[jax.Array, " m"]) -> tuple[PyTree, PyTree]:
    """Of replies with a row per slot: `total` summed, `each` row by row, zeros for what did not arrive."""

    def kept(a: jax.Array) -> jax.Array:
        return jnp.where(arrived.reshape(-1, *[1] * (a.ndim - 1)), a, a.dtype.type(0))

    total, each = jax.tree.map(kept, replies)
    return jax.tree.map(lambda a: a.sum(axis=0, dtype=a.dtype), total), each


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
