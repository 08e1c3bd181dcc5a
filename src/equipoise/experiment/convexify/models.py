"""Models that are convex to train, made of a network: linear in its gradient features, or in its own parameters."""

import jax
import jax.numpy as jnp
from jax import Array

from equipoise.errors import positive
from equipoise.experiment.convexify.features import FEATURES, Kind, gradient_features
from equipoise.models.model import Model, Params, saved


def convexified(network: Model, outputs: int, kind: Kind = "sketch", features: int = FEATURES, seed: int = 0) -> Model:
    """X (phi(a) - mean) * scale of raw inputs a, phi as in `gradient_features`; X = `head` is what is trained."""
    positive("outputs", outputs)
    features_of = gradient_features(network, kind=kind, features=features)

    def init(key: Array) -> Params:
        return linear_in_features(features_of.with_random_layer(network.init(key), seed), features_of.size, outputs)

    def apply(params: Params, inputs: Array) -> Array:
        phi = features_of.apply(params["network"], features_of.projection(seed), inputs)
        return ((phi - params["mean"][None]) * params["scale"][None]) @ params["head"].T

    arguments = {"network": saved(network), "outputs": outputs, "kind": kind, "features": features, "seed": seed}
    return Model(init, apply, "convexified", arguments)


def linear_in_features(network: Params, p: int, outputs: int) -> Params:
    """The first parameters of a model that is linear in p features of a network."""
    return {"network": network, "mean": jnp.zeros(p), "scale": jnp.ones(p), "head": jnp.zeros((outputs, p))}


def linearised(network: Model) -> Model:
    """f(theta_0) + J(theta_0) delta: `network` is theta_0, and delta = `change` is what is trained."""

    def init(key: Array) -> Params:
        params = network.init(key)
        return {"network": params, "change": jax.tree.map(jnp.zeros_like, params)}

    def apply(params: Params, inputs: Array) -> Array:
        value, change = jax.jvp(lambda theta: network.apply(theta, inputs), (params["network"],), (params["change"],))
        return value + change

    return Model(init, apply, "linearised", {"network": saved(network)})
