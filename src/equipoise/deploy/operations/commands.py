"""What the commands do: a server, a site, or a whole federation on one machine; all that they start ends with them."""

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from equipoise.deploy.network.transport import why_not_warm
from equipoise.deploy.operations import keys as made
from equipoise.deploy.operations import launch, worker
from equipoise.deploy.operations.page import live_page
from equipoise.deploy.operations.processes import await_port, is_free, keep_running, owned, process
from equipoise.deploy.operations.worker import SiteWork, Work
from equipoise.deploy.site import read as read_site
from equipoise.errors import EquipoiseError, require
from equipoise.experiment import records
from equipoise.experiment.config import Config
from equipoise.files import make_folder

Say = Callable[[str], None]
WORKER = [sys.executable, "-m", "equipoise.deploy.operations.worker"]
LAST_WORDS = 1.5  # seconds for the output of a run that is finished
RESTARTS = 5  # times that a SuperLink that died is started again
TRIES = 5  # times that the processes of a trial's sites may end soon after their start


class ServerSettings(NamedTuple):
    """Where a server listens, and what it keeps."""

    state: Path
    keys: Path | None  # None: no encryption, no authentication
    host: str = "127.0.0.1"
    port: int = 8000
    client: str | None = None
    stock: bool = False  # Flower's own programs only
    page: int | None = 0  # port of the live page on this machine; 0: any, None: none

    @property
    def local(self) -> str:
        """The address under which this machine finds the server."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host


def run_server(
    config: Config,
    folder: Path,
    settings: ServerSettings,
    say: Say,
    *,
    check: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Until the run is finished; a SuperLink that dies is started again, and the run resumes.

    `check` is called all the while, and what it raises ends the run; `ending` when the run has ended and the SuperLink
    has not.
    """
    state, why = settings.state, "asked for" if settings.stock else why_not_warm()
    make_folder(state)
    require(
        is_free(settings.local, settings.port),
        f"somebody listens on {settings.local}:{settings.port} already; stop it, or give another --port",
    )
    say(f"SuperLink: {f'Flower alone ({why})' if why else 'holds pulls, state in memory'}")
    home = launch.connection(state / "home", f"{settings.local}:{settings.port}", settings.keys)
    app = launch.app(state / "app", config, folder, client=settings.client or launch.CLIENT, stock=settings.stock)
    more = launch.environment(home)
    database = state / "state.db" if why else None
    link = launch.superlink(settings.host, settings.port, settings.keys, database=database)
    with ExitStack() as stack:
        if settings.page is not None:
            say(f"live: {stack.enter_context(live_page(folder, settings.page))}")
        for attempt in range(RESTARTS + 1):
            if _one_link(link, app, more, folder, settings, why, say, check, ending) or records.finished(folder):
                break
            if attempt == RESTARTS:
                raise EquipoiseError(f"Flower's server ended {RESTARTS + 1} times, see {state / 'superlink.log'}")
            say("Flower's server ended; it is started again, and the run resumes from its last round")
    require(
        records.finished(folder),
        f"the run stopped before its end, see above; the same command resumes it where {folder} stands",
    )


def _one_link(
    link: Sequence[str],
    app: Path,
    more: Mapping[str, str],
    folder: Path,
    settings: ServerSettings,
    why: str,
    say: Say,
    check: Callable[[], None],
    ending: Callable[[], None],
) -> bool:
    """One SuperLink and a run on it; False if the SuperLink died before the run ended."""
    diary = settings.state / "superlink.log"
    say(shown(link, more))
    with diary.open("a") as log, process(link, more, stdout=log, stderr=log) as child:
        say(f"its log: {diary}")
        await_port(child, settings.local, settings.port)
        if settings.keys is not None:
            register(settings, more, why, say)
        begin = launch.run_app(app)
        say(shown(begin, more))
        with process(begin, more) as started:
            while started.poll() is None and not records.finished(folder):
                time.sleep(0.1)
                check()
                if child.poll() is not None:
                    return False
            with suppress(subprocess.TimeoutExpired):
                started.wait(LAST_WORDS)
        if not records.finished(folder):
            with suppress(subprocess.TimeoutExpired):  # what ended first is not what is noticed first
                child.wait(2 * LAST_WORDS)
        if child.poll() is None:
            ending()
            return True
        return False


def register(settings: ServerSettings, more: Mapping[str, str], why: str, say: Say) -> None:
    """Tells the SuperLink the sites' public keys; what it knows already it refuses, which is no harm."""
    assert settings.keys is not None
    public = sorted((settings.keys / made.SITES).glob("*.pub"))
    if why:
        for path in public:
            command = launch.register(path)
            say(shown(command, more))
            done = subprocess.run(command, env={**os.environ, **more}, check=False, capture_output=True, text=True)
            said = (done.stdout + done.stderr).strip()
            known = "already" in said.lower()
            require(done.returncode == 0 or known, f"{path} could not be registered: {said[-300:]}")
        return
    import httpx
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    from equipoise.deploy.network import internals

    client = internals.ControlHttpClient.from_server_address(
        f"{settings.local}:{settings.port}",
        False,
        (settings.keys / made.CA).read_bytes(),
        [internals.RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    for path in public:
        public_key = load_ssh_public_key(path.read_bytes())
        require(
            isinstance(public_key, EllipticCurvePublicKey), f"{path} is not an EC key; make one: ssh-keygen -t ecdsa"
        )
        assert isinstance(public_key, EllipticCurvePublicKey)
        key = internals.public_key_to_bytes(public_key)
        try:
            client.RegisterNode(internals.RegisterNodeRequest(public_key=key))
        except httpx.HTTPStatusError as error:
            said = error.response.text[-300:]
            if "already in use" not in said:
                raise EquipoiseError(f"{path} could not be registered: {said}") from error
    client.close()
    say(f"registered {len(public)} keys")


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
    """How the process of these sites is started: one that stays, or Flower's own for a single site."""
    why = "asked for" if stock else why_not_warm()
    names = ", ".join(site.name for site in sites)
    if why:
        require(len(sites) == 1, "Flower's own nodes run one site each")
        say(f"{names}: Flower's SuperNode, a process for every message ({why})")
        return lambda: _supernode(sites[0], server, keys, say)
    say(f"{names}: one process that stays (warm)")
    work = work_of(sites, server, keys, compiled)
    return lambda: _worker(work)


def work_of(sites: Sequence[Site], server: str, keys: Path | None, compiled: Path | None = None) -> Work:
    """What the process of these sites has to know."""
    return Work(
        server=server,
        certificates=None if keys is None else str(keys / made.CA),
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
            child.stdin.write(worker.line(work))
            child.stdin.flush()
        yield child


@contextmanager
def _supernode(site: Site, server: str, keys: Path | None, say: Say) -> Iterator[subprocess.Popen]:
    from equipoise.deploy.operations.processes import free_port

    more = launch.environment(site.folder / "flower")
    command = launch.supernode(server, free_port(), identified(site, keys), keys, site.key)
    say(shown(command, more))
    with process(command, more) as child:
        yield child


def run_site(site: Site, server: str, keys: Path | None, say: Say, *, stock: bool = False) -> None:
    """Until interrupted."""
    begin = begin_sites([site], server, keys, say, stock=stock)
    keep_running(begin, threading.Event(), say, name=site.name)


def check_files(config: Config, files: Mapping[str, Path]) -> None:
    """Says what is wrong with a site's file before anything starts."""
    for name, path in sorted(files.items()):
        read_site(config, name, {"data": path})


def run_local(
    config: Config,
    folder: Path,
    files: Mapping[str, Path],
    settings: ServerSettings,
    say: Say,
    *,
    processes: int,
    torch: Mapping[str, str] | None = None,
    follow: Callable[[], None] = lambda: None,
) -> None:
    """A server and a site for every file, on this machine; ends when a site cannot start.

    `torch` is what names the sites' PyTorch module in their configuration; `follow` is called all the while.
    """
    require(settings.keys is not None, "")
    assert settings.keys is not None
    made.make(settings.keys, files)
    folders = settings.state / "sites"
    sites = [
        Site(name, folders / name, node_config(name, folders / name, {"data": str(path.resolve()), **(torch or {})}))
        for name, path in sorted(files.items())
    ]
    server, stop = f"{settings.local}:{settings.port}", threading.Event()
    groups = [sites[k::processes] for k in range(min(processes, len(sites)))]
    begins = [
        begin_sites(group, server, settings.keys, say, stock=settings.stock, compiled=folders / "compiled")
        for group in groups
    ]
    failed: list[Exception] = []

    def run(names: str, begin: Callable[[], AbstractContextManager[subprocess.Popen]]) -> None:
        try:
            keep_running(begin, stop, say, name=names, tries=TRIES)
        except Exception as error:
            failed.append(error)

    def check() -> None:
        follow()
        if failed:
            raise failed[0]

    names = [", ".join(site.name for site in group) for group in groups]
    threads = [threading.Thread(target=run, args=each, daemon=True) for each in zip(names, begins, strict=True)]
    for thread in threads:
        thread.start()

    def end_sites() -> None:
        stop.set()
        for thread in threads:
            thread.join(10.0)

    try:
        run_server(config, folder, settings, say, check=check, ending=end_sites)
    finally:
        end_sites()


def shown(command: Sequence[str], more: Mapping[str, str]) -> str:
    """A command as one would type it."""
    short = dict(more) | {"PATH": more["PATH"].removesuffix(os.environ["PATH"]) + "$PATH"}
    settings = " ".join(f"{name}={value if name == 'PATH' else shlex.quote(value)}" for name, value in short.items())
    return f"$ {settings} {shlex.join(command)}"
