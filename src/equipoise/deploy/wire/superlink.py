"""Flower's SuperLink with two doors: the sites' API for everybody outside, everything else for the operator alone.

    python -P superlink.py --sites-host HOST --sites-port PORT [--keys FOLDER] [--operator SOCKET] FLOWER'S ARGUMENTS

It is started as a file, so that it loads Flower and nothing else of Equipoise. What is given out comes from Flower's
own application, which authenticates the request. Three layers stand around it:

`SitesDoor`, on --sites-host and --sites-port, passes the routes of Flower's Fleet API on, for keys whose names are in
FOLDER/sites (NAME.pub), and refuses, logs and counts everything else. The folder is read again when it changes: a key
that is added is taken, one that is gone is refused from then on.

`OperatorDoor` has all of Flower's API: on SOCKET, in a folder of the file system that only one user may enter, for
requests that show they know the secret of --superexec-auth-secret-file; or, for Flower's own programs, which know
neither, on --host and --port, for processes of the same user.

`HeldPulls` lets a node wait whose key Flower has accepted; Flower is asked again when a message has come for the node,
and when the time is up.

    x-equipoise-wait: 20    on a pull: wait up to 20 s
    x-equipoise-most: 8     on a pull of replies: at most 8 of those that are there, so that an answer stays small
    x-equipoise-nodes: 7,9  on the answer to a list of nodes: those that asked to wait, so they are sites that stay
    x-equipoise-door: {..}  on the same answer, as JSON: whose key each node has, and what the sites' door refused
    x-equipoise-largest: 9  on the server's messages: the bytes that a reply to one of them may have; one that is larger
                            is thrown away before the server reads it, and the server is told so instead
    x-equipoise-operator: proof of the secret, on every request to SOCKET
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import logging
import os
import socket
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes, verify_signature
from flwr.superlink.cli import flower_superlink

log = logging.getLogger("equipoise.superlink")

LONGEST = 25.0  # seconds of one wait, below the client's own time-out of 30
RECHECK = 2.0  # seconds between two looks for what no push announces: nodes that are gone
# Replies that come at nearly the same time are collected into one answer: so many seconds for each that is awaited, and
# at most.
TOGETHER = (0.002, 0.1)
REMEMBERED = 100_000  # replies that have come and were never asked for
TOO_LARGE = 2  # Flower's code of an error for what a ClientApp did wrong
LARGEST = 64 << 20  # bytes of one request of a site; what is larger goes as several of Flower's objects
REQUEST = 1 << 31  # bytes of one request of the operator
LOOK = 0.5  # seconds between two looks at the folder of the sites' keys
LINES, MINUTE = 20, 60.0  # lines about refused requests that are logged in so many seconds
KINDS = 50  # of refusals that are counted each on its own: the counts travel in a header
FLEET = "/v1/fleet/"
SITES_CALLS = (
    "activate-node deactivate-node send-node-heartbeat pull-messages push-messages pull-object push-object "
    "confirm-message-received get-run get-fab"
)
SITES_API = frozenset(FLEET + call for call in SITES_CALLS.split())
WITHOUT_KEYS = frozenset({FLEET + "register-node", FLEET + "unregister-node"})  # a node then registers itself

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
        self.largest: dict[str, int] = {}  # message -> bytes that the reply to it may have
        self.room: dict[int, int] = {}  # node -> bytes that the objects of its last reply may still have
        self.unread: Counter[int] = Counter()  # node -> messages that came for it and that it may not have pulled yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "") if scope["type"] == "http" and scope["method"] == "POST" else ""
        if path == "/v1/runtime/get-nodes":
            stay = ",".join(map(str, self.staying)).encode()
            return await self.app(scope, receive, with_header(send, b"x-equipoise-nodes", stay) if stay else send)
        if not path.endswith(("/pull-messages", "/push-messages", "/fleet/push-object")):
            return await self.app(scope, receive, send)
        body = await read(receive, REQUEST)
        if body is None:
            return await answer(send, 413, "the request is too large")
        match path:
            case "/v1/runtime/push-messages":
                pushed, most = PushAppMessagesRequest.FromString(body), int(header(scope, b"x-equipoise-largest", 1e12))
                self.largest |= {m.metadata.message_id: most for m in pushed.messages_list if most}
                forget_oldest(self.largest)
                await self.app(scope, replayed(body), send)
                nodes = Counter(m.metadata.dst_node_id for m in pushed.messages_list)
                self.unread += nodes
                self.wake(("node", node) for node in nodes)
            case "/v1/fleet/push-messages":
                request = PushMessagesRequest.FromString(body)
                if any(m.metadata.src_node_id != request.node.node_id for m in request.messages_list):
                    return await answer(send, 403, "a node answers its own messages only")
                if self.cut_large(request):
                    body = request.SerializeToString()
                    scope = sized(scope, body)
                await self.app(scope, replayed(body), send)
                replied = [m.metadata.reply_to_message_id for m in request.messages_list]
                self.ready |= dict.fromkeys(replied)
                forget_oldest(self.ready)
                self.wake(("reply", i) for i in replied)
            case "/v1/fleet/push-object":
                node = PushObjectRequest.FromString(body).node.node_id
                if node in self.room:
                    self.room[node] -= len(body)
                    if self.room[node] < 0:
                        return await answer(send, 413, "the reply is larger than what was asked for")
                await self.app(scope, replayed(body), send)
            case "/v1/fleet/pull-messages":
                node = PullMessagesRequest.FromString(body).node.node_id
                if header(scope, b"x-equipoise-wait"):
                    self.staying.add(node)
                    await self.hold_node(scope, receive, send, node, body)
                else:
                    self.staying.discard(node)
                    await self.app(scope, replayed(body), send)
            case "/v1/runtime/pull-messages" if header(scope, b"x-equipoise-wait"):
                ids = list(PullAppMessagesRequest.FromString(body).message_ids)
                most = int(header(scope, b"x-equipoise-most")) or len(ids)
                await self.hold_server(scope, receive, send, ids, most, body)
            case _:
                await self.app(scope, replayed(body), send)
        return None

    def cut_large(self, request: PushMessagesRequest) -> bool:
        """Replies that are larger than what was asked for become errors; what follows as objects is bounded too."""
        cut, room = False, 0
        trees = [*request.message_object_trees, *(ObjectTree() for _ in request.messages_list)]
        for message, tree in zip(request.messages_list, trees, strict=False):
            most, size = self.largest.get(message.metadata.reply_to_message_id, 0), message.ByteSize() + tree.ByteSize()
            room += 2 * most or LARGEST  # a request may be sent again
            if most and size > most:
                log.warning("a reply of node %d has %d bytes, and %d were asked for", request.node.node_id, size, most)
                message.ClearField("content")
                message.error.code = TOO_LARGE
                message.error.reason = f"its reply is larger than the {most} bytes asked for"
                tree.ClearField("children")
                cut = True
        self.room[request.node.node_id] = room
        return cut

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

    async def ask(self, scope: Scope, body: bytes) -> tuple[Event, bytes]:
        """What Flower's application answers."""
        start: Event = {}
        parts: list[bytes] = []

        async def keep(event: Event) -> None:
            if event["type"] == "http.response.start":
                start.update(event)
            else:
                parts.append(event.get("body", b""))

        await self.app({**sized(scope, body), "state": dict(scope.get("state", {}))}, replayed(body), keep)
        return start, b"".join(parts)

    @classmethod
    def wake(cls, keys: Iterable[Key]) -> None:
        for key in keys:
            for event in cls.events.get(key, ()):
                event.set()


class Roster:
    """Who may join under which name: FOLDER/sites/NAME.pub, read again when the folder changes."""

    def __init__(self, folder: Path, state: Any):
        """`state` is Flower's, which is told the keys."""
        self.folder, self.state = folder, state
        self.names: dict[bytes, str] = {}  # key -> name
        self.revoked: dict[bytes, str] = {}
        self.version: Any = None
        self.looked = -LOOK
        self.look()

    def look(self) -> None:
        """Takes the keys that have come, and lets go of the nodes whose key has gone."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        folders = [self.folder / kind for kind in ("sites", "revoked")]
        files = [path for folder in folders for path in folder.glob("*.pub")]
        version = {str(path): path.stat().st_mtime_ns for path in files if path.exists()}
        if version == self.version:
            return
        self.version, before = version, self.names
        self.revoked = {key: path.stem.rpartition("-")[0] for path, key in self.keys("revoked")}
        keys = [(path.stem, key) for path, key in self.keys("sites")]
        times = Counter(key for _, key in keys)
        for name, key in keys:
            if times[key] > 1:
                log.error("the key of '%s' is another site's too; neither is taken", name)
            elif key in self.revoked:
                log.error("the key of '%s' was revoked; it is not taken", name)
        self.names = {key: name for name, key in keys if times[key] == 1 and key not in self.revoked}
        for key in self.names.keys() - before.keys():
            with suppress(ValueError):  # Flower knows it already
                self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
            log.info("the key of '%s' is registered", self.names[key])
        for key in before.keys() - self.names.keys():
            node = self.state.get_node_id_by_public_key(key)
            if node is not None:
                self.state.deactivate_node(node)
            log.warning("the key of '%s' is not taken any longer", before[key])

    def keys(self, kind: str) -> list[tuple[Path, bytes]]:
        keys = []
        for path in sorted((self.folder / kind).glob("*.pub")):
            try:
                key = load_ssh_public_key(path.read_bytes())
                if not isinstance(key, ec.EllipticCurvePublicKey):
                    raise TypeError(type(key).__name__)
                keys.append((path, public_key_to_bytes(key)))
            except Exception as error:  # one bad file does not keep the others out
                log.error("%s is no public key of an EC kind (%s); it is not taken", path, error)
        return keys

    def nodes(self) -> dict[int, str]:
        """node -> the name of its key."""
        self.look()
        names = {self.state.get_node_id_by_public_key(key): name for key, name in self.names.items()}
        return {node: name for node, name in names.items() if node is not None}


class SitesDoor:
    """All that is to be had from outside: the sites' API, for those whose keys are known by name."""

    def __init__(self, app: App, roster: Roster | None):
        """Without a roster there is no authentication: nodes register themselves."""
        self.app, self.roster = app, roster
        self.routes = SITES_API | (WITHOUT_KEYS if roster is None else frozenset())
        self.refused: Counter[str] = Counter()  # sentence -> requests
        self.lines, self.since, self.unsaid = 0, 0.0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the sites' door takes no {scope['type']}")
        path = scope["path"]
        as_written = scope.get("raw_path") in (None, path.encode())  # no second way to write a route
        if scope["method"] != "POST" or path not in self.routes or not as_written:
            return await self.refuse(scope, send, 404, "requests for what is not the sites' API")
        key = public_key(scope)
        if self.roster is not None:
            self.roster.look()
            if key not in self.roster.names:
                was = self.roster.revoked.get(key)
                what = "an unknown key" if was is None else f"the revoked key of '{was}'"
                return await self.refuse(scope, send, 403, f"requests with {what}")
            if not signed(scope, key):  # before anything of it is read: public keys are no secret
                why = f"requests in the name of '{self.roster.names[key]}' that its key did not sign"
                return await self.refuse(scope, send, 401, why)
        body = None if header(scope, b"content-length", 1e12) > LARGEST else await read(receive, LARGEST)
        if body is None:
            return await self.refuse(scope, send, 413, "requests that are larger than a site's can be")
        ended = False

        async def checked(event: Event) -> None:
            nonlocal ended
            if event["type"] == "http.response.start":
                if self.roster is not None:
                    self.roster.look()  # a pull may have waited while its key was revoked
                    if key not in self.roster.names:
                        ended = True
                        return await self.refuse(scope, send, 403, "requests with a key that was revoked meanwhile")
                self.count(scope, key, event["status"])
            if not ended:
                await send(event)

        return await self.app(scope, replayed(body, receive), checked)

    def count(self, scope: Scope, key: bytes, status: int) -> None:
        """What Flower refused, where it says something about who asks."""
        if self.roster is None:
            return
        name, state = self.roster.names[key], self.roster.state
        if status == 403:
            self.note(scope, f"replies of '{name}' to messages of others")
        elif status == 412 and ("node", state.get_node_id_by_public_key(key)) in HeldPulls.events:
            # It asks to be activated while another waits for messages.
            self.note(scope, f"requests of a second node with the key of '{name}' while the first one is there")

    async def refuse(self, scope: Scope, send: Send, status: int, why: str) -> None:
        self.note(scope, why)
        await answer(send, status, f"refused: {why}")

    def note(self, scope: Scope, why: str) -> None:
        """Counts it; the log has a line for each, but not for each of thousands."""
        if why not in self.refused and len(self.refused) >= KINDS:
            why = "requests of still other kinds"
        self.refused[why] += 1
        now = time.monotonic()
        if now - self.since >= MINUTE:
            if self.unsaid:
                log.warning("%d more requests were refused", self.unsaid)
            self.since, self.lines, self.unsaid = now, 0, 0
        self.lines += 1
        if self.lines > LINES:
            self.unsaid += 1
            return
        path = "".join(c if c.isprintable() else "?" for c in scope["path"][:100])
        where = ":".join(map(str, scope.get("client") or ("?",)))
        log.warning("refused %s: %s (%s %s)", where, why, scope["method"][:10], path)


class OperatorDoor:
    """All of Flower's API, for the operator; the answer to a list of nodes says whose key each node has."""

    def __init__(self, app: App, door: SitesDoor, secret: bytes | None):
        """Without a secret it is on a port; only processes of the user who runs this one are answered."""
        self.app, self.door = app, door
        self.proof = None if secret is None else proof(secret)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self.proof is not None:
                if not hmac.compare_digest(text(scope, OPERATOR), self.proof):
                    return await self.door.refuse(scope, send, 403, "requests of other processes of this machine")
            elif owner(scope["client"], scope["server"]) not in (os.getuid(), UNKNOWN):
                return await self.door.refuse(scope, send, 403, "requests of other users of this machine")
            if scope["path"] == "/v1/runtime/get-nodes":
                roster = self.door.roster
                about = {"names": None if roster is None else roster.nodes(), "refused": self.door.refused}
                send = with_header(send, b"x-equipoise-door", json.dumps(about).encode())
        return await self.app(scope, receive, send)


OPERATOR = b"x-equipoise-operator"


def proof(secret: bytes) -> bytes:
    """What the header of the operator's requests holds; `serverapp.py` makes the same."""
    return hmac.new(secret, OPERATOR, hashlib.sha256).hexdigest().encode()


UNKNOWN = -1  # a system whose kernel has no such table


def owner(client: tuple[str, int], server: tuple[str, int], table: Path = Path("/proc/net/tcp")) -> int | None:
    """The user whose process has the other end of a connection within this machine; None: it is not there."""

    def written(address: tuple[str, int]) -> str:
        return f"{socket.inet_aton(address[0])[::-1].hex().upper()}:{address[1]:04X}"

    if not table.is_file():
        return UNKNOWN
    ends = [written(client), written(server)]
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == ends:
            return int(fields[7])
    return None


def public_key(scope: Scope) -> bytes:
    with suppress(ValueError):
        return b64decode(text(scope, FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()), validate=True)
    return b""


def signed(scope: Scope, key: bytes) -> bool:
    """Whether the request's time was signed with the key."""
    try:
        signature = b64decode(text(scope, FLEET_HTTP_SIGNATURE_HEADER.lower().encode()), validate=True)
        return verify_signature(bytes_to_public_key(key), text(scope, TIMESTAMP_HEADER.lower().encode()), signature)
    except ValueError:
        return False


async def answer(send: Send, status: int, why: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})


def with_header(send: Send, name: bytes, value: bytes) -> Send:
    """`send`, with one more header on the answer."""

    async def sent(event: Event) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event.get("headers", ()), (name, value)]}
        await send(event)

    return sent


def sized(scope: Scope, body: bytes) -> Scope:
    """The request with the length of another body."""
    length = str(len(body)).encode()
    return {**scope, "headers": [(k, length if k == b"content-length" else v) for k, v in scope["headers"]]}


def forget_oldest(kept: dict) -> None:
    while len(kept) > REMEMBERED:
        del kept[next(iter(kept))]


def text(scope: Scope, name: bytes) -> bytes:
    """The value of a header; empty if it is missing."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def header(scope: Scope, name: bytes, most: float = 1e6) -> float:
    """A number of seconds, replies or bytes; 0 if the header is missing or no number."""
    try:
        return max(0.0, min(float(text(scope, name)), most))
    except ValueError:
        return 0.0


async def read(receive: Receive, most: int) -> bytes | None:
    """The body of a request; None as soon as it is longer than that, whatever its header says."""
    parts, size = [], 0
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if not event.get("more_body"):
            return b"".join(parts)


async def never() -> Event:
    await asyncio.Event().wait()
    return {}


def replayed(body: bytes, rest: Receive = never) -> Receive:
    """A request whose body has been read already; `rest` is what comes after it."""
    given = False

    async def receive() -> Event:
        nonlocal given
        if given:
            return await rest()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def doors(app: Any, keys: Path | None, secret: bytes | None) -> tuple[SitesDoor, OperatorDoor]:
    """The two ways into one application of Flower's."""
    held = HeldPulls(app)
    sites = SitesDoor(held, None if keys is None else Roster(keys, app.state.linkstate_factory.state()))
    return sites, OperatorDoor(held, sites, secret)


async def serve(operator: uvicorn.Server, sites: uvicorn.Server) -> None:
    """Both listen until they are told to end; the operator's first, so that whoever finds the other finds it too."""
    with operator.capture_signals():
        running = asyncio.ensure_future(operator._serve())
        running.add_done_callback(lambda _: setattr(sites, "should_exit", True))
        while not operator.started and not running.done():
            await asyncio.sleep(0.01)
        if not running.done():
            await sites._serve()
            operator.should_exit = True
        await running


def main() -> None:
    """flower-superlink behind its doors, connections kept open, and no line in the log for every request."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--sites-host", required=True)
    parser.add_argument("--sites-port", type=int, required=True)
    parser.add_argument("--keys", type=Path)
    parser.add_argument("--operator")
    parser.add_argument("--superexec-auth-secret-file", type=Path)
    ours, sys.argv[1:] = parser.parse_known_args()
    secret = None
    if ours.operator:
        secret = ours.superexec_auth_secret_file.read_bytes()
        sys.argv += ["--superexec-auth-secret-file", str(ours.superexec_auth_secret_file)]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    def run(app: Any, *, host: str, port: int, **options: Any) -> None:
        options |= {"access_log": False, "timeout_keep_alive": 60, "timeout_graceful_shutdown": 2}
        options |= {"proxy_headers": False, "ws": "none"}
        encrypted = {name: options.pop(name, None) for name in ("ssl_keyfile", "ssl_certfile")}
        outside, inside = doors(app, ours.keys, secret)
        where = {"uds": ours.operator} if ours.operator else {"host": host, "port": port, **encrypted}
        operator = uvicorn.Server(uvicorn.Config(inside, **where, **options))
        sites = uvicorn.Server(
            uvicorn.Config(outside, host=ours.sites_host, port=ours.sites_port, lifespan="off", **encrypted, **options)
        )

        def end(server: uvicorn.Server, *args: Any) -> None:
            HeldPulls.stopping = sites.should_exit = True
            HeldPulls.wake(list(HeldPulls.events))
            handle_exit(server, *args)

        handle_exit = uvicorn.Server.handle_exit
        uvicorn.Server.handle_exit = end  # type: ignore[method-assign, assignment]
        asyncio.run(serve(operator, sites))

    uvicorn.run = run  # type: ignore[assignment]
    flower_superlink()


if __name__ == "__main__":
    main()
