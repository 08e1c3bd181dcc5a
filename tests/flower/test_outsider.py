"""Who has `ca.crt` and nothing else, at every route of a real SuperLink's port; and keys that come and go meanwhile."""

import base64
import secrets
import ssl
import stat
import time
from typing import NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TaskType
from flwr.supercore.interceptors.http.superexec_auth import SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink import main as flower_main

from equipoise.cli import app
from equipoise.deploy.operations import keys, launch
from equipoise.deploy.operations.processes import await_port, free_port, process
from equipoise.deploy.wire import internals as flower
from equipoise.deploy.wire import serverapp, superlink, warm
from equipoise.files import write_whole
from equipoise.privacy import identity


class Link(NamedTuple):
    folder: object
    port: int
    socket: object
    secret: bytes

    def log(self):
        return (self.folder / "log").read_text()

    def outsider(self, **headers):
        trust = ssl.create_default_context(cafile=self.folder / "keys" / "ca.crt")
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=trust, headers=headers, timeout=30)

    def site(self, path):
        """A site's connection, with the private key of a file; and its public key."""
        private = identity.private_key(path)
        named = [flower.RuntimeVersionHttpInterceptor(component_name="SuperNode"), warm.SignedRequests(private)]
        trust = (self.folder / "keys" / "ca.crt").read_bytes()
        client = flower.FleetHttpClient.from_server_address(f"127.0.0.1:{self.port}", False, trust, named)
        return client, flower.public_key_to_bytes(private.public_key())

    def activate(self, path):
        """The number of the node that has the key, or why there is none."""
        client, public = self.site(path)
        with client:
            try:
                return client.ActivateNode(flower.ActivateNodeRequest(public_key=public, heartbeat_interval=30)).node_id
            except httpx.HTTPStatusError as error:
                return f"{error.response.status_code} {error.response.text.strip()}"

    def activated(self, path, seconds=30):
        """The folder of keys is looked at twice a second."""
        end = time.monotonic() + seconds
        while not isinstance(found := self.activate(path), int):
            assert time.monotonic() < end, found
            time.sleep(0.2)
        return found

    def refused(self, path, why, seconds=30):
        end = time.monotonic() + seconds
        while why not in str(found := self.activate(path)):
            assert time.monotonic() < end, found
            time.sleep(0.2)

    def operator(self, proof, *more):
        version = flower.RuntimeVersionHttpInterceptor(component_name="SuperExec")
        return flower.over_socket(RuntimeHttpClient, self.socket, proof, [version, *more])


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    folder, port, secret = tmp_path_factory.mktemp("link"), free_port(), secrets.token_hex(32).encode()
    keys.make(folder / "keys", ["va", "north"])
    home = launch.connection(folder / "home", "127.0.0.1:1", folder / "keys")
    with launch.operator() as at, (folder / "log").open("a") as log:
        write_whole(at.secret, secret, secret=True)
        command = launch.superlink("127.0.0.1", port, folder / "keys", at)
        with process(command, launch.environment(home), stdout=log, stderr=log) as child:
            await_port(child, "127.0.0.1", port)
            at.secret.unlink()
            yield Link(folder, port, at.socket, secret)


def flat(router):
    """Its routes; a newer FastAPI keeps those of a router that was included under that router."""
    for route in router.routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            assert route.include_context.prefix == ""
            yield from flat(included)


def routes():
    """All of Flower's, by method: those of its Control, Fleet and Runtime APIs, and the others."""
    made = flower_main.create_runtime_router("SuperLink")
    routers = [flower_main.health.router, flower_main.control_router, flower_main.fleet_router, made]
    routers.append(flower_main.responses_router)
    found = {(method, route.path) for router in routers for route in flat(router) for method in route.methods}
    paths = {path for _, path in found}
    assert {"/v1/control/start-run", "/v1/control/register-node", "/v1/fleet/register-node"} <= paths
    assert {"/v1/runtime/acquire-task", "/v1/runtime/push-messages"} <= paths
    assert paths >= superlink.SITES_API
    return sorted(found)


OTHER_WAYS = [
    "/docs",
    "/openapi.json",
    "/",
    "//v1/control/start-run",
    "/v1/control/start-run/",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/flee%74/activate-node",
    "/V1/CONTROL/start-run",
]


@pytest.mark.parametrize("key", ["no key", "a key of its own", "the public key of 'va'"])
def test_an_outsider_gets_nothing_at_any_route(link, key, tmp_path):
    """Neither can it register a key, start a run or take a task; it is told why, and the log says whence it came."""
    headers = {}
    if key != "no key":
        keys.make(tmp_path, ["eve"])
        path = tmp_path / "sites" / "eve" if key == "a key of its own" else link.folder / "keys" / "sites" / "va"
        public = flower.public_key_to_bytes(identity.private_key(path).public_key())
        headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = base64.b64encode(public).decode()
    reason = "'va' that its key did not sign" if "'va'" in key else "requests with an unknown key"
    with link.outsider(**headers) as client:
        for method, path in [*routes(), *(("POST", path) for path in OTHER_WAYS), ("GET", "/v1/fleet/get-run")]:
            got = client.request(method, path.replace("{", "").replace("}", ""), content=b"")
            of_the_sites = method == "POST" and path in superlink.SITES_API
            assert got.status_code == ((401 if "'va'" in key else 403) if of_the_sites else 404), (method, path)
            why = reason if of_the_sites else "requests for what is not the sites' API"
            assert method == "HEAD" or (got.text.startswith("refused: ") and why in got.text), (method, path, got.text)
    assert "refused 127.0.0.1:" in link.log()


def test_only_a_registered_key_joins_and_it_opens_nothing_else(link, tmp_path):
    keys.make(tmp_path, ["eve"])
    assert "403 refused: requests with an unknown key" in str(link.activate(tmp_path / "sites" / "eve"))
    assert link.activated(link.folder / "keys" / "sites" / "va") > 0
    private = link.folder / "keys" / "sites" / "va"
    client, public = link.site(private)
    with client, pytest.raises(httpx.HTTPStatusError) as refused:
        client.RegisterNode(flower.RegisterNodeFleetRequest(public_key=public))
    assert refused.value.response.status_code == 404


def test_another_process_of_the_machine_cannot_take_the_runs_task(link):
    """It may not enter the folder of the socket, if it is another user's; in any case it does not know the secret."""
    assert stat.S_IMODE(link.socket.parent.stat().st_mode) == 0o700
    assert [path.name for path in link.socket.parent.iterdir()] == [link.socket.name]  # the secret is gone
    request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    for proof in ({}, {serverapp.OPERATOR: "0" * 64}):
        with link.operator(proof) as client, pytest.raises(httpx.HTTPStatusError) as refused:
            client.AcquireTask(request)
        assert refused.value.response.status_code == 403
        assert "requests of other processes of this machine" in refused.value.response.text
    assert serverapp.OPERATOR.encode() == superlink.OPERATOR
    proof = {serverapp.OPERATOR: superlink.proof(link.secret).decode()}
    with link.operator(proof) as client, pytest.raises(httpx.HTTPStatusError) as refused:
        client.AcquireTask(request)  # what Flower itself asks for is not there
    assert refused.value.response.status_code in (401, 403)
    signed = SuperExecAuthHttpInterceptor(master_secret=link.secret, protected_methods=[serverapp.ACQUIRE])
    with link.operator(proof, signed) as client:
        assert client.AcquireTask(request).token == ""  # there is no run


def test_keys_are_revoked_registered_and_replaced_while_the_server_runs(link, tmp_path):
    def command(*words):
        done = CliRunner().invoke(app, ["flower", "keys", str(link.folder / "keys"), *map(str, words)])
        assert done.exit_code == 0, done.output

    folder = link.folder / "keys" / "sites"
    old, own = tmp_path / "old", tmp_path / "own"
    old.write_bytes((folder / "north").read_bytes())
    first = link.activated(old)
    command("--revoke", "north")
    link.refused(old, "requests with the revoked key of 'north'")
    assert "the key of 'north' is not taken any longer" in link.log()
    keys.make(own, ["north"])
    link.refused(own / "sites" / "north", "an unknown key")
    command("--add", f"north={own / 'sites' / 'north.pub'}")
    second = link.activated(own / "sites" / "north")
    command("--rotate", "north")
    link.refused(own / "sites" / "north", "requests with the revoked key of 'north'")
    assert len({first, second, link.activated(folder / "north")}) == 3
    link.refused(old, "requests with the revoked key of 'north'")
