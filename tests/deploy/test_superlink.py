"""The layer that holds pulls, around an application of a few lines."""

import asyncio

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

from equipoise.deploy.wire import superlink
from equipoise.deploy.wire.superlink import HeldPulls

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"


class Store:
    """Keeps messages by node and replies by message, as Flower's application does."""

    def __init__(self, status=200):
        self.messages, self.replies, self.status, self.asked = {}, {}, status, []

    async def __call__(self, scope, receive, send):
        body, path = (await receive())["body"], scope["path"]
        headers = dict(scope["headers"])
        assert int(headers.get(b"content-length", len(body))) == len(body)
        self.asked.append(path)
        answer = b""
        if path == RUNTIME + "push-messages":
            for message in PushAppMessagesRequest.FromString(body).messages_list:
                self.messages.setdefault(message.metadata.dst_node_id, []).append(message)
        elif path == FLEET + "push-messages":
            for message in PushMessagesRequest.FromString(body).messages_list:
                self.replies[message.metadata.reply_to_message_id] = message
        elif path == FLEET + "pull-messages":
            waiting = self.messages.get(PullMessagesRequest.FromString(body).node.node_id, [])
            answer = PullMessagesResponse(messages_list=[waiting.pop(0)] if waiting else []).SerializeToString()
        elif path == RUNTIME + "pull-messages":
            ids = PullAppMessagesRequest.FromString(body).message_ids
            found = [self.replies.pop(i) for i in ids if i in self.replies]
            answer = PullAppMessagesResponse(messages_list=found).SerializeToString()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": answer})


async def ask(app, path, request, *, wait=None, most=None, gone=None, key=None, largest=None):
    """One request; `gone` is an event at which the caller hangs up."""
    body = request.SerializeToString()
    headers = [(b"content-length", str(len(body)).encode())]
    headers += [(b"x-equipoise-wait", str(wait).encode())] if wait is not None else []
    headers += [(b"x-equipoise-most", str(most).encode())] if most is not None else []
    headers += [(b"x-equipoise-largest", str(largest).encode())] if largest is not None else []
    headers += [(FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode(), key)] if key is not None else []
    given, said = iter([{"type": "http.request", "body": body}]), []

    async def receive():
        found = next(given, None)
        if found is None:
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        return found

    async def send(event):
        said.append(event)

    await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)
    if not said:
        return None, b""
    return said[0]["status"], b"".join(event.get("body", b"") for event in said[1:])


def pull(node=7):
    return PullMessagesRequest(node=Node(node_id=node))


def message(node=7, number="m"):
    return PushAppMessagesRequest(messages_list=[Message(metadata=Metadata(dst_node_id=node, message_id=number))])


def reply(to, number="r"):
    metadata = Metadata(reply_to_message_id=to, message_id=number, src_node_id=7)
    return PushMessagesRequest(node=Node(node_id=7), messages_list=[Message(metadata=metadata)])


def run(main):
    HeldPulls.stopping = False
    asyncio.run(asyncio.wait_for(main, 120))
    assert HeldPulls.events == {}  # nobody is waited for that has gone


def test_a_pull_that_waits_is_answered_when_a_message_comes():
    async def main():
        app = HeldPulls(Store())
        waiting = asyncio.create_task(ask(app, FLEET + "pull-messages", pull(), wait=15))
        other = asyncio.create_task(ask(app, FLEET + "pull-messages", pull(8), wait=0.2))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await ask(app, RUNTIME + "push-messages", message())
        _, body = await waiting
        assert PullMessagesResponse.FromString(body).messages_list[0].metadata.message_id == "m"
        assert await other == (200, b"")  # not for it: its time is up

    run(main())


def test_who_does_not_ask_to_wait_is_answered_at_once():
    async def main():
        app = HeldPulls(Store())
        assert await ask(app, FLEET + "pull-messages", pull()) == (200, b"")
        assert await ask(app, RUNTIME + "pull-messages", PullAppMessagesRequest(message_ids=["m"])) == (200, b"")

    run(main())


def test_a_reply_that_is_larger_than_what_was_asked_for_is_not_stored():
    """The server is told so in its place, at once; and what would follow as objects is bounded too."""

    def answered(to, size):
        about = Metadata(reply_to_message_id=to, src_node_id=7)
        large = Message(metadata=about, content=RecordDict(items=[RecordDict.Item(key="x" * size)]))
        return PushMessagesRequest(node=Node(node_id=7), messages_list=[large])

    async def main():
        store = Store()
        app = HeldPulls(store)
        for number, most in (("m", 1000), ("n", None)):
            await ask(app, RUNTIME + "push-messages", message(number=number), largest=most)
        for to, size in (("m", 2000), ("n", 2000)):
            assert (await ask(app, FLEET + "push-messages", answered(to, size)))[0] == 200
        assert not store.replies["m"].HasField("content")
        assert store.replies["m"].error.reason == "its reply is larger than the 1000 bytes asked for"
        assert store.replies["n"].HasField("content")
        assert (await ask(app, FLEET + "push-messages", answered("m", 200)))[0] == 200
        assert store.replies["m"].HasField("content")
        part = PushObjectRequest(node=Node(node_id=7), object_id="o", object_content=b"x" * 900)
        said = [(await ask(app, FLEET + "push-object", part))[0] for _ in range(4)]
        assert said == [200, 200, 413, 413]

    run(main())


def test_who_is_refused_does_not_wait():
    async def main():
        store = Store(status=401)
        assert await ask(HeldPulls(store), FLEET + "pull-messages", pull(), wait=15) == (401, b"")
        assert len(store.asked) == 1

    run(main())


def test_a_node_that_was_accepted_waits_without_a_question_and_is_given_all_that_came():
    """Flower is asked when there is something, when the time is up, and when another key comes for the same node."""

    async def main():
        store = Store()
        app, asked = HeldPulls(store), lambda: store.asked.count(FLEET + "pull-messages")
        assert await ask(app, FLEET + "pull-messages", pull(), wait=0.01, key=b"k") == (200, b"")
        waiting, before = asyncio.create_task(ask(app, FLEET + "pull-messages", pull(), wait=15, key=b"k")), asked()
        await asyncio.sleep(0.05)
        assert asked() == before
        for number in "ab":
            await ask(app, RUNTIME + "push-messages", message(number=number))
        pulled = [(await waiting)[1], (await ask(app, FLEET + "pull-messages", pull(), wait=15, key=b"k"))[1]]
        assert [PullMessagesResponse.FromString(p).messages_list[0].metadata.message_id for p in pulled] == ["a", "b"]
        assert asked() == before + 2
        assert await ask(app, FLEET + "pull-messages", pull(), wait=0.01, key=b"k") == (200, b"")
        assert asked() == before + 3  # its time was up
        store.status = 401
        assert await ask(app, FLEET + "pull-messages", pull(), wait=15, key=b"other") == (401, b"")
        assert await ask(app, FLEET + "pull-messages", pull(), wait=15, key=b"k") == (401, b"")  # not accepted any more

    run(main())


def test_replies_come_as_they_arrive_and_not_too_many_at_once():
    async def main():
        app, ids = HeldPulls(Store()), ["a", "b", "c"]
        request = PullAppMessagesRequest(message_ids=ids)
        waiting = asyncio.create_task(ask(app, RUNTIME + "pull-messages", request, wait=15, most=2))
        await asyncio.sleep(0.05)
        await asyncio.gather(*(ask(app, FLEET + "push-messages", reply(i, f"to {i}")) for i in ids))
        found = PullAppMessagesResponse.FromString((await waiting)[1]).messages_list
        rest = (await ask(app, RUNTIME + "pull-messages", request, wait=15, most=2))[1]
        rest = PullAppMessagesResponse.FromString(rest).messages_list
        assert len(found) <= 2
        assert {m.metadata.message_id for m in [*found, *rest]} == {"to a", "to b", "to c"}

    run(main())


@pytest.mark.parametrize("how", ["hangs up", "is told to end"])
def test_a_wait_ends_at_once(how):
    async def main():
        app, gone = HeldPulls(Store()), asyncio.Event()
        waiting = asyncio.create_task(ask(app, FLEET + "pull-messages", pull(), wait=15, gone=gone))
        await asyncio.sleep(0.05)
        if how == "hangs up":
            gone.set()
        else:
            HeldPulls.stopping = True
            HeldPulls.wake(list(HeldPulls.events))
        status, body = await asyncio.wait_for(waiting, 10)
        assert (status, body) == ((None, b"") if how == "hangs up" else (200, b""))

    run(main())


def test_what_is_announced_and_never_asked_for_is_forgotten(monkeypatch):
    async def main():
        app = HeldPulls(Store())
        monkeypatch.setattr(superlink, "REMEMBERED", 2)
        for i in "abc":
            await ask(app, FLEET + "push-messages", reply(i))
        assert list(app.ready) == ["b", "c"]

    run(main())


def test_the_server_is_told_which_nodes_stay():
    """And that one does not any longer that pulls as Flower's own do."""

    async def nodes(app):
        said = []

        async def receive():
            return {"type": "http.request", "body": b""}

        async def send(event):
            said.append(event)

        await app({"type": "http", "method": "POST", "path": RUNTIME + "get-nodes", "headers": []}, receive, send)
        return dict(said[0]["headers"]).get(b"x-equipoise-nodes")

    async def main():
        app = HeldPulls(Store())
        assert await nodes(app) is None
        await ask(app, FLEET + "pull-messages", pull(7), wait=0.01)
        await ask(app, FLEET + "pull-messages", pull(8))
        assert await nodes(app) == b"7"
        await ask(app, FLEET + "pull-messages", pull(7))
        assert await nodes(app) is None

    run(main())


@pytest.mark.parametrize("told", [True, False])
def test_what_is_larger_than_a_sites_request_is_not_read(told, monkeypatch):
    """By what it says of its length, and where it says nothing, as soon as it is too long."""
    monkeypatch.setattr(superlink, "LARGEST", 100)
    store, given, said = Store(), [], []

    async def receive():
        given.append(b"x" * 60)
        return {"type": "http.request", "body": given[-1], "more_body": True}

    async def send(event):
        said.append(event)

    headers = [(b"content-length", b"101")] if told else []
    door = superlink.SitesDoor(HeldPulls(store), None)
    scope = {"type": "http", "method": "POST", "path": FLEET + "push-messages", "headers": headers}
    run(door(scope, receive, send))
    assert said[0]["status"] == 413
    assert len(given) == (0 if told else 2)
    assert store.asked == []
    assert door.refused == {"requests that are larger than a site's can be": 1}


def test_kinds_of_refusals_are_bounded(monkeypatch):
    """Their counts travel in a header."""
    monkeypatch.setattr(superlink, "KINDS", 2)
    door = superlink.SitesDoor(Store(), None)
    for why in "abcda":
        door.note({"path": "/", "method": "GET"}, why)
    assert door.refused == {"a": 2, "b": 1, "requests of still other kinds": 2}


def test_numbers_that_are_none_are_no_wait():
    for text in (b"x", b"nan", b"-1", b""):
        assert superlink.header({"headers": [(b"h", text)]}, b"h") == 0
