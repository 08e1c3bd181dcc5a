"""A trained network as a fixed map from examples to features, on which training is convex; and models made of one.

Train-Convexify-Train (Yu, Wei, Karimireddy, Ma and Jordan 2022), stage 2. The last layer is replaced by a random one of
a single output, the same for all clients,

    s(a) = w'h(a; theta_0) + b,     w, b ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in)),

and the gradient g(a) of s by all P parameters, w and b among them, is made shorter. One phi serves all classes.

    coordinates   phi = sqrt(P/p) g[idx], p coordinates at random                                     the papers'
    sketch        phi_k = sum of xi_j g_j over the coordinates j of bucket k, xi_j = 1 or -1          beyond the papers
    last          phi = h(a), the input of the last layer: the gradient by w alone

With `sketch`, phi(a)'phi(a') has the mean g(a)'g(a') over the seeds. The buckets are columns of a random permutation,
as even as can be: no bucket is empty, sums have one order, and a GPU computes them the same each time.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int

from equipoise.errors import InputError, not_none, one_of, positive, require
from equipoise.models.model import Model, Params, saved
from equipoise.models.torch_module import torch_module

Kind = Literal["sketch", "coordinates", "last"]
KINDS: tuple[Kind, ...] = ("sketch", "coordinates", "last")
FEATURES = 5000
AT_ONCE = 1 << 24  # numbers of gradients in memory at a time; four times as many where the device is not a CPU


class Projection(NamedTuple):
    """phi_k = sum_r factors[r, k] g[order[r, k]]."""

    order: Int[Array, "r p"]
    factors: Float[Array, "r p"]


class GradientFeatures(NamedTuple):
    """From a network's parameters to the features of examples, in three steps."""

    size: int  # p
    parameters: int  # P
    fan_in: int  # of the last layer
    with_random_layer: Callable[[Params, ArrayLike], Params]  # theta, seed -> theta with w and b for its last layer
    projection: Callable[[ArrayLike], Projection | None]  # of the seed; None: nothing is projected
    apply: Callable[[Params, Projection | None, Array], Float[Array, "b p"]]


def gradient_features(network: Model, *, kind: Kind = "sketch", features: int = FEATURES) -> GradientFeatures:
    """`features` is p, cut to P; `last` has the width of the last layer instead. All clients use one seed."""
    one_of("kind of features", kind, KINDS)
    positive("features", features)
    why = f"the model '{network.name}' does not say where its last layer is; build it as Model(..., last=...)"
    last = not_none(network.last, why)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    layer = last(shapes)
    wrong = f"the last layer of the model '{network.name}' is {type(layer).__name__}"
    require(isinstance(layer, eqx.nn.Linear), f"{wrong}; only an equinox.nn.Linear is known")
    fan_in, biased = layer.weight.shape[1], layer.bias is not None
    everything = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    parameters = everything - (layer.weight.shape[0] - 1) * (fan_in + biased)

    def with_random_layer(params: Params, seed: ArrayLike) -> Params:
        old = last(params)
        drawn = random_layer(seed, fan_in, old.weight.dtype)
        new = eqx.tree_at(lambda l: l.weight, old, drawn[None, :fan_in])
        if biased:
            new = eqx.tree_at(lambda l: l.bias, new, drawn[fan_in:])
        return eqx.tree_at(last, params, new)

    def gradient(params: Params, example: Array) -> Array:
        """g(a), or of it what belongs to w."""
        part = last(params).weight if kind == "last" else params
        flat, unravel = ravel_pytree(part)

        def score(v: Array) -> Array:
            new = unravel(v)
            whole = eqx.tree_at(lambda tree: last(tree).weight, params, new) if kind == "last" else new
            return network.apply(whole, example[None])[0, 0]

        return jax.grad(score)(flat)

    def apply(params: Params, projected: Projection | None, inputs: Array) -> Float[Array, "b p"]:
        def of_one(example: Array) -> Array:
            g = gradient(params, example)
            return g if projected is None else jnp.sum(projected.factors.astype(g.dtype) * g[projected.order], axis=0)

        return jax.lax.map(of_one, inputs, batch_size=min(rows_at_once(parameters), len(inputs)))

    return _made(kind, features, parameters, fan_in, with_random_layer, apply)


def module_features(
    parameters: Sequence[Sequence[Any]], last: str, *, kind: Kind = "sketch", features: int = FEATURES
) -> GradientFeatures:
    """Of a PyTorch module with these parameters, whose last layer is the torch.nn.Linear called `last`.

    As far as their sizes go: PyTorch makes the features (`pytorch/features.py`).
    """
    one_of("kind of features", kind, KINDS)
    positive("features", features)
    shapes = {str(name): tuple(map(int, shape)) for name, shape in parameters}
    weight, bias = f"{last}.weight", f"{last}.bias"
    require(
        len(shapes.get(weight, ())) == 2,
        f"the module has no trained matrix '{weight}', which its last layer would have; give the name of a "
        f"torch.nn.Linear; its parameters are {', '.join(shapes)}",
    )
    (outputs, fan_in), biased = shapes[weight], bias in shapes
    total = sum(math.prod(shape) for shape in shapes.values()) - (outputs - 1) * (fan_in + biased)

    def with_random_layer(params: Params, seed: ArrayLike) -> Params:
        drawn = random_layer(seed, fan_in, params[weight].dtype)
        new = {weight: drawn[None, :fan_in]} | ({bias: drawn[fan_in:]} if biased else {})
        return OrderedDict((name, new.get(name, value)) for name, value in params.items())

    def apply(params: Params, projected: Projection | None, inputs: Array) -> NoReturn:
        wrong = "this model is linear in features of a PyTorch module, which Equipoise cannot apply"
        remedy = "make a function of it with equipoise.pytorch.features.load_convexified(module, path)"
        raise InputError(f"{wrong}; {remedy}")

    return _made(kind, features, total, fan_in, with_random_layer, apply)


def _made(
    kind: Kind, features: int, parameters: int, fan_in: int, with_random_layer: Callable, apply: Callable
) -> GradientFeatures:
    p = fan_in if kind == "last" else min(features, parameters)

    def projection(seed: ArrayLike) -> Projection | None:
        return draw_projection(seed, kind, p, parameters)

    return GradientFeatures(p, parameters, fan_in, with_random_layer, projection, apply)


def convexified(network: Model, outputs: int, kind: Kind = "sketch", features: int = FEATURES, seed: int = 0) -> Model:
    """X (phi(a) - mean) * scale of raw inputs a, phi as in `gradient_features`; X = `head` is what is trained."""
    positive("outputs", outputs)
    arguments = {"network": saved(network), "outputs": outputs, "kind": kind, "features": features, "seed": seed}
    features_of = gradient_features(network, kind=kind, features=features)
    return _linear("convexified", arguments, network, features_of)


def torch_convexified(
    parameters: Sequence[Sequence[object]], last: str, outputs: int, kind: Kind, features: int, seed: int
) -> Model:
    """As `convexified`, of a module of these parameters: what it is made of, for PyTorch to apply."""
    network = torch_module(parameters)
    arguments = {"parameters": network.arguments["parameters"], "last": last, "outputs": outputs, "kind": kind}
    features_of = module_features(parameters, last, kind=kind, features=features)
    return _linear("torch_convexified", arguments | {"features": features, "seed": seed}, network, features_of)


def _linear(name: str, arguments: dict[str, Any], network: Model, features: GradientFeatures) -> Model:
    p, seed = features.size, arguments["seed"]

    def init(key: Array) -> Params:
        params, head = features.with_random_layer(network.init(key), seed), jnp.zeros((arguments["outputs"], p))
        return {"network": params, "mean": jnp.zeros(p), "scale": jnp.ones(p), "head": head}

    def apply(params: Params, inputs: Array) -> Array:
        phi = features.apply(params["network"], features.projection(seed), inputs)
        return ((phi - params["mean"][None]) * params["scale"][None]) @ params["head"].T

    return Model(init, apply, name, arguments)


def linearised(network: Model) -> Model:
    """f(theta_0) + J(theta_0) delta: `network` is theta_0, and delta = `change` is what is trained."""

    def init(key: Array) -> Params:
        params = network.init(key)
        return {"network": params, "change": jax.tree.map(jnp.zeros_like, params)}

    def apply(params: Params, inputs: Array) -> Array:
        value, change = jax.jvp(lambda theta: network.apply(theta, inputs), (params["network"],), (params["change"],))
        return value + change

    return Model(init, apply, "linearised", {"network": saved(network)})


# What a network of another library has the same.


def random_layer(seed: ArrayLike, fan_in: int, dtype: DTypeLike) -> Float[Array, " fan_in+1"]:
    """w, then b."""
    bound = fan_in**-0.5
    return jax.random.uniform(_keys(seed)[0], (fan_in + 1,), dtype, -bound, bound)


def draw_projection(seed: ArrayLike, kind: Kind, p: int, parameters: int) -> Projection | None:
    """None: nothing is projected."""
    if kind == "last":
        return None
    dtype = jnp.result_type(float)
    words = jax.random.bits(_keys(seed)[1], (2, parameters), jnp.uint32)
    order = jnp.argsort(words[0]).astype(jnp.int32)
    if kind == "coordinates":
        return Projection(order[None, :p], jnp.full((1, p), np.sqrt(parameters / p), dtype))
    signs = jnp.where(words[1] % 2 == 0, 1, -1).astype(dtype)
    empty = -parameters % p
    both = jnp.pad(order, (0, empty)), jnp.pad(signs, (0, empty))  # factors of zero at the end
    return Projection(*(a.reshape(-1, p) for a in both))


def _keys(seed: ArrayLike) -> Array:
    # Not a constant of the program, or XLA would sort a few hundred thousand numbers while it compiles.
    return jax.random.split(jax.random.key(jax.lax.optimization_barrier(jnp.asarray(seed, jnp.uint32))))


def rows_at_once(parameters: int) -> int:
    """A power of two, so that the blocks that are worked on divide each other."""
    room = AT_ONCE * (1 if jax.default_backend() == "cpu" else 4) // parameters
    return 1 << min(max(room, 1).bit_length() - 1, 9)  # what the layers hold of small networks takes room too
