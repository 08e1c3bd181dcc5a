"""Flower's SuperLink with one layer more: a pull that asks to wait is answered as soon as there is something to pull.

    python -P superlink.py ARGUMENTS OF flower-superlink

It is started as a file, so that it loads Flower and nothing else of Equipoise. Nothing is stored or decided here: what
is given out comes from Flower's own application, which authenticates the request. A node may wait when that application
has accepted its key; it is asked again when a message has come for the node, and when the time is up.

    x-equipoise-wait: 20    on a pull: wait up to 20 s
    x-equipoise-most: 8     on a pull of replies: at most 8 of those that are there, so that an answer stays small
    x-equipoise-nodes: 7,9  on the answer to a list of nodes: those that asked to wait, so they are sites that stay
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import flwr.superlink.main as superlink_main
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.cli import flower_superlink

LONGEST = 25.0  # seconds of one wait, below the client's own time-out of 30
RECHECK = 2.0  # seconds between two looks for what no push announces: nodes that are gone
# Replies that come at nearly the same time are collected into one answer: so many seconds for each that is awaited, and
# at most.
TOGETHER = (0.002, 0.1)
REMEMBERED = 100_000  # replies that have come and were never asked for

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Key = tuple[str, int | str]  # ("node", its number): a message for it; ("reply", a message's id): the reply to it


class HeldPulls:
    """The ASGI layer."""

    stopping = False  # the process has been told to end: nobody waits any longer
    events: dict[Key, set[asyncio.Event]] = {}  # noqa: RUF012 - one SuperLink per process

    def __init__(self, app: App):
        self.app = app
        self.ready: dict[str, None] = {}  # messages whose replies have come, in their order
        self.staying: set[int] = set()  # nodes whose last pull asked to wait
        self.accepted: dict[int, bytes] = {}  # node -> the key with which its last request was accepted
        self.unread: Counter[int] = Counter()  # node -> messages that came for it and that it may not have pulled yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "") if scope["type"] == "http" and scope["method"] == "POST" else ""
        if path == "/v1/runtime/get-nodes":
            return await self.app(scope, receive, self.with_nodes(send))
        if not path.endswith(("/pull-messages", "/push-messages")):
            return await self.app(scope, receive, send)
        body = await read(receive)
        match path:
            case "/v1/runtime/push-messages":
                await self.app(scope, once(body), send)
                nodes = Counter(m.metadata.dst_node_id for m in PushAppMessagesRequest.FromString(body).messages_list)
                self.unread += nodes
                self.wake(("node", node) for node in nodes)
            case "/v1/fleet/push-messages":
                await self.app(scope, once(body), send)
                replied = [m.metadata.reply_to_message_id for m in PushMessagesRequest.FromString(body).messages_list]
                self.ready |= dict.fromkeys(replied)
                while len(self.ready) > REMEMBERED:
                    del self.ready[next(iter(self.ready))]
                self.wake(("reply", i) for i in replied)
            case "/v1/fleet/pull-messages":
                node = PullMessagesRequest.FromString(body).node.node_id
                if header(scope, b"x-equipoise-wait"):
                    self.staying.add(node)
                    await self.hold_node(scope, receive, send, node, body)
                else:
                    self.staying.discard(node)
                    await self.app(scope, once(body), send)
            case "/v1/runtime/pull-messages" if header(scope, b"x-equipoise-wait"):
                ids = list(PullAppMessagesRequest.FromString(body).message_ids)
                most = int(header(scope, b"x-equipoise-most")) or len(ids)
                await self.hold_server(scope, receive, send, ids, most, body)
            case _:
                await self.app(scope, once(body), send)
        return None

    async def hold_node(self, scope: Scope, receive: Receive, send: Send, node: int, body: bytes) -> None:
        """Until there is a message for the node."""
        key = text(scope, FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode())

        async def ask() -> tuple[Event, bytes]:
            unread = self.unread.pop(node, 0)  # before, so that a message that comes meanwhile is not overlooked
            start, content = await self.ask(scope, body)
            if start.get("status") == 200:
                self.accepted[node] = key
            else:
                self.accepted.pop(node, None)
            if content and unread > 1:  # Flower gives one at a time
                self.unread[node] += unread - 1
            return start, content

        nothing = bool(key) and self.accepted.get(node) == key and node not in self.unread
        await self.hold(scope, receive, send, [("node", node)], ask, nothing_yet=nothing)

    async def hold_server(
        self, scope: Scope, receive: Receive, send: Send, ids: list[str], most: int, body: bytes
    ) -> None:
        """Until there are replies to some of the messages."""
        loop = asyncio.get_running_loop()

        async def ask() -> tuple[Event, bytes]:
            came = [i for i in ids if i in self.ready][:most]
            for i in came:
                del self.ready[i]
            return await self.ask(scope, PullAppMessagesRequest(message_ids=came).SerializeToString() if came else body)

        async def collect() -> None:
            end = loop.time() + min(TOGETHER[0] * len(ids), TOGETHER[1])
            while loop.time() < end and sum(i in self.ready for i in ids) < min(most, len(ids)):
                await asyncio.sleep(TOGETHER[0])

        await self.hold(scope, receive, send, [("reply", i) for i in ids], ask, collect)

    async def hold(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        keys: list[Key],
        ask: Callable[[], Awaitable[tuple[Event, bytes]]],
        collect: Callable[[], Awaitable[None]] | None = None,
        *,
        nothing_yet: bool = False,
    ) -> None:
        """Asks Flower, and again when one of the keys is woken, until the answer holds something or time is up.

        `nothing_yet`: it is known that the answer would be empty, so it is asked only after waiting.
        """
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        end = loop.time() + min(header(scope, b"x-equipoise-wait"), LONGEST)
        for key in keys:
            self.events.setdefault(key, set()).add(event)
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            while True:
                event.clear()
                if not nothing_yet or self.stopping:
                    start, content = await ask()
                    if start.get("status") != 200 or content or loop.time() >= end or self.stopping:
                        break
                nothing_yet = False
                woken = asyncio.ensure_future(event.wait())
                pause = min(RECHECK, end - loop.time()) if collect else end - loop.time()
                await asyncio.wait({woken, gone}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if gone.done():
                    return
                if event.is_set() and collect:
                    await collect()
        finally:
            gone.cancel()
            for key in keys:
                waiting = self.events[key]
                waiting.discard(event)
                if not waiting:
                    del self.events[key]
        await send(start)
        await send({"type": "http.response.body", "body": content})

    def with_nodes(self, send: Send) -> Send:
        """`send`, with the nodes that stay in the header of the answer."""

        async def sent(event: Event) -> None:
            if event["type"] == "http.response.start" and self.staying:
                nodes = ",".join(map(str, self.staying)).encode()
                event = {**event, "headers": [*event.get("headers", ()), (b"x-equipoise-nodes", nodes)]}
            await send(event)

        return sent

    async def ask(self, scope: Scope, body: bytes) -> tuple[Event, bytes]:
        """What Flower's application answers."""
        start: Event = {}
        parts: list[bytes] = []

        async def keep(event: Event) -> None:
            if event["type"] == "http.response.start":
                start.update(event)
            else:
                parts.append(event.get("body", b""))

        headers = [(k, v) if k != b"content-length" else (k, str(len(body)).encode()) for k, v in scope["headers"]]
        await self.app({**scope, "headers": headers, "state": dict(scope.get("state", {}))}, once(body), keep)
        return start, b"".join(parts)

    @classmethod
    def wake(cls, keys: Iterable[Key]) -> None:
        for key in keys:
            for event in cls.events.get(key, ()):
                event.set()


def text(scope: Scope, name: bytes) -> bytes:
    """The value of a header; empty where there is none."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def header(scope: Scope, name: bytes) -> float:
    """A number of seconds or of replies; 0 where there is none."""
    try:
        return max(0.0, min(float(text(scope, name)), 1e6))
    except ValueError:
        return 0.0


async def read(receive: Receive) -> bytes:
    parts = []
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        if not event.get("more_body"):
            return b"".join(parts)


def once(body: bytes) -> Receive:
    """A request whose body has been read already."""
    given = False

    async def receive() -> Event:
        nonlocal given
        if given:
            await asyncio.Event().wait()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def main() -> None:
    """flower-superlink, with the layer outermost, connections kept open, and no line in the log for every request."""
    create_app, run, handle_exit = superlink_main.create_app, uvicorn.run, uvicorn.Server.handle_exit

    def with_layer(*args: Any, **options: Any) -> Any:
        app = create_app(*args, **options)
        app.add_middleware(HeldPulls)
        return app

    def end(server: uvicorn.Server, *args: Any) -> None:
        HeldPulls.stopping = True
        HeldPulls.wake(list(HeldPulls.events))
        handle_exit(server, *args)

    superlink_main.create_app = with_layer
    uvicorn.Server.handle_exit = end  # type: ignore[method-assign, assignment]
    uvicorn.run = lambda *args, **options: run(
        *args, **options | {"access_log": False, "timeout_keep_alive": 60, "timeout_graceful_shutdown": 2}
    )
    flower_superlink()


if __name__ == "__main__":
    main()
