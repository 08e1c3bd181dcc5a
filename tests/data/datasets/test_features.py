import numpy as np
import pytest
from safetensors.numpy import save_file

from equipoise.data import catalogue, features
from equipoise.data.pool import pools
from equipoise.errors import InputError

RNG = np.random.default_rng(0)


def arrays(**more):
    return {
        "inputs": RNG.normal(size=(6, 3)).astype(np.float32),
        "labels": np.array([0, 1, 2, 0, 1, 2]),
    } | more


def write(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **table)
    elif path.suffix == ".safetensors":
        save_file(table, path)
    else:
        for name, a in table.items():
            np.save(path.with_name(path.name.replace("inputs", name)), a)
    return path


@pytest.mark.parametrize("file", ["net.npz", "net.safetensors", "net-inputs.npy"])
def test_every_format(tmp_path, file):
    tests = {"test_inputs": np.ones((2, 3), np.float32), "test_labels": np.array([2, 1])}
    table = arrays(**tests, groups=np.array([0, 0, 1, 1, 1, 0]))
    data = features.read(write(tmp_path / file, table))
    np.testing.assert_array_equal(data.inputs, table["inputs"])
    np.testing.assert_array_equal(data.labels, table["labels"])
    np.testing.assert_array_equal(data.test_inputs, table["test_inputs"])
    assert data.test_labels.tolist() == [2, 1]
    assert data.classes == ("0", "1", "2")
    assert data.group_names == ("0", "1")
    assert data.scale is None
    if file.endswith(".npy"):
        assert isinstance(data.inputs, np.memmap)


def test_quantised_features_stay_small(tmp_path):
    table = {
        "train_inputs": np.arange(12, dtype=np.uint8).reshape(4, 3),
        "train_labels": np.array([0, 1, 0, 1], np.uint8),
        "test_inputs": np.zeros((2, 3), np.uint8),
        "test_labels": np.array([1, 0], np.uint8),
        "scale": np.array([0.5, 1.0, 2.0], np.float32),
        "offset": np.array([0.0, -1.0, 5.0], np.float32),
    }
    write(tmp_path / "features" / "tiny.npz", table)
    data = catalogue.load("tiny.npz", data_dir=tmp_path)  # found in the folder `features`
    assert data.inputs.dtype == np.uint8
    train, test = pools(data, [np.arange(4)], key=0)
    assert train.inputs.dtype == np.uint8
    wanted = table["train_inputs"] * table["scale"] + table["offset"]
    np.testing.assert_allclose(train.client(0).inputs, wanted)
    np.testing.assert_allclose(test.client(0).inputs, np.tile(table["offset"], (2, 1)))


def test_numbers_to_predict(tmp_path):
    data = features.read(write(tmp_path / "a.npz", arrays(labels=np.linspace(0, 1, 6))))
    assert data.classes == ()
    assert data.labels.dtype == np.float64


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"x": np.zeros(3)}, "it needs inputs and labels .* and has x"),
        (arrays(labels=np.zeros(5, int)), r"shapes \(6, 3\) and \(5,\)"),
        (arrays(labels=np.array([0, 1, 2, 0, 1, -1])), "labels has -1"),
        (arrays(inputs=np.full((6, 3), np.inf)), "inputs has values that are NaN or infinite"),
        (arrays(inputs=np.full((6, 3), "a")), "is of type <U1"),
        (arrays(test_inputs=np.zeros((2, 3))), r"shapes \(2, 3\) and None"),
        (
            arrays(test_inputs=np.zeros((2, 4)), test_labels=np.zeros(2, int)),
            r"test features of shape \(4,\)",
        ),
        (arrays(scale=np.ones(2)), r"scale has shape \(2,\), the features \(3,\)"),
        (arrays(groups=np.zeros(6)), "groups are not one number"),
        (arrays(inputs=np.array([[object()] * 3] * 6)), "allow_pickle"),
    ],
)
def test_what_cannot_be_used(tmp_path, table, why):
    with pytest.raises(InputError, match=rf"a\.npz cannot be read \({why}|a\.npz cannot be read \(.*{why}"):
        features.read(write(tmp_path / "a.npz", table))


@pytest.mark.parametrize("file", ["a.npz", "a.safetensors", "inputs.npy"])
def test_damaged_files_are_named(tmp_path, file):
    path = write(tmp_path / file, arrays())
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(InputError, match=rf"{file} cannot be read"):
        features.read(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=rf"{file} cannot be read"):
        features.read(path)


def test_names_and_places(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.npz was not found: put it into .*features"):
        features.read("nowhere.npz", data_dir=tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"call it inputs\.npy"):
        features.read(tmp_path / "x.npy")
    with pytest.raises(InputError, match="give its path"):
        features.read(None)


def test_the_real_features():
    path = catalogue.root() / "features" / "tiny-imagenet-efficientnet-lite0.npz"
    if not path.is_file():
        pytest.skip("the Tiny ImageNet features are not in the data directory (set EQUIPOISE_DATA)")
    data = features.read(path)
    assert data.inputs.shape == (100_000, 256)
    assert data.test_inputs.shape == (10_000, 256)
    assert len(data.classes) == 200
