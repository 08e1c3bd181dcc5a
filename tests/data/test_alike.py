import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data.pool import alike
from equipoise.errors import InputError
from tests.problems import unequal


def pool(seed):
    data = eq.data.load("digits").flat()
    parts = eq.data.partition.dirichlet(data.labels, 5, 0.3, jax.random.key(seed)).parts
    return eq.data.pools(data, parts, key=seed, test=0.2)[0]


def shards(rows):
    whole = unequal()
    return whole._replace(
        inputs=whole.inputs[:, :rows], labels=whole.labels[:, :rows], sizes=jnp.minimum(whole.sizes, rows)
    )


@pytest.mark.parametrize("given", [[pool(0), pool(1), pool(2)], [shards(3), shards(5)]], ids=["pools", "shards"])
def test_every_client_has_its_own_rows_and_no_others(given):
    found = alike(given)
    shapes = {str(jax.tree.map(lambda a: (a.shape, a.dtype), data)) for data in found}
    assert len(shapes) == 1
    for before, after in zip(given, found, strict=True):
        assert before.n == after.n
        for i in range(before.n):
            a, b, rows = before.client(i), after.client(i), int(before.sizes[i])
            assert int(b.sizes) == rows
            np.testing.assert_array_equal(a.inputs[:rows], b.inputs[:rows])
            np.testing.assert_array_equal(a.labels[:rows], b.labels[:rows])
            assert not np.any(b.inputs[rows:])


def test_what_is_alike_stays_as_it_is_and_what_cannot_be_is_refused():
    data = shards(4)
    assert alike([data, data])[1] is data
    with pytest.raises(InputError, match="only Shards and Pools"):
        alike([data, pool(0)])
