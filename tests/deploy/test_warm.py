"""Parts of a site that stays, without a network; tests/flower has it in real federations."""

import email.utils
import threading
import time

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree

from equipoise.deploy.wire import warm
from equipoise.deploy.wire.warm import SignedRequests
from equipoise.errors import EquipoiseError, InputError


class Call:
    """A request on its way."""

    def __init__(self):
        self.request = httpx.Request("POST", "https://127.0.0.1/")


def server(ahead, accepted=300):
    """Answers 401 to what is signed at another time than its own."""

    def answer(call):
        from datetime import datetime

        signed = datetime.fromisoformat(call.request.headers[warm.flower.TIMESTAMP_HEADER]).timestamp()
        now = time.time() + ahead
        status = 200 if abs(signed - now) < accepted else 401
        return httpx.Response(status, headers={"date": email.utils.formatdate(now, usegmt=True)}, request=call.request)

    return answer


@pytest.mark.parametrize("ahead", [0, 3600, -3600, 86400])
def test_requests_are_signed_by_the_servers_clock_where_the_two_differ(ahead):
    signing = SignedRequests(ec.generate_private_key(ec.SECP384R1()))
    assert signing.intercept(Call(), server(ahead)).status_code == 200
    assert abs(signing.ahead - ahead) < 5
    assert signing.intercept(Call(), server(ahead)).status_code == 200  # at once, from then on


def test_a_refusal_for_another_reason_is_not_tried_again():
    signing, calls = SignedRequests(ec.generate_private_key(ec.SECP384R1())), []

    def refuse(call):
        calls.append(call)
        return httpx.Response(401, headers={"date": email.utils.formatdate(usegmt=True)}, request=call.request)

    assert signing.intercept(Call(), refuse).status_code == 401
    assert len(calls) == 1


def test_a_site_runs_once(tmp_path):
    first = warm.locked(tmp_path, "north")
    with pytest.raises(EquipoiseError, match="another process runs 'north'"):
        warm.locked(tmp_path, "north")
    first.close()
    warm.locked(tmp_path, "north").close()


def test_only_what_is_installed_is_run():
    with pytest.raises(InputError, match="which is not installed here"):
        warm.load("os:system")
    assert warm.load("equipoise.deploy.site.run:client")


def test_a_site_without_authentication_is_known_again(tmp_path):
    one, other = (warm.own_key(tmp_path).public_key().public_numbers() for _ in range(2))
    assert one == other
    assert (tmp_path / "node.key").stat().st_mode & 0o777 == 0o600


def test_a_site_that_finds_no_server_tries_again_and_ends_when_told(tmp_path, monkeypatch):
    """At once: it would try again in an hour."""
    monkeypatch.setattr(warm.flower, "RETRY", (3600.0, 3600.0))
    stop = threading.Event()
    site = warm.WarmSite("127.0.0.1:9", tmp_path, {"site": "north"}, certificates=None, key=None, stop=stop)
    thread = threading.Thread(target=warm.run_sites, args=([site], stop))
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()
    stop.set()
    thread.join(60.0)
    assert not thread.is_alive()


class Pushed:
    """A server that keeps what is pushed, and knows no run."""

    def __init__(self):
        self.requests = []

    def GetRun(self, request):
        raise ValueError("a run of another version")

    def PushMessages(self, request):
        self.requests.append(request)


def test_a_message_that_cannot_be_answered_costs_a_reply_and_not_the_site(tmp_path):
    stop = threading.Event()
    site = warm.WarmSite("127.0.0.1:9", tmp_path, {"site": "north"}, certificates=None, key=None, stop=stop)
    site.client, site.node = Pushed(), warm.flower.Node(node_id=7)
    head = Metadata(
        run_id=5, message_id="m", src_node_id=1, dst_node_id=7, message_type="train.exchange", ttl=9.0, group_id="0"
    )
    head.created_at = time.time()
    site.answer(Message(metadata=head), ObjectTree(object_id="m"))
    (request,) = site.client.requests
    (reply,) = request.messages_list
    assert reply.metadata.reply_to_message_id == "m"
    assert reply.error.reason == "ValueError; the log of 'north' says more"
    assert not (tmp_path / "working.bin").exists()
    site.lock.close()


def test_what_a_process_died_of_is_told_by_the_next_one(tmp_path):
    stop = threading.Event()

    def site():
        made = warm.WarmSite("127.0.0.1:9", tmp_path, {"site": "north"}, certificates=None, key=None, stop=stop)
        made.client, made.node = Pushed(), warm.flower.Node(node_id=7)
        return made

    def die(run):
        raise KeyboardInterrupt

    head = Metadata(
        run_id=5, message_id="m", src_node_id=1, dst_node_id=7, message_type="train.exchange", ttl=9.0, group_id="0"
    )
    first = site()
    first.opened = die
    with pytest.raises(KeyboardInterrupt):
        first.answer(Message(metadata=head), ObjectTree(object_id="m"))
    first.lock.close()
    second = site()
    second.tell_crash()
    ((reply,),) = (request.messages_list for request in second.client.requests)
    assert reply.metadata.reply_to_message_id == "m"
    assert reply.error.reason == "the process of 'north' ended while it worked on the message"
    assert not (tmp_path / "working.bin").exists()
    second.lock.close()
