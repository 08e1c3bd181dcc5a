"""Squared losses, whose exact local steps go through a Gram matrix instead of through the data.

With A [m, p] a client's inputs, Y [m, k] its targets and x = X [k, p] raveled,

    f(X) = scale/m |A X' - Y|^2 + l2/2 |X|^2,      grad f(X) = 2 scale/m (X A'A - Y'A) + l2 X.

More examples than features: A'A [p, p] and Y'A [k, p] are all that a step needs. More features than examples: all
J steps stay in the span of x, the shift and the rows of A, so they are taken on coefficients, through A A' [m, m].
Both give the iterates of the plain loop up to rounding; which one is chosen by shape.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int

from equipoise import local
from equipoise.data.shards import Shards
from equipoise.errors import require
from equipoise.protocol import Data, RandomKey, Vector, tree_where
from equipoise.tasks.examples import features_of, over_examples, real_rows
from equipoise.tasks.task import Examples, Linear, Scalar, Task


class Gram(NamedTuple):
    """A client's data for p <= m: the loss as a quadratic in X."""

    gram: Float[Array, "p p"]  # 2 scale/m A'A
    cross: Float[Array, "k p"]  # 2 scale/m Y'A
    energy: Scalar  # scale/m |Y|^2
    sizes: Int[Array, ""]


class Kernel(NamedTuple):
    """A client's data for p > m, padding rows zeroed."""

    inputs: Float[Array, "m p"]
    targets: Float[Array, "m k"]
    kernel: Float[Array, "m m"]  # A A'
    rates: Float[Array, " m"]  # what the square of each row's error is multiplied by, times two: 2 scale/m
    sizes: Int[Array, ""]


def ridge(dim: int, mu: float = 0.1, batch: int | None = None) -> Task:
    """The robust regression of SCAFF-PD's Section 6.1: f(x) = 1/m |A x - y|^2 + mu/2 |x|^2 (no 1/2 in front)."""
    return squares("ridge", dim, 1, scale=1.0, l2=mu, batch=batch, centred=False)


def least_squares(
    features: int, outputs: int, *, l2: float = 0.0, batch: int | None = None, centred: bool = False
) -> Task:
    """f(X) = 1/(2m) |A X' - Y|_F^2 + l2/2 |X|^2, X [outputs, features].

    Integer labels stand for their one-hot rows, less 1/outputs when `centred` (as in TCT).
    """
    return squares("least_squares", features, outputs, scale=0.5, l2=l2, batch=batch, centred=centred)


def squares(
    name: str, features: int, outputs: int, *, scale: float, l2: float, batch: int | None, centred: bool
) -> Task:
    require(features >= 1, f"a model of {features} features cannot be trained; give at least one")
    require(outputs >= 1, f"a model of {outputs} outputs predicts nothing; give at least one")
    size = outputs * features

    def targets(labels: Array, dtype: DTypeLike) -> Float[Array, "m k"]:
        if jnp.issubdtype(labels.dtype, jnp.integer) and outputs > 1:
            return jax.nn.one_hot(labels, outputs, dtype=dtype) - (1 / outputs if centred else 0)
        return labels.reshape(labels.shape[0], outputs).astype(dtype)

    def predict(x: Vector, inputs: Array) -> Float[Array, "m k"]:
        return inputs @ x.reshape(outputs, features).T

    def example_losses(x: Vector, inputs: Array, labels: Array) -> Float[Array, " m"]:
        return losses(predict(x, inputs), labels)

    def expects(shard: Shards) -> None:
        features_of(features)(shard)
        integer = jnp.issubdtype(shard.labels.dtype, jnp.integer)
        fits = ((), (1,)) if outputs == 1 else ((), (outputs,)) if integer else ((outputs,),)
        require(
            shard.labels.shape[1:] in fits,
            f"the task has {outputs} outputs but a label has shape {shard.labels.shape[1:]}; give one number per "
            "output, or an integer class",
        )

    def losses(outputs: Float[Array, "m k"], labels: Array) -> Float[Array, " m"]:
        return scale * jnp.sum((outputs - targets(labels, outputs.dtype)) ** 2, axis=1)

    made_of = Examples(lambda x, a, key: predict(x, a), losses, l2, batch, bend=2 * scale, linear=True)
    plain = over_examples(name, size, example_losses, l2=l2, batch=batch, predict=predict, expects=expects, convex=True)
    plain = plain._replace(examples=made_of)
    if batch is not None:  # a Gram matrix has no minibatches
        return plain._replace(linear=Linear(features, outputs, False, 2 * scale, l2, plain.loss))

    def prepare(shard: Shards) -> Gram | Kernel:
        expects(shard)
        m, p = shard.inputs.shape
        real = real_rows(shard)[:, None]
        a = jnp.where(real, shard.inputs, 0)
        y = jnp.where(real, targets(shard.labels, a.dtype), 0)
        if p > m:
            return Kernel(a, y, a @ a.T, jnp.full(m, 2 * scale, a.dtype) / shard.sizes.astype(a.dtype), shard.sizes)
        # In double precision, rounded once: the error of sums in single precision grows with the rows, and makes it
        # another problem.
        with jax.enable_x64(True):
            wide_a, wide_y = a.astype(jnp.float64), y.astype(jnp.float64)
            w = 2 * scale / shard.sizes.astype(jnp.float64)
            # `lax.dot`, because a batch of `@` would ask for its type again, outside of this block.
            both = jax.lax.dot(wide_a.T, wide_a), jax.lax.dot(wide_y.T, wide_a)
            sums = (*(w * products for products in both), w / 2 * jnp.sum(wide_y**2))
            gram, cross, energy = (total.astype(a.dtype) for total in sums)
        return Gram(gram, cross, energy, shard.sizes)

    def loss(x: Vector, data: Data, key: RandomKey | None = None) -> Scalar:
        big_x = x.reshape(outputs, features)
        match data:
            case Gram():
                # A quadratic form of nearly zero may come out slightly below it.
                fit = jnp.sum(big_x * (big_x @ data.gram / 2 - data.cross)) + data.energy
                return jnp.maximum(fit, 0) + l2 / 2 * (x @ x)
            case Kernel():
                errors = data.inputs @ big_x.T - data.targets
                return data.rates @ jnp.sum(errors**2, axis=1) / 2 + l2 / 2 * (x @ x)
        return plain.loss(x, data)

    def grad(x: Vector, data: Data, key: RandomKey | None = None) -> Vector:
        big_x = x.reshape(outputs, features)
        match data:
            case Gram():
                return (big_x @ data.gram - data.cross).ravel() + l2 * x
            case Kernel():
                errors = data.inputs @ big_x.T - data.targets
                return ((errors * data.rates[:, None]).T @ data.inputs).ravel() + l2 * x
        return plain.grad(x, data)

    def descend(x: Vector, data: Data, key: RandomKey, *, steps: int, **options: Any) -> local.Descended:
        if isinstance(data, Kernel) and options.get("optimizer") is None:
            m, p = data.inputs.shape
            if 3 * p + steps * m < 2 * p * steps:  # products with A: 3 in all, or 2 in every step
                return descend_on_coefficients(x, data, l2=l2, steps=steps, **options)
        return along_gradients(x, data, key, steps=steps, **options)

    along_gradients = local.descent(lambda u, data, _: grad(u, data))

    linear = Linear(features, outputs, False, 2 * scale, l2, loss)
    return plain._replace(loss=loss, grad=grad, descend=descend, prepare=prepare, linear=linear)


def descend_on_coefficients(
    x: Vector,
    data: Kernel,
    *,
    l2: float,
    steps: int,
    lr: ArrayLike,
    shift: Vector | None = None,
    pull: float = 0.0,
    snapshot: Any = None,
    optimizer: None = None,
) -> local.Descended:
    """The local steps with u = alpha x + beta shift + Z A throughout, Z [k, m]."""
    shift = jnp.zeros_like(x) if shift is None else shift
    shape = data.targets.shape[1], data.inputs.shape[1]
    x_a, s_a = ((v.reshape(shape) @ data.inputs.T) for v in (x, shift))
    keep = 1 - lr * (l2 + pull)

    def step(_: object, state: tuple) -> tuple:
        alpha, beta, z = state
        errors = alpha * x_a + beta * s_a + z @ data.kernel - data.targets.T
        return (keep * alpha + lr * pull, keep * beta - lr, keep * z - lr * data.rates[None] * errors)

    def watch(carry: tuple, t: Array) -> tuple[tuple, None]:
        state, seen = carry
        state = step(None, state)
        return (state, tree_where(t == snapshot, state, seen)), None

    def vector(state: tuple) -> Vector:
        alpha, beta, z = state
        return alpha * x + beta * shift + (z @ data.inputs).ravel()

    start = (jnp.ones((), x.dtype), jnp.zeros((), x.dtype), jnp.zeros_like(x_a))
    if snapshot is None:
        return vector(jax.lax.fori_loop(0, steps, step, start))
    (last, seen), _ = jax.lax.scan(watch, (start, start), jnp.arange(1, steps + 1, dtype=jnp.int32))
    return vector(last), vector(seen)
