"""A run of Flower whose ServerApp is this process.

Flower's own way takes three processes more: `flwr run` asks the SuperLink for a run and shows its output, a SuperExec
finds the run, and `flwr-serverapp` serves it. Here the process that started the SuperLink asks for the run and serves
it: JAX is loaded once, and what is printed is shown at once. Like `internals.py` it stands on parts of Flower that are
not its public interface; where they have changed, importing it fails and Flower's own programs take over.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from equipoise.deploy.events import LinkLost
from equipoise.deploy.network import internals as flower
from equipoise.errors import EquipoiseError

if not isinstance(getattr(HttpGrid, "_runtime_client", None), property):
    raise ImportError("HttpGrid has no _runtime_client")
RETRY = (0.1, 3.0)  # seconds before a request is tried again: at first, and at most
AWAY = (502, 503, 504)  # HTTP status: the SuperLink may be back soon


@contextmanager
def started_run(address: str, certificates: bytes | None, app: Path, lost: threading.Event) -> Iterator[HttpGrid]:
    """Starts a run of the app in a folder; gives the Grid over which it is served.

    Args:
        address: HOST:PORT of the SuperLink.
        certificates: whom to believe; None: no encryption.
        app: what `flwr run` would take.
        lost: set by the caller when the SuperLink has ended: whatever waits for it raises LinkLost.
    """
    insecure = certificates is None
    try:
        _start(address, certificates, app)
        with RuntimeHttpClient.from_server_address(
            address, insecure, certificates, [flower.RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        ) as finder:
            token = finder.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token
    except httpx.HTTPStatusError as error:
        raise EquipoiseError(f"Flower's server refused the run: {error.response.text[-300:]}") from error
    except httpx.TransportError:
        if lost.wait(1.0):
            raise LinkLost from None
        raise
    if not token:
        raise EquipoiseError("Flower's server has given the run to somebody else; stop the other flower-superexec")
    grid = HttpGrid(address, insecure, certificates, token=token)
    grid._retry_invoker = _retries(lost)
    client, over = grid._runtime_client, threading.Event()
    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid.set_run(flower.run_from_proto(given.run))

    def beat() -> None:
        while not over.wait(flower.HEARTBEAT_DEFAULT_INTERVAL / 2):
            with suppress(httpx.HTTPError, LinkLost):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    threading.Thread(target=beat, daemon=True).start()
    status, details = SubStatus.FAILED, "stopped"
    try:
        yield grid
        status, details = SubStatus.COMPLETED, ""
    finally:
        over.set()
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, LinkLost):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        # The connection stays: an evaluation that is still under way ends with the SuperLink.


def _start(address: str, certificates: bytes | None, app: Path) -> None:
    content = build_fab_from_disk(app)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    with flower.ControlHttpClient.from_server_address(
        address, certificates is None, certificates, [flower.RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    ) as control:
        if not control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).HasField("run_id"):
            raise EquipoiseError("Flower's server did not start the run; its log says why")


def _retries(lost: threading.Event) -> RetryInvoker:
    """Requests are tried again while the SuperLink is there."""

    def give_up(error: Exception) -> bool:
        if lost.is_set() or _status(error) == httpx.codes.UNAUTHORIZED:  # it has forgotten whose run this is
            _raise_lost()
        return isinstance(error, httpx.HTTPStatusError) and _status(error) not in AWAY

    def wait(seconds: float) -> None:
        if lost.wait(seconds):
            _raise_lost()

    return RetryInvoker(
        lambda: exponential(base_delay=RETRY[0], max_delay=RETRY[1]),  # type: ignore[arg-type]
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=None,
        should_giveup=give_up,
        wait_function=wait,
    )


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def _raise_lost() -> NoReturn:
    raise LinkLost
