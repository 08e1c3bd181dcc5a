"""`equipoise flower`: a federation whose clients are machines. Prints the Flower commands that it runs."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from equipoise import experiment
from equipoise.cli.experiments import Label, Out, Overwrite, Set, Silos, _folder, _settings, _source
from equipoise.cli.plainly import Commands, say
from equipoise.cli.results import show
from equipoise.deploy.operations.launch import QUIET
from equipoise.errors import InputError, not_none, printable, require
from equipoise.extensions import is_reference

flower_app = Commands(
    name="flower",
    help="Sites on machines of their own: train one model over all of them; rows never leave a site.",
    no_args_is_help=True,
)
Keys = Annotated[Path, Option(help="Certificates and keys: `equipoise flower keys` makes some for trials.")]
Insecure = Annotated[bool, Option("--insecure", help="No encryption, no authentication: on one machine only.")]
Stock = Annotated[bool, Option("--stock", help="Flower's own programs only: a process for every message. Slower.")]
Page = Annotated[
    int, Option(min=-1, max=65535, help="The port of the live page, on this machine only; 0: any, -1: no page.")
]
Names = list[str] | None
RUNS = Path("runs")
Torch = Annotated[
    str | None,
    Option(
        help="module:function(name, file) that gives (module, loss, loader[, held_out]), for runs with model.name = "
        "'torch'."
    ),
]
State = Annotated[Path, Option(help="Where Flower's settings, logs and the app are kept.")]


def _need_flower() -> None:
    os.environ.update(QUIET)  # before Flower is loaded
    if importlib.util.find_spec("flwr") is None:
        raise InputError("federations across machines need one more package: pip install 'equipoise[flower]'")


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A request to end is as good as Ctrl-C: what was started is ended too."""
    _need_flower()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


@flower_app.command()
def keys(
    folder: Annotated[Path, Argument(help="The folder of the keys.")],
    sites: Annotated[str, Option(help="Names to make keys for, such as north,south.")] = "",
    host: Annotated[Names, Option(help="A name or address of the server; repeatable.")] = None,
    days: Annotated[int, Option(help="How long the certificates are valid.")] = 30,
    add: Annotated[Names, Option(help="NAME=FILE.pub: the public key of a site that made its own; repeatable.")] = None,
    revoke: Annotated[Names, Option(help="NAME: its key is not taken any longer; repeatable.")] = None,
    rotate: Annotated[
        Names, Option(help="NAME or NAME=FILE.pub: another key, made here or by the site; repeatable.")
    ] = None,
) -> None:
    """Say who may join under which name: make keys FOR TRIALS, register, replace or revoke the sites' own.

    A server that runs takes changes at once. Without options it says who holds what. Whoever has sites/NAME can pass
    for that site.

    Example: equipoise flower keys keys --sites north,south --host fed.example.org
    """
    _need_flower()
    from equipoise.deploy.operations import keys as made

    names = [name.strip() for name in sites.split(",") if name.strip()]
    require(1 <= days <= 36500, f"--days is {days}; give how long the certificates are valid, from 1 to 36500")
    there = (folder / made.SITES).is_dir()
    require(names or add or there, f"{folder} has no keys yet; name the sites, such as --sites north,south")
    if names:
        made.make(folder, names, hosts=host or (), days=days)
        say(f"{folder}: made for trials")
    for given in add or ():
        name, _, file = given.partition("=")
        require(name and file, f"--add is {given!r}; give NAME=FILE.pub, such as north=north.pub")
        made.add(folder, name, Path(file))
        say(f"{name}: registered")
    for given in rotate or ():
        name, _, file = given.partition("=")
        made.rotate(folder, name, Path(file) if file else None)
        say(f"{name}: has another key; give the other sites its new {made.SITES}/{name}.pub if sums are masked")
    for name in revoke or ():
        made.revoke(folder, name)
        say(f"{name}: revoked; a server that runs refuses it from now on")
    for sentence in made.holders(folder):
        say(f"- {sentence}")


@flower_app.command()
@_ended_in_order()
def server(
    file: Annotated[Path, Argument(help="A TOML file with [federation]; see `equipoise config`.")],
    keys: Keys = Path("keys"),
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
    state: State = Path("flower-state"),
    client: Annotated[
        str | None, Option(help="module:app, a ClientApp around Equipoise's, installed at all sites.")
    ] = None,
    without: Annotated[Names, Option(help="NAME: resume the run without this site; repeatable.")] = None,
    page: Page = 0,
    stock: Stock = False,
    insecure: Insecure = False,
) -> None:
    """Train over the sites that come, and write a run folder as `equipoise run` does.

    A run that was stopped resumes when the same command is given again.

    Example: equipoise flower server federation.toml --keys keys --host 0.0.0.0
    """
    from equipoise.deploy import agreement
    from equipoise.deploy.operations import keys as made
    from equipoise.deploy.operations.commands import Server
    from equipoise.deploy.server.status import follower
    from equipoise.experiment.choice import left_open

    settings = _settings(file, None, None, set_)
    model = settings.get("model")
    require(
        not isinstance(model, dict) or "torch" not in model,
        f"{file}: model.torch names code that sites would have to run because a server says so; leave it out, and "
        "let each site name its own: equipoise flower site NAME --torch module:function",
    )
    parsed = experiment.config.parse(left_open(settings), source=_source(file))
    agreement.check(parsed)
    trust = None if insecure else keys
    require(
        trust is None or (trust / made.SERVER).is_file(),
        f"{keys} has no {made.SERVER}; `equipoise flower keys {keys} --sites ...` makes keys for trials",
    )
    folder = _begun(parsed, out, overwrite)
    left = tuple(without or ())
    live = None if page < 0 else page
    Server(parsed, folder, say, state, trust, host, port, client, stock, live, left, follower(folder, say)).run()
    show([experiment.records.read(folder)], folder)


@flower_app.command()
@_ended_in_order()
def site(
    name: Annotated[str, Argument(help="The site's name.")],
    data: Annotated[
        Path | None, Argument(help="Its own file: .csv, .parquet or .npz; of any kind with --torch.")
    ] = None,
    server: Annotated[str, Option(help="HOST:PORT of the server.")] = "127.0.0.1:8000",
    keys: Keys = Path("keys"),
    key: Annotated[Path | None, Option(help="The site's private key; default: KEYS/sites/NAME.")] = None,
    loader: Annotated[
        str | None, Option(help="module:function that gives (inputs, labels) or a table, instead of a file.")
    ] = None,
    torch: Torch = None,
    folder: Annotated[
        Path | None, Option(help="Where the site keeps what it must not forget; default: flower-sites/NAME.")
    ] = None,
    policy: Annotated[
        Path | None, Option(help="What the site agrees to; default: site.toml in its folder, see `policy`.")
    ] = None,
    stock: Stock = False,
    insecure: Insecure = False,
) -> None:
    """Take part in the runs of a server, until Ctrl-C. The rows stay here.

    One process holds the rows and the compiled programs; it reconnects by itself, and is started again if it crashes.

    Example: equipoise flower site north north.csv --server fed.example.org:8000 --keys keys
    """
    from equipoise.deploy.operations.processes import Site, node_config, run_site

    require(name, "the site has no name; give one")
    require(data is None or loader is None, f"give the site's file, {data}, or --loader {loader}, and not both of them")
    require(data or loader or torch, "give the site's file, --loader module:function, or --torch module:function")
    require(data is None or data.is_file() or (torch and data.is_dir()), f"there is no file {data}")
    own = folder or Path("flower-sites") / name
    rows = {"data": str(data.resolve())} if data else {}
    rows |= {"loader": loader, "path": str(Path.cwd())} if loader else {}
    rows |= _named(torch)
    if policy is not None:
        from equipoise.privacy import policy as policies

        require(policy.is_file(), f"there is no file {policy}")
        policies.load(policy)  # what is wrong with it is said before anything starts
        rows["policy"] = str(policy.resolve())
    run_site(Site(name, own, node_config(name, own, rows), key), server, None if insecure else keys, say, stock=stock)


@flower_app.command()
@_ended_in_order()
def local(
    file: Annotated[Path, Argument(help="A TOML file, as for `equipoise flower server`.")],
    silos: Silos = None,
    label: Label = None,
    set_: Set = None,
    out: Out = None,
    overwrite: Overwrite = False,
    torch: Torch = None,
    state: State = Path("flower-local"),
    processes: Annotated[
        int, Option(min=1, help="Processes for the sites; with fewer than sites, several share one.")
    ] = 8,
    page: Page = 0,
    stock: Stock = False,
) -> None:
    """A whole federation on this machine, for a trial: a server, and a site for every file of a folder.

    Keys are made for it; encryption and authentication are on. Ctrl-C ends all of it; the same command resumes.

    Example: equipoise flower local federation.toml --silos silos
    """
    from equipoise.data.silos import silo_files
    from equipoise.deploy import agreement
    from equipoise.deploy.operations.commands import Server, run_local
    from equipoise.deploy.operations.processes import free_port
    from equipoise.deploy.server.status import follower
    from equipoise.deploy.site.run import read
    from equipoise.experiment.choice import left_open

    settings = _settings(file, None, None, set_)
    for section in ("data", "federation", "model"):
        given = settings.setdefault(section, {})
        require(isinstance(given, dict), f"{file}: {section} is {given!r}; give a table, [{section}]")
    data = settings["data"]
    data |= {"label": label} if label else {}
    there = data.get("silos")
    require(isinstance(there, str | None), f"{file}: data.silos is {there!r}; give the name of a folder")
    nowhere = "there are no files for the sites; give --silos, a folder with a file per site"
    where = not_none(silos or (Path(there) if there else None), nowhere)
    data.pop("silos", None)
    of_module = _named(torch or settings["model"].pop("torch", None))
    files = {path.stem: path for path in (silo_files(where, ()) if of_module else silo_files(where))[0]}
    settings["federation"].setdefault("sites", sorted(files))
    parsed = experiment.config.parse(left_open(settings), source=_source(file))
    agreement.check(parsed)
    sites = not_none(parsed.federation).sites
    if not isinstance(sites, int):
        missing = [name for name in sites if name not in files]
        files = {name: files[name] for name in sites if name in files}
        require(not missing, f"{where} has no file for {', '.join(missing)}; it has {', '.join(sorted(files))}")
    is_module = parsed.model.name == "torch"
    require(is_module or not of_module, f"{file}: a PyTorch module is named; set model.name = 'torch'")
    require(of_module or not is_module, f"{file}: model.name is 'torch'; name the module: --torch module:function")
    if not of_module:
        for name, path in sorted(files.items()):  # what is wrong with a file is said before anything starts
            read(parsed, name, {"data": path})
    folder = _begun(parsed, out, overwrite)
    live, follow = None if page < 0 else page, follower(folder, say)
    port = free_port()
    server = Server(parsed, folder, say, state, state / "keys", port=port, stock=stock, page=live, check=follow)
    run_local(server, files, processes=processes, torch=of_module)
    show([experiment.records.read(folder)], folder)


Home = Annotated[Path, Option("--site", help="The site's folder, such as flower-sites/north.")]


@flower_app.command()
def approve(
    digest: Annotated[str, Argument(help="The configuration, by the beginning of its digest.")],
    site: Home,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show what a run would reveal of this site, and approve it.

    A site keeps the configurations that it refused for want of approval, unless its site.toml has `ask = false`.

    Example: equipoise flower approve 3f0c9a --site flower-sites/north
    """
    _need_flower()
    from equipoise.deploy.site.oversight import pending, rows_behind, would_reveal
    from equipoise.privacy import policy

    whole, run = pending(site, digest)
    say(printable(f"{whole}: '{run.name}', {run.algorithm.name}, {run.run.rounds} rounds"))
    for sentence in (*would_reveal(run), *rows_behind(site, whole, run)):
        say(f"- {sentence}")
    say(run.toml())
    if yes or typer.confirm("Approve it for this site?"):
        policy.approve(site, whole)
        say("approved; the site takes part when it is asked again")
    else:
        say("not approved")


@flower_app.command()
def policy(
    site: Home,
    yes: Annotated[bool, Option("--yes", help="Do not ask: write the strict answers.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a site's site.toml, what it agrees to, from a few questions.

    Every answer can be changed in the file, which is read before every message; docs/privacy.md has all of its keys.

    Example: equipoise flower policy --site flower-sites/north
    """
    from equipoise.files import make_folder, write_whole
    from equipoise.privacy import policy as policies

    path = site / policies.FILE
    require(overwrite or not path.exists(), f"{path} is there already; edit it, or give --overwrite")
    answers = [(q, q.default if yes else typer.prompt(q.words, q.default)) for q in policies.QUESTIONS]
    text = policies.written([(q, str(answer)) for q, answer in answers])
    make_folder(site)
    write_whole(path, text)
    policies.load(path)
    say(text)
    say(f"{path}: the site goes by it from its next answer on")


@flower_app.command()
def audit(
    site: Annotated[Path, Argument(help="The site's folder, such as flower-sites/north.")],
    last: Annotated[int, Option(min=0, help="How many of the last messages to show.")] = 10,
    key: Annotated[Path | None, Option(help="The site's NAME.pub; default: what the log says it is.")] = None,
    receipts: Annotated[Path | None, Option(help="receipts.json of a run: what the server was told.")] = None,
    name: Annotated[str, Option(help="The site's name in the receipts; default: that of its folder.")] = "",
) -> None:
    """Verify a site's own log of the messages that it answered or refused, and show the last of them.

    Example: equipoise flower audit flower-sites/north
    """
    from equipoise.privacy import audit as log

    require(site.is_dir(), f"there is no folder {site}")
    public = key or site / log.PUBLIC
    require(key is None or key.is_file(), f"there is no file {key}")
    receipt = None
    if receipts is not None:
        _need_flower()
        from equipoise.deploy.server.run import read_receipts

        by_site, whose = read_receipts(receipts), name or site.resolve().name
        absent = f"{receipts} has no receipt of '{whose}'; it has {', '.join(by_site) or 'none'}"
        receipt = not_none(by_site.get(whose), absent)
    from equipoise.privacy import identity

    check = identity.checker(public.read_bytes()) if public.is_file() else None
    chain = log.verify(site, check, receipt)
    for entry in chain.entries[len(chain.entries) - min(last, len(chain.entries)) :]:
        what = f"{entry['kind']} {entry.get('exchange', '')}".strip()
        line = f"{entry['number']} {entry['time'][:19]} {what}: {entry['answer']} {entry.get('why', '')}".rstrip()
        say(printable(line))  # a server has named the exchange
    n = len(chain.entries)
    if n == 0:
        say(f"there is no log in {site}: nothing was answered or refused here, or all of it was deleted")
    else:
        say(f"{n} messages, each as it was written; the last line's digest is {chain.head}")
    if chain.anew:
        say("line 1 says that an earlier log was gone when it was written")
    if check is None:
        say("the lines are not signed: without a key, whoever can write the folder can make them up")
    elif key is None:
        say(f"signed by the key in {public}, which lies beside them: give the site's own with --key")
    if receipt is None:
        say("without the server's receipts (--receipts) nobody can tell whether its end, or one before it, is gone")
    else:
        signed = "" if check is not None else ", which is not checked without a key to be the site's"
        after = "; nothing vouches for what came after it"
        say(f"line {receipt.number} is the one that the server has a receipt of{signed}{after}")


@flower_app.command()
def status(
    folder: Annotated[Path, Argument(help="The folder of a run, or one with several: the newest.")] = RUNS,
    json: Annotated[bool, Option("--json", help="For programs.")] = False,
) -> None:
    """Who is connected, the round, seconds per exchange by site, bytes, and the last error.

    Example: equipoise flower status runs/three-silos
    """
    from equipoise.deploy.server import status as statuses

    where = statuses.newest(folder)
    current = statuses.read(where)
    if json:
        print(current.model_dump_json(indent=1))
        return
    say(statuses.describe(current, where))
    Console().print(statuses.table(current))


def _begun(config: "experiment.config.Config", out: Path | None, overwrite: bool) -> Path:
    """The folder of a run, new or to be resumed."""
    from equipoise.deploy.server.run import begin_or_go_on

    folder = _folder(out, config.name)
    if overwrite:
        with experiment.folders.writing(folder, "run", overwrite=True):
            pass  # what an earlier run left is gone
    begin_or_go_on(config, folder)
    return folder


def _named(torch: object) -> dict[str, str]:
    """What a site's configuration says of its PyTorch module, which is sought in the current folder too."""
    if torch is None:
        return {}
    require(is_reference(torch), f"the PyTorch module is {torch!r}; name the function that makes it: module:function")
    require(
        importlib.util.find_spec("torch") is not None,
        "sites with PyTorch need one more package: pip install 'equipoise[torch]'",
    )
    return {"torch": str(torch), "path": str(Path.cwd())}
