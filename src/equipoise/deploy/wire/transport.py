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


def why_not_warm(*more: str) -> str:
    """Why Flower's internals cannot be used; empty where they can. A server needs `more` of them: "serverapp"."""
    try:
        for module in ("internals", *more):
            importlib.import_module(f"equipoise.deploy.wire.{module}")
    except Exception as error:  # whatever another version of Flower does
        return f"{type(error).__name__}: {error}"
    return ""


class Transport:
    """The fastest way of messages that a Grid has: content inside them, or Flower's own objects."""

    def __init__(self, grid: Any, *, stock: bool = False):
        """`stock`: Flower's own way, whatever the Grid has."""
        self.grid, self.last_door, self.local = grid, Door(), threading.local()
        self.client: Any = getattr(grid, "_runtime_client", None)  # of Flower's HttpGrid, and of the server's own
        why = "asked for" if stock else why_not_warm()
        self.why_not = why or ("" if self.client is not None else f"the Grid is a {type(grid).__name__}")
        if self.client is not None:
            self.client._interceptors = (*self.client._interceptors, self)

    @property
    def about(self) -> str:
        objects = f"messages as Flower's objects ({self.why_not})"
        return objects if self.why_not else "messages with their content inside, to sites that can"

    def door(self) -> Door:
        """What the last list of nodes said about them."""
        return self.last_door

    def push(self, messages: Sequence[Message], inside: Sequence[bool], largest: int) -> list[str | None]:
        """`inside`: which may go with their content inside; `largest`: bytes of a reply to one of them, 0: any."""
        if self.why_not:
            return list(self.grid.push_messages(list(messages)))
        from equipoise.deploy.wire import internals as flower

        ids: list[str | None] = [None] * len(messages)
        headers = {LARGEST: str(largest)} if largest else {}
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id

        def send(batch: Sequence[int], trees: Sequence[flower.ObjectTree], heads: Iterable[Message]) -> Any:
            request = flower.PushAppMessagesRequest(
                messages_list=map(flower.message_to_proto, heads), message_object_trees=trees
            )
            done = self.call(self.client.PushMessages, request, headers)
            for k, number in zip(batch, done.message_ids, strict=True):
                ids[k] = number or None
            return done

        short = [k for k, m in enumerate(messages) if inside[k] and content_bytes(m) <= INLINE]
        for batch in batches(short, lambda k: content_bytes(messages[k])):
            some = [messages[k] for k in batch]
            send(batch, [flower.ObjectTree(object_id=message.metadata.message_id) for message in some], some)
        rest = sorted({*range(len(messages))} - {*short})
        if rest:
            large = [messages[k] for k in rest]
            with flower.no_object_id_recompute():
                heads = map(flower.remove_content_from_message, large)
                done = send(rest, list(map(flower.get_object_tree, large)), heads)
                objects = {name: part for m in large for name, part in flower.get_all_nested_objects(m).items()}
                node, run = self.grid.node, self.grid.run.run_id
                put = flower.make_push_object_fn_protobuf(self.client.PushObject, node, run, done.session_id)
                flower.push_objects(objects, put, object_ids_to_push=set(done.objects_to_push))
        return ids

    def pull(self, ids: Sequence[str], wait: float, size: int) -> list[Message]:
        """The replies that have come; waits so many seconds where the SuperLink can, for replies of so many bytes."""
        if self.why_not:
            return list(self.grid.pull_messages(list(ids)))
        from equipoise.deploy.wire import internals as flower

        def received(proto: flower.MessageProto, tree: flower.ObjectTree) -> Message:
            if not tree.children:  # the message holds its content itself, or an error in its place
                return flower.message_from_proto(proto)
            number, calls = proto.metadata.message_id, (self.client.PullObject, self.client.ConfirmMessageReceived)
            try:
                return flower.pull_message(tree, number, self.grid.node, self.grid.run.run_id, *calls)
            except flower.ObjectPullError as error:
                proto.ClearField("content")
                proto.error.code, proto.error.reason = flower.ErrorCode.MESSAGE_UNAVAILABLE, str(error)
                return flower.message_from_proto(proto)

        headers = {WAIT: f"{wait:.3f}", MOST: str(max(1, REQUEST // max(size, 1)))} if wait > 0 else {}
        reply = self.call(self.client.PullMessages, flower.PullAppMessagesRequest(message_ids=list(ids)), headers)
        return list(map(received, reply.messages_list, reply.message_object_trees))

    def call(self, function: Callable[[Any], Any], request: object, headers: dict[str, str]) -> Any:
        """A call of the Grid's client, with headers on its requests."""
        self.local.headers = headers
        try:
            return function(request)
        finally:
            self.local.headers = {}

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Called by the Grid's client around every request."""
        context.request.headers.update(getattr(self.local, "headers", {}))
        response = call_next(context)
        if context.rpc_method.endswith("/GetNodes"):
            staying = frozenset(int(word) for word in response.headers.get(NODES, "").split(",") if word)
            self.last_door = self.last_door._replace(staying=staying)
        if DOOR in response.headers:
            said = json.loads(response.headers[DOOR])
            names = said["names"] and {int(node): name for node, name in said["names"].items()}
            self.last_door = self.last_door._replace(names=names, refused=said["refused"])
        return response


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
