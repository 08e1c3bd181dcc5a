"""The process of one or more sites of this machine, and how it is started.

Loads neither JAX nor Flower: the process of `equipoise flower site` waits for another that does.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from equipoise.deploy.operations import keys as made
from equipoise.deploy.operations import launch
from equipoise.deploy.operations.processes import free_port, keep_running, owned, process
from equipoise.errors import require

Say = Callable[[str], None]
WORKER = [sys.executable, "-m", "equipoise.deploy.operations.worker"]
STOCK = "Flower's SuperNode, a process for every message"


class SiteWork(NamedTuple):
    """One site, as its process is told."""

    name: str
    folder: str
    config: dict[str, str]  # the node's: where its rows are
    key: str | None  # its private key; None: no authentication


class Work(NamedTuple):
    """What the process of some sites is told: a line of JSON."""

    server: str  # HOST:PORT
    keys: str | None  # a folder with whom to believe; None: no encryption
    compiled: str  # a folder for compiled programs
    sites: tuple[SiteWork, ...]


def line(work: Work) -> bytes:
    fields = work._asdict() | {"sites": [site._asdict() for site in work.sites]}
    return (json.dumps(fields) + "\n").encode()


def read_line(text: str) -> Work:
    fields = json.loads(text)
    return Work(**fields | {"sites": tuple(SiteWork(**site) for site in fields["sites"])})


class Site(NamedTuple):
    """A site of this machine."""

    name: str
    folder: Path
    config: dict[str, str]  # where its rows are
    key: Path | None = None  # its private key; None: that of its name among the keys


def node_config(name: str, folder: Path, rows: Mapping[str, str]) -> dict[str, str]:
    return {"site": name, "folder": str(folder.resolve()), "compiled": str((folder / "compiled").resolve()), **rows}


def identified(site: Site, keys: Path | None) -> dict[str, str]:
    """The node's configuration, with its own key and those by which it knows the others, for masked sums."""
    if keys is None:
        return site.config
    private = launch.private_key(keys, site.name, site.key)
    return {**site.config, "key": str(private.resolve()), "roster": str((keys / made.SITES).resolve())}


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

    One that stays becomes Flower's own where the parts of Flower that it stands on are not there (`worker.py`).
    """
    work = work_of(sites, server, keys, compiled)
    if stock:
        require(len(sites) == 1, "Flower's own nodes run one site each")
        say(f"{sites[0].name}: {STOCK} (asked for)")
        return lambda: _supernode(work.sites[0], work, say)
    say(f"{', '.join(site.name for site in sites)}: one process that stays (warm)")
    return lambda: _worker(work)


def work_of(sites: Sequence[Site], server: str, keys: Path | None, compiled: Path | None = None) -> Work:
    """What the process of these sites has to know."""
    return Work(
        server=server,
        keys=None if keys is None else str(keys),
        compiled=str(compiled or sites[0].folder / "compiled"),
        sites=tuple(
            SiteWork(
                name=site.name,
                folder=str(site.folder),
                config=identified(site, keys),
                key=None if keys is None else str(launch.private_key(keys, site.name, site.key)),
            )
            for site in sites
        ),
    )


@contextmanager
def _worker(work: Work) -> Iterator[subprocess.Popen]:
    with owned(WORKER, launch.QUIET, patience=2.0) as child:
        assert child.stdin is not None
        with suppress(OSError):  # it has ended already, which its exit code says
            child.stdin.write(line(work))
            child.stdin.flush()
        yield child


@contextmanager
def _supernode(site: SiteWork, work: Work, say: Say) -> Iterator[subprocess.Popen]:
    command, more = supernode(site, work)
    say(launch.shown(command, more))
    with process(command, more) as child:
        yield child


def supernode(site: SiteWork, work: Work) -> tuple[list[str], dict[str, str]]:
    """The command of Flower's own node for a site, and its environment."""
    keys, key = (None if path is None else Path(path) for path in (work.keys, site.key))
    command = launch.supernode(work.server, free_port(), site.config, keys, key)
    return command, launch.environment(Path(site.folder) / "flower")


def run_site(site: Site, server: str, keys: Path | None, say: Say, *, stock: bool = False) -> None:
    """Until interrupted."""
    begin = begin_sites([site], server, keys, say, stock=stock)
    keep_running(begin, threading.Event(), say, name=site.name)
