"""What the commands do: a server, a site, or a whole federation on one machine; all that they start ends with them."""

import secrets
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from equipoise._jax import keep_programs
from equipoise.deploy.operations import keys as made
from equipoise.deploy.operations import launch
from equipoise.deploy.operations.processes import (
    Say,
    Site,
    await_port,
    free_port,
    is_free,
    keep_sites,
    node_config,
    process,
    say_how,
    work_of,
)
from equipoise.deploy.server.events import LinkLost
from equipoise.deploy.server.run import in_background, serve_run
from equipoise.deploy.server.status import STATUS
from equipoise.deploy.wire.transport import why_not_warm
from equipoise.errors import EquipoiseError, InputError, not_none, require
from equipoise.experiment import records
from equipoise.experiment.config import Config
from equipoise.files import make_folder, reason, write_whole
from equipoise.privacy import policy

LAST_WORDS = 1.5  # seconds for the output of a run that is finished
RESTARTS = 5  # times that a SuperLink that died is started again
LOCAL = ("127.0.0.1", "localhost", "::1")
TRIES = 5  # times that the processes of a trial's sites may end soon after their start


class Server(NamedTuple):
    """A server of one run, until the run is finished; a SuperLink that dies is started again, and the run resumes."""

    config: Config
    folder: Path  # of the run
    say: Say
    state: Path  # a folder for what it keeps
    keys: Path | None  # None: no encryption, no authentication, nobody's name is known to be true
    host: str = "127.0.0.1"
    port: int = 8000
    client: str | None = None
    stock: bool = False  # Flower's own programs only
    page: int | None = 0  # port of the live page on this machine; 0: any, None: none
    without: tuple[str, ...] = ()  # sites that the run is resumed without
    check: Callable[[], None] = lambda: None  # called all the while; what it raises ends the run
    ready: Callable[[], None] = lambda: None  # called when a SuperLink has read the sites' keys
    ending: Callable[[], None] = lambda: None  # called when the run has ended and the SuperLink has not

    @property
    def local(self) -> str:
        """The address under which this machine finds the server."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host

    @property
    def why_flower(self) -> str:
        """Why Flower's own programs serve the run; empty where this process does."""
        return "asked for" if self.stock else why_not_warm("serverapp")

    @property
    def app(self) -> Path:
        return self.state / "app"

    def run(self) -> None:
        folder, why = self.folder, self.why_flower
        make_folder(self.state)
        require(
            is_free(self.local, self.port),
            f"somebody listens on {self.local}:{self.port} already; stop it, or give another --port",
        )
        self.say(f"SuperLink: {f'for Flower alone ({why})' if why else 'holds pulls, state in memory'}")
        self.check_who_may_join()
        client = self.client or launch.CLIENT
        launch.app(self.app, self.config, folder, client=client, stock=self.stock, without=self.without)
        with ExitStack() as stack:
            if self.page is not None:
                self.say(f"live: {stack.enter_context(live_page(folder, self.page))}")
            for attempt in range(RESTARTS + 1):
                if self.one_link():
                    break
                if attempt == RESTARTS:
                    diary = self.state / "superlink.log"
                    raise EquipoiseError(f"Flower's server ended {RESTARTS + 1} times, see {diary}")
                self.say("Flower's server ended; it is started again, and the run resumes from its last round")
        require(
            records.finished(folder),
            f"the run stopped before its end, see above; the same command resumes it where {folder} stands",
        )

    def check_who_may_join(self) -> None:
        """Says which names have keys; without keys, warns that anybody who reaches the port may join."""
        if self.keys is None:
            if self.host not in LOCAL:
                self.say(
                    f"WARNING: without encryption and authentication, {self.host} lets whoever reaches it join under "
                    "any name and read what others send; leave --insecure out unless all of the network is trusted"
                )
            return
        names, wanted = made.names(self.keys), not_none(self.config.federation).sites
        if not isinstance(wanted, int):
            lacking = [name for name in wanted if name not in names]
            require(
                not lacking,
                f"{self.keys / made.SITES} has no key for {', '.join(lacking)}, so nobody could join under that name; "
                f"register one: equipoise flower keys {self.keys} --add {lacking[0] if lacking else ''}=FILE.pub",
            )
        self.say(f"may join, each with its own key: {', '.join(names)}")

    def one_link(self) -> bool:
        """One SuperLink and the run on it; False if the SuperLink died before the run ended."""
        why, state, keys = self.why_flower, self.state, self.keys
        diary = state / "superlink.log"
        with ExitStack() as stack:
            control = stack.enter_context(launch.operator(free_port() if why else None))
            home = launch.connection(state / "home", f"{launch.LOOPBACK}:{control.port}", keys)
            more, database = launch.environment(home), state / "state.db" if why else None
            link = launch.superlink(self.host, self.port, keys, control, database=database)
            secret = secrets.token_hex(32).encode()  # a text: Flower may take blanks off its ends
            write_whole(control.secret, secret, secret=True)
            self.say(launch.shown(link, more))
            log = stack.enter_context(diary.open("a"))
            child = stack.enter_context(process(link, more, stdout=log, stderr=log))
            self.say(f"its log: {diary}")
            await_port(child, self.local, self.port)
            control.secret.unlink()  # the SuperLink has read it: from now on these two processes alone know it
            self.ready()
            served = self.by_flower(child, more) if why else self.here(child, control.socket, secret)
            if served:
                self.ending()
            return served

    def here(self, child: subprocess.Popen, socket: Path, secret: bytes) -> bool:
        """The run, in this process; False if the SuperLink died before it ended."""
        from equipoise.deploy.wire.serverapp import started_run

        lost, over = threading.Event(), threading.Event()

        def watch() -> None:
            try:
                while child.poll() is None and not over.wait(0.1):
                    self.check()
            except Exception:
                not_none(child.stdin).close()  # the SuperLink ends, and what waits for it with it
                child.wait()
                raise
            finally:
                lost.set()

        watching = in_background(watch)
        keep_programs()
        try:
            with started_run(socket, secret, self.app, lost) as grid:
                serve_run(self.config, self.folder, grid, without=self.without)
        except LinkLost:
            over.set()
            watching.result()  # raises what `check` did
            return records.finished(self.folder)
        except EquipoiseError as error:
            raise EquipoiseError(f"{error}; the same command resumes the run where {self.folder} stands") from error
        except Exception:  # of the user's own code: its traceback, and then the sentence that all ends with
            traceback.print_exc()
        finally:
            over.set()
            futures.wait([watching])
        return True

    def by_flower(self, child: subprocess.Popen, more: Mapping[str, str]) -> bool:
        """The run, by Flower's own programs; False if the SuperLink died before it ended."""
        begin, folder = ["flwr", "run", str(self.app), launch.NAME, "--stream"], self.folder
        self.say(launch.shown(begin, more))
        with process(begin, more) as started:
            while started.poll() is None and not records.finished(folder):
                time.sleep(0.1)
                self.check()
                if child.poll() is not None:
                    return records.finished(folder)
            with suppress(subprocess.TimeoutExpired):
                started.wait(LAST_WORDS)
        if not records.finished(folder):
            with suppress(subprocess.TimeoutExpired):  # what ended first is not what is noticed first
                child.wait(2 * LAST_WORDS)
        return child.poll() is None or records.finished(folder)


def run_local(server: Server, files: Mapping[str, Path], *, processes: int, torch: Mapping[str, str]) -> None:
    """A server and a site for every file, on this machine; ends when a site cannot start.

    `torch` is what names the sites' PyTorch module in their configuration.
    """
    made.make(not_none(server.keys), files)
    folders = server.state / "sites"
    for name in files:
        policy.trial(folders / name)
    sites = [
        Site(name, folders / name, node_config(name, folders / name, {"data": str(path.resolve()), **torch}))
        for name, path in sorted(files.items())
    ]
    address, stop = f"{server.local}:{server.port}", threading.Event()
    stock = server.stock or bool(why_not_warm())
    processes = len(sites) if stock else processes
    groups = [sites[k::processes] for k in range(min(processes, len(sites)))]
    works = [work_of(group, address, server.keys, folders / "compiled", stock=stock) for group in groups]
    for work in works:
        say_how(work, server.say)
    running: list[Future[None]] = []

    def check() -> None:
        server.check()
        for site in running:
            if site.done():
                site.result()  # raises why it could not start

    @cache
    def start_sites() -> None:
        running.extend(in_background(partial(keep_sites, work, stop, server.say, tries=TRIES)) for work in works)

    def end_sites() -> None:
        stop.set()
        futures.wait(running, 10.0)

    if not stock:  # Flower's own nodes end when their keys are not known yet, and every start takes them long
        start_sites()
    try:
        server._replace(check=check, ready=start_sites, ending=end_sites).run()
    finally:
        end_sites()


REPORT = "report.html"


@contextmanager
def live_page(folder: Path, port: int = 0) -> Iterator[str]:
    """Serves the page on 127.0.0.1; gives its address.

    A browser that was sent here under another name, as by a page whose name was pointed to this machine, gets nothing.
    """
    text = (resources.files("equipoise.deploy.operations") / "live.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = {f"/{STATUS}": (folder / STATUS, "application/json"), f"/{REPORT}": (folder / REPORT, "text/html")}
            if not asked_here(self.headers.get_all("Host") or []):
                self.answer(403, "text/plain", f"the page is at http://127.0.0.1:{server.server_port}/\n".encode())
            elif self.path == "/":
                self.answer(200, "text/html", text)
            elif self.path in files and files[self.path][0].is_file():
                path, kind = files[self.path]
                self.answer(200, kind, path.read_bytes())
            else:
                self.answer(404, "text/plain", b"nothing here yet\n")

        def answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    def asked_here(hosts: list[str]) -> bool:
        try:
            addresses = [urlsplit(f"//{host}") for host in hosts]
            return [(address.hostname in LOCAL, address.port) for address in addresses] == [(True, server.server_port)]
        except ValueError:
            return False

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"the live page cannot have port {port} ({reason(error)}); give another --page") from error
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
