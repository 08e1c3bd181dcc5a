"""Where a run stands, in one file: the server's and the clients' state, the counts, and what the run comes from."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from pydantic import Field, ValidationError

from equipoise import files
from equipoise.engines.simulator import Result, Tally
from equipoise.errors import InputError, require
from equipoise.experiment import origin
from equipoise.experiment.origin import Origin
from equipoise.experiment.records import Record
from equipoise.protocol import Algorithm, Vector

ANEW = "begin anew with --overwrite"


class Written(Record):
    """The part of a history that a checkpoint counts on: its length in bytes and its digest."""

    length: int = Field(ge=0)
    digest: str


class Header(Record):
    """All of a checkpoint but its arrays."""

    rounds: int = Field(ge=0)
    seconds: float
    compile_seconds: float
    history: Written
    origin: Origin
    more: dict[str, Any] = Field({})


class Saved(NamedTuple):
    """A checkpoint, read."""

    result: Result
    history: Written
    more: dict[str, Any]  # what else was saved with it


def save(path: Path, result: Result, history: Written, origin: Origin, more: dict[str, Any] | None = None) -> None:
    """All of `result` but its history, bit for bit; and what else belongs to it, as JSON can hold it."""
    leaves = jax.tree.leaves((result.server, result.clients))
    tensors = {str(i): np.asarray(leaf, order="C") for i, leaf in enumerate(leaves)}
    tensors |= {name: np.asarray(count) for name, count in result.tally._asdict().items()}
    header = Header(
        rounds=result.rounds,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        history=history,
        origin=origin,
        more=more or {},
    )
    files.write_whole(path, safetensors.numpy.save(tensors, metadata={"equipoise": header.model_dump_json()}))


def load(path: Path, algorithm: Algorithm, x: Vector, origin: Origin) -> Saved:
    """What `save` wrote for this algorithm, started from x."""
    return _load(path, lambda x: _state(algorithm, x), x, origin)


def load_server(path: Path, algorithm: Algorithm, x: Vector, origin: Origin) -> Saved:
    """The same of a run whose clients keep their states themselves."""
    return _load(path, lambda x: (algorithm.init(x), None), x, origin)


def rounds(path: Path) -> int:
    """How many rounds a checkpoint has; none: 0."""
    return _read(path)[0].rounds if path.is_file() else 0


def cut(path: Path, written: Written) -> bytes:
    """Leaves of the history at `path` what the checkpoint counts on, which is returned."""
    content = path.read_bytes()[: written.length] if path.is_file() else b""
    require(
        len(content) == written.length and hashlib.sha256(content).hexdigest() == written.digest,
        f"{path} is not the history that the checkpoint goes on from: it was changed or is damaged; {ANEW}",
    )
    files.write_whole(path, content)
    return content


def _read(path: Path) -> tuple[Header, dict[str, np.ndarray]]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = Header.model_validate_json((file.metadata() or {})["equipoise"])
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, KeyError, ValidationError) as error:
        why = "it is of another version" if isinstance(error, ValidationError | KeyError) else error
        raise InputError(f"{path} is not a checkpoint of this version ({why}); {ANEW}") from error


def _load(path: Path, state: Callable[[Vector], Any], x: Vector, now: Origin) -> Saved:
    header, tensors = _read(path)
    changed = origin.differences(header.origin, now)
    require(
        not changed,
        f"{path.parent} cannot be gone on with, because since its checkpoint {'; '.join(changed)}. Restore that, or "
        f"{ANEW}",
    )
    like = jax.eval_shape(state, x)
    expected = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(like))}
    fits = tensors.keys() == {*expected, *Tally._fields} and all(
        (tensors[name].shape, tensors[name].dtype) == (leaf.shape, leaf.dtype) for name, leaf in expected.items()
    )
    require(fits, f"{path} is of another algorithm, model or federation; {ANEW}")
    leaves = [jnp.asarray(tensors[name]) for name in expected]
    server, clients = jax.tree.unflatten(jax.tree.structure(like), leaves)
    tally = Tally(*(tensors[name] for name in Tally._fields))
    result = Result(server, clients, None, header.rounds, tally, header.seconds, header.compile_seconds)
    return Saved(result, header.history, header.more)


def _state(algorithm: Algorithm, x: Vector) -> Any:
    clients = jax.vmap(algorithm.init_client, in_axes=None, axis_size=algorithm.n)(x)
    return algorithm.init(x), clients
