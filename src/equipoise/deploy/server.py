"""The server's part of a run over Flower: from a configuration to the same run folder as that of a local run."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from equipoise.deploy import agreement, sentences
from equipoise.deploy.agreement import Agreement
from equipoise.deploy.federated_run import OWNER, FederatedRun
from equipoise.deploy.reach_agreement import (
    disclosures,
    gather_sites,
    reach_agreement,
    resend_agreement,
    start_from_first_module,
)
from equipoise.deploy.site import settings
from equipoise.deploy.status import StatusWriter
from equipoise.errors import require
from equipoise.experiment import config as configuration
from equipoise.experiment import folders, origin, reading, records
from equipoise.experiment.config import Config
from equipoise.experiment.problems import precision
from equipoise.experiment.results import environment_record, federation_record
from equipoise.experiment.writer import Watch
from equipoise.files import remove, write_whole


def main(grid: Grid, context: Context) -> None:
    """Flower's ServerApp: the settings and the folder to write stand in the run's configuration."""
    config, out = settings(context.run_config), context.run_config.get("out")
    require(isinstance(out, str) and out, "this run has no folder to write; start it with `equipoise flower server`")
    stock = bool(context.run_config.get("stock"))
    done = run_federation(config, Path(str(out)), grid, watch=sentences.say, stock=stock)
    for event in done.outcome.events if done.outcome else ():
        print(event, flush=True)


def run_federation(
    config: Config, folder: Path, grid: Grid, *, watch: Watch | None = None, stock: bool = False
) -> records.Run:
    """Runs `config` over the nodes of `grid` into `folder`; resumes where an earlier run of the same was stopped."""
    agreement.check(config)
    begin_or_go_on(config, folder)
    of = config.federation
    assert of is not None
    names = () if isinstance(of.sites, int) else tuple(of.sites)
    remove(folder / OWNER)  # a server that Flower left running stops when it sees that the folder is no longer its own
    status, state = StatusWriter(folder, config.name, names, config.run.rounds), "stopped"
    try:
        with folders.resuming(folder, wait=of.exchange), precision(config):
            known = _known(folder)
            federation = gather_sites(config, known, grid, status, stock)
            status.observe({"kind": "state", "state": "agreeing on how tables are read"})
            agreed = resend_agreement(folder, federation, known) if known else reach_agreement(config, federation)
            write_whole(folder / agreement.FILE, agreed.model_dump_json(indent=1) + "\n")
            setup = agreement.setup(config, agreed)
            status.observe({"kind": "state", "state": "compiling at every site"})
            federation.ask("prepare", "train evaluate", everyone=False, warm=True)  # Flower's own nodes keep nothing
            if agreed.module is not None and not (folder / records.CHECKPOINT).is_file():
                setup = start_from_first_module(config, setup, federation)
            revealed = disclosures(config, setup)
            print("\n".join(f"what the server learns: {sentence}" for sentence in revealed), flush=True)
            about = federation_record(setup.problem, setup.algorithm, (*setup.notes, *revealed))
            records.write_record(folder / records.ENVIRONMENT, environment_record(config, {}))
            records.write_record(folder / records.FEDERATION, about)
            writer = FederatedRun(config, folder, setup, federation, watch)
            outcome = writer.own_models(writer.train(agreed.run))
            more = (sentences.framing(outcome.ledger.traffic), *writer.averages())
            about = about.model_copy(update={"notes": (*about.notes, *more)})
            records.write_record(folder / records.FEDERATION, about)
            writer.finish(outcome)
        state = "finished"
    finally:
        status.close(state)
    return records.read(folder)


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
