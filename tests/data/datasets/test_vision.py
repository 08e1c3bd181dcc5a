import gzip
import hashlib
import os
import pickle
import struct
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits

from equipoise.data import catalogue, vision
from equipoise.errors import InputError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch):
    """The tests see only what they write, also where Debian's package is installed."""
    for name, entry in catalogue.CATALOGUE.items():
        elsewhere = tuple(folder for folder in entry.elsewhere if not folder.startswith("/"))
        monkeypatch.setitem(catalogue.CATALOGUE, name, entry._replace(elsewhere=elsewhere))


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, *, train="train", test="t10k", suffix=".gz", classes=10, first=0):
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for part, n in ((train, 12), (test, 7)):
        images = RNG.integers(0, 256, (n, 28, 28), np.uint8)
        labels = (first + np.arange(n) % classes).astype(np.uint8)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            body = gzip.compress(idx(array)) if suffix else idx(array)
            (folder / f"{name}{suffix}").write_bytes(body)
        out.append((images, labels))
    return out


def test_digits_are_always_there():
    data = vision.digits()
    assert data.inputs.shape == (1797, 8, 8, 1)
    assert data.inputs.max() * data.scale == 1
    assert data.test_inputs is None
    rows = np.concatenate([data.inputs.reshape(1797, 64), data.labels[:, None]], axis=1)
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())  # as UCI publishes them
    assert (
        hashlib.sha256(lines.encode()).hexdigest() == "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
    )
    same = load_digits()
    np.testing.assert_array_equal(data.inputs[..., 0], same.images)
    np.testing.assert_array_equal(data.labels, same.target)


def test_without_pillow_a_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for part in ("train", "val"):
        (tmp_path / "tiny-imagenet" / part / "n1/images").mkdir(parents=True)
        (tmp_path / "tiny-imagenet" / part / "n1/images/a.jpeg").touch()
    with pytest.raises(
        InputError, match=r"images in files of their own need .*\(PIL\): pip install 'equipoise\[data\]'"
    ):
        vision.tiny_imagenet(data_dir=tmp_path)


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize(("loader", "folder"), [("mnist", "mnist"), ("fashion_mnist", "FashionMNIST/raw")])
def test_idx_files(tmp_path, loader, folder, suffix):
    (images, labels), (test_images, test_labels) = write_idx(tmp_path / folder, suffix=suffix)
    data = getattr(vision, loader)(data_dir=tmp_path)
    np.testing.assert_array_equal(data.inputs[..., 0], images)
    np.testing.assert_array_equal(data.labels, labels)
    np.testing.assert_array_equal(data.test_inputs[..., 0], test_images)
    np.testing.assert_array_equal(data.test_labels, test_labels)
    assert data.inputs.dtype == np.uint8
    assert len(data.classes) == 10
    assert data.scale == 1 / 255
    if not suffix:
        assert isinstance(data.inputs, np.memmap)


def test_idx_of_other_types(tmp_path):
    numbers = np.array([[1.5, -2.0]])
    path = tmp_path / "a-idx2-double"
    path.write_bytes(struct.pack(">HBB2I", 0, 14, 2, 1, 2) + numbers.astype(">f8").tobytes())
    np.testing.assert_array_equal(vision.read_idx(path), numbers)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda b: b[:-1], "announced"),
        (lambda b: b"", "out of bounds|empty"),
        (lambda b: b"PK" + b[2:], "magic number"),
        (lambda b: b[:7], ""),
    ],
)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_damaged_idx_files_are_named(tmp_path, spoil, why, suffix):
    write_idx(tmp_path / "mnist", suffix=suffix)
    path = tmp_path / "mnist" / f"t10k-images-idx3-ubyte{suffix}"
    body = path.read_bytes()
    path.write_bytes(gzip.compress(spoil(gzip.decompress(body))) if suffix else spoil(body))
    with pytest.raises(InputError, match=rf"t10k-images-idx3-ubyte{suffix} cannot be read \(.*({why})"):
        vision.mnist(data_dir=tmp_path)


def test_a_cut_gzip_file_is_named(tmp_path):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        vision.mnist(data_dir=tmp_path)


def test_labels_and_images_that_do_not_belong_together(tmp_path):
    write_idx(tmp_path / "mnist", classes=11)
    with pytest.raises(InputError, match="labels from 0 to 10 for 10 classes"):
        vision.mnist(data_dir=tmp_path)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
    with pytest.raises(InputError, match=r"images of shape \(12, 28, 28\), labels of shape \(5,\)"):
        vision.mnist(data_dir=tmp_path)


def test_missing_files_say_where_to_put_them(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"put train-images-idx3-ubyte\.gz, .* into .*/fashion-mnist, or install"):
        vision.fashion_mnist(data_dir=tmp_path)
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "elsewhere"))
    for loader in (vision.mnist, vision.emnist, vision.cifar10, vision.cifar100, vision.tiny_imagenet):
        with pytest.raises(InputError, match=r"was not found: put .* into .*/elsewhere/"):
            loader()


def test_the_folder_itself_may_be_given(tmp_path):
    write_idx(tmp_path)
    assert len(vision.mnist(data_dir=tmp_path).labels) == 12


@pytest.mark.parametrize(("split", "classes", "first"), [("balanced", 47, 0), ("letters", 26, 1), ("byclass", 62, 0)])
def test_emnist_idx_is_turned_upright(tmp_path, split, classes, first):
    parts = {"train": f"emnist-{split}-train", "test": f"emnist-{split}-test"}
    (images, labels), _ = write_idx(tmp_path / "emnist" / "gzip", **parts, classes=classes, first=first)
    data = vision.emnist(split=split, data_dir=tmp_path)
    np.testing.assert_array_equal(data.inputs[3, :, :, 0], images[3].T)
    np.testing.assert_array_equal(data.labels, labels - first)
    assert len(data.classes) == classes
    assert data.groups is None


def write_mat(path, first=1):
    def part(n, writers):
        images = RNG.integers(0, 256, (n, 784), np.uint8)
        labels = (first + np.arange(n) % 26).astype(np.uint8)[:, None]
        return {"images": images, "labels": labels, "writers": np.array(writers)[:, None]}

    parts = {"train": part(4, [7, 9, 7, 3]), "test": part(2, [9, 11]), "mapping": np.zeros((26, 3))}
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"dataset": parts})
    return parts


def test_emnist_mat_names_the_writers(tmp_path):
    parts = write_mat(tmp_path / "emnist" / "matlab" / "emnist-letters.mat")
    data = vision.emnist(split="letters", data_dir=tmp_path)
    np.testing.assert_array_equal(data.inputs[2, :, :, 0], parts["train"]["images"][2].reshape(28, 28).T)
    assert data.labels.tolist() == [0, 1, 2, 3]
    assert [data.group_names[g] for g in data.groups] == ["7", "9", "7", "3"]
    assert [data.group_names[g] for g in data.test_groups] == ["9", "11"]


def test_damaged_mat_files_are_named(tmp_path):
    path = tmp_path / "emnist" / "emnist-letters.mat"
    write_mat(path, first=25)
    with pytest.raises(InputError, match=r"emnist-letters\.mat cannot be read \(labels from 25 to 28"):
        vision.emnist(split="letters", data_dir=tmp_path)
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(InputError, match=r"emnist-letters\.mat cannot be read"):
        vision.emnist(split="letters", data_dir=tmp_path)
    with pytest.raises(InputError, match="did you mean 'letters'"):
        vision.emnist(split="leters", data_dir=tmp_path)


def cifar_rows(n):
    images = RNG.integers(0, 256, (n, 32, 32, 3), np.uint8)
    return images, images.transpose(0, 3, 1, 2).reshape(n, 3072)


def write_cifar10(folder, binary):
    folder.mkdir(parents=True)
    kept = []
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        images, rows = cifar_rows(3)
        labels = [9, 0, 4]
        if binary:
            records = np.concatenate([np.array(labels, np.uint8)[:, None], rows], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            table = {
                b"batch_label": b"made up",
                b"labels": labels,
                b"data": rows,
                b"filenames": [b"a.png"] * 3,
            }
            (folder / name).write_bytes(pickle.dumps(table, protocol=2))
        kept.append(images)
    return kept


@pytest.mark.parametrize(
    ("binary", "folder"), [(False, "cifar-10-batches-py"), (True, "cifar-10/cifar-10-batches-bin")]
)
def test_cifar10(tmp_path, binary, folder):
    images = write_cifar10(tmp_path / folder, binary)
    data = vision.cifar10(data_dir=tmp_path)
    np.testing.assert_array_equal(data.inputs, np.concatenate(images[:5]))
    np.testing.assert_array_equal(data.test_inputs, images[5])
    assert data.labels.tolist() == [9, 0, 4] * 5
    assert data.classes[9] == "truck"


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100(tmp_path, binary):
    folder = tmp_path / "cifar-100"
    folder.mkdir()
    fine, coarse = [f"fine{i}" for i in range(100)], [f"coarse{i}" for i in range(20)]
    kept = []
    for name in ("train", "test"):
        images, rows = cifar_rows(3)
        if binary:
            columns = np.array([[1, 99], [19, 0], [3, 50]], np.uint8)
            (folder / f"{name}.bin").write_bytes(np.concatenate([columns, rows], axis=1).tobytes())
        else:
            table = {b"coarse_labels": [1, 19, 3], b"fine_labels": [99, 0, 50], b"data": rows}
            (folder / name).write_bytes(pickle.dumps(table, protocol=2))
        kept.append(images)
    if binary:
        (folder / "fine_label_names.txt").write_text("\n".join(fine) + "\n")
        (folder / "coarse_label_names.txt").write_text("\n".join(coarse) + "\n")
    else:
        names = {
            b"fine_label_names": [f.encode() for f in fine],
            b"coarse_label_names": [c.encode() for c in coarse],
        }
        (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    data = vision.cifar100(data_dir=tmp_path)
    np.testing.assert_array_equal(data.inputs, kept[0])
    np.testing.assert_array_equal(data.test_inputs, kept[1])
    assert data.labels.tolist() == [99, 0, 50]
    assert [data.group_names[g] for g in data.groups] == ["coarse1", "coarse19", "coarse3"]
    assert data.classes == tuple(fine)


class Runs:
    def __reduce__(self):
        return os.system, ("echo this must not run",)


@pytest.mark.parametrize("harm", [Runs(), [np.float64, eval]])
def test_pickles_that_could_run_are_refused(tmp_path, harm, capfd):
    write_cifar10(tmp_path / "cifar-10", binary=False)
    path = tmp_path / "cifar-10" / "data_batch_2"
    path.write_bytes(pickle.dumps({b"labels": [1], b"data": harm}, protocol=2))
    with pytest.raises(InputError, match=r"data_batch_2 cannot be read \(it asks for .*, which pictures do not need"):
        vision.cifar10(data_dir=tmp_path)
    assert capfd.readouterr().out == ""


def test_python_2_pickles_with_the_old_numpy_names(tmp_path):
    write_cifar10(tmp_path / "cifar-10", binary=False)
    path = tmp_path / "cifar-10" / "data_batch_1"
    old = path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    path.write_bytes(old)
    assert len(vision.cifar10(data_dir=tmp_path).labels) == 15


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"nonsense", ""),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickle.dumps({b"labels": [1]}), "it has no data"),
        (
            pickle.dumps({b"labels": [1], b"data": np.zeros((2, 3072), np.uint8)}),
            r"1 labels for data of shape \(2",
        ),
        (
            pickle.dumps({b"labels": [10], b"data": np.zeros((1, 3072), np.uint8)}),
            "from 10 to 10 for 10 classes",
        ),
    ],
)
def test_damaged_cifar_files_are_named(tmp_path, body, why):
    write_cifar10(tmp_path / "cifar-10", binary=False)
    (tmp_path / "cifar-10" / "test_batch").write_bytes(body)
    with pytest.raises(InputError, match=rf"test_batch cannot be read \(.*{why}"):
        vision.cifar10(data_dir=tmp_path)


def test_cut_binary_cifar_files_are_named(tmp_path):
    write_cifar10(tmp_path / "cifar-10", binary=True)
    path = tmp_path / "cifar-10" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data_batch_3\.bin cannot be read"):
        vision.cifar10(data_dir=tmp_path)


def write_tiny(folder, annotated=True):
    colours = {"n02": (200, 10, 10), "n01": (10, 200, 10)}
    for wnid, colour in colours.items():
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (64, 64), colour).save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
    Image.new("L", (64, 64), 77).save(folder / "train" / "n01" / "images" / "n01_9.JPEG")
    at = folder / "val" / "images" if annotated else folder / "val" / "n02"
    at.mkdir(parents=True)
    Image.new("RGB", (64, 64), colours["n02"]).save(at / "val_0.JPEG")
    if annotated:
        (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t62\t62\n")


@pytest.mark.parametrize("annotated", [True, False])
def test_tiny_imagenet(tmp_path, annotated):
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny(folder, annotated)
    data = vision.tiny_imagenet(data_dir=tmp_path)
    assert data.classes == ("n01", "n02")
    assert data.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.test_labels.tolist() == [1]
    assert data.inputs.shape == (5, 64, 64, 3)
    assert np.abs(data.inputs[2].astype(int) - 77).max() <= 2  # grey in all three channels
    assert abs(int(data.test_inputs[0, 5, 5, 0]) - 200) <= 3
    for image in folder.glob("train/*/images/*"):
        image.write_bytes(b"gone")  # the second time the kept pixels are mapped
    again = vision.tiny_imagenet(data_dir=tmp_path)
    assert isinstance(again.inputs, np.memmap)
    np.testing.assert_array_equal(again.inputs, data.inputs)


def test_damaged_tiny_imagenet_is_named(tmp_path):
    folder = tmp_path / "tiny-imagenet"
    write_tiny(folder)
    small = folder / "train" / "n02" / "images" / "n02_0.JPEG"
    Image.new("RGB", (32, 32)).save(small)
    with pytest.raises(InputError, match=r"n02_0\.JPEG cannot be read"):
        vision.tiny_imagenet(data_dir=tmp_path)
    small.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"n02_0\.JPEG cannot be read"):
        vision.tiny_imagenet(data_dir=tmp_path)
    assert not list(folder.glob("*.part"))
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\n")
    with pytest.raises(InputError, match="names a class"):
        vision.tiny_imagenet(data_dir=tmp_path)


def test_the_real_fashion_mnist(monkeypatch):
    monkeypatch.undo()
    if catalogue.where("fashion-mnist") is None:
        pytest.skip("Fashion-MNIST is not installed (Debian: dataset-fashion-mnist)")
    data = vision.fashion_mnist()
    assert np.array_equal(np.bincount(data.labels), [6000] * 10)
    assert np.array_equal(np.bincount(data.test_labels), [1000] * 10)
    assert abs(data.inputs.mean() / 255 - 0.2860) < 1e-4  # the mean everybody normalises with
