"""How messages get to the nodes and replies back: Flower's own way, or content inside the message and waiting pulls.

Flower sends the arrays of a message as objects, each with requests of its own. A site that said so in its greeting is
sent the content inside the message instead: one request for all sites, one answer for all replies that have come. Where
the SuperLink holds pulls (`superlink.py`), replies are known the moment they arrive. Very large messages stay objects,
which Flower keeps once however many sites are sent the same.
"""

import importlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from equipoise.deploy.wire.messages import content_bytes

INLINE = 16 << 20  # bytes of arrays from which on a message is sent as objects
REQUEST = 32 << 20  # bytes of content in one request or answer
# See superlink.py.
WAIT, MOST, NODES, DOOR, LARGEST = (f"x-equipoise-{word}" for word in ("wait", "most", "nodes", "door", "largest"))
T = TypeVar("T")


class Door(NamedTuple):
    """What the SuperLink says about who is there, with every list of nodes."""

    names: dict[int, str] | None = None  # node -> the name that its key is registered under; None: it does not say
    refused: dict[str, int] = {}  # noqa: RUF012 - never changed: what was refused at the sites' port, how often
    staying: frozenset[int] = frozenset()  # nodes that take the content inside


class Transport(NamedTuple):
    """Two ways over the same Grid."""

    # Which of them go with their content inside, and how many bytes a reply to one of them may have (0: any).
    push: Callable[[Sequence[Message], Sequence[bool], int], list[str | None]]
    pull: Callable[[Sequence[str], float, int], list[Message]]  # waits so many seconds, for replies of so many bytes
    door: Callable[[], Door]
    about: str


def why_not_warm(*more: str) -> str:
    """Why Flower's internals cannot be used; empty where they can. A server needs `more` of them: "serverapp"."""
    try:
        for module in ("internals", *more):
            importlib.import_module(f"equipoise.deploy.wire.{module}")
    except Exception as error:  # whatever another version of Flower does
        return f"{type(error).__name__}: {error}"
    return ""


def transport(grid: Grid, *, stock: bool = False) -> Transport:
    """The fastest way that this Grid has; `stock`: Flower's own."""
    why = "asked for" if stock else why_not_warm()
    if not why:
        if hasattr(grid, "_runtime_client"):  # Flower's HttpGrid, and the server's own
            return direct(grid)
        why = f"the Grid is a {type(grid).__name__}"
    return standard(grid, why)


def standard(grid: Grid, why: str) -> Transport:
    """Flower's own: objects, and pulls that return at once."""

    def push(messages: Sequence[Message], inside: Sequence[bool], largest: int = 0) -> list[str | None]:
        return list(grid.push_messages(list(messages)))

    def pull(ids: Sequence[str], wait: float, size: int) -> list[Message]:
        return list(grid.pull_messages(list(ids)))

    return Transport(push, pull, watched(grid)[0], f"messages as Flower's objects ({why})")


def watched(grid: object) -> tuple[Callable[[], Door], Callable[..., Any]]:
    """What the last list of nodes said about them; and a call of the Grid's client with headers on its requests."""
    door, local = Door(), threading.local()

    class Watching:
        def intercept(self, context: Any, call_next: Any) -> Any:
            nonlocal door
            context.request.headers.update(getattr(local, "headers", {}))
            response = call_next(context)
            if context.rpc_method.endswith("/GetNodes"):
                staying = frozenset(int(word) for word in response.headers.get(NODES, "").split(",") if word)
                door = door._replace(staying=staying)
            if DOOR in response.headers:
                said = json.loads(response.headers[DOOR])
                names = said["names"] and {int(node): name for node, name in said["names"].items()}
                door = door._replace(names=names, refused=said["refused"])
            return response

    def call(function: Callable[..., Any], request: object, headers: dict[str, str]) -> Any:
        local.headers = headers
        try:
            return function(request)
        finally:
            local.headers = {}

    client = getattr(grid, "_runtime_client", None)
    if client is not None:  # Flower's HttpGrid, and the server's own
        client._interceptors = (*client._interceptors, Watching())
    return lambda: door, call


def direct(grid: Any) -> Transport:
    """Content inside where the receiver can take it, and pulls that wait where the SuperLink can."""
    from equipoise.deploy.wire import internals as flower

    client = grid._runtime_client
    door, call = watched(grid)

    def push(messages: Sequence[Message], inside: Sequence[bool], largest: int = 0) -> list[str | None]:
        ids: list[str | None] = [None] * len(messages)
        headers = {LARGEST: str(largest)} if largest else {}
        short = [k for k, m in enumerate(messages) if inside[k] and content_bytes(m) <= INLINE]
        for batch in batches(short, lambda k: content_bytes(messages[k])):
            protos, trees = [], []
            for k in batch:
                number = messages[k].object_id
                messages[k].metadata.__dict__["_message_id"] = number
                protos.append(flower.message_to_proto(messages[k]))
                trees.append(flower.ObjectTree(object_id=number))
            request = flower.PushAppMessagesRequest(messages_list=protos, message_object_trees=trees)
            for k, number in zip(batch, call(client.PushMessages, request, headers).message_ids, strict=True):
                ids[k] = number or None
        rest = sorted({*range(len(messages))} - {*short})
        if rest:
            for k, number in zip(rest, call(grid.push_messages, [messages[k] for k in rest], headers), strict=False):
                ids[k] = number or None
        return ids

    def pull(ids: Sequence[str], wait: float, size: int) -> list[Message]:
        headers = {WAIT: f"{wait:.3f}", MOST: str(max(1, REQUEST // max(size, 1)))} if wait > 0 else {}
        reply = call(client.PullMessages, flower.PullAppMessagesRequest(message_ids=list(ids)), headers)
        return list(map(received, reply.messages_list, reply.message_object_trees))

    def received(proto: flower.MessageProto, tree: flower.ObjectTree) -> Message:
        if not tree.children:  # the message holds its content itself, or an error in its place
            return flower.message_from_proto(proto)
        number, calls = proto.metadata.message_id, (client.PullObject, client.ConfirmMessageReceived)
        try:
            return flower.pull_message(tree, number, grid.node, grid.run.run_id, *calls)
        except flower.ObjectPullError as error:
            proto.ClearField("content")
            proto.error.code, proto.error.reason = flower.ErrorCode.MESSAGE_UNAVAILABLE, str(error)
            return flower.message_from_proto(proto)

    return Transport(push, pull, door, "messages with their content inside, to sites that can")


def batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Cuts a sequence where a request would become too large."""
    batch: list[T] = []
    total = 0
    for item in items:
        bytes_more = size(item)
        if batch and total + bytes_more > REQUEST:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += bytes_more
    if batch:
        yield batch
