"""A run of Flower whose ServerApp is this process.

Flower's own way takes three processes more: `flwr run` asks the SuperLink for a run and shows its output, a SuperExec
finds the run, and `flwr-serverapp` serves it. Here the process that started the SuperLink asks for the run and serves
it: JAX is loaded once, and what is printed is shown at once. Like `internals.py` it stands on parts of Flower that are
not its public interface; where they have changed, importing it fails and Flower's own programs take over.
"""

import hashlib
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.interceptors.http.superexec_auth import SuperExecAuthHttpInterceptor
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from equipoise.deploy.server.events import LinkLost
from equipoise.deploy.wire import internals as flower
from equipoise.errors import EquipoiseError

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
OPERATOR = "x-equipoise-operator"


class LinkGrid:
    """What the server needs of a Grid; Flower's own class loads a database that only a SuperLink needs."""

    def __init__(self, client: RuntimeHttpClient, node: flower.Node, run: Run):
        self._runtime_client, self.node, self.run = client, node, run  # by the names of Flower's own

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self._runtime_client.GetNodes(GetNodesRequest()).nodes]


@contextmanager
def started_run(socket: Path, secret: bytes, app: Path, lost: threading.Event) -> Iterator[Any]:
    """Starts a run of the app in a folder; gives the Grid over which it is served.

    Args:
        socket: where the SuperLink listens for its operator.
        secret: without it nobody is answered there, nor can take the run's task.
        app: what `flwr run` would take.
        lost: set by the caller when the SuperLink has ended: whatever waits for it raises LinkLost.
    """
    # As `superlink.py` makes it, which is a program of its own.
    proof = {OPERATOR: hmac.new(secret, OPERATOR.encode(), hashlib.sha256).hexdigest()}
    executor = [
        flower.RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE]),
    ]
    try:
        content = build_fab_from_disk(app)
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        named = [flower.RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        with flower.over_socket(flower.ControlHttpClient, socket, proof, named) as control:
            if not control.StartRun(StartRunRequest(fab=fab)).HasField("run_id"):
                raise EquipoiseError("Flower's server did not start the run; its log says why")
        with flower.over_socket(RuntimeHttpClient, socket, proof, executor) as finder:
            token = finder.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token
    except httpx.HTTPStatusError as error:
        raise EquipoiseError(f"Flower's server refused the run: {error.response.text[-300:]}") from error
    except httpx.TransportError:
        if lost.wait(1.0):
            raise LinkLost from None
        raise
    if not token:
        raise EquipoiseError("Flower's server has given the run to somebody else; stop the other flower-superexec")
    over = threading.Event()
    retries = flower.retries(lost, LinkLost, (httpx.codes.UNAUTHORIZED,))  # it has forgotten whose run this is
    version = flower.RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
    of_task = [version, RuntimeTokenHttpInterceptor(token)]
    client = flower.over_socket(RuntimeHttpClient, socket, proof, of_task, retry_invoker=retries)
    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id

    def beat() -> None:
        while not over.wait(flower.HEARTBEAT_DEFAULT_INTERVAL / 2):
            with suppress(httpx.HTTPError, LinkLost):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    threading.Thread(target=beat, daemon=True).start()
    status, details = SubStatus.FAILED, "stopped"
    try:
        yield LinkGrid(client, flower.Node(node_id=flower.SUPERLINK_NODE_ID), flower.run_from_proto(given.run))
        status, details = SubStatus.COMPLETED, ""
    finally:
        over.set()
        retries.max_tries = 1
        with suppress(httpx.HTTPError, LinkLost):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        # The connection stays: an evaluation that is still under way ends with the SuperLink.
