"""The exact commands of a federation: Flower's programs, and what they are configured with."""

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tomli_w

from equipoise.deploy import wire
from equipoise.deploy.operations import keys
from equipoise.errors import require
from equipoise.files import check_own, make_folder, write_whole

if TYPE_CHECKING:
    from equipoise.experiment.config import Config

SUPERLINK = str(Path(wire.__file__).with_name("superlink.py"))
LOOPBACK = "127.0.0.1"
NAME = "equipoise"  # of the connection and of the app
CLIENT, SERVER = "equipoise.deploy.site.run:client", "equipoise.deploy.server.run:server"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# Flower looks for apps to start once a second, as long as it runs.
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}


def app(
    folder: Path, config: "Config", out: Path, *, client: str = CLIENT, stock: bool = False, without: Sequence[str] = ()
) -> Path:
    """What `flwr run` takes: an app that installs nothing, with the run's settings in its configuration."""
    about = {"name": NAME, "version": "1.0.0", "description": "A run of Equipoise.", "license": "MIT"}
    components = {"serverapp": SERVER, "clientapp": client}
    settings = {"settings": config.toml(), "out": str(out.resolve()), "stock": stock, "without": ",".join(without)}
    pyproject = {
        "project": {**about, "dependencies": []},
        "tool": {"flwr": {"app": {"publisher": NAME, "components": components, "config": settings}}},
    }
    _write_own(folder / "pyproject.toml", pyproject, f'publisher = "{NAME}"')
    return folder


def connection(home: Path, address: str, folder: Path | None) -> Path:
    """The folder of settings ($FLWR_HOME) in which `flwr` finds the server; `folder` holds keys, None: insecure."""
    trust = {"insecure": True} if folder is None else {"root-certificates": str((folder / keys.CA).resolve())}
    settings = {"superlink": {"default": NAME, NAME: {"address": address, **trust}}}
    _write_own(home / "config.toml", settings, f'default = "{NAME}"')
    return home


def _write_own(path: Path, content: Mapping[str, object], mark: str) -> None:
    """Replaces a file of Equipoise, never one of a user who keeps something else there."""
    check_own(path, lambda there: mark.encode() in there, "a file that Equipoise wrote")
    make_folder(path.parent)
    write_whole(path, tomli_w.dumps(content))


class Operator(NamedTuple):
    """Where a SuperLink listens for its operator: on a socket, or for Flower's own programs on a port of loopback."""

    folder: Path  # that only this user may enter
    port: int | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "operator"

    @property
    def secret(self) -> Path:
        """What it takes to serve the run."""
        return self.folder / "secret"


@contextmanager
def operator(port: int | None = None) -> Iterator[Operator]:
    """A folder for one SuperLink; not in the state's, whose path may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as folder:
        yield Operator(Path(folder), port)


def superlink(
    host: str, port: int, folder: Path | None, control: Operator, *, database: Path | None = None
) -> list[str]:
    """A SuperLink that listens for sites on `host` and `port`, and for its operator where no site can reach it.

    With `database` it keeps its state in a file and starts Flower's own programs to serve a run. Without, its state is
    in memory and it starts no process: the ServerApp is the process that starts it.
    """
    command = [sys.executable, "-P", SUPERLINK, "--sites-host", host, "--sites-port", str(port)]
    if database:
        command += ["--host", LOOPBACK, "--port", str(control.port), "--database", str(database)]
    else:
        command += ["--operator", str(control.socket), "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(control.secret)]
    command += ["--disable-runtime-dependency-installation"]
    if folder is None:
        return [*command, "--insecure"]
    files = {"--ssl-ca-certfile": keys.CA, "--ssl-certfile": keys.SERVER, "--ssl-keyfile": keys.SERVER_KEY}
    command += [part for option, name in files.items() for part in (option, str(folder / name))]
    return [*command, "--keys", str(folder), "--enable-supernode-auth"]


def supernode(
    address: str, port: int, node: Mapping[str, str], folder: Path | None, key: Path | None = None
) -> list[str]:
    """`key` is the site's private key, by default that of its name in `folder`."""
    for name, value in node.items():
        require("'" not in value, f"{name} is {value!r}; Flower takes no ' in it")
    options = " ".join(f"{name}='{value}'" for name, value in node.items())
    command = ["flower-supernode", "--superlink", address, "--port", str(port), "--node-config", options]
    if folder is None:
        return [*command, "--insecure"]
    private = private_key(folder, node["site"], key)
    return [*command, "--root-certificates", str(folder / keys.CA), "--auth-supernode-private-key", str(private)]


def private_key(folder: Path, site: str, key: Path | None = None) -> Path:
    """A site's private key: the one given, or that of its name."""
    private = key or folder / keys.SITES / site
    require(private.is_file(), f"there is no key {private}; `equipoise flower keys` makes some for trials")
    return private


def environment(home: Path) -> dict[str, str]:
    """Settings of Flower's programs; they look for each other on the PATH."""
    here = str(Path(sys.executable).parent)
    return {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(home.resolve()), **QUIET, **QUICK}


def shown(command: Sequence[str], more: Mapping[str, str]) -> str:
    """A command as one would type it."""
    short = dict(more) | {"PATH": more["PATH"].removesuffix(os.environ["PATH"]) + "$PATH"}
    settings = " ".join(f"{name}={value if name == 'PATH' else shlex.quote(value)}" for name, value in short.items())
    return f"$ {settings} {shlex.join(command)}"
