"""The exact Flower commands of a federation, and processes that end with the one that started them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from equipoise.errors import EquipoiseError, require
from equipoise.experiment.config import Config
from equipoise.experiment.federated import keys
from equipoise.files import write_whole

NAME = "equipoise"  # of the connection and of the app
CLIENT, SERVER = "equipoise.experiment.federated.apps:client", "equipoise.experiment.federated.apps:server"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# Flower looks for work once a second; every message starts a process, which costs more than looking does.
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}


def app(folder: Path, told: Config, out: Path, *, client: str = CLIENT) -> Path:
    """What `flwr run` takes: an app that installs nothing, with the run's settings in its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    pyproject = {
        "project": {
            "name": NAME,
            "version": "1.0.0",
            "description": "A run of Equipoise.",
            "license": "MIT",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": NAME,
                    "components": {"serverapp": SERVER, "clientapp": client},
                    "config": {"settings": told.toml(), "out": str(out.resolve())},
                }
            }
        },
    }
    write_whole(folder / "pyproject.toml", tomli_w.dumps(pyproject))
    return folder


def connection(home: Path, address: str, folder: Path | None) -> Path:
    """The folder of settings ($FLWR_HOME) in which `flwr` finds the server; `folder` holds keys, None: insecure."""
    home.mkdir(parents=True, exist_ok=True)
    trust = {"insecure": True} if folder is None else {"root-certificates": str((folder / keys.CA).resolve())}
    settings = {"superlink": {"default": NAME, NAME: {"address": address, **trust}}}
    write_whole(home / "config.toml", tomli_w.dumps(settings))
    return home


def superlink(host: str, port: int, database: Path, folder: Path | None) -> list[str]:
    command = ["flower-superlink", "--host", host, "--port", str(port), "--database", str(database)]
    command += ["--disable-runtime-dependency-installation"]
    if folder is None:
        return [*command, "--insecure"]
    files = {"--ssl-ca-certfile": keys.CA, "--ssl-certfile": keys.SERVER, "--ssl-keyfile": keys.SERVER_KEY}
    return (
        command
        + [part for option, name in files.items() for part in (option, str(folder / name))]
        + ["--enable-supernode-auth"]
    )


def register(public: Path) -> list[str]:
    return ["flwr", "supernode", "register", str(public), NAME]


def run_app(folder: Path) -> list[str]:
    return ["flwr", "run", str(folder), NAME, "--stream"]


def supernode(
    address: str, port: int, node: Mapping[str, str], folder: Path | None, key: Path | None = None
) -> list[str]:
    """`key` is the site's private key, by default that of its name in `folder`."""
    for name, value in node.items():
        require("'" not in value, f"{name} is {value!r}; Flower takes no ' in it")
    told = " ".join(f"{name}='{value}'" for name, value in node.items())
    command = ["flower-supernode", "--superlink", address, "--port", str(port), "--node-config", told]
    if folder is None:
        return [*command, "--insecure"]
    private = key or folder / keys.SITES / node["site"]
    require(private.is_file(), f"there is no key {private}; `equipoise flower keys` makes some for trials")
    return [*command, "--root-certificates", str(folder / keys.CA), "--auth-supernode-private-key", str(private)]


def environment(home: Path) -> dict[str, str]:
    """Settings of Flower's programs; they look for each other on the PATH."""
    here = str(Path(sys.executable).parent)
    return {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(home.resolve()), **QUIET, **QUICK}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def process(
    command: Sequence[str], more: Mapping[str, str], *, patience: float = 10.0, **how: Any
) -> Iterator[subprocess.Popen]:
    """A program that is ended with all that it started, by process id, when the block is left."""
    child = subprocess.Popen(command, env={**os.environ, **more}, start_new_session=True, **how)
    try:
        yield child
    finally:
        end(child, patience)


def end(child: subprocess.Popen, patience: float) -> None:
    """Asks the program to end; what it started and left behind is killed: its group, whose id is its own, and
    descendants that made groups of their own, as Flower's client processes do."""
    started = descendants(child.pid)  # while the tree still hangs together
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for pid in {*started, *in_sessions({child.pid, *started})}:  # the latter: begun while it was ending
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def descendants(pid: int) -> list[int]:
    """The ids of all processes that a process started, and those they started."""
    children: dict[int, list[int]] = {}
    for child, parent in _processes("ppid"):
        children.setdefault(parent, []).append(child)
    found, front = [], [pid]
    while front:
        front = [c for p in front for c in children.get(p, ())]
        found += front
    return found


def in_sessions(leaders: set[int]) -> list[int]:
    """The ids of all processes in the sessions that these processes lead."""
    return [pid for pid, session in _processes("sess") if session in leaders]


def _processes(what: str) -> list[tuple[int, int]]:
    try:
        table = subprocess.run(["ps", "-eo", f"pid=,{what}="], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [(int(a), int(b)) for a, b in (line.split() for line in table.splitlines())]


def await_port(child: subprocess.Popen, host: str, port: int, patience: float = 60.0) -> None:
    """Returns when somebody listens there."""
    end_of_patience = time.monotonic() + patience
    while time.monotonic() < end_of_patience:
        if child.poll() is not None:
            raise EquipoiseError(f"the server ended before it had begun (exit {child.returncode}); its log says why")
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise EquipoiseError(f"nobody listens on {host}:{port} after {patience:g} s")
