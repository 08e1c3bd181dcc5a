"""Where a run stands, in one file: the server's and the clients' state, the counts, and what the run comes from."""

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, ValidationError

from equipoise import files, tensors
from equipoise.engines.simulator import Result, Tally
from equipoise.errors import InputError, require
from equipoise.experiment import origin
from equipoise.experiment.origin import Origin
from equipoise.experiment.records import JsonRecord
from equipoise.protocol import Algorithm, Vector

BEST = "best"  # the name of that array
ANEW = "start over with --overwrite"


class Written(JsonRecord):
    """The part of a history that a checkpoint counts on: its length in bytes and its digest."""

    length: int = Field(ge=0)
    digest: str


class Header(JsonRecord):
    """All of a checkpoint but its arrays."""

    rounds: int = Field(ge=0)
    seconds: float
    compile_seconds: float
    history: Written
    origin: Origin
    more: dict[str, object] = Field({})
    best: tuple[int, float | None] | None = None  # round and value; the model is among the arrays


class Best(NamedTuple):
    """The best model so far, on validation rows."""

    round: int
    value: float  # the mean over the worst fifth of the clients
    x: np.ndarray


class Saved(NamedTuple):
    """A checkpoint, read."""

    result: Result
    history: Written
    more: dict[str, object]  # what else was saved with it
    best: Best | None


def save(
    path: Path,
    result: Result,
    history: Written,
    origin: Origin,
    more: dict[str, object] | None = None,
    best: Best | None = None,
) -> None:
    """All of `result` but its history, bit for bit; and what else belongs to it, as JSON can hold it."""
    arrays = dict(tensors.named((result.server, result.clients))) | result.tally._asdict()
    if best is not None:
        arrays |= {BEST: best.x}
    counts: dict[str, Any] = {name: getattr(result, name) for name in ("rounds", "seconds", "compile_seconds")}
    kept = None if best is None else (best.round, best.value)
    header = Header(**counts, history=history, origin=origin, more=more or {}, best=kept)
    tensors.write(path, arrays, header.model_dump_json())


def rounds(path: Path) -> int:
    """How many rounds a checkpoint has; none: 0."""
    return _read(path)[0].rounds if path.is_file() else 0


def cut(path: Path, written: Written) -> bytes:
    """Leaves of the history at `path` what the checkpoint counts on, which is returned."""
    content = path.read_bytes()[: written.length] if path.is_file() else b""
    same = len(content) == written.length and hashlib.sha256(content).hexdigest() == written.digest
    changed = f"{path} is not the history that the checkpoint goes on from: it was changed or is damaged"
    require(same, f"{changed}; {ANEW}")
    files.write_whole(path, content)
    return content


def _read(path: Path) -> tuple[Header, dict[str, np.ndarray]]:
    try:
        arrays, about = tensors.read(path)
        return Header.model_validate_json(about), arrays
    except (tensors.Unreadable, ValidationError) as error:
        why = "it is of another version" if isinstance(error, ValidationError) else error
        raise InputError(f"{path} is not a checkpoint of this version ({why}); {ANEW}") from error


def load(path: Path, algorithm: Algorithm, x: Vector, now: Origin, *, with_clients: bool = True) -> Saved:
    """What `save` wrote for this algorithm, started from x; or of a run whose clients keep their states themselves."""
    header, arrays = _read(path)
    changed = origin.differences(header.origin, now)
    why = f"{path.parent} cannot be resumed, because since its checkpoint {'; '.join(changed)}"
    require(not changed, f"{why}. Restore that, or {ANEW}")

    def state(x: Vector) -> tuple[object, object]:
        clients = jax.vmap(algorithm.init_client, in_axes=None, axis_size=algorithm.n)
        return algorithm.init(x), clients(x) if with_clients else None

    like, model, best = jax.eval_shape(state, x), arrays.pop(BEST, None), None
    if header.best is not None and model is not None:
        round, value = header.best
        best = Best(round, math.nan if value is None else value, model)
    try:
        server, clients = jax.tree.map(jnp.asarray, tensors.tree_like(like, arrays))
        fits = arrays.keys() == {*dict(tensors.named(like)), *Tally._fields}
    except tensors.Misfit:
        fits = False
    require(fits, f"{path} is of another algorithm, model or federation; {ANEW}")
    tally = Tally(*(arrays[name] for name in Tally._fields))
    result: Result = Result(server, clients, None, header.rounds, tally, header.seconds, header.compile_seconds)
    return Saved(result, header.history, header.more, best)
