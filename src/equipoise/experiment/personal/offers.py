"""What each owner should use: the shared model, one tuned from it, or one of its own rows alone.

Chosen where the rows are, by five folds of the owner's training rows; with its own part, if it has one, fitted to the
rows that are kept. A tuned model is the least of the owner's loss + pull/2 |v - x|^2, x being the shared one.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise._jax import compiled
from equipoise.data.shards import ClientData, Shards
from equipoise.experiment.personal.baselines import FEWEST, OwnFit, of_each_owner
from equipoise.experiment.personal.paths import FOLDS, Parts, fold, path
from equipoise.protocol import Vector
from equipoise.tasks.task import Scalar, Task

PULLS = (1.0, 0.3, 0.1, 0.03, 0.01)  # from the nearest model on
ERRORS = 2  # standard errors of the folds, by which an owner's own model has to be better than the shared one
ENOUGH = 50  # rows, below which five folds cannot tell an owner's own model from luck
SHARED, ALONE = 0.0, -1.0  # what stands for a pull where nothing was tuned


class Offer(NamedTuple):
    """What an owner should use; or a row of each for every owner."""

    model: Vector
    pull: Float[Array, "*n"]  # with which it was tuned; SHARED or ALONE


def best_of_each(task: Task, x: Vector, train: ClientData, alone: OwnFit) -> Offer:
    """Of every owner, one after the other; `alone` has a row for each."""
    choose, alone = _of_one(task), jax.tree.map(np.asarray, alone)
    return of_each_owner(lambda i, shard: choose(x, shard, OwnFit(*(a[i] for a in alone))), train)


@lru_cache(maxsize=16)
def _of_one(task: Task) -> Callable[[Vector, Shards, OwnFit], Offer]:
    return compiled(lambda x, shard, alone: best_of(task, x, shard, alone))


def best_of(task: Task, x: Vector, shard: Shards, alone: OwnFit) -> Offer:
    """The shared model with too few rows for folds; its own only where that clearly gains over it."""
    parts = Parts(task, x, shard)

    def of_shared(k: Array) -> Scalar:
        """With its own part fitted to the rows that are kept, the sum over those left out."""
        kept, left_out = fold(shard, k)
        rows = left_out.sizes.astype(x.dtype)
        return jnp.where(rows > 0, rows * parts.of_rows(parts.start(x, kept), left_out), 0)

    tuned = path(task, x, shard, PULLS)
    losses = jnp.column_stack([jax.vmap(of_shared)(jnp.arange(FOLDS, dtype=jnp.int32)), tuned.losses])
    totals = jnp.sum(losses, axis=0)
    best = jnp.argmin(jnp.where(jnp.isfinite(totals), totals, jnp.inf))  # of equals the shared one
    # Not to join is more than a change of the shared model: what is gained over it has to be more than chance may be.
    own = alone.folds.astype(x.dtype)
    gains = losses[:, 0] - own
    clear = jnp.sum(gains) > ERRORS * jnp.sqrt(FOLDS * jnp.var(gains, ddof=1))
    clear = clear & (jnp.sum(own) < totals[best]) & (shard.sizes >= ENOUGH)
    best = jnp.where(shard.sizes >= FEWEST, jnp.where(clear, len(PULLS) + 1, best), 0)
    every = jnp.concatenate([x[None], tuned.models, alone.model[None].astype(x.dtype)])
    return Offer(every[best], jnp.asarray((SHARED, *PULLS, ALONE), x.dtype)[best])
