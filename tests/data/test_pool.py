import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.data import partition, pool
from equipoise.data.datasets.catalogue import Dataset
from equipoise.data.pool import federate, natural, pools
from equipoise.data.shards import stack
from equipoise.errors import InputError

PARTS = [np.array([4, 0]), np.array([1]), np.array([2, 3, 5, 7]), np.array([6])]


def example(dtype=np.float64):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (8, 3, 2)).astype(dtype), rng.integers(0, 4, 8)


def test_a_pool_is_the_padded_shards():
    inputs, labels = example()
    pool = federate(inputs, labels, PARTS)
    shards = stack([(inputs[rows], labels[rows].astype(np.int32)) for rows in PARTS])
    assert pool.n == shards.n == 4
    assert pool.capacity == 4
    for i in range(4):
        jax.tree.map(np.testing.assert_array_equal, pool.client(i), shards.client(i))
    jax.tree.map(np.testing.assert_array_equal, pool.padded(), shards)
    assert pool.inputs.shape == inputs.shape  # every row once, nothing padded


def test_a_traced_client_is_the_same_client_and_compiles_once():
    inputs, labels = example(np.uint8)
    pool = federate(inputs, labels, PARTS, scale=1 / 255)
    traces = []

    @jax.jit
    def shard(pool, i):
        traces.append(i)
        return pool.client(i)

    for i in range(4):
        jax.tree.map(np.testing.assert_allclose, shard(pool, i), pool.client(i))
    assert len(traces) == 1
    both = jax.vmap(pool.client)(jnp.array([2, 0]))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b), both, pool.client(0))


def test_capacity_is_static_and_the_rest_are_leaves():
    pool = federate(*example(), PARTS)
    leaves, tree = jax.tree.flatten(pool)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert jax.tree.unflatten(tree, leaves).capacity == 4


def test_pixels_stay_small_until_a_client_reads_them():
    inputs, labels = example(np.uint8)
    offset, scale = np.arange(6.0).reshape(3, 2), np.linspace(0.1, 0.6, 6).reshape(3, 2)
    pool = federate(inputs, labels, PARTS, scale=scale, offset=offset)
    assert pool.inputs.dtype == jnp.uint8
    shard = pool.client(2)
    assert shard.inputs.dtype == jnp.float64
    np.testing.assert_allclose(shard.inputs, inputs[PARTS[2]] * scale + offset)
    single = federate(inputs, labels, PARTS, scale=1 / 255, dtype=jnp.float32).client(1)
    assert single.inputs.dtype == jnp.float32
    assert np.all(np.asarray(single.inputs[1:]) == 0)  # padding is zero, not another client's example


def test_tokens_stay_integers():
    inputs, labels = example(np.uint8)
    assert federate(inputs, labels, PARTS).client(0).inputs.dtype == jnp.uint8


def test_numbers_to_predict_become_floats():
    inputs, _ = example(np.float32)
    shard = federate(inputs, np.arange(8, dtype=np.float32), PARTS).client(0)
    assert shard.inputs.dtype == shard.labels.dtype == jnp.float64


def test_fashion_mnist_sized_data_over_unequal_clients_fit():
    labels = np.arange(60_000) % 10
    images = np.zeros((60_000, 28, 28, 1), np.uint8)
    parts, summary = partition.dirichlet(labels, 100, 0.1, 0)
    pool = federate(images, labels, parts, scale=1 / 255)
    assert summary.sizes.max() > 3 * summary.sizes.mean()  # unequal, so that padding would be costly
    assert pool.nbytes <= 2 * images.size * 4
    assert pool.nbytes <= 1.1 * images.size


def test_ten_thousand_small_clients():
    labels = np.arange(60_000) % 10
    inputs = np.arange(60_000, dtype=np.float32)[:, None]
    parts = partition.quantity(labels, 10_000, 3.0, 0, min_size=2).parts
    pool = federate(inputs, labels, parts)
    sums = jax.jit(lambda pool: jax.lax.map(lambda i: jnp.sum(pool.client(i).inputs), jnp.arange(pool.n)))(pool)
    np.testing.assert_array_equal(sums, [inputs[rows].sum() for rows in parts])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parts": []}, "no clients were given"),
        ({"parts": [[0], [], []]}, "client 1 has no samples, nor have 1 others"),
        ({"parts": [[0], [8]]}, "row 8 of 8"),
        ({"parts": [[0], [-1]]}, "negative"),
        ({"labels": np.zeros(7)}, "8 inputs but 7 labels"),
        ({"inputs": np.full((8, 2), np.nan)}, "some inputs are NaN"),
    ],
)
def test_what_cannot_be_pooled(change, sentence):
    inputs, labels = example()
    given = {"inputs": inputs, "labels": labels, "parts": PARTS} | change
    with pytest.raises(InputError, match=sentence):
        federate(**given)


def dataset(**more):
    labels = np.tile(np.arange(4), 50)
    return Dataset("made", np.arange(200, dtype=np.uint8)[:, None], labels, tuple("abcd"), scale=0.5, **more)


def test_pools_split_what_has_no_official_test_set():
    data = dataset()
    parts = partition.iid(data.labels, 5, 0).parts
    train, test = pools(data, parts, key=1)
    assert np.array_equal(train.sizes, [32] * 5)
    assert np.array_equal(test.sizes, [8] * 5)
    for i, rows in enumerate(parts):
        seen = np.concatenate([np.asarray(p.client(i).inputs[:, 0]) for p in (train, test)])
        assert set(seen) == set(rows * 0.5)


def test_pools_thin_the_training_parts_alone():
    data = dataset()
    train, test = pools(data, partition.iid(data.labels, 10, 0).parts, key=1, thin=(0.3, 0.7))
    assert sorted(np.asarray(train.sizes).tolist()) == [5] * 3 + [16] * 7
    assert np.array_equal(test.sizes, [4] * 10)


def test_pools_follow_the_official_test_set():
    data = dataset(test_inputs=np.arange(40, dtype=np.uint8)[:, None], test_labels=np.tile(np.arange(4), 10))
    train, test = pools(data, partition.one_class(data.labels, 4, 0).parts, key=0)
    assert np.array_equal(train.sizes, [50] * 4)
    assert all(np.all(test.client(i).labels == i) for i in range(4))


def test_natural_owners():
    groups = np.repeat([0, 1, 2, 3], [90, 60, 45, 5])
    tests = {
        "test_inputs": np.arange(20, dtype=np.uint8)[:, None],
        "test_labels": np.tile(np.arange(4), 5),
        "test_groups": np.repeat([0, 1, 3], [10, 5, 5]),
    }
    data = dataset(groups=groups, group_names=("north", "south", "east", "west"), **tests)
    train, test = natural(data)  # west is too small, east has no test rows
    assert train.summary.clients == test.summary.clients == ("north", "south")
    pool, tested = pools(data, train.parts, test_parts=test.parts, key=0)
    assert np.array_equal(pool.sizes, [90, 60])
    assert np.array_equal(tested.sizes, [10, 5])
    alone, none = natural(data._replace(test_inputs=None, test_labels=None, test_groups=None), min_size=1)
    assert alone.summary.clients == ("east", "north", "south", "west")
    assert none is None
    with pytest.raises(InputError, match="names no owners"):
        natural(dataset())


def test_flat_data_sets_have_vectors():
    images = Dataset("made", np.zeros((5, 4, 4, 3), np.uint8), np.zeros(5, int), ("a",), scale=np.ones((4, 4, 3)))
    assert images.flat().inputs.shape == (5, 48)
    assert images.flat().scale.shape == (48,)
    assert images.flat().test_inputs is None
    shard = pool.pools(images.flat(), [np.arange(5)], key=0)[0].client(0)
    assert shard.inputs.shape == (4, 48)
