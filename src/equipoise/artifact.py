"""A trained model in one file: its weights, what it is, how its inputs are encoded, how it came about.

The file is a .safetensors; all but the weights is JSON in its header, under the key "equipoise". Nothing in
it is ever executed.
"""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import scipy  # its parts load when they are used

from equipoise import tensors
from equipoise.data import silos
from equipoise.data.silos.cells import first_line
from equipoise.data.silos.encoding import Encoding
from equipoise.errors import InputError, not_none, require
from equipoise.models import build
from equipoise.models.model import Model, Params

OWN = "own part"  # its name among the weights
BATCH = 4096  # rows that go through the model at a time


class OwnPart(NamedTuple):
    """What is added to a model's outputs: part (1, a[inputs]), of an owner's own or the mean of all of them."""

    part: np.ndarray  # [outputs, 1 + len(inputs)]
    inputs: tuple[int, ...] = ()

    def add(self, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        rows = np.ones((len(inputs), 1), self.part.dtype)
        if self.inputs:
            rows = np.concatenate([rows, inputs[:, list(self.inputs)].astype(self.part.dtype)], axis=1)
        return outputs + (rows @ self.part.T).reshape(outputs.shape).astype(outputs.dtype)


class Artifact(NamedTuple):
    """A trained model, ready to predict."""

    params: Params
    model: Model
    encoding: Encoding | None
    loss: str  # the name of the loss it was trained with
    metadata: dict[str, Any]
    own: OwnPart | None = None  # where owners keep parts for themselves

    def with_part(self, part: np.ndarray) -> "Artifact":
        """The same model with an owner's own part."""
        return self._replace(own=not_none(self.own)._replace(part=np.asarray(part)))

    def with_parameters(self, params: Params) -> "Artifact":
        """The same model with others, which may be a flat vector."""
        return self._replace(params=jax.tree.map(jnp.asarray, _tree(params, self.model)))

    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        """The model's raw outputs [m, outputs] for encoded inputs [m, ...]."""
        apply = jax.jit(self.model.apply)
        parts = [apply(self.params, jnp.asarray(inputs[i : i + BATCH])) for i in range(0, len(inputs), BATCH)]
        outputs = np.concatenate([np.asarray(part) for part in parts])
        return outputs if self.own is None else self.own.add(outputs, inputs)

    def predict(self, frame: pl.DataFrame | pl.LazyFrame, *, file: str = "the table") -> pl.DataFrame:
        """A row for each row of `frame`: `prediction`, and the probability of each class.

        Probabilities are given for a classifier trained with the cross-entropy; other losses do not make any.
        """
        why = "this model was saved without an encoding; apply it to arrays with `outputs`"
        encoding = not_none(self.encoding, why)
        inputs = encoding.apply_inputs(frame, file=file)
        require(len(inputs) > 0, f"{file} has no rows to predict")
        outputs = self.outputs(inputs)
        columns = [encoding.decode(outputs)]
        if encoding.task == "classification" and self.loss == "cross_entropy":
            chances = scipy.special.softmax(outputs, axis=1)
            columns += [pl.Series(f"probability of {c}", chances[:, i]) for i, c in enumerate(encoding.target.classes)]
        return pl.DataFrame(columns)


def save(
    path: str | PathLike[str],
    params: Params,
    model: Model,
    encoding: Encoding | None = None,
    *,
    loss: str = "",
    metadata: Mapping[str, object] | None = None,
    own: OwnPart | None = None,
) -> None:
    """Writes the file whole or not at all. `params` may be the flat vector that algorithms work on.

    `metadata` is anything JSON can hold: the algorithm, the rounds, the silos' results.
    """
    path = Path(path)
    wrong = f"the model is a {type(model).__name__}; give one of equipoise.models, such as eq.models.linear(3, 1)"
    require(isinstance(model, Model), f"{wrong}, which the file names so that it can be built again")
    if encoding is not None:
        _check_fit(model, encoding)
    header: dict[str, object] = {"version": 1 if own is None else 2}  # who knows 1 only would leave the own part out
    header["model"] = {"name": model.name, "arguments": dict(model.arguments)}
    header["encoding"] = None if encoding is None else json.loads(encoding.to_json())
    header |= {"loss": loss, "metadata": dict(metadata or {})} | ({} if own is None else {"own": list(own.inputs)})
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the metadata cannot be written as JSON: {error}") from error
    weights = {name: np.asarray(value) for name, value in _named(_tree(params, model)).items()}
    for name, value in weights.items():
        require(np.isfinite(value).all(), f"the weights {name!r} hold NaN or infinity; this model is not worth saving")
    tensors.write(path, weights if own is None else weights | {OWN: np.asarray(own.part)}, text)


def load(path: str | PathLike[str], model: Model | None = None) -> Artifact:
    """What `save` wrote. A model of your own, which `MODELS` does not list, has to be given again."""
    path = Path(path)
    require(path.is_file(), f"there is no file {path}")
    try:
        weights, text = tensors.read(path)
        require(text, f"{path.name} holds weights but was not written by equipoise")
        header = json.loads(text)
        version = header["version"]
        require(version in (1, 2), f"{path.name} is of version {version}; this equipoise knows versions 1 and 2")
        own = OwnPart(weights.pop(OWN), tuple(map(int, header["own"]))) if version == 2 else None
        encoding, loss, metadata = header["encoding"], header["loss"], header["metadata"]
        if not isinstance(loss, str) or not isinstance(metadata, dict):
            raise TypeError("its header has a field of another type")
        model = build(header["model"]["name"], header["model"]["arguments"]) if model is None else model
        like = model.shapes
        fitted = None if encoding is None else Encoding.from_json(json.dumps(encoding))
        if fitted is not None:
            _check_fit(model, fitted)
    except InputError as error:
        raise InputError(f"{path.name} cannot be used: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # What a header that was damaged, or that somebody else wrote, can end in.
        raise InputError(f"{path.name} is not a model that equipoise saved ({first_line(error)})") from error
    for name, want in _named(like).items():
        have = weights[name].shape if name in weights else "nothing"
        require(have == want.shape, f"{path.name} has {have} for the weights {name!r}; the model needs {want.shape}")
        wrong = f"the weights {name!r} of {path.name} hold what is not a finite number; it is damaged"
        require(weights[name].dtype.kind == "f" and np.isfinite(weights[name]).all(), f"{wrong}, or its run diverged")
    params = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(weights[name]) for name in _named(like)])
    return Artifact(params, model, fitted, loss, metadata, own)


def predict(
    model: Artifact | str | PathLike[str],
    file: str | PathLike[str],
    *,
    separator: str = "auto",
    decimal: str | None = None,
    dates: str | None = None,
) -> pl.DataFrame:
    """What a model, or the one saved at a path, says about the rows of a CSV, Parquet or NPZ file.

    `decimal` and `dates` are as in `data.silos.Options`; None: as in training.
    """
    saved = model if isinstance(model, Artifact) else load(model)
    label = "label" if saved.encoding is None else saved.encoding.target.name
    given = {name: value for name, value in (("decimal", decimal), ("dates", dates)) if value is not None}
    if saved.encoding is not None and given:
        conventions = saved.encoding.conventions._replace(**given).checked()
        saved = saved._replace(encoding=saved.encoding._replace(conventions=conventions))
    return saved.predict(silos.scan(file, label=label, separator=separator), file=Path(file).name)


def _named(tree: Params) -> dict[str, jax.Array | np.ndarray]:
    return {name.lstrip("."): leaf for name, leaf in tensors.named(tree)}


def _tree(params: Params, model: Model) -> Params:
    """The model's own tree, from itself or from the flat vector."""
    size = sum(leaf.size for leaf in jax.tree.leaves(model.shapes))
    if isinstance(params, jax.Array | np.ndarray) and params.shape == (size,):
        return model.unravel(params)
    have, wanted = ({n: np.shape(a) for n, a in _named(t).items()} for t in (params, model.shapes))
    wrong = f"the parameters are not those of the model {model.name!r}"
    require(have == wanted, f"{wrong}; give what its `init` makes, or a vector of its {size} parameters")
    return params


def _check_fit(model: Model, encoding: Encoding) -> None:
    if encoding.features[0].kind == "array":
        return  # the model may want integers
    try:
        inputs = jax.ShapeDtypeStruct((1, *encoding.shape), jnp.zeros(()).dtype)
        given: object = jax.eval_shape(model.apply, model.shapes, inputs).shape
    except (TypeError, ValueError):
        given = "none"
    wrong = f"the encoding makes {encoding.shape[0]} inputs and needs {encoding.outputs} outputs per row"
    require(given == (1, encoding.outputs), f"{wrong}; the model {model.name!r} does not fit that")
