"""Losses that are a mean over a client's examples: any model, and softmax regression."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, PyTree

from equipoise import local
from equipoise.data.shards import Shards
from equipoise.errors import InputError, is_concrete, require
from equipoise.protocol import Data, RandomKey, Vector, as_key
from equipoise.tasks.task import Convexity, Examples, Linear, Params, Scalar, Task, least, penalty

SOFTMAX = 0.1  # of p (1 - p), which is between 0 and 1/4 and moves while a model is trained


def over_examples(
    name: str,
    size: int,
    example_losses: Callable[[Vector, Array, Array], Float[Array, " b"]],
    *,
    l2: Convexity = 0.0,
    batch: int | None = None,
    init: Callable[[RandomKey | int], Vector] | None = None,
    predict: Callable[[Vector, Array], Array] | None = None,
    expects: Callable[[Shards], None] | None = None,
    convex: bool = False,
    random: bool = False,
) -> Task:
    """f_i(x) = mean over the client's examples of `example_losses` + l2/2 |x|^2.

    `l2` may be a number for every parameter, l2_j/2 x_j^2 each: an intercept is hardly ever meant to be small.
    `convex`: each of `example_losses` is convex in x, whatever the example. With l2 above zero the task then promises
    strong convexity, on which certificates rest; leave it where you are not sure. `random`: `example_losses` takes a
    key as its fourth argument, another one in every step; None: nothing is left to chance.
    """
    require(size >= 1, f"a model of {size} parameters cannot be trained; give at least one")
    require(batch is None or batch >= 1, f"batch is {batch}; give at least 1, or None for all examples")
    if isinstance(l2, tuple):
        require(len(l2) == size, f"l2 has {len(l2)} numbers for {size} parameters; give one for each, or one for all")
    require(least(l2) >= 0, f"the l2 coefficient is {least(l2)}; give zero or more")

    def penalised(mean_loss: Scalar, x: Vector) -> Scalar:
        return mean_loss if is_concrete(l2) and not l2 else mean_loss + penalty(l2, x)

    def each_loss(x: Vector, inputs: Array, labels: Array, key: RandomKey | None) -> Float[Array, " b"]:
        return example_losses(x, inputs, labels, key) if random else example_losses(x, inputs, labels)  # type: ignore[call-arg]

    def on_rows(x: Vector, shard: Shards, drawn: tuple[Array, RandomKey | None]) -> Scalar:
        rows, key = drawn
        return penalised(jnp.mean(each_loss(x, shard.inputs[rows], shard.labels[rows], key)), x)

    def on_all(x: Vector, shard: Shards, key: RandomKey | None = None) -> Scalar:
        return penalised(mean_of_rows(each_loss(x, shard.inputs, shard.labels, key), shard), x)

    def loss(x: Vector, shard: Shards, key: RandomKey | None = None) -> Scalar:
        if key is None or batch is None:
            return on_all(x, shard, key)
        return on_rows(x, shard, drawn_once(key, shard, batch, random))

    def grad(x: Vector, shard: Shards, key: RandomKey | None = None) -> Vector:
        return jax.grad(loss)(x, shard, key)

    def prepare(shard: Shards) -> Shards:
        if expects is not None:
            expects(shard)
        return shard

    promised = l2 if isinstance(l2, tuple) else float(l2)
    modulus, start = promised if convex and least(l2) > 0 else None, init or (lambda key: jnp.zeros(size))
    descend = local.descent(jax.grad(on_all if batch is None else on_rows), draws_of(batch, random))
    return Task(name, size, loss, grad, descend, start, predict, prepare, modulus)


def draw(key: RandomKey, shard: Shards, shape: tuple[int, ...]) -> Array:
    """Rows of a minibatch, never from the padding."""
    # As uniform as 32 bits are, in a third of the operations of `randint`.
    return (jax.random.bits(key, shape, jnp.uint32) % shard.sizes.astype(jnp.uint32)).astype(jnp.int32)


def drawn_once(key: RandomKey, shard: Shards, batch: int, random: bool) -> tuple[Array, RandomKey | None]:
    """A minibatch, and a key for what else is left to chance."""
    return draw(key, shard, (batch,)), jax.random.fold_in(key, 1) if random else None


def draws_of(batch: int | None, random: bool) -> Callable[[Shards, RandomKey, int], PyTree]:
    """The same for each of many steps; without minibatches keys alone, if those."""

    def draws(shard: Shards, key: RandomKey, steps: int) -> PyTree:
        keys = jax.random.split(jax.random.fold_in(key, 1), steps) if random else None
        return keys if batch is None else (draw(key, shard, (steps, batch)), keys)

    return draws


def real_rows(shard: Data) -> Bool[Array, " m"]:
    """Which rows of a client's shard are examples, and not padding."""
    return jnp.arange(shard.labels.shape[0], dtype=shard.sizes.dtype) < shard.sizes


def mean_of_rows(each: Float[Array, " m"], shard: Shards) -> Scalar:
    """Over the examples of a shard."""
    return jnp.sum(jnp.where(real_rows(shard), each, 0)) / shard.sizes.astype(each.dtype)


def features_of(features: int) -> Callable[[Shards], None]:
    """A check that a shard's examples have that many features."""

    def check(shard: Shards) -> None:
        given = shard.inputs.shape[1:]
        require(
            given == (features,),
            f"the task is for {features} features but the examples have shape {given}; "
            "build the task for the data's number of features, or flatten the examples",
        )

    return check


def task_of(
    init: Callable[[RandomKey], Params],
    apply: Callable[..., Array] | None = None,
    loss: Callable[..., Float[Array, " b"]] | None = None,
    *,
    l2: Convexity = 0.0,
    batch: int | None = None,
    name: str = "model",
    convex: bool = False,
    bend: Literal["softmax"] | float | None = None,
) -> Task[Params]:
    """Any model: `init(key)` makes its parameters, `apply(params, inputs [b, ...])` its outputs [b, ...],
    `loss(outputs, labels)` one number per example. Without `apply`, `loss(params, (inputs, labels))` is one number per
    example or their mean. `convex`: the loss is convex in the parameters, as it is for outputs linear in them and a
    loss convex in the outputs. `bend`: how it is curved in the outputs, where it is known, for `own_part`.

    Parameters are any tree, an equinox module with functions and sizes in it too; its floating-point arrays travel as
    one flat vector, and `task.unravel(x)` is the tree again. An `apply` (or a `loss` without it) with an argument `key`
    gets one in every local step, for dropout and the like, and None where nothing is left to chance.
    """
    if loss is None:
        raise InputError(
            "task_of was given no loss; give loss(outputs, labels), or loss(params, batch) without `apply`"
        )
    start, unravel = _raveler(init)
    keyed = "key" in inspect.signature(apply or loss).parameters

    def outputs(x: Vector, inputs: Array, key: RandomKey | None) -> Array:
        assert apply is not None
        return apply(unravel(x), inputs, key=key) if keyed else apply(unravel(x), inputs)

    def predict(x: Vector, inputs: Array) -> Array:
        return outputs(x, inputs, None)

    def example_losses(x: Vector, inputs: Array, labels: Array, key: RandomKey | None = None) -> Float[Array, " b"]:
        if apply is not None:
            return loss(outputs(x, inputs, key), labels)
        on_batch = partial(loss, unravel(x), **({"key": key} if keyed else {}))
        if jax.eval_shape(on_batch, (inputs, labels)).shape:
            return on_batch((inputs, labels))
        return jax.vmap(lambda *example: on_batch(jax.tree.map(lambda a: a[None], example)))(inputs, labels)

    def fits(shard: Shards) -> None:
        try:
            each = jax.eval_shape(lambda x, s: example_losses(x, s.inputs, s.labels), start, shard)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the model cannot be applied to examples of shape {shard.inputs.shape[1:]} with labels of shape "
                f"{shard.labels.shape[1:]}; check its input size and its loss ({str(error).splitlines()[0]})"
            ) from error
        require(
            each.shape == shard.labels.shape[:1],
            f"the loss gives shape {each.shape} for {shard.labels.shape[0]} examples; give one number per example",
        )

    task = over_examples(
        name,
        start.size,
        example_losses,
        l2=l2,
        batch=batch,
        init=lambda key: _ravel(init(as_key(key))),
        predict=None if apply is None else predict,
        expects=fits,
        convex=convex,
        random=keyed,
    )
    made_of = None if apply is None else Examples(outputs, loss, l2, batch, random=keyed, bend=bend)
    return task._replace(ravel=_ravel, unravel=unravel, examples=made_of)


def _ravel(params: PyTree) -> Vector:
    import equinox as eqx  # as long to import as the rest of the tasks; least squares and softmax regression need none

    return ravel_pytree(eqx.filter(params, eqx.is_inexact_array))[0]


def _raveler(init: Callable[[RandomKey], PyTree]) -> tuple[Vector, Callable[[Vector], PyTree]]:
    """A vector like the parameters that `init` makes, and the way back to their tree."""
    import equinox as eqx

    shapes = eqx.filter_eval_shape(init, jax.random.key(0))

    def learned(leaf: object) -> bool:
        return isinstance(leaf, jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jnp.inexact)

    floats, rest = eqx.partition(shapes, learned)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(rest)):  # whole numbers, masks
        rest = eqx.filter(init(jax.random.key(0)), eqx.is_inexact_array, inverse=True)
    start, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), floats))
    return start, lambda x: eqx.combine(unravel(x), rest)


def softmax_regression(features: int, classes: int, *, l2: Convexity = 0.0, batch: int | None = None) -> Task:
    """Multinomial logistic regression; x = (weights [classes, features], bias [classes]), raveled."""
    require(classes >= 2, f"softmax regression over {classes} classes; give at least two")

    # Classes first, in the weights and in the logits: on a CPU a step takes half of the time of examples first to four
    # fifths. Split rather than sliced: the gradient is then written once, not filled up with zeros and added.
    def logits(x: Vector, inputs: Array) -> Float[Array, "k b"]:
        weights, bias = jnp.split(x, [classes * features])
        return weights.reshape(classes, features) @ inputs.T + bias[:, None]

    def predict(x: Vector, inputs: Array) -> Float[Array, "b k"]:
        return logits(x, inputs).T

    def example_losses(x: Vector, inputs: Array, labels: Array) -> Float[Array, " b"]:
        return _cross_entropy(logits(x, inputs), labels)

    def losses(outputs: Float[Array, "b k"], labels: Array) -> Float[Array, " b"]:
        return _cross_entropy(outputs.T, labels)

    task = over_examples(
        "softmax_regression",
        classes * (features + 1),
        example_losses,
        l2=l2,
        batch=batch,
        predict=predict,
        expects=features_of(features),
        convex=True,
    )
    linear = Linear(features, classes, True, SOFTMAX, l2, task.loss)
    made_of = Examples(lambda x, a, key: predict(x, a), losses, l2, batch, bend="softmax")
    return task._replace(examples=made_of, linear=linear)


def _cross_entropy(z: Float[Array, "k b"], labels: Array) -> Float[Array, " b"]:
    hit = jax.nn.one_hot(labels, z.shape[0], dtype=z.dtype, axis=0)
    return jax.nn.logsumexp(z, axis=0) - jnp.sum(z * hit, axis=0)
