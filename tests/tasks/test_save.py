"""Models of a task as files, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError

PARAMS = {"w": np.arange(4.0), "b": np.asarray(0.5)}
TREE = eq.tasks.task_of(lambda key: jax.tree.map(jnp.asarray, PARAMS), loss=lambda params, batch: jnp.zeros(()))
RIDGE = eq.tasks.ridge(4, 0.1)


def test_a_model_comes_back_in_its_form_and_to_the_bit(tmp_path):
    for given in (PARAMS, TREE.ravel(PARAMS)):
        TREE.save(given, tmp_path / "model.safetensors")
        back = TREE.load(tmp_path / "model.safetensors")
        assert back.keys() == PARAMS.keys()
        assert all(np.array_equal(back[name], PARAMS[name]) for name in PARAMS)
    RIDGE.save(np.float32([1, 2, 3, 4]), str(tmp_path / "flat"))
    flat = RIDGE.load(tmp_path / "flat")
    assert (flat.dtype, flat.tolist()) == (np.float32, [1, 2, 3, 4])


def test_says_what_is_wrong(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match=r"the model has shape \(3,\), and 'ridge' is over 4 numbers"):
        RIDGE.save(np.zeros(3), file)
    with pytest.raises(InputError, match="holds NaN or infinity"):
        RIDGE.save(np.full(4, np.nan), file)
    with pytest.raises(InputError, match="there is no file"):
        RIDGE.load(file)
    RIDGE.save(np.zeros(4), file)
    with pytest.raises(InputError, match="is no model of the task 'model' over 5 numbers"):
        TREE.load(file)
    with pytest.raises(InputError, match="is no model of the task 'ridge' over 5 numbers"):
        eq.tasks.ridge(5, 0.1).load(file)
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read as a saved model"):
        RIDGE.load(file)
