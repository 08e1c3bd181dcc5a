"""A site that stays: one process on Flower's Fleet client, with its data, JAX and compiled programs in memory.

Flower's own SuperNode starts a process for every message. Here the ClientApp is loaded once and called in this process.
What a site must not lose stands in its folder, as with Flower's SuperNode, so a process that dies is started again and
goes on:

    node.json     the node's number, because Flower refuses to activate a node that it takes for still there
    working.bin   the message that is being answered; after a crash the server is told at once instead of waiting
    lock          held while the process lives: a site runs once
    node.key      without authentication: the key by which the node is known again

The process only runs ClientApps that are installed where it runs; code that a server ships is not executed.
"""

import base64
import email.utils
import fcntl
import importlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TextIO, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.deploy.wire import internals as flower
from equipoise.deploy.wire.messages import content_bytes
from equipoise.deploy.wire.transport import INLINE, WAIT
from equipoise.errors import EquipoiseError, InputError, refuse_unless
from equipoise.files import write_whole
from equipoise.privacy import audit, identity, policy

log = logging.getLogger("equipoise.flower")
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")
AGAIN = (401, 403)  # HTTP status: the server was started again, or does not take this site's key any longer
HOLD = 20.0  # seconds that the SuperLink may keep a pull open
POLL = (0.05, 2.0)  # seconds between two pulls where it cannot: while messages come, and when none has come for long
CLOCKS = 60.0  # seconds by which clocks may differ before the server's is taken
RUNS = 4  # runs whose settings are kept
BEAT = flower.HEARTBEAT_DEFAULT_INTERVAL

OWN_APP = "equipoise.deploy.site.run:client"
INLINE_ABILITY = "inline"  # in the node's configuration: what the greeting tells the server


class Stopping(Exception):
    """The process has been told to end."""


class SignedRequests:
    """Signs every request as Flower's SuperNode does, by the server's clock where the two differ by much."""

    def __init__(self, key: ec.EllipticCurvePrivateKey):
        self.key, self.ahead = key, 0.0  # seconds that the server's clock is ahead
        self.public = base64.b64encode(flower.public_key_to_bytes(key.public_key())).decode("ascii")

    def intercept(self, context: flower.ProtobufRequestContext, call_next: flower.ProtobufCall) -> httpx.Response:
        response = self.signed(context, call_next)
        if response.status_code == httpx.codes.UNAUTHORIZED and self.compare(response):
            response = self.signed(context, call_next)
        return response

    def signed(self, context: flower.ProtobufRequestContext, call_next: flower.ProtobufCall) -> httpx.Response:
        now = (datetime.now(UTC) + timedelta(seconds=self.ahead)).isoformat()
        signature = base64.b64encode(flower.sign_message(self.key, now.encode("ascii"))).decode("ascii")
        headers = {flower.FLEET_HTTP_PUBLIC_KEY_HEADER: self.public, flower.TIMESTAMP_HEADER: now}
        headers |= {flower.FLEET_HTTP_SIGNATURE_HEADER: signature}
        for name in headers:
            context.request.headers.pop(name, None)
        flower.add_headers(context.request, headers)
        return call_next(context)

    def compare(self, response: httpx.Response) -> bool:
        """Whether the server's clock was found to differ."""
        try:
            there = email.utils.parsedate_to_datetime(response.headers["date"])
        except (KeyError, ValueError):
            return False
        ahead = (there - datetime.now(UTC)).total_seconds()
        if abs(ahead - self.ahead) < CLOCKS:
            return False
        self.ahead = ahead
        log.warning("the clock of this machine and the server's differ by %.0f s; the server's is used", ahead)
        return True


class HeldPull:
    """Asks a SuperLink that can to hold the pull until there is a message; another ignores it."""

    def intercept(self, context: flower.ProtobufRequestContext, call_next: flower.ProtobufCall) -> httpx.Response:
        if context.rpc_method.endswith("/PullMessages"):
            context.request.headers[WAIT] = str(HOLD)
        return call_next(context)


class WarmSite:
    """One node: its connection, and the apps that it has loaded."""

    def __init__(
        self,
        address: str,
        folder: Path,
        config: Mapping[str, str],
        *,
        certificates: Path | None,
        key: Path | None,
        stop: threading.Event,
    ):
        """`certificates` and `key` are the site's; None for both: no encryption, and no authentication."""
        self.folder, self.stop = folder, stop
        self.name = config.get("site", "")
        self.config: dict[str, str | bool] = {**config, INLINE_ABILITY: True}
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = locked(folder, self.name)
        self.registers = key is None
        private = own_key(folder) if key is None else identity.private_key(key)
        self.public = flower.public_key_to_bytes(private.public_key())
        trust = None if certificates is None else certificates.read_bytes()
        version = flower.RuntimeVersionHttpInterceptor(component_name="SuperNode")
        interceptors: list[flower.ProtobufClientInterceptor] = [version, SignedRequests(private), HeldPull()]
        self.client = flower.FleetHttpClient.from_server_address(address, trust is None, trust, interceptors)
        self.retries = flower.retries(stop, Stopping, on_backoff=self.say_away, on_success=self.say_back)
        self.node = flower.Node(node_id=0)
        self.runs: dict[int, tuple[ClientApp, Context]] = {}
        self.states: dict[int, RecordDict] = {}

    # The connection.

    def run(self) -> None:
        """Answers messages until `stop` is set."""
        try:
            self.connect()
            last = time.monotonic()
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    pulled = self.ask(self.client.PullMessages, flower.PullMessagesRequest(node=self.node))
                    if pulled.messages_list:
                        self.answer(pulled.messages_list[0], pulled.message_object_trees[0])
                        last = time.monotonic()
                        continue
                except httpx.HTTPStatusError as error:
                    if error.response.status_code not in AGAIN:
                        raise
                    log.warning("%s: the server does not know this node any more; connecting again", self.name)
                    self.runs.clear()
                    self.connect()
                    continue
                if time.monotonic() - began < HOLD / 2:  # nobody held the pull
                    quiet = time.monotonic() - last
                    self.stop.wait(min(POLL[1], max(POLL[0], quiet / 20)))
        except Stopping:
            pass

    def connect(self) -> None:
        """Activates the node, or takes it up again where the server takes it for still there."""
        delay, said = flower.RETRY[0], False
        while True:
            try:
                if self.registers:
                    with suppress(httpx.HTTPStatusError):  # it is registered already, or activation is refused as well
                        self.ask(self.client.RegisterNode, flower.RegisterNodeFleetRequest(public_key=self.public))
                request = flower.ActivateNodeRequest(public_key=self.public, heartbeat_interval=BEAT)
                number = self.ask(self.client.ActivateNode, request).node_id
                break
            except httpx.HTTPStatusError as error:
                with suppress(OSError, ValueError, KeyError, TypeError):  # nothing is remembered
                    number = int(json.loads((self.folder / "node.json").read_text())["node"])
                    self.node = flower.Node(node_id=number)
                    if self.heartbeat():
                        break
                if not said:
                    why = error.response.text[:200]
                    log.warning("%s: the server does not take this site yet; trying again (%s)", self.name, why)
                    said = True
            self.stop.wait(delay)
            delay = min(2 * delay, flower.RETRY[1])
        self.node = flower.Node(node_id=number)
        with suppress(OSError):
            write_whole(self.folder / "node.json", json.dumps({"node": number}))
        log.info("%s: connected, node %d", self.name, number)
        self.tell_crash()

    def heartbeat(self) -> bool:
        request = flower.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=BEAT)
        try:
            return bool(self.client.SendNodeHeartbeat(request).success)
        except Exception as error:  # the next one may get through; what is wrong for good, a pull finds out
            log.debug("%s: no heartbeat (%s)", self.name, type(error).__name__)
            return False

    def leave(self, seconds: float = 0.5) -> None:
        """Tells the server that this site has gone; what it was working on is left."""
        self.client._client.timeout = httpx.Timeout(seconds)
        try:
            self.client.DeactivateNode(flower.DeactivateNodeRequest(node_id=self.node.node_id))
        except (httpx.HTTPError, RuntimeError):
            log.info("%s: the server could not be told that this site leaves", self.name)
        self.lock.close()

    def ask(self, call: Callable[[Asked], Answered], request: Asked) -> Answered:
        """A request, again and again while the network or the server is away."""
        return self.retries.invoke(call, request)

    def say_away(self, tried: flower.RetryState) -> None:
        error = tried.exception
        if tried.tries == 1:
            status = f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else ""
            why = status or f"{type(error).__name__}: {error}"
            log.warning("%s: the server cannot be reached (%s); trying again", self.name, why)

    def say_back(self, tried: flower.RetryState) -> None:
        if tried.tries > 1:
            log.info("%s: the server is back after %.1f s", self.name, tried.elapsed_time)

    # One message.

    def answer(self, proto: flower.MessageProto, tree: flower.ObjectTree) -> None:
        """The reply of the run's ClientApp, on its way."""
        began, run = time.monotonic(), proto.metadata.run_id
        inside = not tree.children and bool(proto.content.items)
        bare = flower.MessageProto()
        bare.CopyFrom(proto)
        bare.ClearField("content")
        bare.content.SetInParent()  # empty, for Flower knows no message without content
        with suppress(OSError):  # a full disk is no reason not to answer
            # Not written through to the disk: it is for a process that dies, not for a machine that does.
            (self.folder / "working.bin").write_bytes(bare.SerializeToString())
        try:
            app, context = self.opened(run)
            message = flower.message_from_proto(proto) if inside else self.objects(run, tree)
            reply = self.called(app, message, context)
            self.send(run, reply, inside, time.monotonic() - began)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in AGAIN:
                raise
            log.info("%s: the run is over (HTTP %d)", self.name, error.response.status_code)
            self.runs.pop(run, None)
        except Stopping:
            raise
        except Exception as error:  # an app that is not installed here, a message that cannot be read: the site stays
            log.exception("%s: a message could not be answered", self.name)
            self.send_error(bare, flower.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, self.failed(error))
        with suppress(OSError):
            (self.folder / "working.bin").unlink(missing_ok=True)

    def called(self, app: ClientApp, message: Message, context: Context) -> Message:
        # Replies are dated by the clock of the message, whatever this machine's says.
        times = message.metadata.__dict__
        shift = time.time() - times["_created_at"]
        times["_created_at"] += shift
        try:
            reply = app(message, context)
        except Exception as error:
            log.exception("%s: the app raised", self.name)
            said = flower.Error(flower.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, self.failed(error))
            reply = Message(said, reply_to=message)
        reply.metadata.__dict__["_created_at"] -= shift
        reply.metadata.__dict__["_message_id"] = reply.object_id
        return reply

    def opened(self, run: int) -> tuple[ClientApp, Context]:
        """The app of a run and its context, asked for once."""
        if run not in self.runs:
            about = self.ask(self.client.GetRun, flower.GetRunRequest(node=self.node, run_id=run)).run
            details = flower.run_from_proto(about)
            request = flower.GetFabRequest(node=self.node, hash_str=details.fab_hash, run_id=run)
            fab = flower.fab_from_proto(self.ask(self.client.GetFab, request).fab).content
            where = flower.get_fab_config(fab)["tool"]["flwr"]["app"]["components"]["clientapp"]
            check_module(self.folder, self.config, where)
            context = Context(
                run_id=run,
                node_id=self.node.node_id,
                node_config=dict(self.config),
                state=self.states.setdefault(run, RecordDict()),
                run_config=flower.get_fused_config_from_fab(fab, details),
            )
            self.runs[run] = (load(where), context)
            for old in [*self.runs][:-RUNS]:
                del self.runs[old]
                self.states.pop(old, None)
        return self.runs[run]

    def objects(self, run: int, tree: flower.ObjectTree) -> Message:
        """A message that came as Flower's objects."""
        calls = (partial(self.ask, call) for call in (self.client.PullObject, self.client.ConfirmMessageReceived))
        return flower.pull_message(tree, tree.object_id, self.node, run, *calls)

    def send(self, run: int, reply: Message, inside: bool, seconds: float) -> None:
        def pushed(proto: flower.MessageProto, tree: flower.ObjectTree) -> flower.PushMessagesResponse:
            request = flower.PushMessagesRequest(
                node=self.node, messages_list=[proto], message_object_trees=[tree], clientapp_runtime_list=[seconds]
            )
            return self.ask(self.client.PushMessages, request)

        if reply.has_error() or (inside and content_bytes(reply) <= INLINE):
            pushed(flower.message_to_proto(reply), flower.ObjectTree(object_id=reply.metadata.message_id))
            return
        with flower.no_object_id_recompute():
            proto = flower.message_to_proto(flower.remove_content_from_message(reply))
            done, push = pushed(proto, flower.get_object_tree(reply)), partial(self.ask, self.client.PushObject)
            put = flower.make_push_object_fn_protobuf(push, self.node, run, done.session_id)
            flower.push_objects(flower.get_all_nested_objects(reply), put, object_ids_to_push=set(done.objects_to_push))

    def failed(self, error: Exception) -> str:
        return f"{type(error).__name__}; the log of '{self.name}' says more"

    def send_error(self, bare: flower.MessageProto, code: int, why: str) -> None:
        """An error as the reply to a message, of which only the head is needed."""
        message = flower.message_from_proto(bare)
        message.metadata.__dict__["_created_at"] = time.time()
        reply = Message(flower.Error(code, why), reply_to=message)
        reply.metadata.__dict__["_ttl"] = 1.0
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with suppress(httpx.HTTPStatusError):  # nobody waits for it any longer
            self.send(message.metadata.run_id, reply, True, 0.0)

    def tell_crash(self) -> None:
        """The message that an earlier process died of is answered with an error."""
        path = self.folder / "working.bin"
        if not path.is_file():
            return
        try:
            bare = flower.MessageProto.FromString(path.read_bytes())
            if bare.metadata.dst_node_id == self.node.node_id:
                why = f"the process of '{self.name}' ended while it worked on the message"
                self.send_error(bare, flower.ErrorCode.CLIENT_APP_CRASHED, why)
                log.warning("%s: an earlier process ended while it worked on a message", self.name)
        except Exception:  # it was about nothing that is still waited for
            log.info("%s: the server waits no longer for what was being worked on", self.name, exc_info=True)
        path.unlink(missing_ok=True)


def check_module(folder: Path, config: Mapping[str, object], where: object) -> None:
    """Before anything is imported because a server says so: only what the site's owner has named."""
    file = Path(str(config["policy"])) if config.get("policy") else folder / policy.FILE
    try:
        refuse_unless(
            isinstance(where, str) and where in (OWN_APP, *policy.load(file).modules),
            f"the server names the ClientApp {str(where)[:100]!r}, which this site does not run; its owner may allow "
            "it in site.toml: modules = [...]",
        )
    except EquipoiseError as error:
        entry = {"kind": "module", "answer": "refused", "why": str(error)}
        audit.record(folder, entry, identity.signer_of(config))
        raise


def load(where: str) -> ClientApp:
    """module:app, from what is installed here."""
    module, _, name = where.partition(":")
    app = getattr(importlib.import_module(module), name, None)
    if not isinstance(app, ClientApp):
        raise InputError(f"the server asks for the ClientApp '{where}', which is not installed here")
    return app


def locked(folder: Path, name: str) -> TextIO:
    """An open file that no other process can have at the same time, however this one ends."""
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise EquipoiseError(f"another process runs '{name}' in {folder}; stop it, or give another --folder") from None
    return file


def own_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """For a network without authentication: made once, so that the node is known again."""
    path = folder / "node.key"
    if not path.is_file():
        write_whole(path, identity.private_bytes(identity.new_key()), secret=True)
    return identity.private_key(path)


def run_sites(sites: Sequence[WarmSite], stop: threading.Event) -> None:
    """Runs the sites of this process until `stop` is set, a thread for each; raises what one of them raised."""
    failed: list[BaseException] = []

    def run(site: WarmSite) -> None:
        try:
            site.run()
        except BaseException as error:
            log.exception("%s: the site failed", site.name)
            failed.append(error)
            stop.set()

    def beat() -> None:
        while not stop.wait(0.6 * BEAT):
            for site in sites:
                site.heartbeat()

    for site in sites:
        threading.Thread(target=run, args=(site,), daemon=True).start()
    threading.Thread(target=beat, daemon=True).start()
    stop.wait()
    leaving = [threading.Thread(target=site.leave, daemon=True) for site in sites]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join(0.7)
    if failed:
        raise failed[0]
