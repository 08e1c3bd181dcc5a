"""The parts of Flower that are not its public interface, in one place: what warm sites and short messages are made of.

Importing this module fails where Flower has changed; `why_not_warm` says so, and Flower's own programs take over.
"""

# ruff: noqa: F401 - what is imported here is used by the modules beside this one

import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.config import get_fab_config, get_fused_config_from_fab
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID, TIMESTAMP_HEADER, ErrorCode
from flwr.common.serde import fab_from_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, RetryState, exponential
from flwr.supernode.fleet_http_client import FleetHttpClient

T = TypeVar("T")
TIMEOUT = 30.0  # seconds, as Flower's own clients have it
RETRY = (0.1, 3.0)  # seconds before a request is tried again: at first, and at most
AWAY = (502, 503, 504)  # HTTP status: the server may be back soon


def over_socket(
    kind: type[T], path: Path, proof: Mapping[str, str], interceptors: Sequence[object], **options: Any
) -> T:
    """One of Flower's clients whose server listens on a socket of the file system; `proof` goes with every request."""
    client: Any = kind("http://localhost", interceptors=interceptors, **options)  # type: ignore[call-arg]
    client._client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=TIMEOUT, headers=dict(proof))
    return client


def pull_message(tree: ObjectTree, number: str, node: Node, run: int, pull: Any, confirm: Any) -> Message:
    """A message that came as objects: its parts, confirmed and put together; `pull` and `confirm` are the client's."""
    numbers = [part.object_id for part in iterate_object_tree(tree)]
    fetch = make_pull_object_fn_protobuf(pull, node, run)
    # Flower's own first pause is 1 s, and the objects follow the message at once.
    contents = pull_objects(numbers, fetch, initial_backoff=0.01, backoff_cap=0.5)
    confirm(ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=number))
    message = cast(Message, inflate_object_from_contents(number, contents))
    message.metadata.__dict__["_message_id"] = number
    return message


def retries(
    over: threading.Event, ended: type[BaseException], final: Collection[int] = (), **options: Any
) -> RetryInvoker:
    """Tries requests again while the server is away; `over`, or an HTTP status that is `final`, raises `ended`."""

    def give_up(error: Exception) -> bool:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        if over.is_set() or status in final:
            raise ended
        return status is not None and status not in AWAY

    def wait(seconds: float) -> None:
        if over.wait(seconds):
            raise ended

    return RetryInvoker(
        lambda: exponential(base_delay=RETRY[0], max_delay=RETRY[1]),  # type: ignore[arg-type]
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=None,
        should_giveup=give_up,
        wait_function=wait,
        **options,
    )
