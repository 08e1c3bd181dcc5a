"""Processes that end with the one that started them, and that are started again when they crash; those of sites.

`python -m equipoise.deploy.operations.processes` is the process of one or more warm sites. Its first line of standard
input says which, as JSON (`Work`); it ends within a second when the input is closed, or on SIGTERM. `equipoise flower
site` and `local` start it, and start it again when it crashes. What only this process needs, JAX and Flower, is loaded
there: whoever waits for it needs neither.
"""

import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.deploy.operations import guard, launch
from equipoise.deploy.operations import keys as made
from equipoise.errors import EquipoiseError, InputError, require

GUARD = [sys.executable, "-P", str(Path(guard.__file__))]
RESTART = (0.5, 30.0)  # seconds before a process that crashed is started again: at first, and at most
STEADY = 60.0  # seconds after which a process counts as running well
REFUSED = 2  # the exit code of a command whose arguments cannot work: it is not started again


@contextmanager
def process(
    command: Sequence[str], more: Mapping[str, str], *, patience: float = 8.0, **options: Any
) -> Iterator[subprocess.Popen]:
    """A program that ends, with all that it started, when the block is left or this process ends in any way."""
    with owned([*GUARD, *command], more, patience=patience, **options) as child:
        yield child


@contextmanager
def owned(
    command: Sequence[str], more: Mapping[str, str], *, patience: float = 8.0, **options: Any
) -> Iterator[subprocess.Popen]:
    """The same for a program that ends by itself when its standard input is closed."""
    child = subprocess.Popen(
        command, env={**os.environ, **more}, stdin=subprocess.PIPE, start_new_session=True, **options
    )
    try:
        yield child
    finally:
        with suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
        if child.poll() is None:
            guard.end(child.pid, 0.5)
        child.wait()


def keep_running(
    begin: Callable[[], AbstractContextManager[subprocess.Popen]],
    stop: threading.Event,
    say: Callable[[str], None],
    *,
    name: str = "the site",
    tries: float = math.inf,
) -> None:
    """Starts the process, and again when it ends, until `stop` is set, it refuses its arguments, or `tries` are used.

    A try is one that did not run for long.
    """
    delay, used = RESTART[0], 0
    while not stop.is_set():
        began = time.monotonic()
        with begin() as child:
            while child.poll() is None and not stop.wait(0.1):
                pass
            code = child.poll()
        if stop.is_set():
            return
        if code == REFUSED:
            raise EquipoiseError(f"{name} could not start, see above")
        steady = time.monotonic() - began > STEADY
        delay, used = (RESTART[0], 0) if steady else (min(2 * delay, RESTART[1]), used + 1)
        if used >= tries:
            raise EquipoiseError(f"the process of {name} ended {used} times (exit {code}), see above")
        say(f"the process of {name} ended (exit {code}); it is started again in {delay:g} s")
        stop.wait(delay)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens there."""
    try:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((host, port)) != 0
    except (OSError, UnicodeError, TypeError) as error:  # the last of names that are not Unicode
        raise InputError(f"{host!r} is not an address of this machine ({error}); give one, such as 0.0.0.0") from error


def await_port(child: subprocess.Popen, host: str, port: int, patience: float = 120.0) -> None:
    """Returns when somebody listens there."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if child.poll() is not None:
            raise EquipoiseError(f"the server ended before it had begun (exit {child.returncode}); its log says why")
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise EquipoiseError(f"nobody listens on {host}:{port} after {patience:g} s")


Say = Callable[[str], None]
WORKER = [sys.executable, "-m", "equipoise.deploy.operations.processes"]
STOCK = "Flower's SuperNode, a process for every message"


class Site(NamedTuple):
    """A site of this machine."""

    name: str
    folder: Path
    config: dict[str, str]  # the node's: where its rows are
    key: Path | None = None  # its private key; None: that of its name among the keys, or no authentication


class Work(NamedTuple):
    """What the process of some sites is told: a line of JSON."""

    server: str  # HOST:PORT
    keys: Path | None  # a folder with whom to believe; None: no encryption
    compiled: Path  # a folder for compiled programs
    sites: tuple[Site, ...]


def line(work: Work) -> bytes:
    fields = work._asdict() | {"sites": [site._asdict() for site in work.sites]}
    return (json.dumps(fields, default=str) + "\n").encode()


def read_line(text: str) -> Work:
    def path(given: str | None) -> Path | None:
        return None if given is None else Path(given)

    fields = json.loads(text)
    sites = (Site(s["name"], Path(s["folder"]), s["config"], path(s["key"])) for s in fields["sites"])
    return Work(fields["server"], path(fields["keys"]), Path(fields["compiled"]), tuple(sites))


def node_config(name: str, folder: Path, rows: Mapping[str, str]) -> dict[str, str]:
    return {"site": name, "folder": str(folder.resolve()), "compiled": str((folder / "compiled").resolve()), **rows}


def begin_sites(
    sites: Sequence[Site],
    server: str,
    keys: Path | None,
    say: Say,
    *,
    stock: bool = False,
    compiled: Path | None = None,
) -> Callable[[], AbstractContextManager[subprocess.Popen]]:
    """How the process of these sites is started: one that stays, or Flower's own for a single site.

    One that stays becomes Flower's own where the parts of Flower that it stands on are not there (`become_supernode`).
    """
    work = work_of(sites, server, keys, compiled)
    if stock:
        require(len(sites) == 1, "Flower's own nodes run one site each")
        say(f"{sites[0].name}: {STOCK} (asked for)")
        return lambda: _supernode(work, say)
    say(f"{', '.join(site.name for site in sites)}: one process that stays (warm)")
    return lambda: _worker(work)


def work_of(sites: Sequence[Site], server: str, keys: Path | None, compiled: Path | None = None) -> Work:
    """What the process of these sites has to know; with keys, also those by which each knows the others."""

    def identified(site: Site) -> Site:
        if keys is None:
            return site._replace(key=None)
        private = launch.private_key(keys, site.name, site.key)
        names = {"key": str(private.resolve()), "roster": str((keys / made.SITES).resolve())}
        return site._replace(config={**site.config, **names}, key=private)

    return Work(server, keys, compiled or sites[0].folder / "compiled", tuple(map(identified, sites)))


@contextmanager
def _worker(work: Work) -> Iterator[subprocess.Popen]:
    with owned(WORKER, launch.QUIET, patience=2.0) as child:
        assert child.stdin is not None
        with suppress(OSError):  # it has ended already, which its exit code says
            child.stdin.write(line(work))
            child.stdin.flush()
        yield child


@contextmanager
def _supernode(work: Work, say: Say) -> Iterator[subprocess.Popen]:
    command, more = supernode(work)
    say(launch.shown(command, more))
    with process(command, more) as child:
        yield child


def supernode(work: Work) -> tuple[list[str], dict[str, str]]:
    """The command of Flower's own node for the first site, and its environment."""
    site = work.sites[0]
    command = launch.supernode(work.server, free_port(), site.config, work.keys, site.key)
    return command, launch.environment(site.folder / "flower")


def run_site(site: Site, server: str, keys: Path | None, say: Say, *, stock: bool = False) -> None:
    """Until interrupted."""
    begin = begin_sites([site], server, keys, say, stock=stock)
    keep_running(begin, threading.Event(), say, name=site.name)


def main() -> int:
    """Runs sites until told to end; the exit code."""
    from equipoise._jax import keep_programs
    from equipoise.deploy.server.status import JsonLines
    from equipoise.deploy.wire.transport import why_not_warm

    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    work = read_line(sys.stdin.readline())

    def watch_parent() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch_parent, daemon=True).start()
    logger = logging.getLogger("equipoise.flower")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    console = logging.StreamHandler()
    console.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(console)
    try:
        if why := why_not_warm():
            become_supernode(work, why)
        keep_programs(work.compiled)
        work.sites[0].folder.mkdir(parents=True, exist_ok=True)
        logger.addHandler(JsonLines(work.sites[0].folder / "log.jsonl"))
        from equipoise.deploy.wire.warm import WarmSite, run_sites

        trust = None if work.keys is None else work.keys / made.CA
        sites = [
            WarmSite(work.server, s.folder, s.config, certificates=trust, key=s.key, stop=stop) for s in work.sites
        ]
        names = ", ".join(site.name for site in sites)
        logger.info("%s: one process that stays (warm), pid %d", names, os.getpid())
        from equipoise.deploy.site import run  # noqa: F401 - JAX and all that a message needs, before it comes

        run_sites(sites, stop)
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return REFUSED
    except BaseException:
        logger.exception("the process ends because of an error")
        return 1
    return 0


def become_supernode(work: Work, why: str) -> None:
    """Where Flower's internals have changed, this process becomes Flower's own node, and ends as it would."""
    names = ", ".join(site.name for site in work.sites)
    require(len(work.sites) == 1, f"{names}: Flower's own nodes run one site each ({why}); start them with --stock")
    print(f"{names}: {STOCK} ({why})", flush=True)
    command, more = supernode(work)
    os.execve(GUARD[0], [*GUARD, *command], {**os.environ, **more})


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # threads may be in the middle of work that nobody waits for
