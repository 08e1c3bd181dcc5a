"""The server's part of a run over Flower: from a configuration to the same run folder as that of a local run."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.server import sentences
from equipoise.deploy.server.convexified_run import agree_on_features
from equipoise.deploy.server.reach_agreement import (
    disclosures,
    gather_sites,
    reach_agreement,
    resend_agreement,
    start_from_first_module,
    told_baselines,
)
from equipoise.deploy.server.sites import ConnectedSites
from equipoise.deploy.server.status import StatusWriter
from equipoise.deploy.server.training import OWNER, FederatedRun
from equipoise.deploy.site.run import settings
from equipoise.deploy.wire.secure import SecureSums
from equipoise.errors import not_none, require
from equipoise.experiment import config as configuration
from equipoise.experiment import folders, origin, reading, records
from equipoise.experiment.config import Config
from equipoise.experiment.convexify import given_network, network_config, trained_network
from equipoise.experiment.problems import precision
from equipoise.experiment.results import environment_record, federation_record, git_commit
from equipoise.experiment.writer import Watch
from equipoise.files import remove, write_whole
from equipoise.models.model import Params


def main(grid: Grid, context: Context) -> None:
    """Flower's ServerApp: the settings and the folder to write stand in the run's configuration."""
    config, out = settings(context.run_config), context.run_config.get("out")
    require(isinstance(out, str) and out, "this run has no folder to write; start it with `equipoise flower server`")
    without = tuple(filter(None, str(context.run_config.get("without", "")).split(",")))
    serve_run(config, Path(str(out)), grid, stock=bool(context.run_config.get("stock")), without=without)


def serve_run(config: Config, folder: Path, grid: Grid, *, stock: bool = False, without: tuple[str, ...] = ()) -> None:
    """`run_federation`, with a line for every evaluation and for all that happened."""
    done = run_federation(config, folder, grid, watch=sentences.say, stock=stock, without=without)
    for event in done.outcome.events if done.outcome else ():
        print(event, flush=True)


def run_federation(
    config: Config,
    folder: Path,
    grid: Grid,
    *,
    watch: Watch | None = None,
    stock: bool = False,
    without: tuple[str, ...] = (),
) -> records.Run:
    """Runs `config` over the nodes of `grid` into `folder`; resumes where an earlier run of the same was stopped.

    Sites `without` which it is resumed are asked nothing any longer.
    """
    agreement.check(config)
    begin_or_go_on(config, folder)
    of = not_none(config.federation)
    names = () if isinstance(of.sites, int) else tuple(of.sites)
    remove(folder / OWNER)  # a server that Flower left running stops when it sees that the folder is no longer its own
    status, state = StatusWriter(folder, config.name, names, config.run.rounds), "stopped"
    try:
        with folders.resuming(folder, wait=of.exchange), precision(config):
            known = _known(folder)
            federation = gather_sites(config, known or _known(folder / records.STAGE_1), grid, status, stock, without)
            status.observe({"kind": "state", "state": "agreeing on how tables are read"})
            if known is not None:
                agreed = resend_agreement(folder, federation, known)
            elif config.convexify is None:
                agreed = reach_agreement(config, federation)
            else:
                status.observe({"kind": "stage", "name": "network", "rounds": config.convexify.rounds})
                agreed = agree_on_network(config, folder, federation, watch)
                status.observe({"kind": "stage", "name": config.name, "rounds": config.run.rounds, "round": 0})
            train_as_agreed(config, folder, agreed, federation, watch)
        state = "finished"
    finally:
        status.close(state)
    return records.read(folder)


def agree_on_network(config: Config, folder: Path, federation: ConnectedSites, watch: Watch | None) -> Agreement:
    """Stages 1 and 2 of Train-Convexify-Train: the network, trained in a folder of its own, and what is made of it."""
    stage, inside, of = network_config(config), folder / records.STAGE_1, not_none(config.federation)
    known = _known(inside)
    agreed = resend_agreement(inside, federation, known) if known else reach_agreement(stage, federation)

    def start() -> Params:
        first = with_start(stage, inside, agreement.setup(stage, agreed), federation, agreed)
        return agreement.params_of(first.problem, first.problem.x)

    model = agreement.network_problem(config, agreed).model
    trained = given_network(config, model, start)
    if trained is None:
        if not records.finished(inside):
            begin_or_go_on(stage, inside)
            remove(inside / OWNER)
            with folders.resuming(inside, wait=of.exchange):
                train_as_agreed(stage, inside, agreed, federation, watch)
        trained = trained_network(inside, stage, model)
    secure = SecureSums(of.secure_bound, of.threshold) if of.secure else None
    return agree_on_features(config, federation, agreed, trained, secure)


def train_as_agreed(
    config: Config, folder: Path, agreed: Agreement, federation: ConnectedSites, watch: Watch | None
) -> None:
    """One training and its run folder, from the agreement to the result."""
    write_whole(folder / agreement.FILE, agreed.model_dump_json(indent=1) + "\n")
    baselines = told_baselines(config, folder, federation, agreed.run)
    setup = agreement.setup(config, agreed, baselines=baselines)
    federation.observe({"kind": "state", "state": "compiling at every site"})
    federation.ask(
        "prepare", f"{agreed.run} train evaluate", everyone=False, warm=True
    )  # Flower's own nodes keep nothing
    setup = with_start(config, folder, setup, federation, agreed)
    revealed = disclosures(config, setup)
    print("\n".join(f"what the server learns: {sentence}" for sentence in revealed), flush=True)
    about = federation_record(setup.problem, setup.algorithm, (*setup.notes, *revealed), baselines)
    records.write_record(folder / records.ENVIRONMENT, environment_record(config, {}, git_commit()))
    records.write_record(folder / records.FEDERATION, about)
    writer = FederatedRun(config, folder, setup, federation, watch)
    outcome = writer.train(agreed.run)
    writer.own_parts(outcome)
    outcome = writer.own_models(outcome)
    more = (sentences.framing(outcome.ledger.traffic), *writer.averages())
    about = about.model_copy(update={"notes": (*about.notes, *more)})
    records.write_record(folder / records.FEDERATION, about)
    writer.finish(outcome)


def with_start(config: Config, folder: Path, setup: Setup, federation: ConnectedSites, agreed: Agreement) -> Setup:
    """The setup, from the weights of the first site's module where the model is one that has not been trained yet."""
    module = agreed.module is not None and agreed.network is None
    if not module or (folder / records.CHECKPOINT).is_file():
        return setup
    return start_from_first_module(config, setup, federation, agreed.run)


def begin_or_go_on(config: Config, folder: Path) -> None:
    file = folder / records.CONFIG
    if folders.marker(folder) is not None and file.is_file() and not records.finished(folder):
        there = configuration.parse(reading.read(file), source=str(file))
        changed = list(origin.of_settings(origin.flat(there), origin.flat(config)))
        require(
            not changed,
            f"{folder} holds a run with other settings ({'; '.join(changed[:3])}); give another --out, or --overwrite "
            "to replace it",
        )
        return
    with folders.writing(folder, "run", settings=origin.digest_of_settings(config)):
        write_whole(file, config.toml())


def _known(folder: Path) -> Agreement | None:
    path = folder / agreement.FILE
    return records.read_record(path, Agreement) if path.is_file() else None
