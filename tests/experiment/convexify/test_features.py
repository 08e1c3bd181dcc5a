"""Features of a network's gradients, each against a reference that is computed another way."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from equipoise import models
from equipoise.algorithms.moments import Moments, scaling
from equipoise.errors import InputError
from equipoise.experiment.convexify.features import gradient_features
from equipoise.models.model import saved

NETWORK = models.mlp(6, [5, 4], 3)
INPUTS = np.random.default_rng(0).normal(size=(7, 6))
P = (6 * 5 + 5) + (5 * 4 + 4) + (4 + 1)


@cache
def found(kind, features=P):
    return gradient_features(NETWORK, kind=kind, features=features)


@cache
def network(seed=3):
    return jax.jit(found("sketch").with_random_layer)(NETWORK.init(jax.random.key(1)), seed)


@cache
def program(kind, features=P):
    """phi of INPUTS, as a function of the seed."""
    f = found(kind, features)
    return jax.jit(lambda params, seed: f.apply(params, f.projection(seed), jnp.asarray(INPUTS)))


@cache
def jacobian():
    """[7, P], by forward mode through the whole batch."""
    flat, unravel = ravel_pytree(network())
    return np.asarray(jax.jit(jax.jacfwd(lambda v: NETWORK.apply(unravel(v), jnp.asarray(INPUTS))[:, 0]))(flat))


def test_all_coordinates_have_the_gram_matrix_of_the_jacobian():
    phi = np.asarray(program("coordinates")(network(), 3))
    assert phi.shape == jacobian().shape == (7, P)
    np.testing.assert_allclose(phi @ phi.T, jacobian() @ jacobian().T, rtol=1e-12, atol=1e-12)


def test_some_coordinates_are_columns_of_the_jacobian():
    phi = np.asarray(program("coordinates", 11)(network(), 3))
    order = np.asarray(found("coordinates", 11).projection(3).order[0])
    assert len(set(order.tolist())) == 11
    np.testing.assert_allclose(phi, np.sqrt(P / 11) * jacobian()[:, order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("features", [10, P])
def test_the_sketch_is_the_product_with_its_matrix(features):
    phi = np.asarray(program("sketch", features)(network(), 3))
    order, factors = (np.asarray(part) for part in found("sketch", features).projection(3))
    s = np.zeros((P, features))
    for row, signs in zip(order, factors, strict=True):
        for k, (j, sign) in enumerate(zip(row, signs, strict=True)):
            s[j, k] += sign
    assert (np.abs(s).sum(axis=1) == 1).all()  # every coordinate in one bucket
    assert np.ptp(np.abs(s).sum(axis=0)) <= 1  # as even as can be
    np.testing.assert_allclose(phi, jacobian() @ s, rtol=1e-12, atol=1e-12)


def test_sketched_products_are_right_on_average():
    """Over seeds of the projection alone; the variance is at most 2 |g|^2 |g'|^2 / p."""
    seeds = jnp.arange(2000, dtype=jnp.uint32)
    f = found("sketch", 16)

    @jax.jit
    def products(g):
        def one(seed):
            order, factors = f.projection(seed)
            phi = jnp.sum(factors[None] * g[:, order], axis=1)
            return phi @ phi.T

        return jax.lax.map(one, seeds)

    found_products, exact = np.asarray(products(jnp.asarray(jacobian()))), jacobian() @ jacobian().T
    error = found_products.std(axis=0) / np.sqrt(len(seeds))
    assert (np.abs(found_products.mean(axis=0) - exact) < 5 * error).all()
    lengths = np.diag(exact)
    assert (found_products.var(axis=0) <= 1.15 * 2 * np.outer(lengths, lengths) / 16).all()


def test_last_is_the_input_of_the_last_layer():
    first, second, _ = network()
    h = np.maximum(INPUTS @ np.asarray(first.weight).T + np.asarray(first.bias), 0)
    h = np.maximum(h @ np.asarray(second.weight).T + np.asarray(second.bias), 0)
    np.testing.assert_allclose(program("last")(network(), 3), h, rtol=1e-12, atol=1e-12)


def test_a_linear_model_has_the_inputs_and_one():
    linear = models.linear(6, 3)
    f = gradient_features(linear, kind="coordinates", features=100)
    assert f.size == f.parameters == 7
    params = f.with_random_layer(linear.init(jax.random.key(0)), 0)
    projection = f.projection(0)
    phi = np.empty((7, 7))
    phi[:, np.asarray(projection.order[0])] = f.apply(params, projection, jnp.asarray(INPUTS))
    np.testing.assert_allclose(phi, np.column_stack([INPUTS, np.ones(7)]), rtol=1e-12)


def test_the_random_layer_is_of_the_seed_alone():
    other = jax.jit(found("sketch").with_random_layer)(NETWORK.init(jax.random.key(9)), 3)
    np.testing.assert_array_equal(other[-1].weight, network()[-1].weight)
    np.testing.assert_array_equal(other[-1].bias, network()[-1].bias)
    assert network()[-1].weight.shape == (1, 4)
    assert np.abs(np.concatenate([network()[-1].weight[0], network()[-1].bias])).max() <= 0.5
    assert not np.array_equal(network(4)[-1].weight, network()[-1].weight)
    np.testing.assert_array_equal(network(4)[0].weight, network()[0].weight)


@pytest.mark.parametrize("name", ["cnn", "resnet", "gru"])
def test_every_network_has_features(name):
    arguments = {
        "cnn": {"shape": [8, 8, 1], "outputs": 3},
        "resnet": {"shape": [8, 8, 1], "outputs": 3, "width": 2, "blocks": 1},
        "gru": {"vocabulary": 5, "hidden": 3},
    }[name]
    model = models.build(name, arguments)
    f = gradient_features(model, features=50)
    inputs = jnp.ones((3, 4), jnp.int32) if name == "gru" else jnp.ones((3, 8, 8, 1))
    params = jax.eval_shape(f.with_random_layer, jax.eval_shape(model.init, jax.random.key(0)), 0)
    assert f.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    phi = jax.eval_shape(f.apply, params, jax.eval_shape(f.projection, 0), inputs)
    assert phi.shape == (3, 50)


def test_scaled_features_are_standardised():
    phi = np.random.default_rng(1).normal(3, [1.0, 1e-9, 0.0, 5.0], size=(50, 4))
    mean, scale = scaling(Moments(50, phi.sum(axis=0), (phi**2).sum(axis=0)))
    np.testing.assert_allclose(mean, phi.mean(axis=0))
    scaled = (phi - mean) * scale
    np.testing.assert_allclose(scaled.std(axis=0), [0.5, 0, 0, 0.5], atol=1e-12)
    np.testing.assert_array_equal(scale[1:3], 0)  # it hardly varies


def test_rounding_is_no_variation():
    """The gradient by the last bias is the same for all rows, and others may be small."""
    phi = np.column_stack([np.full(1000, 0.1), 1e-5 * np.random.default_rng(2).normal(size=(1000, 2))])
    _, scale = scaling(Moments(1000, phi.sum(axis=0), (phi**2).sum(axis=0)))
    assert scale[0] == 0
    assert (scale[1:] > 0).all()


def test_the_linearised_model_is_the_network_at_no_change_and_linear_in_it():
    model = models.build("linearised", {"network": saved(NETWORK)})
    params = model.init(jax.random.key(2))
    inputs = jnp.asarray(INPUTS)
    at_start = np.asarray(NETWORK.apply(params["network"], inputs))
    apply = jax.jit(model.apply)
    np.testing.assert_allclose(apply(params, inputs), at_start, atol=1e-14)
    change = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), params["change"])
    once, twice = (
        np.asarray(apply({**params, "change": jax.tree.map(lambda a, c=c: c * a, change)}, inputs)) for c in (1.0, 2.0)
    )
    np.testing.assert_allclose(twice - at_start, 2 * (once - at_start), atol=1e-12)
    small = jax.tree.map(lambda a, b: a + 1e-7 * b, params["network"], change)
    slope = (np.asarray(NETWORK.apply(small, inputs)) - at_start) / 1e-7
    np.testing.assert_allclose(once - at_start, slope, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gradient_features(NETWORK, kind="all"), "no kind of features 'all'"),
        (lambda: gradient_features(NETWORK, features=0), "features is 0"),
        (lambda: gradient_features(NETWORK._replace(last=None)), "where its last layer is"),
        (lambda: gradient_features(NETWORK._replace(last=lambda params: params)), "only an equinox.nn.Linear"),
    ],
)
def test_what_has_no_features(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
