"""Images, read as their authors publish them: [height, width, channels], 8 bits, mapped where possible."""

import gzip
import math
import pickle
import string
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from equipoise.data.dataset import Dataset
from equipoise.data.datasets import catalogue
from equipoise.data.datasets.catalogue import Where, damaged, reading
from equipoise.errors import needs, not_none, one_of, require

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int32]
PIXEL = 1 / 255
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"  # other letters look alike in both cases
EMNIST = {
    "balanced": MERGED,
    "bymerge": MERGED,
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "letters": string.ascii_uppercase,
    "digits": string.digits,
    "mnist": string.digits,
}


def digits() -> Dataset:
    """8 x 8 digits, a file of this package, a line of 64 pixels and the digit for each; no official test set.

    It is `optdigits.tes` of UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak 1998, CC BY 4.0,
    doi:10.24432/C50P49), unchanged; scikit-learn's `load_digits` holds the same rows.
    """
    with gzip.open(Path(__file__).with_name("optdigits.tes.gz"), "rt") as file:
        rows = np.loadtxt(file, np.uint8, delimiter=",")
    images, labels = rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
    return Dataset("digits", images, labels, tuple(string.digits), scale=1 / 16)


def mnist(*, data_dir: Where = None, download: bool = False) -> Dataset:
    return _idx_set("mnist", tuple(string.digits), data_dir, download)


def fashion_mnist(*, data_dir: Where = None, download: bool = False) -> Dataset:
    return _idx_set("fashion-mnist", FASHION, data_dir, download)


def emnist(*, split: str = "balanced", data_dir: Where = None, download: bool = False) -> Dataset:
    """From the .mat file, which names the writers (they are the groups), or from the idx files."""
    one_of("EMNIST split", split, EMNIST)
    classes = tuple(EMNIST[split])
    first = 1 if split == "letters" else 0  # the authors count letters from 1
    mat = catalogue.seek("emnist", f"emnist-{split}.mat", data_dir=data_dir)
    if mat is not None:
        data = _emnist_mat(mat, classes, first)
    else:
        parts = f"emnist-{split}-train", f"emnist-{split}-test"
        data = _idx_set("emnist", classes, data_dir, download, *parts, first=first)

    # The files hold columns where rows should be.
    inputs, test_inputs = (np.swapaxes(images, 1, 2) for images in (data.inputs, not_none(data.test_inputs)))
    return data._replace(name=f"emnist-{split}", inputs=inputs, test_inputs=test_inputs)


def cifar10(*, data_dir: Where = None, download: bool = False) -> Dataset:
    """The python files, or the binary ones."""
    parts = []
    for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        path = catalogue.find("cifar-10", file, f"{file}.bin", data_dir=data_dir, download=download)
        parts.append(_cifar(path, {b"labels": 10}))
    images = np.concatenate([images for images, _ in parts[:-1]])
    labels = np.concatenate([columns[0] for _, columns in parts[:-1]])
    test_images, (test_labels,) = parts[-1]
    return Dataset("cifar-10", images, labels, CIFAR, test_images, test_labels, scale=PIXEL)


def cifar100(*, data_dir: Where = None, download: bool = False) -> Dataset:
    """The python files, or the binary ones; the groups are the 20 coarse labels."""
    options: dict[str, Any] = {"data_dir": data_dir, "download": download}
    files = [catalogue.find("cifar-100", part, f"{part}.bin", **options) for part in ("train", "test")]
    train, tested = (_cifar(file, {b"coarse_labels": 20, b"fine_labels": 100}) for file in files)
    (images, (groups, labels)), (test_images, (test_groups, test_labels)) = train, tested
    path = catalogue.find("cifar-100", "meta", "fine_label_names.txt", data_dir=data_dir)
    if path.name == "meta":
        columns = _unpickled(path, b"fine_label_names", b"coarse_label_names")
        fine, coarse = (tuple(name.decode() for name in column) for column in columns)
    else:
        fine = tuple(path.read_text().split())
        beside = path.with_name("coarse_label_names.txt")
        coarse = tuple(beside.read_text().split() if beside.is_file() else map(str, range(20)))
    tests = test_images, test_labels
    return Dataset("cifar-100", images, labels, fine, *tests, groups, test_groups, coarse, scale=PIXEL)


def tiny_imagenet(*, data_dir: Where = None, download: bool = False) -> Dataset:
    """Classes are the directory names in their order (WordNet numbers); grey images become colour.

    The validation set, with its annotation file or a folder per class, is the test set. Decoding takes
    minutes, so the pixels are kept in train-pixels.npy and val-pixels.npy beside the images, where that may
    be written, and mapped from there the next time; delete these two files if the images change.
    """
    folder = catalogue.folder_of("tiny-imagenet", data_dir, download)
    classes = tuple(sorted(f.name for f in folder.glob("train/*") if f.is_dir()))
    train = _listed(folder / "train", classes)
    notes = folder / "val" / "val_annotations.txt"
    if notes.is_file():
        rows = [line.split("\t") for line in notes.read_text().splitlines() if line.strip()]
        if any(len(row) < 2 or row[1] not in classes for row in rows):
            raise damaged(notes, "it names a class that has no training folder")
        test = [(folder / "val" / "images" / row[0], classes.index(row[1])) for row in rows]
    else:
        test = _listed(folder / "val", classes)
    require(train and test, f"{folder} lacks images in train or val; unpack tiny-imagenet-200.zip again")
    inputs, test_inputs = (
        _decoded([path for path, _ in some], folder / f"{part}-pixels.npy")
        for part, some in (("train", train), ("val", test))
    )
    labels, test_labels = (np.array([y for _, y in some], np.int32) for some in (train, test))
    return Dataset("tiny-imagenet", inputs, labels, classes, test_inputs, test_labels, scale=PIXEL)


def read_idx(path: Path) -> np.ndarray:
    """An idx file, mapped if it is not compressed."""
    with reading(path, OSError, EOFError, ValueError, IndexError, zlib.error):
        raw: Any = (
            np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
            if path.suffix == ".gz"
            else np.memmap(path, np.uint8, "r")
        )
        kind, axes = int(raw[2]), int(raw[3])
        if raw[0] or raw[1] or kind not in IDX_TYPES:
            raise ValueError(f"it begins with {bytes(raw[:4]).hex()}, which is not an idx magic number")
        shape = tuple(int(s) for s in raw[4 : 4 + 4 * axes].view(">u4"))
        body, dtype = raw[4 + 4 * axes :], np.dtype(IDX_TYPES[kind])
        announced = math.prod(shape) * dtype.itemsize
        if body.size != announced:
            raise ValueError(f"{announced} bytes are announced and {body.size} are there")
        return body.view(dtype).reshape(shape)


def _idx_set(
    name: str,
    classes: tuple[str, ...],
    data_dir: Where,
    download: bool,
    train: str = "train",
    test: str = "t10k",
    *,
    first: int = 0,
) -> Dataset:
    def find(file: str) -> Path:
        return catalogue.find(name, file, f"{file}.gz", data_dir=data_dir, download=download)

    def pair(part: str) -> tuple[np.ndarray, Labels]:
        images_at, labels_at = find(f"{part}-images-idx3-ubyte"), find(f"{part}-labels-idx1-ubyte")
        images, labels = read_idx(images_at), read_idx(labels_at)
        if images.ndim != 3 or labels.shape != (len(images),):
            raise damaged(images_at, f"images of shape {images.shape}, labels of shape {labels.shape}")
        return images[..., None], _numbered(labels_at, labels, len(classes), first)

    return Dataset(name, *pair(train), classes, *pair(test), scale=PIXEL)


def _numbered(path: Path, labels: ArrayLike, classes: int, first: int = 0) -> Labels:
    """The labels, counted from 0 instead of `first`."""
    y = np.asarray(labels).reshape(-1).astype(np.int32) - np.int32(first)
    if y.size and not 0 <= y.min() <= y.max() < classes:
        raise damaged(path, f"labels from {y.min() + first} to {y.max() + first} for {classes} classes")
    return y


def _emnist_mat(path: Path, classes: tuple[str, ...], first: int) -> Dataset:
    from scipy.io import loadmat

    def part(table: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        images, labels, writers = (np.asarray(table[k]) for k in ("images", "labels", "writers"))
        if images.shape != (labels.size, 784) or images.dtype != np.uint8 or writers.size != labels.size:
            raise ValueError(f"{labels.size} labels for images of shape {images.shape}")
        return images.reshape(-1, 28, 28, 1), labels, writers.reshape(-1)

    with reading(path, Exception):  # scipy raises nearly anything on a damaged file
        data = loadmat(path, simplify_cells=True)["dataset"]
        (images, labels, writers), (test_images, test_labels, test_writers) = map(part, (data["train"], data["test"]))
    labels, test_labels = (_numbered(path, y, len(classes), first) for y in (labels, test_labels))
    names, codes = np.unique(np.concatenate([writers, test_writers]), return_inverse=True)
    groups, test_groups = np.split(codes.astype(np.int32), [len(labels)])
    called = tuple(str(w) for w in names.tolist())
    tests = test_images, test_labels
    return Dataset("emnist", images, labels, classes, *tests, groups, test_groups, called, scale=PIXEL)


class _Plain(pickle.Unpickler):
    """Unpickles numbers, text, containers and numpy arrays, and nothing that could run."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}:
            return super().find_class(module, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return super().find_class("numpy._core.multiarray", name)  # numpy 2 moved it
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which pictures do not need")


def _unpickled(path: Path, *columns: bytes) -> list[Any]:
    """These columns of a table."""
    with reading(path, Exception), path.open("rb") as file:  # a damaged pickle raises nearly anything
        data = _Plain(file, encoding="bytes").load()
    if not isinstance(data, dict):
        raise damaged(path, f"it holds a {type(data).__name__}, not a table")
    absent = [name.decode() for name in columns if name not in data]
    if absent:
        raise damaged(path, f"it has no {absent[0]}")
    return [data[name] for name in columns]


def _cifar(path: Path, classes: dict[bytes, int]) -> tuple[Pixels, list[Labels]]:
    """Images and label columns (name: how many classes), from a pickle or from records of bytes."""
    if path.suffix == ".bin":
        with reading(path, OSError, ValueError):
            rows = np.memmap(path, np.uint8, "r").reshape(-1, len(classes) + 3072)
        pixels, columns = rows[:, len(classes) :], list(rows[:, : len(classes)].T)
    else:
        pixels, *columns = _unpickled(path, b"data", *classes)
        if getattr(pixels, "dtype", None) != np.uint8 or {(len(y), 3072) for y in columns} != {pixels.shape}:
            raise damaged(path, f"{len(columns[0])} labels for data of shape {getattr(pixels, 'shape', None)}")
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, [_numbered(path, y, k) for y, k in zip(columns, classes.values(), strict=True)]


def _listed(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """The images of a folder per class, in `images` below it or directly in it."""
    places = [(i, within) for i, name in enumerate(classes) for within in (folder / name / "images", folder / name)]
    images = ((path, i) for i, within in places for path in sorted(within.glob("*")))
    return [(path, i) for path, i in images if path.suffix.lower() in (".jpeg", ".jpg", ".png")]


def _decoded(paths: Sequence[Path], kept: Path) -> Pixels:
    with needs("data", "images in files of their own"):
        from PIL import Image

    shape = (len(paths), 64, 64, 3)
    if kept.is_file():
        with reading(kept, OSError, EOFError, ValueError):
            mapped = np.load(kept, mmap_mode="r")
        if mapped.shape == shape:
            return mapped
    temporary = kept.with_suffix(".part")
    try:
        pixels: Pixels = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
    except OSError:  # a folder that may only be read
        pixels = np.empty(shape, np.uint8)
    for row, path in zip(pixels, paths, strict=True):
        try:
            with Image.open(path) as image:
                row[:] = np.asarray(image.convert("RGB"))
        except (OSError, ValueError) as error:
            temporary.unlink(missing_ok=True)
            raise damaged(path, error) from error
    if isinstance(pixels, np.memmap):
        pixels.flush()
        temporary.replace(kept)
    return pixels
