"""Own models that are linear in their inputs: of all of an owner's rows and without each fold, found together.

Newton's method for the six at once: their outputs are one product with the rows, and the curvature of the rows is
summed by fold, so that the curvature without one is a difference. It is kept while it serves, for up to a few steps,
as gradients alone say where a model ends. Owners with many rows take it at the model of all rows, from which that
without a fold is not far; with few rows each model has its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise.data.shards import Shards
from equipoise.errors import not_none
from equipoise.linear_algebra import cholesky, solve_factored
from equipoise.protocol import Vector
from equipoise.tasks import Task
from equipoise.tasks.own import ridge_of

LARGEST = 512  # parameters that are solved for at once
BLOCK = 1024  # rows at a time
FEW = 256  # rows, up to which every model has a curvature of its own
TIMES = 30  # that curvature is taken at most, for a penalty; two are usual
NEAR = 5e-5  # of a loss, that the next step will lower it by: the last one
NEAR_IN_DOUBLE = 1e-20  # so that a site, whose rows are not padded as those of all owners are, has the same numbers
SERVES = 0.1  # of what it was, that the same has fallen to after a step, or curvature is taken again
DECREASE = 0.1  # of what the slope promises, that a step has to bring

Models = Float[Array, "f k p"]  # with outputs' parameters in rows; the last is of all rows


def suits(task: Task, shard: Shards) -> bool:
    linear, examples = task.linear, task.examples
    if linear is None or examples is None or shard.inputs.shape[1:] != (linear.features,):
        return False
    return _side(task) <= LARGEST


class State(NamedTuple):
    """Of the six models."""

    u: Models
    losses: Float[Array, "f s"]  # the sum over each fold
    grads: Models  # without penalties
    lengths: Float[Array, " f"]  # of the next step
    left: Float[Array, " f"]  # what it lowers the loss by, relative; infinite before it is known
    serves: Array  # whether the curvature does


def path(
    task: Task, centre: Vector, shard: Shards, penalties: Float[Array, " l"], *, folds: int
) -> tuple[Float[Array, "l d"], Float[Array, "folds l"]]:
    """Models of all rows, and sums of losses on each fold without it; the rows are shuffled, fold k is every k-th.

    The path ends where less of a penalty has made the sum larger: what would follow is infinite.
    """
    rows = _Rows(task, centre, shard, folds)

    def fitted(carry: tuple[State, Array, Array], penalty: Array) -> Any:
        state, before, goes_on = carry
        state = jax.lax.cond(goes_on, rows.fitted, lambda state, _: state, state, penalty)
        losses = jnp.where(goes_on, jnp.diagonal(state.losses[:folds]), jnp.inf)
        total = jnp.sum(losses)
        return (state, total, total <= before), (rows.model(state.u[-1]), losses)

    start = rows.start(), jnp.array(jnp.inf, rows.dtype), jnp.array(True)
    _, (models, losses) = jax.lax.scan(fitted, start, penalties)
    return models, losses.T


class _Rows:
    """An owner's rows [blocks, folds, rows, p], an own part's inputs beside those of the model."""

    def __init__(self, task: Task, centre: Vector, shard: Shards, folds: int):
        self.linear, self.examples = not_none(task.linear), not_none(task.examples)
        self.own, self.folds, self.centre = task.own, folds, centre
        total, self.dtype = shard.labels.shape[0], centre.dtype
        self.near = NEAR_IN_DOUBLE if self.dtype == jnp.float64 else NEAR
        self.blocks = -(-total // BLOCK)
        each = -(-total // (self.blocks * folds))

        def cut(a: Array) -> Array:
            a = jnp.pad(a, [(0, self.blocks * each * folds - total)] + [(0, 0)] * (a.ndim - 1))
            return jnp.moveaxis(a.reshape(self.blocks, each, folds, *a.shape[1:]), 2, 1)

        self.real = cut(jnp.arange(total, dtype=shard.sizes.dtype) < shard.sizes)
        columns = [shard.inputs.astype(self.dtype)]
        ones = jnp.ones((total, 1), self.dtype)
        columns += [ones] if self.linear.intercept else []
        columns += [] if self.own is None else [ones, columns[0][:, jnp.asarray(self.own.inputs, jnp.int32)]]
        self.a = cut(jnp.concatenate(columns, axis=1))
        self.labels = cut(shard.labels)
        z = self.examples.outputs(centre, shard.inputs, None)
        self.shape = z.shape[1:]
        self.z = cut(z.reshape(total, -1))
        # Softmax of two classes sees their difference alone: the models are half of it, above and below.
        self.spread = _spread(task, self.dtype)
        self.squared = jnp.sum(self.spread[:, 0] ** 2)
        sizes = jnp.sum(self.real, axis=(0, 2)).astype(self.dtype)
        without = jnp.concatenate([1 - jnp.eye(folds, dtype=self.dtype), jnp.ones((1, folds), self.dtype)])
        self.sizes = jnp.maximum(without @ sizes, 1)  # [f]
        self.weights = without / self.sizes[:, None]  # [f, s]
        self.used = -(-shard.sizes // (each * folds))  # blocks in which there are rows
        self.shared = self.linear.features + self.linear.intercept
        # Squares have the same curvature for every output, wherever they are.
        self.constant = isinstance(self.examples.bend, float)
        self.each_bent = total <= FEW and not self.constant

    def start(self) -> State:
        outputs, models = self.spread.shape[1], self.folds + 1
        u = jnp.zeros((models, outputs, self.a.shape[-1]), self.dtype)
        losses, grads = self.sums(u)
        return State(
            u, losses, grads, jnp.ones(models, self.dtype), jnp.full(models, jnp.inf, self.dtype), jnp.array(True)
        )

    def model(self, u: Float[Array, "k p"]) -> Vector:
        moved = self.spread @ u[:, : self.shared]
        split = self.linear.features
        return self.centre + jnp.concatenate([moved[:, :split].ravel(), moved[:, split:].ravel()])

    def _over_blocks(self, add: Callable[[Any], Any]) -> Any:
        """The sum of what `add` makes of the blocks."""
        blocks = (self.a, self.labels, self.z, self.real)

        def one(t: int | Array) -> Any:
            return add(jax.tree.map(lambda b: b[t], blocks))

        if self.blocks == 1:
            return one(0)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: one(0)))
        return jax.lax.fori_loop(0, self.used, lambda t, sums: jax.tree.map(jnp.add, sums, one(t)), zero)

    def _each(self, v: Array, labels: Array, z: Array, real: Array) -> Array:
        """Losses [s, b] of a fold's rows, where the outputs are v [s, b, k] from those of the centre."""
        outputs = (z + v @ self.spread.T).reshape(-1, *self.shape)
        each = self.examples.losses(outputs, labels.reshape(-1, *labels.shape[2:]))
        return jnp.where(real, each.reshape(real.shape), 0)

    def sums(self, u: Models) -> tuple[Float[Array, "f s"], Models]:
        """Of every model the loss of each fold, and the gradient of the mean over the rows it is of."""

        def add(block: Any) -> Any:
            a, labels, z, real = block

            def of_model(v: Array) -> tuple[Array, Array]:
                losses, back = jax.vjp(lambda v: jnp.sum(self._each(v, labels, z, real), axis=1), v)
                return losses, back(jnp.ones_like(losses))[0]

            losses, pulled = jax.vmap(of_model, in_axes=2, out_axes=(0, 2))(jnp.einsum("sbp,fkp->sbfk", a, u))
            return losses, jnp.einsum("sbfk,sbp->fkp", pulled * self.weights.T[:, None, :, None], a)

        return self._over_blocks(add)

    def curvature(self, u: Models) -> Float[Array, "f n n"]:
        """Of the means, without penalties."""
        models = u if self.each_bent else u[-1:]

        def add(block: Any) -> Array:
            a, labels, z, real = block

            def of_model(v: Array) -> Float[Array, "s n n"]:
                slope = jax.grad(lambda v: jnp.sum(self._each(v, labels, z, real)))
                outputs = 1 if self.constant else v.shape[-1]
                unit = jnp.eye(v.shape[-1], dtype=v.dtype)[:outputs]
                bent = jax.vmap(lambda e: jax.jvp(slope, (v,), (jnp.broadcast_to(e, v.shape),))[1])(unit)
                curved = jnp.einsum("jsbk,sbp->sbjkp", bent[..., :outputs], a)
                side = outputs * a.shape[-1]
                return jnp.einsum("sbq,sbjkp->sjqkp", a, curved).reshape(self.folds, side, side)

            return jax.vmap(of_model, in_axes=2)(jnp.einsum("sbp,fkp->sbfk", a, models))

        of_folds = self._over_blocks(add)
        everywhere = jnp.broadcast_to(of_folds, (self.folds + 1, *of_folds.shape[1:]))
        return jnp.einsum("fs,fsnm->fnm", self.weights, everywhere)

    def fitted(self, state: State, penalty: Array) -> State:
        models = self.folds + 1
        of_part = ridge_of(self.examples.bend) / self.sizes[:, None]
        ridge = jnp.concatenate(
            [
                jnp.full((models, self.shared), penalty, self.dtype),
                jnp.broadcast_to(of_part, (models, self.a.shape[-1] - self.shared)),
            ],
            axis=1,
        )
        ridge = (self.squared * ridge)[:, None]

        def values(state: State) -> Float[Array, " f"]:
            return jnp.sum(self.weights * state.losses, axis=1) + jnp.sum(ridge * state.u**2, axis=(1, 2)) / 2

        def solved(factor: Array, grads: Models) -> Models:
            if self.constant:
                return jax.vmap(solve_factored, in_axes=(None, 1), out_axes=1)(factor, grads)
            return solve_factored(factor, grads.reshape(models, -1)).reshape(grads.shape)

        def stepped(factor: Array, state: State) -> State:
            grads, now = state.grads + ridge * state.u, values(state)
            d = solved(factor, grads)
            fall = jnp.sum(d * grads, axis=(1, 2))
            left = fall / jnp.maximum(now, jnp.finfo(self.dtype).tiny)
            done = ~(left > self.near)  # not a number, too
            u = state.u - jnp.where(done, 1, state.lengths)[:, None, None] * d
            losses, grads = self.sums(u)
            there = State(u, losses, grads, jnp.ones_like(left), left, jnp.array(True))
            least = now - DECREASE * state.lengths * fall + 4 * jnp.finfo(self.dtype).eps * jnp.abs(now)
            good = done | (values(there) <= least)
            served = jnp.all(done | (good & (left <= SERVES * state.left)) | jnp.isinf(state.left))
            kept = State(state.u, state.losses, state.grads, state.lengths / 2, left, served)
            return jax.tree.map(
                lambda a, b: jnp.where(good.reshape(-1, *[1] * (a.ndim - 1)), a, b) if a.ndim else b, there, kept
            )

        def unfinished(state: State) -> Array:
            return jnp.any(state.left > self.near)

        def with_curvature(carry: tuple[State, Array]) -> tuple[State, Array]:
            state, t = carry
            bent = self.curvature(state.u)
            side = bent.shape[-1]
            weights = jnp.tile(ridge[:, 0], (1, side // ridge.shape[-1]))
            factor = cholesky(bent + jax.vmap(jnp.diag)(weights))
            state = state._replace(left=jnp.full_like(state.left, jnp.inf), serves=jnp.array(True))
            return jax.lax.while_loop(lambda s: s.serves & unfinished(s), lambda s: stepped(factor, s), state), t + 1

        state = state._replace(left=jnp.full_like(state.left, jnp.inf), lengths=jnp.ones_like(state.lengths))
        return jax.lax.while_loop(lambda c: unfinished(c[0]) & (c[1] < TIMES), with_curvature, (state, jnp.int32(0)))[0]


def _spread(task: Task, dtype: Any) -> Float[Array, "k free"]:
    """From the free outputs to all of them."""
    outputs = not_none(task.linear).outputs
    two = outputs == 2 and not_none(task.examples).bend == "softmax"
    return jnp.array([[-0.5], [0.5]], dtype) if two else jnp.eye(outputs, dtype=dtype)


def _side(task: Task) -> int:
    """Of the curvature."""
    linear, examples = not_none(task.linear), not_none(task.examples)
    inputs = linear.features + linear.intercept + (0 if task.own is None else 1 + len(task.own.inputs))
    two = linear.outputs == 2 and examples.bend == "softmax"
    return inputs * (1 if two or isinstance(examples.bend, float) else linear.outputs)
