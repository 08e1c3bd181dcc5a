"""Where a run stands, in one file: the server's and the clients' state, and the counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from equipoise.engines.simulator import Result, Tally
from equipoise.errors import InputError, require
from equipoise.files import write_whole
from equipoise.protocol import Algorithm, Vector


def save(path: Path, result: Result, more: dict[str, Any] | None = None) -> None:
    """All of `result` but its history, bit for bit; and what else belongs to it, as JSON can hold it."""
    leaves = jax.tree.leaves((result.server, result.clients))
    tensors = {str(i): np.asarray(leaf, order="C") for i, leaf in enumerate(leaves)}
    tensors |= {name: np.asarray(count) for name, count in result.tally._asdict().items()}
    told: dict[str, Any] = {
        "rounds": result.rounds,
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
    }
    told |= {"more": more} if more is not None else {}
    write_whole(path, safetensors.numpy.save(tensors, metadata={"equipoise": json.dumps(told)}))


def load(path: Path, algorithm: Algorithm, x: Vector) -> Result:
    """What `save` wrote for this algorithm, started from x."""
    return _load(path, lambda x: _state(algorithm, x), x)[0]


def load_server(path: Path, algorithm: Algorithm, x: Vector) -> tuple[Result, dict[str, Any]]:
    """The same of a run whose clients keep their states themselves, and what was saved with it."""
    return _load(path, lambda x: (algorithm.init(x), None), x)


def rounds(path: Path) -> int:
    """How many rounds a checkpoint has; none: 0."""
    if not path.is_file():
        return 0
    with safetensors.safe_open(path, framework="numpy") as file:
        return json.loads((file.metadata() or {})["equipoise"])["rounds"]


def _load(path: Path, state: Callable[[Vector], Any], x: Vector) -> tuple[Result, dict[str, Any]]:
    like = jax.eval_shape(state, x)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            told = json.loads((file.metadata() or {})["equipoise"])
            leaves = [file.get_tensor(str(i)) for i in range(len(file.keys()) - len(Tally._fields))]
            tally = Tally(*(file.get_tensor(name) for name in Tally._fields))
    except (safetensors.SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is no checkpoint ({error}); begin anew with --overwrite") from error
    expected = jax.tree.leaves(like)
    fits = len(leaves) == len(expected) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(leaves, expected, strict=True)
    )
    require(fits, f"{path} is of another algorithm, model or federation; begin anew with --overwrite")
    server, clients = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves])
    result = Result(server, clients, None, told["rounds"], tally, told["seconds"], told["compile_seconds"])
    return result, told.get("more", {})


def _state(algorithm: Algorithm, x: Vector) -> Any:
    clients = jax.vmap(algorithm.init_client, in_axes=None, axis_size=algorithm.n)(x)
    return algorithm.init(x), clients
