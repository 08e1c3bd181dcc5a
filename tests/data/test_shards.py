import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.data.shards import aligned_zeros
from equipoise.errors import InputError


def test_pads_unequal_clients_and_keeps_their_sizes():
    shards = eq.data.stack([(np.ones((2, 3)), np.array([1.0, 2.0])), (2 * np.ones((4, 3)), np.arange(4.0))])
    assert shards.n == 2
    assert shards.inputs.shape == (2, 4, 3)
    assert shards.sizes.tolist() == [2, 4]
    assert shards.labels.tolist() == [[1, 2, 0, 0], [0, 1, 2, 3]]
    assert not shards.inputs[0, 2:].any()
    one = shards.client(1)
    assert one.inputs.shape == (4, 3)
    assert int(one.sizes) == 4


def test_keeps_the_type():
    for dtype in (np.float32, np.float64, np.int32, np.uint8):
        shards = eq.data.stack([(np.ones((2, 3), dtype), np.zeros(2, np.int32))])
        assert shards.inputs.dtype == dtype
        assert shards.labels.dtype == np.int32


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "no clients were given"),
        ([(np.ones((2, 3)), np.ones(2)), (np.ones((0, 3)), np.ones(0))], "client 1 has no examples"),
        ([(np.ones((2, 3)), np.ones(3))], "client 0 has 2 inputs but 3 labels"),
        ([(np.ones((2, 3)), np.ones(2)), (np.ones((2, 4)), np.ones(2))], r"inputs of shape \(4,\) per example"),
        ([(np.ones((2, 3)), np.ones((2, 1))), (np.ones((2, 3)), np.ones(2))], r"labels of shape \(\) per example"),
        ([(np.full((2, 3), np.nan), np.ones(2))], "client 0 has inputs that are NaN or infinite"),
        ([(np.ones((2, 3)), np.array([1, np.inf]))], "client 0 has labels that are NaN or infinite"),
    ],
)
def test_says_what_is_wrong(clients, sentence):
    with pytest.raises(InputError, match=sentence):
        eq.data.stack(clients)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_lies_aligned_is_not_copied(dtype):
    held = aligned_zeros((3, 1001), dtype)
    on_device = jax.device_put(held, jax.devices("cpu")[0])
    assert on_device.unsafe_buffer_pointer() == held.ctypes.data
    assert not held.any()
