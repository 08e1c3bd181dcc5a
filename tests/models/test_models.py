"""Every model: a batch in, a batch out, parameters that are arrays, gradients that descend."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from tests.problems import few, first

from equipoise import models
from equipoise.errors import InputError
from equipoise.models.convolution import CONVOLUTIONS
from equipoise.models.resnet import normalise

KEY = jax.random.key(0)
CASES = {
    "linear": ({"features": 12, "outputs": 3}, (4, 3), jnp.float64),
    "mlp": ({"features": 12, "hidden": [7, 5], "outputs": 3}, (12,), jnp.float64),
    "cnn": ({"shape": [8, 9, 2], "outputs": 3}, (8, 9, 2), jnp.uint8),
    "resnet": (
        {"shape": [8, 9, 2], "outputs": 3, "width": 4, "blocks": 1, "groups": 2},
        (8, 9, 2),
        jnp.uint8,
    ),
    "gru": ({"vocabulary": 3, "hidden": 6, "embedding": 4, "layers": 2}, (5,), jnp.int32),
    "convexified": (
        {"network": {"name": "mlp", "arguments": {"features": 12, "hidden": [4], "outputs": 3}}, "outputs": 3}
        | {"kind": "sketch", "features": 20, "seed": 1},
        (12,),
        jnp.float64,
    ),
    "linearised": (
        {"network": {"name": "mlp", "arguments": {"features": 12, "hidden": [4], "outputs": 3}}},
        (12,),
        jnp.float64,
    ),
}


def test_every_model_is_tested():
    of_sites = {"torch", "torch_convexified"}  # names for what sites have, see tests/deploy
    assert CASES.keys() | of_sites == models.MODELS.keys()


@pytest.mark.parametrize("name", few(["linear", "mlp", "gru"], CASES, "::test_the_contract"))
def test_the_contract(name):
    arguments, shape, dtype = CASES[name]
    model = models.build(name, json.loads(json.dumps(arguments)))
    assert (model.name, dict(model.arguments)) == (name, arguments)
    params = jax.jit(model.init)(KEY)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(params))
    inputs = jax.random.randint(jax.random.key(1), (6, *shape), 0, 3).astype(dtype)
    apply = jax.jit(model.apply)
    outputs = apply(params, inputs)
    assert outputs.shape == (6, 3)
    swapped = apply(params, inputs[::-1])  # each example by itself
    np.testing.assert_allclose(swapped[::-1], outputs, atol=1e-12)
    single = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32), params)
    assert jax.eval_shape(model.apply, single, inputs).dtype == jnp.float32

    x, unravel = ravel_pytree(params)
    labels = jnp.array([0, 1, 2, 0, 1, 2], jnp.int32)
    loss = jax.jit(jax.value_and_grad(lambda x: models.cross_entropy(model.apply(unravel(x), inputs), labels).mean()))
    before, gradient = loss(x)
    after, _ = loss(x - 1e-2 * gradient)
    assert after < before


def test_linear_is_a_matrix_and_starts_at_zero():
    model = models.linear(4, 3)
    params = jax.jit(model.init)(KEY)
    assert params.weight.shape == (3, 4)
    assert not any(leaf.any() for leaf in jax.tree.leaves(params))
    rng = np.random.default_rng(0)
    w, b, x = rng.normal(size=(3, 4)), rng.normal(size=3), rng.normal(size=(5, 2, 2))
    params = eqx.tree_at(lambda p: (p.weight, p.bias), params, (jnp.asarray(w), jnp.asarray(b)))
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x)), x.reshape(5, 4) @ w.T + b)


def test_bytes_are_scaled_and_other_integers_are_not():
    model = models.linear(2, 1)
    params = jax.tree.map(jnp.ones_like, model.init(KEY))
    values = jnp.array([[0, 255]])
    assert model.apply(params, values.astype(jnp.uint8)).tolist() == [[2.0]]
    assert model.apply(params, values).tolist() == [[256.0]]


def test_the_cnn_is_a_convolutional_network():
    """Against XLA's own convolution and equinox's own pooling."""
    model = models.cnn((9, 10), 4)
    params = jax.jit(model.init)(KEY)
    images = jax.random.normal(jax.random.key(1), (3, 9, 10))
    first, second, *layers = params
    pool = eqx.nn.MaxPool2d(2, 2)

    def one(image):
        x = pool(jax.nn.relu(first(image[None])))
        x = pool(jax.nn.relu(second(x)))
        x = jnp.moveaxis(x, 0, -1).reshape(-1)
        for layer in layers[:-1]:
            x = jax.nn.relu(layer(x))
        return layers[-1](x)

    outputs = jax.jit(model.apply)(params, images)
    np.testing.assert_allclose(outputs, jax.jit(jax.vmap(one))(images), atol=1e-12)
    np.testing.assert_array_equal(jax.jit(model.apply)(params, images[..., None]), outputs)


def test_lenet_size():
    shapes = jax.eval_shape(models.cnn((28, 28, 1), 10).init, KEY)
    size = sum(a.size for a in jax.tree.leaves(shapes))
    assert 60_000 < size < 120_000


def test_the_gru_reads_in_order():
    model = models.gru(5, 4)
    params = jax.jit(model.init)(KEY)
    cell, out = params["cells"][0], params["out"]
    h = jnp.zeros(4)
    for token in (3, 0, 2):
        h = cell(params["embedding"].weight[token], h)
    np.testing.assert_allclose(jax.jit(model.apply)(params, jnp.array([[3, 0, 2]]))[0], out(h), atol=1e-12)


def test_any_pair_of_functions_is_a_model():
    model = models.Model(lambda key: {"w": jnp.ones(2)}, lambda params, inputs: (inputs @ params["w"])[:, None])
    assert model.apply(model.init(KEY), jnp.ones((3, 2))).shape == (3, 1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: models.linear(0, 3), "features is 0"),
        (lambda: models.mlp(3, [4, 0], 3), "width of a layer is 0"),
        (lambda: models.cnn((3, 8), 2), r"shape is \(3, 8\)"),
        (lambda: models.gru(0), "vocabulary is 0"),
        (lambda: models.build("linnear", {}), "no model 'linnear'; did you mean 'linear'"),
        (
            lambda: jax.eval_shape(
                models.cnn((8, 8), 2).apply,
                jax.eval_shape(models.cnn((8, 8), 2).init, KEY),
                jnp.ones((1, 9, 8)),
            ),
            "made for",
        ),
        (
            lambda: jax.eval_shape(models.gru(3).apply, jax.eval_shape(models.gru(3).init, KEY), jnp.ones((1, 9))),
            "give integers",
        ),
    ],
)
def test_what_cannot_be_built(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_resnet_20_has_its_parameters():
    """He et al.'s 0.27 million: convolutions without biases, two numbers per channel of every norm, 1x1 shortcuts."""
    convolutions = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2)
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64)
    shortcuts, head = 16 * 32 + 32 * 64, 64 * 10 + 10
    shapes = jax.eval_shape(models.resnet((32, 32, 3), 10).init, KEY)
    count = sum(a.size for a in jax.tree.leaves(shapes))
    assert count == convolutions + norms + shortcuts + head
    outputs = jax.eval_shape(
        models.resnet((32, 32, 3), 10).apply, shapes, jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.uint8)
    )
    assert outputs.shape == (2, 10)


def test_group_norm_is_equinox_own():
    layer = eqx.nn.GroupNorm(2, 4)
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=4))
    layer = eqx.tree_at(lambda n: (n.weight, n.bias), layer, values)
    x = jnp.asarray(rng.normal(size=(2, 3, 5, 4)))
    with jax.numpy_rank_promotion("allow"):
        want = jax.vmap(layer)(jnp.moveaxis(x, -1, 1))
    np.testing.assert_allclose(normalise(layer, x), jnp.moveaxis(want, 1, -1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("size", "stride", "pool"),
    first(
        3,
        [(5, 1, False), (3, 2, False), (5, 1, True), (3, 1, False), (1, 2, False), (1, 1, True)],
        "::test_all_forms_of_a_convolution_are_one",
    ),
)
def test_all_forms_of_a_convolution_are_one(size, stride, pool):
    """And they are equinox's own."""
    layer = eqx.nn.Conv2d(3, 4, size, stride=stride, padding=size // 2, key=KEY)
    x = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))

    def own(x, weight, bias, stride, pool):
        there = eqx.tree_at(lambda l: (l.weight, l.bias), layer, (weight, bias.reshape(-1, 1, 1)))
        largest = eqx.nn.MaxPool2d(2, 2) if pool else eqx.nn.Identity()
        with jax.numpy_rank_promotion("allow"):
            return jnp.moveaxis(jax.vmap(lambda image: largest(there(image)))(jnp.moveaxis(x, -1, 1)), 1, -1)

    def total(form):
        return lambda x, weight, bias: jnp.sum(jnp.sin(form(x, weight, bias, stride, pool)))

    given = x, layer.weight, layer.bias.ravel()
    found = [jax.jit(jax.value_and_grad(total(form), (0, 1, 2)))(*given) for form in (own, *CONVOLUTIONS.values())]
    for one in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), one, found[0])
