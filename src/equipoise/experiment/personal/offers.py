"""What each owner should use: the shared model, one tuned from it, or one of its own rows alone.

Chosen where the rows are, by five folds of the owner's training rows; with its own part, if it has one, fitted to the
rows that are kept. A tuned model is the least of the owner's loss + pull/2 |v - x|^2, x being the shared one.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise._jax import compiled
from equipoise.data.shards import Shards
from equipoise.experiment.personal.baselines import FEWEST, FOLDS, OwnFit, Parts, fold, rows_of
from equipoise.experiment.personal.fits import least_loss
from equipoise.protocol import Vector
from equipoise.tasks import Task
from equipoise.tasks.task import Scalar

PULLS = (1.0, 0.3, 0.1, 0.03, 0.01)  # from the nearest model on, each from where the one before has ended
SHARED, ALONE = 0.0, -1.0  # what stands for a pull where nothing was tuned


class Offer(NamedTuple):
    """What an owner should use; or a row of each for every owner."""

    model: Vector
    pull: Float[Array, "*n"]  # with which it was tuned; SHARED or ALONE


def best_of_each(task: Task, x: Vector, train: Any, alone: OwnFit) -> Offer:
    """Of every owner, one after the other; `alone` has a row for each."""
    choose = _of_one(task)
    offers = [choose(x, rows_of(train, i), OwnFit(*(a[i] for a in alone))) for i in range(train.n)]
    return jax.tree.map(lambda *each: jnp.stack(each), *offers)


@lru_cache(maxsize=16)
def _of_one(task: Task) -> Callable[[Vector, Shards, OwnFit], Offer]:
    return compiled(lambda x, shard, alone: best_of(task, x, shard, alone))


def best_of(task: Task, x: Vector, shard: Shards, alone: OwnFit) -> Offer:
    """The shared model with too few rows for folds; its own only where that clearly gains over it."""
    parts = Parts(task, x, shard)

    def of_fold(k: Array) -> tuple[Array, Array]:
        """As in `baselines`: the candidates' losses on the rows left out, times how many these are, and the models."""
        kept, left_out = fold(shard, k)
        start = x if task.own is None else jnp.concatenate([x, task.own.fit(x, kept).ravel()])

        def tuned(u: Vector, pull: Any) -> tuple[Vector, tuple[Scalar, Vector]]:
            def pulled(u: Vector) -> Scalar:
                return parts.loss(u, kept) + pull / 2 * jnp.sum((parts.shared(u) - x) ** 2)

            u = least_loss(pulled, u)
            return u, (parts.of_rows(u, left_out), parts.shared(u))

        _, (losses, models) = jax.lax.scan(tuned, start, jnp.asarray(PULLS, x.dtype))
        rows = left_out.sizes.astype(x.dtype)
        losses = jnp.concatenate([parts.of_rows(start, left_out)[None], losses])
        return jnp.where(rows > 0, rows * losses, 0), models

    losses, models = jax.vmap(of_fold)(jnp.arange(FOLDS + 1, dtype=jnp.int32))  # the last leaves nothing out
    totals = jnp.sum(losses, axis=0)
    best = jnp.argmin(jnp.where(jnp.isfinite(totals), totals, jnp.inf))  # of equals the shared one
    # Not to join is more than a change of the shared model: what is gained over it has to be more than chance may be.
    own = alone.folds.astype(x.dtype)
    gains = losses[:FOLDS, 0] - own
    clear = jnp.sum(gains) > jnp.sqrt(FOLDS * jnp.var(gains, ddof=1))
    clear = clear & (jnp.sum(own) < totals[best])
    best = jnp.where(shard.sizes >= FEWEST, jnp.where(clear, len(PULLS) + 1, best), 0)
    every = jnp.concatenate([x[None], models[FOLDS], alone.model[None].astype(x.dtype)])
    return Offer(every[best], jnp.asarray((SHARED, *PULLS, ALONE), x.dtype)[best])
