"""Features computed beforehand, such as those of a frozen network: a file of inputs and labels.

.npz, .safetensors   arrays `inputs` and `labels` (or `train_inputs` and `train_labels`), and if there is an
                     official test set `test_inputs` and `test_labels`; `scale` and `offset` if quantised
.npy                 inputs alone, mapped; the other arrays beside it, their names put for its own:
                     inputs.npy, labels.npy, test_inputs.npy, ...
"""

import zipfile
from pathlib import Path

import numpy as np

from equipoise import tensors
from equipoise.data.dataset import Dataset
from equipoise.data.datasets import catalogue
from equipoise.data.datasets.catalogue import Where, damaged, reading
from equipoise.errors import InputError, require

INTEGERS = ("labels", "test_labels", "groups", "test_groups")  # or labels that are numbers
NAMES = ("inputs", "test_inputs", *INTEGERS, "scale", "offset")  # as the fields of a Dataset
CHUNK = 1 << 14  # rows looked at together, so that a mapped file is never in memory as a whole


def read(path: Where, *, data_dir: Where = None) -> Dataset:
    """`path` as it stands, or within the data directory, or in its folder `features`."""
    require(path is not None, "no file of features was named; give its path")
    given = Path(str(path)).expanduser()
    base = catalogue.root(data_dir)
    file = next((p for p in (given, base / given, base / "features" / given) if p.is_file()), None)
    if file is None:
        raise InputError(f"{given} was not found: put it into {base / 'features'}, or give its full path")
    arrays = _arrays(file)
    for name in ("inputs", "labels"):
        if name not in arrays:
            there = ", ".join(sorted(arrays)) or "nothing"
            raise damaged(file, f"it needs inputs and labels (or train_inputs and train_labels) and has {there}")
    for part in ("", "test_"):
        if f"{part}inputs" in arrays or f"{part}labels" in arrays:
            _check(file, arrays, part)
    for name in ("scale", "offset"):
        shape = np.shape(arrays.get(name, 0.0))
        if shape not in ((), arrays["inputs"].shape[1:]):
            raise damaged(file, f"{name} has shape {shape}, the features {arrays['inputs'].shape[1:]}")
    fields = {name: arrays[name] for name in NAMES if name in arrays}
    fields |= {name: a.astype(np.int32) for name, a in fields.items() if name in INTEGERS and a.dtype.kind in "iu"}
    classes = _numbered(fields["labels"]) if fields["labels"].dtype.kind == "i" else ()
    owners = _numbered(*(fields[name] for name in ("groups", "test_groups") if name in fields))
    return Dataset(file.stem, classes=classes, group_names=owners, **fields)


def _numbered(*codes: np.ndarray) -> tuple[str, ...]:
    """A name for each number up to the largest."""
    return tuple(map(str, range(max((int(a.max()) + 1 for a in codes), default=0))))


def _arrays(file: Path) -> dict[str, np.ndarray]:
    named = file.suffix in (".safetensors", ".npz") or "inputs" in file.stem
    require(named, f"{file} is not named after its inputs; call it inputs.npy or like that")
    with reading(file, OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        if file.suffix == ".safetensors":
            arrays = tensors.read(file).arrays
        elif file.suffix == ".npz":
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        else:
            beside = {name: file.with_name(file.name.replace("inputs", name)) for name in NAMES}
            arrays = {name: np.load(p, mmap_mode="r", allow_pickle=False) for name, p in beside.items() if p.is_file()}
    return {name.removeprefix("train_"): a for name, a in arrays.items()}


def _check(file: Path, arrays: dict[str, np.ndarray], part: str) -> None:
    inputs, labels = arrays.get(f"{part}inputs"), arrays.get(f"{part}labels")
    if inputs is None or labels is None or inputs.ndim < 2 or len(inputs) != len(labels) or not len(inputs):
        shapes = [None if a is None else a.shape for a in (inputs, labels)]
        raise damaged(file, f"{part}inputs and {part}labels have shapes {shapes[0]} and {shapes[1]}")
    if inputs.shape[1:] != arrays["inputs"].shape[1:]:
        raise damaged(file, f"test features of shape {inputs.shape[1:]}, training {arrays['inputs'].shape[1:]}")
    groups = arrays.get(f"{part}groups")
    if groups is not None and (groups.shape != (len(labels),) or groups.dtype.kind not in "iu" or groups.min() < 0):
        raise damaged(file, f"{part}groups are not one number from 0 on per row")
    if labels.dtype.kind in "iu" and labels.min() < 0:
        raise damaged(file, f"{part}labels has {labels.min()}; classes are counted from 0")
    for name, a in ((f"{part}inputs", inputs), (f"{part}labels", labels)):
        if a.dtype.kind not in "iuf":
            raise damaged(file, f"{name} is of type {a.dtype}; give numbers")
        if a.dtype.kind == "f" and not all(np.isfinite(a[i : i + CHUNK]).all() for i in range(0, len(a), CHUNK)):
            raise damaged(file, f"{name} has values that are NaN or infinite")
