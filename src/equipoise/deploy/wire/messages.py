"""Messages: what an algorithm exchanges, trees of arrays as Flower's records, and what else stands on a message.

An array travels as its raw little-endian bytes, under the name of its place in the tree. The receiver knows every name,
type and shape beforehand, from the algorithm's own functions (`exchange_specs`), and takes nothing else: no header of
the sender decides how its bytes are read, and nothing is ever unpickled. The `Address` says which exchange a message
belongs to, and what its receiver should remember.
"""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from jax.extend.core import ClosedJaxpr
from jaxtyping import PyTree

from equipoise._jax import cached_program, compiled
from equipoise.errors import Refusal as Refusal
from equipoise.errors import refuse_unless as refuse_unless
from equipoise.errors import require
from equipoise.privacy.audit import Receipt
from equipoise.protocol import Algorithm, Data, Exchange, Reply, Vector, client_program
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


def unpack(record: object, like: PyTree) -> PyTree[np.ndarray]:
    """The tree of the shape `like` that a record holds; a Refusal if it holds anything else."""
    if not isinstance(record, ArrayRecord):
        raise Refusal(f"arrays were expected, not {type(record).__name__}")
    wanted = dict(named(like))
    for name in sorted(record.keys() ^ wanted.keys()):
        raise Refusal(f"the array {name[:80]!r} is {'missing' if name in wanted else 'not part of this message'}")
    return jax.tree.unflatten(jax.tree.structure(like), [read(name, record[name], w) for name, w in wanted.items()])


def read(name: str, array: Array, want: jax.ShapeDtypeStruct | jax.Array | np.ndarray) -> np.ndarray:
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


program = cached_program(compiled)  # a function's own, also for sites that share a process: traced and compiled once


class ExchangeSpec(NamedTuple):
    """One exchange of a round, seen from the network."""

    position: int  # its place in the round
    exchange: Exchange
    message: PyTree[jax.ShapeDtypeStruct]
    reply: Reply  # of shapes
    varies: PyTree[bool]  # of every leaf of the message: each client is sent its own
    reads: bool  # what a client does depends on what it remembers

    @property
    def alike(self) -> bool:
        """Every client is sent the same."""
        return not any(jax.tree.leaves(self.varies))

    def table(self, n: int) -> PyTree[jax.ShapeDtypeStruct]:
        """A message to n clients at once: what differs has a row for each."""

        def rows(varies: bool, a: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((n, *a.shape), a.dtype) if varies else a

        return jax.tree.map(rows, self.varies, self.message)

    def joined(self, messages: Sequence[PyTree]) -> PyTree[np.ndarray]:
        """The messages to some clients as one such table."""
        return jax.tree.map(lambda varies, *a: np.stack(a) if varies else np.asarray(a[0]), self.varies, *messages)

    def row(self, table: PyTree[np.ndarray], k: int) -> PyTree[np.ndarray]:
        """The message to the k-th of them."""
        return jax.tree.map(lambda varies, a: a[k] if varies else a, self.varies, table)


Specs = dict[str, ExchangeSpec]  # by the exchange's name, in order


def exchange_specs(algorithm: Algorithm, x: Vector, shard: Data) -> Specs:
    """The specs of a round; `shard` is a client's, or shapes like one: only its number of rows may differ."""
    prepared = jax.eval_shape(program(algorithm.prepare), shard)
    client = jax.eval_shape(algorithm.init_client, x)
    server = jax.eval_shape(algorithm.init, x)
    i, key = jax.eval_shape(lambda: (jnp.int32(0), jax.random.key(0)))
    specs: Specs = {}
    for k, exchange in enumerate(algorithm.round):
        require(exchange.name not in specs, f"{algorithm.name} has two exchanges '{exchange.name}'; rename one")
        sent = program(exchange.send).trace(server, i)
        message = shapes_of(sent.out_info)
        done = client_program(exchange).trace(message, client, prepared, key)
        first, count = len(jax.tree.leaves(message)), len(jax.tree.leaves(client))
        mine = done.jaxpr.jaxpr.invars[first : first + count]
        varies = jax.tree.unflatten(jax.tree.structure(message), depends(sent.jaxpr, sent.jaxpr.jaxpr.invars[-1]))
        reads = uses(done.jaxpr, mine, beside=0 if exchange.writes else count)
        specs[exchange.name] = ExchangeSpec(k, exchange, message, shapes_of(done.out_info[1]), varies, reads)
    return specs


def shapes_of(tree: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def uses(traced: ClosedJaxpr, variables: list, beside: int = 0) -> bool:
    """Whether a traced function does anything with some of its arguments; its first `beside` results do not count."""
    seen = [v for equation in traced.jaxpr.eqns for v in equation.invars] + traced.jaxpr.outvars[beside:]
    return any(v is given for v in seen for given in variables)


def depends(traced: ClosedJaxpr, variable: object) -> tuple[bool, ...]:
    """Which results of a traced function depend on one of its arguments."""
    reached = [variable]
    for equation in traced.jaxpr.eqns:
        if any(v is r for v in equation.invars for r in reached):
            reached += equation.outvars
    return tuple(any(v is r for r in reached) for v in traced.jaxpr.outvars)


def fingerprint(algorithm: Algorithm, specs: Specs, config: str = "") -> str:
    """Equal for a server and a site that mean the same by every message; `config` is what else has to be equal."""

    def said(tree: object) -> list:
        return [(name, str(a.dtype), a.shape) for name, a in named(tree)]

    shapes = [(name, said(spec.message), said(spec.reply)) for name, spec in specs.items()]
    return hashlib.sha256(repr((algorithm.name, algorithm.n, algorithm.size, shapes, config)).encode()).hexdigest()[:16]


NOT_TOLD = "has not been told the agreement"  # in the refusal of a site that has lost its folder
RECEIPT = "audit"  # in a reply: where the site's own log stands
START = ""  # the mark of a client that has not been counted yet
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)  # of a run or a part: it becomes part of a file's name


of_run: ContextVar[str] = ContextVar("of_run")  # the run whose message is being answered


class Address(NamedTuple):
    """Where in a run a message belongs.

    A client's state is marked by the message that made it. `since` is the mark of the last reply of this client that
    the server counted: the state to start from, whatever the client computed in vain meanwhile. `keep` are the marks
    that the server may still go back to, because a round is repeated or a checkpoint resumed.
    """

    part: str  # which of a site's jobs: training, evaluation
    run: str  # a resumed run keeps its name
    attempt: int  # grows with every round, every repetition of one and every restart of the server
    round: int
    exchange: str
    slot: int
    key: list[int]  # of this slot, in words
    since: str
    keep: list[str]
    plan: str  # the server's fingerprint


def mark(attempt: int, round: int, exchange: int) -> str:
    """What the state that a message made is known by."""
    return json.dumps([attempt, round, exchange])


def order(mark: str) -> tuple[int, int]:
    """Marks of later messages are larger."""
    attempt, _, exchange = json.loads(mark)
    return attempt, exchange


def address(where: Address) -> ConfigRecord:
    return ConfigRecord(where._asdict())


def read_address(content: RecordDict) -> Address:
    """The address on a message; a Refusal if it makes no sense."""
    given: Any = fields(content, "at") or {}
    refuse_unless(given, "the message has no address")
    refuse_unless(given.keys() == set(Address._fields), "the message's address has other fields than it should")
    where = Address(**given)
    for value in (where.part, where.run):
        refuse_unless(isinstance(value, str) and NAME.fullmatch(value), "the message names no run that could be kept")
    fine = isinstance(where.key, list) and isinstance(where.keep, list)
    numbers, texts = (where.attempt, where.round, where.slot), (where.exchange, where.since, where.plan)
    fine = fine and all(type(number) is int and number >= 0 for number in (*numbers, *where.key))
    fine = fine and all(isinstance(text, str) for text in (*texts, *where.keep))
    refuse_unless(fine, "the message's address has values of other types than it should")
    refuse_unless(all(word < 2**32 for word in where.key), "the message's random key is not valid")
    return where


def plain(said: str) -> str:
    """What somebody else wrote, fit for a log: short, on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in said[:300])


def text(kind: str, value: str) -> RecordDict:
    return RecordDict({kind: ConfigRecord({"text": value})})


def fields(content: RecordDict, kind: str) -> dict[str, object] | None:
    """What stands in a message under that name, if it is texts and numbers."""
    record = content.get(kind)
    return dict(record) if isinstance(record, ConfigRecord) else None


def read_text(content: RecordDict, kind: str) -> str | None:
    """The text of that kind in a message, if there is one."""
    value = (fields(content, kind) or {}).get("text")
    return value if isinstance(value, str) else None


def greeting(name: str, abilities: list[str]) -> RecordDict:
    """A node's answer to `hello`: its name, and what it can beyond Flower's own nodes."""
    return RecordDict({"answer": ConfigRecord({"text": name}), "abilities": ConfigRecord({"names": abilities})})


def read_receipt(content: RecordDict) -> Receipt | None:
    """Where the site's log stands, as its reply says."""
    given: Any = fields(content, RECEIPT) or {}
    if given.keys() != set(Receipt._fields):
        return None
    receipt = Receipt(**given)
    sound = type(receipt.number) is int and isinstance(receipt.digest, str) and isinstance(receipt.signature, str)
    return receipt if sound and len(receipt.digest) + len(receipt.signature) < 1000 else None


def read_abilities(content: RecordDict) -> list[str]:
    names = (fields(content, "abilities") or {}).get("names")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
