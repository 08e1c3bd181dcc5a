"""Trees of arrays as Flower records and back.

An array travels as its raw little-endian bytes, under the name of its place in the tree. The receiver knows every name,
type and shape beforehand, from the algorithm's own functions, and takes nothing else: no header of the sender decides
how its bytes are read, and nothing is ever unpickled.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from jaxtyping import PyTree

from equipoise.errors import Refusal as Refusal
from equipoise.errors import refuse_unless as refuse_unless
from equipoise.tensors import named

RAW = "equipoise.raw"  # Flower's name for how bytes were made; not "numpy.ndarray", which would be read by np.load


def pack(tree: PyTree) -> ArrayRecord:
    record = ArrayRecord()
    for name, leaf in named(tree):
        a = np.asarray(leaf)
        record[name] = Array(str(a.dtype), a.shape, RAW, little(a).tobytes())
    return record


def little(a: np.ndarray) -> np.ndarray:
    """The same bytes in the little-endian order; its own inverse."""
    return a if sys.byteorder == "little" else a.byteswap()


def unpack(record: Any, like: PyTree) -> PyTree[np.ndarray]:
    """The tree of the shape `like` that a record holds; a Refusal if it holds anything else."""
    refuse_unless(isinstance(record, ArrayRecord), f"arrays were expected, not {type(record).__name__}")
    wanted = dict(named(like))
    for name in sorted(record.keys() ^ wanted.keys()):
        raise Refusal(f"the array {name[:80]!r} is {'missing' if name in wanted else 'not part of this message'}")
    return jax.tree.unflatten(jax.tree.structure(like), [read(name, record[name], w) for name, w in wanted.items()])


def read(name: str, array: Array, want: Any) -> np.ndarray:
    dtype = np.dtype(want.dtype)
    given = (array.stype, array.dtype, list(array.shape) if isinstance(array.shape, list | tuple) else array.shape)
    refuse_unless(
        given == (RAW, str(dtype), list(want.shape)),
        f"the array {name!r} should be {dtype}{list(want.shape)}, not {str(given[1:])[:80]}",
    )
    size = want.size * dtype.itemsize
    refuse_unless(len(array.data) == size, f"the array {name!r} has {len(array.data)} bytes instead of {size}")
    a = little(np.frombuffer(array.data, dtype)).reshape(want.shape)
    if dtype.kind == "b":  # any byte would pass for one
        refuse_unless((a.view(np.uint8) <= 1).all(), f"the array {name!r} has bytes that are neither true nor false")
    return a.astype(dtype)


def check_values(tree: PyTree[np.ndarray]) -> None:
    """A Refusal unless every number is finite and its square is too, so that no sum or norm of replies overflows."""
    for name, a in named(tree):
        if jnp.issubdtype(a.dtype, jnp.inexact):
            refuse_unless(np.isfinite(a).all(), f"the array {name!r} is not finite")
            most = float(np.sqrt(float(jnp.finfo(a.dtype).max)))
            refuse_unless(not a.size or np.abs(a).max() <= most, f"the array {name!r} has numbers beyond {most:.0e}")


def framing(message: Message, inside: bool) -> int:
    """The bytes that Flower adds to a message's arrays: sent with the content inside it, or as objects."""
    if inside:
        return message_to_proto(message).ByteSize() - content_bytes(message)
    parts = get_all_nested_objects(message).values()
    return sum(len(p.deflate()) - (len(p.data) if isinstance(p, ArrayChunk) else 0) for p in parts)


def content_bytes(message: Message) -> int:
    """The bytes of a message's arrays."""
    records = message.content.array_records.values() if message.has_content() else ()
    return sum(len(array.data) for record in records for array in record.values())
