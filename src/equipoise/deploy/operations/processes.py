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
from equipoise.errors import EquipoiseError, InputError, not_none, require

GUARD = [sys.executable, "-P", str(Path(guard.__file__))]
RESTART = (0.5, 30.0)  # seconds before a process that crashed is started again: at first, and at most
STEADY = 60.0  # seconds after which a process counts as running well
REFUSED = 2  # the exit code of a command whose arguments cannot work: it is not started again


def process(
    command: Sequence[str], more: Mapping[str, str], **options: Any
) -> AbstractContextManager[subprocess.Popen]:
    """A program that ends, with all that it started, when the block is left or this process ends in any way."""
    return owned([*GUARD, *command], more, **options)


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
            not_none(child.stdin).close()
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
    stock: bool = False  # it becomes Flower's own node

    @property
    def names(self) -> str:
        return ", ".join(site.name for site in self.sites)


def line(work: Work) -> bytes:
    return (json.dumps(work, default=str) + "\n").encode()


def read_line(text: str) -> Work:
    server, keys, compiled, sites, stock = json.loads(text)
    read = (Site(name, Path(folder), config, key and Path(key)) for name, folder, config, key in sites)
    return Work(server, keys and Path(keys), Path(compiled), tuple(read), stock)


def node_config(name: str, folder: Path, rows: Mapping[str, str]) -> dict[str, str]:
    return {"site": name, "folder": str(folder.resolve()), "compiled": str((folder / "compiled").resolve()), **rows}


def work_of(
    sites: Sequence[Site], server: str, keys: Path | None, compiled: Path | None = None, *, stock: bool = False
) -> Work:
    """What the process of these sites has to know; with keys, also those by which each knows the others."""

    def identified(site: Site) -> Site:
        if keys is None:
            return site._replace(key=None)
        private = launch.private_key(keys, site.name, site.key)
        names = {"key": str(private.resolve()), "roster": str((keys / made.SITES).resolve())}
        return site._replace(config={**site.config, **names}, key=private)

    return Work(server, keys, compiled or sites[0].folder / "compiled", tuple(map(identified, sites)), stock)


@contextmanager
def worker(work: Work) -> Iterator[subprocess.Popen]:
    with owned(WORKER, launch.QUIET, patience=2.0) as child:
        stdin = not_none(child.stdin)
        with suppress(OSError):  # it has ended already, which its exit code says
            stdin.write(line(work))
            stdin.flush()
        yield child


def say_how(work: Work, say: Say) -> None:
    if not work.stock:  # a process that becomes Flower's own node says so itself
        say(f"{work.names}: one process that stays (warm)")


def keep_sites(work: Work, stop: threading.Event, say: Say, *, tries: float = math.inf) -> None:
    keep_running(lambda: worker(work), stop, say, name=work.names, tries=tries)


def run_site(site: Site, server: str, keys: Path | None, say: Say, *, stock: bool = False) -> None:
    """Until interrupted."""
    work = work_of([site], server, keys, stock=stock)
    say_how(work, say)
    keep_sites(work, threading.Event(), say)


def main() -> int:
    """Runs sites until told to end; the exit code."""
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

    def log_to(handler: logging.Handler, form: logging.Formatter) -> None:
        handler.setFormatter(form)
        logger.addHandler(handler)

    log_to(logging.StreamHandler(), logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    try:
        if work.stock:
            become_supernode(work, "asked for")
        from equipoise._jax import keep_programs
        from equipoise.deploy.server.status import JsonLines
        from equipoise.deploy.wire.transport import why_not_warm

        if why := why_not_warm():
            become_supernode(work, why)
        keep_programs(work.compiled)
        work.sites[0].folder.mkdir(parents=True, exist_ok=True)
        log_to(logging.FileHandler(work.sites[0].folder / "log.jsonl"), JsonLines())
        from equipoise.deploy.wire.warm import WarmSite, run_sites

        trust = None if work.keys is None else work.keys / made.CA
        sites = [
            WarmSite(work.server, s.folder, s.config, certificates=trust, key=s.key, stop=stop) for s in work.sites
        ]
        logger.info("%s: one process that stays (warm), pid %d", work.names, os.getpid())
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
    """This process becomes Flower's own node of one site, and ends as it would."""
    site = work.sites[0]
    require(
        len(work.sites) == 1, f"{work.names}: Flower's own nodes run one site each ({why}); start them with --stock"
    )
    command = launch.supernode(work.server, free_port(), site.config, work.keys, site.key)
    more = launch.environment(site.folder / "flower")
    print(f"{work.names}: {STOCK} ({why})\n{launch.shown(command, more)}", flush=True)
    os.execve(GUARD[0], [*GUARD, *command], {**os.environ, **more})


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # threads may be in the middle of work that nobody waits for
