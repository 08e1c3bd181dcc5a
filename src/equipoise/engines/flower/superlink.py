"""Flower's SuperLink with one layer more: a pull that asks to wait is answered as soon as there is something to pull.

    python -P superlink.py ARGUMENTS OF flower-superlink

It is started as a file, so that it loads Flower and nothing else of Equipoise. Nothing is stored or decided here: every
request goes through Flower's own application, which authenticates it before it may wait.

    x-equipoise-wait: 20    on a pull: wait up to 20 s
    x-equipoise-most: 8     on a pull of replies: at most 8 of those that are there, so that an answer stays small
    x-equipoise-nodes: 7,9  on the answer to a list of nodes: those that asked to wait, so they are sites that stay
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import flwr.superlink.main as superlink_main
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.superlink.cli import flower_superlink

LONGEST = 25.0  # seconds of one wait, below the client's own time-out of 30
RECHECK = 2.0  # seconds between two looks for what no push announces: nodes that are gone
TOGETHER = 0.004  # seconds in which replies that come at nearly the same time are collected into one answer
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
                nodes = {m.metadata.dst_node_id for m in PushAppMessagesRequest.FromString(body).messages_list}
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
                    await self.hold(scope, receive, send, [("node", node)], lambda: body)
                else:
                    self.staying.discard(node)
                    await self.app(scope, once(body), send)
            case "/v1/runtime/pull-messages" if header(scope, b"x-equipoise-wait"):
                ids = list(PullAppMessagesRequest.FromString(body).message_ids)
                most = int(header(scope, b"x-equipoise-most")) or len(ids)

                def those_that_came() -> bytes:
                    came = [i for i in ids if i in self.ready][:most]
                    for i in came:
                        del self.ready[i]
                    return PullAppMessagesRequest(message_ids=came).SerializeToString() if came else body

                await self.hold(scope, receive, send, [("reply", i) for i in ids], those_that_came)
            case _:
                await self.app(scope, once(body), send)
        return None

    async def hold(
        self, scope: Scope, receive: Receive, send: Send, keys: list[Key], body: Callable[[], bytes]
    ) -> None:
        """Asks Flower, and again when one of the keys is woken, until the answer holds something or time is up."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        end = loop.time() + min(header(scope, b"x-equipoise-wait"), LONGEST)
        for key in keys:
            self.events.setdefault(key, set()).add(event)
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            while True:
                event.clear()
                start, content = await self.ask(scope, body())
                if start.get("status") != 200 or content or loop.time() >= end or self.stopping:
                    break
                woken = asyncio.ensure_future(event.wait())
                pause = min(RECHECK, end - loop.time()) if keys[0][0] == "reply" else end - loop.time()
                await asyncio.wait({woken, gone}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if gone.done():
                    return
                if event.is_set() and keys[0][0] == "reply":
                    await asyncio.sleep(TOGETHER)
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


def header(scope: Scope, name: bytes) -> float:
    """A number of seconds or of replies; 0 where there is none."""
    try:
        return max(0.0, min(float(next(value for key, value in scope["headers"] if key == name)), 1e6))
    except (StopIteration, ValueError):
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
