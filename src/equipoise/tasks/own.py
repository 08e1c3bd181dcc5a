"""Parts of a model that owners keep for themselves: every client's loss, minimised over them.

    f_i(x) = min_B  1/m_i sum_j loss(outputs(x, a_j) + B phi(a_j), y_j) + r |B|^2/(2 m_i) + l2/2 |x|^2

phi(a) = 1 is an own intercept, phi(a) = (1, a[inputs]) own slopes of some inputs besides. Where the loss is convex in
the outputs and these in x, the f_i are convex, as strongly as before and no steeper, and grad f_i(x) is the gradient at
the minimising B (the envelope theorem). So any algorithm trains x on the f_i; B is found where the rows are, and stays
there. The term r |B|^2/(2 m_i), that of a row with nothing in it, keeps B finite where all labels are the same; r is 1,
and 2 for softmax, whose two classes then have b^2/(2 m_i) for the difference b that alone matters.

Base rates differ between owners, and one model has one of them: an intercept of each owner's own is what a mixed model
calls a random intercept.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Float, PyTree

from equipoise import local
from equipoise.data.shards import Shards
from equipoise.errors import InputError, not_none, require
from equipoise.linear_algebra import eigh, solve_positive
from equipoise.protocol import Data, RandomKey, Vector, tree_where
from equipoise.tasks.examples import drawn_once, draws_of, mean_of_rows, real_rows
from equipoise.tasks.task import Own, Scalar, Task, penalty, shrink

Part = Float[Array, "k q"]
Bend = Literal["softmax"] | float | None
MOST = 60  # Newton steps, which take three to six
AT_ONCE = 1 << 22  # numbers of a Hessian's making, for a loss whose curvature JAX finds


def own_part(task: Task, own: Literal["intercept"] | Sequence[int] = "intercept") -> Task:
    """`task`, where every owner has an intercept of its own, and slopes of its own for the inputs with these indices.

    For losses of examples that are convex in the model's outputs: squares, softmax and `task_of` with any model. With
    minibatches B is that of all rows at the model that local steps start from; without, that of every step.
    """
    examples = task.examples
    if examples is None:
        raise InputError(f"{task.name} does not say what it is made of, so that no part of it can be the owners' own")
    require(own == "intercept" or not isinstance(own, str), f"own is '{own}'; give 'intercept' or indices of inputs")
    inputs = () if isinstance(own, str) else tuple(int(j) for j in own)
    require(len(set(inputs)) == len(inputs), f"own has an input more than once: {inputs}; give each once")
    if examples.linear and examples.batch is None:
        return _of_squares(task, inputs)

    basis = partial(_basis, inputs)

    def outputs(x: Vector, rows: Array, key: RandomKey | None = None) -> Float[Array, "k m"]:
        """Examples last, as on a CPU it is faster."""
        z = examples.outputs(x, rows, key)
        return z.reshape(z.shape[0], -1).T

    def losses(z: Float[Array, "k m"], labels: Array) -> Float[Array, " m"]:
        return examples.losses(z.T, labels)

    def solved(z: Float[Array, "k m"], shard: Shards, start: Part | None = None) -> Part:
        return _minimised(losses, examples.bend, z, basis(shard.inputs, z.dtype), shard, start)

    def fit(x: Vector, shard: Shards) -> Part:
        return solved(outputs(x, shard.inputs), shard)

    def ridge(B: Part, shard: Shards) -> Scalar:
        return ridge_of(examples.bend) * jnp.sum(B**2) / (2 * shard.sizes.astype(B.dtype))

    def on_rows(x: Vector, B: Part, shard: Shards, drawn: tuple[Array, RandomKey | None]) -> Scalar:
        rows, key = drawn
        a = shard.inputs[rows]
        z = outputs(x, a, key)
        each = losses(z + B @ basis(a, z.dtype), shard.labels[rows])
        return jnp.mean(each) + penalty(examples.l2, x) + ridge(B, shard)

    def loss(x: Vector, shard: Shards, key: RandomKey | None = None) -> Scalar:
        if key is not None and examples.batch is not None:
            return on_rows(x, fit(x, shard), shard, drawn_once(key, shard, examples.batch, examples.random))
        z = outputs(x, shard.inputs, key if examples.random else None)
        B = solved(outputs(x, shard.inputs) if examples.random else z, shard)
        each = losses(z + B @ basis(shard.inputs, z.dtype), shard.labels)
        return mean_of_rows(each, shard) + penalty(examples.l2, x) + ridge(B, shard)

    def slope(x: Vector, shard: Shards, key: RandomKey | None, start: Part | None = None) -> Vector:
        """The gradient over all rows: with B held where it is, in one pass forward and one back."""
        z, back = jax.vjp(lambda u: outputs(u, shard.inputs, key if examples.random else None), x)
        B = solved(outputs(x, shard.inputs) if examples.random else z, shard, start)
        v = z + B @ basis(shard.inputs, z.dtype)
        pulled = jax.grad(lambda v: mean_of_rows(losses(v, shard.labels), shard))(v)
        return back(pulled)[0] + shrink(examples.l2, x)

    def grad(x: Vector, shard: Shards, key: RandomKey | None = None) -> Vector:
        if key is None or examples.batch is None:
            return slope(x, shard, key)
        return jax.grad(on_rows)(x, fit(x, shard), shard, drawn_once(key, shard, examples.batch, examples.random))

    def descend(x: Vector, shard: Shards, key: RandomKey, **options: Any) -> local.Descended:
        start = fit(x, shard)  # near that of every local step

        def along(u: Vector, shard: Shards, drawn: PyTree) -> Vector:
            if examples.batch is None:
                return slope(u, shard, drawn, start)
            return jax.grad(on_rows)(u, start, shard, drawn)

        return local.descent(along, draws_of(examples.batch, examples.random))(x, shard, key, **options)

    parts = _parts(task, inputs, fit)
    return task._replace(name=f"{task.name}_own", loss=loss, grad=grad, descend=descend, own=parts)


def ridge_of(bend: Bend) -> float:
    """r, for losses with this curvature."""
    return 2.0 if bend == "softmax" else 1.0


def base_rate(task: Task, x: Vector, shard: Shards) -> Part:
    """The own intercept [k, 1] of a model whose outputs are zero: what an owner predicts that looks at labels only."""
    examples = not_none(task.examples)
    like = jax.eval_shape(lambda x, rows: examples.outputs(x, rows, None), x, shard.inputs)
    z = jnp.zeros((like.size // like.shape[0], like.shape[0]), like.dtype)

    def losses(z: Float[Array, "k m"], labels: Array) -> Float[Array, " m"]:
        return examples.losses(z.T.reshape(like.shape), labels)

    return _minimised(losses, examples.bend, z, jnp.ones((1, z.shape[1]), z.dtype), shard, None)


def _parts(task: Task, inputs: tuple[int, ...], fit: Callable[[Vector, Shards], Part]) -> Own:
    examples = not_none(task.examples)

    def outputs(x: Vector, B: Part, rows: Array) -> Array:
        z = examples.outputs(x, rows, None)
        return z + (B @ _basis(inputs, rows, z.dtype)).T.reshape(z.shape)

    def loss(x: Vector, B: Part, shard: Shards) -> Scalar:
        return mean_of_rows(examples.losses(outputs(x, B, shard.inputs), shard.labels), shard) + penalty(examples.l2, x)

    return Own(inputs, fit, outputs, loss)


def _basis(inputs: tuple[int, ...], rows: Array, dtype: DTypeLike) -> Float[Array, "q m"]:
    ones = jnp.ones((1, rows.shape[0]), dtype)
    if not inputs:
        return ones
    require(
        rows.ndim == 2 and max(inputs) < rows.shape[1] and min(inputs) >= 0,
        f"own names the inputs {inputs}, but an example has shape {rows.shape[1:]}; give indices of a row of numbers",
    )
    return jnp.concatenate([ones, rows[:, jnp.asarray(inputs)].T.astype(dtype)])


@partial(jax.jit, static_argnames=("losses", "bend"))  # traced once for all that asks for it in a program
def _minimised(
    losses: Callable[[Array, Array], Array],
    bend: Bend,
    z: Float[Array, "k m"],
    phi: Float[Array, "q m"],
    shard: Shards,
    start: Part | None,
) -> Part:
    """argmin_B of the mean of losses(z + B phi) + r |B|^2/(2m), and its derivative in z.

    Newton's method; where a full step d would not lower the loss as it promises, log(1 + r)/r of it, r being the most
    that d spreads the outputs of a row. Along d softmax changes its curvature by at most the factor exp(r), so that
    the loss is lower there for certain, wherever B starts.
    """
    k, q = z.shape[0], phi.shape[0]
    size, real, eps = shard.sizes.astype(z.dtype), real_rows(shard), jnp.finfo(z.dtype).eps
    ridge = ridge_of(bend)
    eye, phi_real = ridge * jnp.eye(k * q, dtype=z.dtype), jnp.where(real[None], phi, 0)

    def value(B: Part, z: Array) -> Scalar:
        return mean_of_rows(losses(z + B @ phi, shard.labels), shard) + ridge * jnp.sum(B**2) / (2 * size)

    def hessian(B: Part, z: Array) -> Float[Array, "kq kq"]:
        if bend == "softmax":
            p = jax.nn.softmax(z + B @ phi, axis=0)
            if q == 1:
                seen = jnp.where(real[None], p, 0)
                return (jnp.diag(jnp.sum(seen, axis=1)) - seen @ p.T + eye) / size
            own = jnp.einsum("km,am,cm->kac", p, phi_real, phi)
            both = (p[:, None] * phi_real[None]).reshape(k * q, -1)
            blocks = own[:, :, None, :] * jnp.eye(k, dtype=z.dtype)[:, None, :, None]
            return (blocks.reshape(k * q, k * q) - both @ both.T + eye) / size
        if bend is not None:
            return (jnp.kron(jnp.eye(k, dtype=z.dtype), bend * (phi_real @ phi.T)) + eye) / size
        along = jax.linearize(jax.grad(lambda b: value(b.reshape(k, q), z)), B.ravel())[1]
        return jax.lax.map(along, eye / ridge, batch_size=max(1, min(k * q, AT_ONCE // z.size)))

    def newton(B: Part, z: Array) -> tuple[Part, Part]:
        slope = jax.grad(value)(B, z)
        return slope, solve_positive(hessian(B, z), slope.ravel()).reshape(k, q)

    def step(state: tuple[Part, Array, Array]) -> tuple[Part, Array, Array]:
        B, t, _ = state
        slope, d = newton(B, fixed)
        fall = jnp.sum(slope * d)
        now = value(B, fixed)
        spread = jnp.where(real[None], d @ phi, 0)
        r = jnp.max(jnp.max(spread, axis=0) - jnp.min(spread, axis=0) if k > 1 else jnp.abs(spread))
        shorter = jnp.log1p(r) / jnp.where(r > 0, r, 1)
        full = value(B - d, fixed) <= now - fall / 10 + 4 * eps * jnp.abs(now)
        there = tree_where(full, B - d, B - shorter * d)
        return there, t + 1, (fall <= eps * jnp.maximum(now, eps)) & full

    def unfinished(state: tuple[Part, Array, Array]) -> Array:
        _, t, done = state
        return (t < MOST) & ~done

    fixed = stop_gradient(z)
    begin = jnp.zeros((k, q), z.dtype) if start is None else stop_gradient(start)
    if start is None and bend == "softmax":  # counts against what is expected: near the answer at once
        expected = jnp.sum(jnp.where(real[None], jax.nn.softmax(fixed, axis=0), 0), axis=1)
        counts = jnp.sum(jax.nn.one_hot(shard.labels, k, dtype=z.dtype) * real[:, None].astype(z.dtype), axis=0)
        begin = begin.at[:, 0].set(jnp.log((counts + 0.5) / (expected + 0.5)))
    B = begin
    if not isinstance(bend, float):  # of squares, the step below is all
        B, _, _ = jax.lax.while_loop(unfinished, step, (begin, jnp.int32(0), jnp.array(False)))
    # One more step, through which derivatives flow: they are those of the argmin, by the implicit function theorem.
    B = stop_gradient(B)
    slope = jax.grad(value)(B, z)
    return B - solve_positive(hessian(B, fixed), slope.ravel()).reshape(k, q)


def _of_squares(task: Task, inputs: tuple[int, ...]) -> Task:
    """Exactly, as squares over other rows: T A and T Y, T = (I - U (U'U + I/(2 scale))^-1 U')^1/2, U the rows of phi.

    |R + U B'|^2 at its best B is |T R|^2. So what is prepared, Gram matrices too, is prepared of these rows.
    """
    examples = not_none(task.examples)
    bend = examples.bend
    assert isinstance(bend, float)

    def moved(shard: Shards) -> Shards:
        zeros = jnp.zeros(task.size, shard.inputs.dtype)
        none = examples.outputs(zeros, shard.inputs, None)
        # The targets, from the slope of the losses at outputs of zero.
        targets = -jax.grad(lambda z: jnp.sum(examples.losses(z, shard.labels)))(none) / bend
        real = real_rows(shard)[:, None]
        u = jnp.where(real, _basis(inputs, shard.inputs, none.dtype).T, 0)
        squares, turned = eigh(u.T @ u)
        r = jnp.sqrt(1 + bend * jnp.maximum(squares, 0))
        inner = (turned * (bend / (r * (r + 1)))[None]) @ turned.T

        def moved_rows(a: Array) -> Array:
            a = jnp.where(real, a, 0)
            return a - u @ (inner @ (u.T @ a))

        return Shards(moved_rows(shard.inputs), moved_rows(targets), shard.sizes)

    def ready(data: Data) -> Data:
        return moved(data) if isinstance(data, Shards) else data

    def prepare(shard: Shards) -> Data:
        task.prepare(shard)  # its own sentence where they do not fit
        return task.prepare(moved(shard))

    def losses(z: Float[Array, "k m"], labels: Array) -> Float[Array, " m"]:
        return examples.losses(z.T, labels)

    def fit(x: Vector, shard: Shards) -> Part:
        z = examples.outputs(x, shard.inputs, None).T
        return _minimised(losses, bend, z, _basis(inputs, shard.inputs, z.dtype), shard, None)

    return task._replace(
        name=f"{task.name}_own",
        loss=lambda x, data, key=None: task.loss(x, ready(data), key),
        grad=lambda x, data, key=None: task.grad(x, ready(data), key),
        descend=lambda x, data, key, **options: task.descend(x, ready(data), key, **options),
        prepare=prepare,
        own=_parts(task, inputs, fit),
    )
