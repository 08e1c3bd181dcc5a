"""`equipoise flower`: a federation whose clients are machines. Prints the Flower commands that it runs."""

import importlib.util
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.experiments import Out, Overwrite, Set
from equipoise.cli.plainly import Commands, in_sentences, say
from equipoise.errors import EquipoiseError, InputError, require

flower_app = Commands(
    name="flower",
    help="Sites on machines of their own: train one model over all of them; rows never leave a site.",
    no_args_is_help=True,
)
Keys = Annotated[Path, typer.Option(help="Certificates and keys: `equipoise flower keys` makes some for trials.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption, no authentication: on one machine only.")]
RESTART = 5.0  # seconds before a site that was turned away asks again


@flower_app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    sites: Annotated[str, typer.Option(help="Names, such as north,south.")],
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server; repeatable.")] = None,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 30,
) -> None:
    """Make a certificate authority, a server certificate and a key for every site, FOR TRIALS.

    Whoever has ca.key can pass for the server; whoever has sites/NAME can pass for that site.

    Example: equipoise flower keys keys --sites north,south --host fed.example.org
    """
    with in_sentences():
        _need_flower()
        from equipoise.experiment.federated import keys as made

        names = [name.strip() for name in sites.split(",") if name.strip()]
        require(names, "--sites names nobody; give names, such as --sites north,south")
        require(1 <= days <= 36500, f"--days is {days}; give how long the certificates are valid, from 1 to 36500")
        made.make(folder, names, hosts=host or (), days=days)
        say(f"{folder}: for trials. The server needs all but sites/NAME; a site needs ca.crt and its own sites/NAME.")


@flower_app.command()
def server(
    file: Annotated[Path, typer.Argument(help="A TOML file with [federation]; see `equipoise config`.")],
    keys: Keys = Path("keys"),
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8000,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
    state: Annotated[Path, typer.Option(help="Where Flower keeps what it knows of the nodes.")] = Path("flower-state"),
    client: Annotated[
        str | None, typer.Option(help="module:app, a ClientApp around Equipoise's, installed at all sites.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Train over the sites that come, and write a run folder as `equipoise run` does.

    A run that was stopped goes on when the same command is given again.

    Example: equipoise flower server federation.toml --keys keys --host 0.0.0.0
    """
    with in_sentences(), _ended_in_order():
        _need_flower()
        from equipoise.cli.experiments import _settings, _show, _source
        from equipoise.experiment import config, folders, records
        from equipoise.experiment.federated import agreement, launch
        from equipoise.experiment.federated import keys as made
        from equipoise.experiment.federated.server import begin_or_go_on

        told = config.parse(_settings(file, None, None, set_), source=_source(file))
        agreement.check(told)
        folder = out or Path("runs") / folders.name(told.name)
        trust = None if insecure else keys
        require(
            trust is None or (trust / made.SERVER).is_file(),
            f"{keys} has no {made.SERVER}; `equipoise flower keys {keys} --sites ...` makes keys for trials",
        )
        if overwrite:
            with folders.writing(folder, "run", overwrite=True):
                pass  # what an earlier run left is gone
        begin_or_go_on(told, folder)
        local = "127.0.0.1" if host == "0.0.0.0" else host
        home = launch.connection(state / "home", f"{local}:{port}", trust)
        app = launch.app(state / "app", told, folder, client=client or launch.CLIENT)
        more = launch.environment(home)
        link = launch.superlink(host, port, state / "state.db", trust)
        _print(link, more)
        diary = state / "superlink.log"
        with diary.open("a") as log, launch.process(link, more, stdout=log, stderr=log) as child:
            say(f"what it says: {diary}")
            launch.await_port(child, local, port)
            for public in sorted((keys / made.SITES).glob("*.pub")) if trust else ():
                _register(public, state / "registered", more)
            begin = launch.run_app(app)
            _print(begin, more)
            with launch.process(begin, more) as started:
                _wait_for(started, child)
        require(
            records.finished(folder),
            f"the run stopped before its end, see above; the same command goes on where {folder} stands",
        )
        _show([records.read(folder)], folder)


@flower_app.command()
def site(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    data: Annotated[Path | None, typer.Argument(help="Its own file: .csv, .parquet or .npz.")] = None,
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")] = "127.0.0.1:8000",
    keys: Keys = Path("keys"),
    key: Annotated[Path | None, typer.Option(help="The site's private key; default: KEYS/sites/NAME.")] = None,
    loader: Annotated[
        str | None, typer.Option(help="module:function that gives (inputs, labels) or a table, instead of a file.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps what it must not forget; default: flower-sites/NAME.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Take part in the runs of a server, until Ctrl-C. The rows stay here.

    Example: equipoise flower site north north.csv --server fed.example.org:8000 --keys keys
    """
    with in_sentences(), _ended_in_order():
        _need_flower()
        from equipoise.experiment.federated import launch

        require(name, "the site has no name; give one")
        require((data is None) != (loader is None), "give the site's file, or --loader module:function")
        require(data is None or data.is_file(), f"there is no file {data}")
        home = folder or Path("flower-sites") / name
        node = {"site": name, "folder": str(home.resolve()), "compiled": str((home / "compiled").resolve())}
        node |= {"data": str(data.resolve())} if data else {"loader": str(loader), "path": str(Path.cwd())}
        more = launch.environment(home / "flower")
        while True:
            port = launch.free_port()
            command = launch.supernode(server, port, node, None if insecure else keys, key)
            _print(command, more)
            with launch.process(command, more) as child:
                code = child.wait()
            # After a crash the server may take this site for still there, for a minute.
            say(f"Flower's node ended (exit {code}); it is started again in {RESTART:g} s, Ctrl-C stops")
            time.sleep(RESTART)


def _need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise InputError("federations across machines need one more package: pip install 'equipoise[flower]'")


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A request to end is as good as Ctrl-C: what was started is ended too."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_for(started: subprocess.Popen, link: subprocess.Popen) -> None:
    """Until the run has ended, or the server has."""
    while started.poll() is None:
        time.sleep(0.2)
        if link.poll() is not None:
            raise EquipoiseError(
                f"Flower's server ended (exit {link.returncode}), see its log; the same command goes on"
            )


def _register(public: Path, known: Path, more: Mapping[str, str]) -> None:
    """Once for each key; Flower remembers it in its database."""
    from equipoise.experiment.federated import launch
    from equipoise.files import write_whole

    mark = known / public.name
    if mark.is_file() and mark.read_bytes() == public.read_bytes():
        return
    command = launch.register(public)
    _print(command, more)
    done = subprocess.run(command, env={**os.environ, **more}, check=False, capture_output=True, text=True)
    said = (done.stdout + done.stderr).strip()
    require(done.returncode == 0 or "already" in said, f"{public} could not be registered: {said[-300:]}")
    known.mkdir(parents=True, exist_ok=True)
    write_whole(mark, public.read_bytes())


def _print(command: Sequence[str], more: Mapping[str, str]) -> None:
    short = dict(more) | {"PATH": more["PATH"].removesuffix(os.environ["PATH"]) + "$PATH"}
    settings = " ".join(f"{name}={value if name == 'PATH' else shlex.quote(value)}" for name, value in short.items())
    say(f"$ {settings} {shlex.join(command)}")
