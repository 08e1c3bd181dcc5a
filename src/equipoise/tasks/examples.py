"""Losses that are a mean over a client's examples: any model, and softmax regression."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from equipoise import local
from equipoise.data.shards import Shards
from equipoise.errors import InputError, known, require
from equipoise.protocol import RandomKey, Vector
from equipoise.tasks.task import Scalar, Task, zeros


def over_examples(
    name: str,
    size: int,
    example_losses: Callable[[Vector, Array, Array], Float[Array, " b"]],
    *,
    l2: float = 0.0,
    batch: int | None = None,
    init: Callable[[RandomKey], Vector] | None = None,
    predict: Callable[[Vector, Array], Array] | None = None,
    expects: Callable[[Shards], None] | None = None,
    convex: bool = False,
) -> Task:
    """f_i(x) = mean over the client's examples of `example_losses` + l2/2 |x|^2.

    `convex`: each of `example_losses` is convex in x, whatever the example. With l2 above zero the task then promises
    strong convexity, on which certificates rest; leave it where you are not sure.
    """
    require(size >= 1, f"a model of {size} parameters cannot be trained; give at least one")
    require(batch is None or batch >= 1, f"batch is {batch}; give at least 1, or None for all examples")
    require(l2 >= 0, f"the l2 coefficient is {l2}; give zero or more")

    def penalised(mean_loss: Scalar, x: Vector) -> Scalar:
        return mean_loss if known(l2) and not l2 else mean_loss + l2 / 2 * (x @ x)

    def on_rows(x: Vector, shard: Shards, rows: Array) -> Scalar:
        return penalised(jnp.mean(example_losses(x, shard.inputs[rows], shard.labels[rows])), x)

    def on_all(x: Vector, shard: Shards) -> Scalar:
        real = jnp.arange(shard.labels.shape[0], dtype=shard.sizes.dtype) < shard.sizes
        each = jnp.where(real, example_losses(x, shard.inputs, shard.labels), 0)
        return penalised(jnp.sum(each) / shard.sizes.astype(each.dtype), x)

    def draw(key: RandomKey, shard: Shards, shape: tuple[int, ...]) -> Array:
        # Never from the padding. As uniform as 32 bits are, in a third of the operations of `randint`.
        return (jax.random.bits(key, shape, jnp.uint32) % shard.sizes.astype(jnp.uint32)).astype(jnp.int32)

    def loss(x: Vector, shard: Shards, key: RandomKey | None = None) -> Scalar:
        if key is None or batch is None:
            return on_all(x, shard)
        return on_rows(x, shard, draw(key, shard, (batch,)))

    def grad(x: Vector, shard: Shards, key: RandomKey | None = None) -> Vector:
        return jax.grad(loss)(x, shard, key)

    def descend(x: Vector, shard: Shards, key: RandomKey, *, steps: int, **options: Any) -> Any:
        if batch is None:
            return local.descend(lambda u, _: grad(u, shard), x, None, steps=steps, **options)
        rows = draw(key, shard, (steps, batch))
        return local.descend(lambda u, r: jax.grad(on_rows)(u, shard, r), x, rows, steps=steps, **options)

    def prepare(shard: Shards) -> Shards:
        if expects is not None:
            expects(shard)
        return shard

    modulus = float(l2) if convex and l2 > 0 else None
    return Task(name, size, loss, grad, descend, init or zeros(size), predict, prepare, modulus)


def features_of(features: int) -> Callable[[Any], None]:
    """A check that a shard's examples have that many features."""

    def check(shard: Any) -> None:
        given = shard.inputs.shape[1:]
        require(
            given == (features,),
            f"the task is for {features} features but the examples have shape {given}; "
            "build the task for the data's number of features, or flatten the examples",
        )

    return check


def task_of(
    init: Callable[[RandomKey], PyTree[Array]],
    apply: Callable[[PyTree[Array], Array], Array],
    loss: Callable[[Array, Array], Float[Array, " b"]],
    *,
    l2: float = 0.0,
    batch: int | None = None,
    name: str = "model",
    convex: bool = False,
) -> Task:
    """Any model: `init(key)` makes its parameters, `apply(params, inputs [b, ...])` its outputs [b, ...],
    `loss(outputs, labels)` one number per example. The parameters travel as one flat vector. `convex`: the loss is
    convex in the parameters, as it is for outputs linear in them and a loss convex in the outputs.
    """
    shapes = jax.eval_shape(init, jax.random.key(0))
    flat, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))

    def predict(x: Vector, inputs: Array) -> Array:
        return apply(unravel(x), inputs)

    def fits(shard: Shards) -> None:
        try:
            each = jax.eval_shape(lambda x, s: loss(predict(x, s.inputs), s.labels), flat, shard)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the model cannot be applied to examples of shape {shard.inputs.shape[1:]} with labels of shape "
                f"{shard.labels.shape[1:]}; check its input size and its loss ({str(error).splitlines()[0]})"
            ) from error
        require(
            each.shape == shard.labels.shape[:1],
            f"the loss gives shape {each.shape} for {shard.labels.shape[0]} examples; give one number per example",
        )

    return over_examples(
        name,
        flat.size,
        lambda x, inputs, labels: loss(predict(x, inputs), labels),
        l2=l2,
        batch=batch,
        init=lambda key: ravel_pytree(init(key))[0],
        predict=predict,
        expects=fits,
        convex=convex,
    )


def softmax_regression(features: int, classes: int, *, l2: float = 0.0, batch: int | None = None) -> Task:
    """Multinomial logistic regression; x = (weights [classes, features], bias [classes]), raveled."""
    require(classes >= 2, f"softmax regression over {classes} classes; give at least two")

    def predict(x: Vector, inputs: Array) -> Float[Array, "b k"]:
        # Weights with the classes first: on a CPU half the time of the other way round.
        weights, bias = x[: classes * features].reshape(classes, features), x[classes * features :]
        return inputs @ weights.T + jnp.broadcast_to(bias, (inputs.shape[0], classes))

    def example_losses(x: Vector, inputs: Array, labels: Array) -> Float[Array, " b"]:
        logits = predict(x, inputs)
        hit = jax.nn.one_hot(labels, classes, dtype=logits.dtype)
        return jax.nn.logsumexp(logits, axis=1) - jnp.sum(logits * hit, axis=1)

    return over_examples(
        "softmax_regression",
        classes * (features + 1),
        example_losses,
        l2=l2,
        batch=batch,
        predict=predict,
        expects=features_of(features),
        convex=True,
    )
