"""What the server may see of a cohort's replies, in every engine: a sum, some rows, and who answered."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PyTree

from equipoise.protocol import Cohort, Replies, Reply

Summation = Callable[[list[PyTree], PyTree], PyTree]  # the totals that arrived, by slot, and shapes -> their sum


def fold(replies: Reply, cohort: Cohort, arrived: Bool[jax.Array | np.ndarray, " m"]) -> Replies:
    """Of replies with a row per slot: `total` summed, `each` row by row, zeros for what did not arrive."""

    where: Any = np.where if all(isinstance(a, np.ndarray) for a in jax.tree.leaves(replies)) else jnp.where

    def kept(a: Any) -> Any:
        return where(arrived.reshape(-1, *[1] * (a.ndim - 1)), a, a.dtype.type(0))

    total, each = jax.tree.map(kept, replies)
    return Replies(jax.tree.map(lambda a: a.sum(axis=0, dtype=a.dtype), total), each, Cohort(cohort.ids, arrived))


def fold_slots(
    replies: Mapping[int, Reply], like: Reply, cohort: Cohort, summation: Summation | None = None
) -> Replies:
    """The same of replies that came one by one, by their slots; `like` has the shapes of one.

    `summation` takes the place of the plain sum: a masked one, whose single totals nobody can read.
    """
    slots = range(len(cohort.ids))
    nothing = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like)
    rows = [replies.get(slot, nothing) for slot in slots]
    arrived = np.array([slot in replies for slot in slots])
    if summation is None:
        return fold(jax.tree.map(lambda *a: np.stack(a), *rows), cohort, arrived)
    seen = fold(jax.tree.map(lambda *a: np.stack(a), *[Reply(None, row.each) for row in rows]), cohort, arrived)
    return seen._replace(total=summation([replies[slot].total for slot in slots if slot in replies], like.total))
