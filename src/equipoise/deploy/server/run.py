"""The server's part of a run over Flower: from a configuration to the same run folder as that of a local run."""

import json
import secrets
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid
from jax.typing import ArrayLike

from equipoise.certificates import feasible, gap_bound
from equipoise.data.shards import OwnerRows
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.server.events import (
    GivenUp,
    LinkLost,
    Outcome,
    framing_sentence,
    ledger,
    print_round,
    sentences_of,
)
from equipoise.deploy.server.reach_agreement import (
    agree_on_features,
    choose_along_path,
    disclosures,
    gather_sites,
    reach_agreement,
    resend_agreement,
    secure_sums,
    start_from_first_module,
    told_baselines,
)
from equipoise.deploy.server.rounds import Demands, Prepared, ask_once, prepare, serve, server_app
from equipoise.deploy.server.sites import ConnectedSites
from equipoise.deploy.server.status import StatusWriter
from equipoise.deploy.site.run import settings
from equipoise.engines.simulator import Result
from equipoise.errors import InputError, not_none, require
from equipoise.experiment import checkpoint, folders, origin, reading, records
from equipoise.experiment import config as configuration
from equipoise.experiment.chosen import settle
from equipoise.experiment.config import Config
from equipoise.experiment.convexify.stages import given_network, network_config, trained_network
from equipoise.experiment.folders import RECEIPTS
from equipoise.experiment.methods import build_dual
from equipoise.experiment.origin import Origin
from equipoise.experiment.personal import models as personal
from equipoise.experiment.problems import Sent, precision
from equipoise.experiment.results import environment_record, federation_record, git_commit, in_units, write_result
from equipoise.experiment.scoring import Summed, read_sums
from equipoise.experiment.writer import Evaluation, RunWriter, Watch
from equipoise.files import read_text, remove, write_whole
from equipoise.models.model import Params
from equipoise.privacy.audit import Receipt
from equipoise.privacy.disclosure import along_folds
from equipoise.protocol import Vector


def main(grid: Grid, context: Context) -> None:
    """Flower's ServerApp: the settings and the folder to write stand in the run's configuration."""
    config, out = settings(context.run_config), context.run_config.get("out")
    require(isinstance(out, str) and out, "this run has no folder to write; start it with `equipoise flower server`")
    without = tuple(filter(None, str(context.run_config.get("without", "")).split(",")))
    serve_run(config, Path(str(out)), grid, stock=bool(context.run_config.get("stock")), without=without)


def serve_run(config: Config, folder: Path, grid: Grid, *, stock: bool = False, without: tuple[str, ...] = ()) -> None:
    """`run_federation`, with a line for every evaluation and for all that happened."""
    done = run_federation(config, folder, grid, watch=print_round, stock=stock, without=without)
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
    settings = not_none(config.federation)
    names = () if isinstance(settings.sites, int) else tuple(settings.sites)
    remove(folder / OWNER)  # a server that Flower left running stops when it sees that the folder is no longer its own
    status, state = StatusWriter(folder, config.name, names, config.run.rounds), "stopped"
    try:
        with folders.resuming(folder, wait=settings.exchange), precision(config):
            earlier = _agreement_in(folder)
            first = earlier or _agreement_in(folder / records.STAGE_1)
            federation = gather_sites(config, first, grid, status, stock, without)
            status.observe({"kind": "state", "state": "agreeing on how tables are read"})
            if earlier is not None:
                agreed = resend_agreement(folder, federation, earlier)
            elif config.convexify is None:
                agreed = reach_agreement(settle.start(config) if settle.by_folds(config) else config, federation)
            else:
                status.observe({"kind": "stage", "name": "network", "rounds": network_config(config).run.rounds})
                agreed = agree_on_network(config, folder, federation, watch)
                status.observe({"kind": "stage", "name": config.name, "rounds": config.run.rounds, "round": 0})
            if settle.by_folds(config) and agreed.chosen is None:
                agreed = choose_along_path(config, folder, federation, agreed)
            train_as_agreed(agreement.stage(config, agreed), folder, agreed, federation, watch)
        state = "finished"
    finally:
        status.close(state)
    return records.read(folder)


def agree_on_network(config: Config, folder: Path, federation: ConnectedSites, watch: Watch | None) -> Agreement:
    """Stages 1 and 2 of Train-Convexify-Train: the network, trained in a folder of its own, and what is made of it."""
    stage, inside, settings = network_config(config), folder / records.STAGE_1, not_none(config.federation)
    earlier = _agreement_in(inside)
    agreed = resend_agreement(inside, federation, earlier) if earlier else reach_agreement(stage, federation)

    def start() -> Params:
        first = with_start(stage, inside, agreement.setup(stage, agreed), federation, agreed)
        return agreement.params_of(first.problem, first.problem.x)

    model = agreement.network_problem(config, agreed).model
    trained = given_network(config, model, start)
    if trained is None:
        if not records.finished(inside):
            begin_or_go_on(stage, inside)
            remove(inside / OWNER)
            with folders.resuming(inside, wait=settings.exchange):
                train_as_agreed(stage, inside, agreed, federation, watch)
        trained = trained_network(inside, stage, model)
    return agree_on_features(config, federation, agreed, trained)


def train_as_agreed(
    config: Config, folder: Path, agreed: Agreement, federation: ConnectedSites, watch: Watch | None
) -> None:
    """One training and its run folder, from the agreement to the result."""
    write_whole(folder / agreement.FILE, agreed.model_dump_json(indent=1) + "\n")
    baselines = told_baselines(config, folder, federation, agreed.run)
    setup = agreement.setup(config, agreed, baselines=baselines)
    federation.observe({"kind": "state", "state": "compiling at every site"})
    # Flower's own nodes keep nothing of it.
    federation.ask("prepare", f"{agreed.run} train evaluate", everyone=False, warm=True)
    setup = with_start(config, folder, setup, federation, agreed)
    revealed = disclosures(config, setup)
    print("\n".join(f"what the server learns: {sentence}" for sentence in revealed), flush=True)
    chosen = settle.read(folder) or ()
    notes = (*(choice.sentence for choice in chosen), *([along_folds()] if chosen else []), *setup.notes, *revealed)
    about = federation_record(setup.problem, setup.algorithm, notes, baselines)
    records.write_record(folder / records.ENVIRONMENT, environment_record(config, {}, git_commit()))
    records.write_record(folder / records.FEDERATION, about)
    writer = FederatedRun(config, folder, setup, federation, watch)
    outcome = writer.train(agreed.run)
    writer.own_parts(outcome)
    outcome = writer.own_models(outcome)
    more = (framing_sentence(outcome.ledger.traffic), *writer.averages())
    about = about.model_copy(update={"notes": (*about.notes, *more)})
    records.write_record(folder / records.FEDERATION, about)
    writer.finish(outcome)


def with_start(config: Config, folder: Path, setup: Setup, federation: ConnectedSites, agreed: Agreement) -> Setup:
    """The setup, from the weights of the first site's module where the model is one that has not been trained yet."""
    module = agreed.module is not None and agreed.network is None
    if not module or (folder / records.CHECKPOINT).is_file():
        return setup
    return start_from_first_module(config, setup, federation, agreed)


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


def _agreement_in(folder: Path) -> Agreement | None:
    path = folder / agreement.FILE
    return records.read_record(path, Agreement) if path.is_file() else None


OWNER = folders.SERVER  # says which process writes the folder


class FederatedRun:
    """Trains, evaluates the model now and then, and keeps the folder; a checkpoint follows every round.

    An evaluation goes out beside the next exchange of training, from a thread of its own; there is one at a time.
    """

    def __init__(self, config: Config, folder: Path, setup: Setup, federation: ConnectedSites, watch: Watch | None):
        self.config, self.folder, self.setup, self.federation = config, folder, setup, federation
        # The rows are at the sites, which know them by the digest of the agreement.
        source = Origin(settings=origin.flat(config), files={}, data=setup.digest, code=origin.code(config))
        self.writer = RunWriter(config, folder, setup.problem, setup.algorithm, source, watch, self.evaluated)
        for choice in settle.read(folder) or ():
            before = self.writer.sent
            self.writer.sent = Sent(before.down + choice.bytes_down, before.up + choice.bytes_up)
        self.dual = build_dual(config, setup.problem)
        self.secure = secure_sums(config)
        s = not_none(config.federation)
        self.demands = Demands(s.least, s.tries, s.heavy, s.quantile, s.slack, s.quorum, s.believed)
        self.mine = secrets.token_hex(8)
        write_whole(folder / OWNER, self.mine)
        if (folder / RECEIPTS).is_file() and not federation.receipts:
            federation.receipts = read_receipts(folder / RECEIPTS)
        self.rows = OwnerRows(setup.problem.train.client(0), setup.problem.train.client(0))
        self.scoring = prepare(setup.scoring, setup.problem.x, self.rows, setup.digest)
        self.evaluation: Future[None] | None = None
        self.name = ""  # of the run, by which sites know what was agreed
        self.round = 0  # of the model that is evaluated
        self.aside = 0.0  # seconds of waiting for evaluations, which do not count as training
        self.table: Any = None  # of the last model
        self.part: np.ndarray | None = None  # the mean of the sites' own
        self.summed: Summed | None = None  # the same, where sites tell sums only

    def train(self, name: str) -> Outcome:
        config, setup, self.name = self.config, self.setup, name
        start = self.start()
        try:
            return serve(
                setup.algorithm,
                setup.problem.x,
                self.federation,
                config.run.seed,
                shard=setup.problem.shard_in_metric(setup.problem.train.client(0)),
                rounds=config.run.rounds,
                config=setup.digest,
                run=name,
                demands=self.demands,
                secure=self.secure,
                callback=self.callback,
                until=lambda outcome: self.writer.certified is not None,
                resume=start,
            )
        except GivenUp as up:
            self.wait()
            self.save(not_none(up.outcome))  # with what led to it
            raise
        except LinkLost:
            if self.evaluation is not None:
                futures.wait([self.evaluation])  # it writes nothing into a folder that another attempt goes on with
            raise
        finally:
            self.writer.close()

    def start(self) -> Outcome | None:
        path = self.folder / records.CHECKPOINT
        if not path.is_file():
            self.evaluate(0, self.writer.begin)
            return None
        x, source = self.setup.problem.x, self.writer.source
        saved = checkpoint.load(path, self.setup.algorithm, x, source, with_clients=False)
        result = self.writer.restore(saved).result
        outcome = Outcome(result._replace(history=()), ledger(saved.more))
        rows = read_text(self.folder / records.HISTORY).splitlines()
        if self.due(result.rounds) and (not rows or json.loads(rows[-1])["round"] != result.rounds):
            self.record(outcome)  # its row follows the checkpoint, so it is written again
        return outcome

    def due(self, rounds: int) -> bool:
        return rounds > 0 and (rounds % self.writer.every == 0 or rounds == self.config.run.rounds)

    def callback(self, outcome: Outcome) -> None:
        self.check_owner()
        self.wait()  # a checkpoint counts on the rows of the rounds before it
        self.save(outcome)
        if self.due(outcome.rounds):
            self.record(outcome)
        if outcome.rounds == self.config.run.rounds or self.config.run.until_gap is not None:
            self.wait()  # whether this round was the last

    def record(self, outcome: Outcome) -> None:
        traffic = outcome.ledger.traffic
        before = self.writer.sent  # by the stages that came first
        down, up = before.down + sum(t.down for t in traffic), before.up + sum(t.up for t in traffic)
        result = self.timed(outcome.result)
        self.evaluate(outcome.rounds, lambda: self.writer.record(result, bytes_down=down, bytes_up=up))

    def evaluate(self, round: int, write: Callable[[], None]) -> None:
        """Writes a row of the history beside the training of the next round."""
        self.wait()
        self.round = round

        def work() -> None:
            with precision(self.config):
                write()

        self.evaluation = in_background(work)

    def wait(self) -> None:
        if self.evaluation is not None:
            clock = time.perf_counter()
            self.evaluation.result()
            self.evaluation = None
            self.aside += time.perf_counter() - clock

    def check_owner(self) -> None:
        """Flower may leave a server running that was taken for dead."""
        owner = (self.folder / OWNER).read_text() if (self.folder / OWNER).is_file() else ""
        require(owner == self.mine, f"another server has resumed {self.folder}; this one stops")

    def save(self, outcome: Outcome) -> None:
        self.check_owner()
        self.writer.save(self.timed(outcome.result), outcome.ledger.to_json())
        kept = {site: receipt._asdict() for site, receipt in sorted(self.federation.receipts.items())}
        write_whole(self.folder / RECEIPTS, json.dumps(kept, indent=1) + "\n")

    def timed(self, result: Result) -> Result:
        return result._replace(seconds=max(result.seconds - self.aside, 0.0))

    def ask(self, part: str, prepared: Prepared, server: object, round: int, **options: Any) -> Any:
        """One round of something else than training, with whoever answers, noted under a round of training."""
        demands = self.demands._replace(least=0, tries=1, bound=options.pop("bound", None))
        given = {"part": part, "run": self.name, "demands": demands, "note_under": round, **options}
        return ask_once(prepared, server, self.federation, self.config.run.seed, **given)

    def evaluated(self, x: Vector, lam: ArrayLike | None) -> Evaluation:
        """How the model fares at every site that answers."""
        problem = self.setup.problem
        lam = None if lam is None else feasible(self.dual, jnp.asarray(lam))
        start = self.scoring.algorithm.init(x)
        start = start if lam is None else start._replace(weights=jnp.asarray(lam, x.dtype))
        if self.summed is not None:
            start = start._replace(level=jnp.asarray(self.summed.level, x.dtype))
        try:
            heard = self.ask("evaluate", self.scoring, start, self.round, secure=self.secure)
        except GivenUp:  # too few for a masked sum; what led to it is noted
            heard = start
        if heard.base is not None and self.setup.sums is None:
            problem = replace(problem, labels_told=heard.base)
            self.setup = self.setup._replace(problem=problem)
        self.table = in_units(problem, heard.table)
        if self.setup.sums is not None:
            level = 0.0 if self.summed is None else self.summed.level
            mu = problem.task.strong_convexity
            self.summed = read_sums(heard.sums, self.setup.sums, level, n=problem.n, mu=mu)
            return Evaluation(heard.losses, self.summed.objective, self.summed.gap, self.table)
        losses, gap = heard.losses, np.nan
        complete = bool(np.isfinite(losses).all())
        objective = float(self.dual.value(losses)) if complete else np.nan
        mu = problem.task.strong_convexity
        if complete and lam is not None and mu is not None and np.isfinite(heard.gradient).all():
            gap = float(gap_bound(self.dual, losses, lam, heard.gradient, mu=mu))
        return Evaluation(losses, objective, gap, self.table)

    def own_parts(self, outcome: Outcome) -> None:
        """The mean of the sites' own parts, for who has none; each keeps its own, with the model."""
        setup, x = self.setup, self.setup.algorithm.model(outcome.result.server)
        if setup.own is None or not np.isfinite(np.asarray(x)).all():
            return
        prepared = prepare(setup.own, x, self.rows.train, setup.digest)
        try:
            options = {"secure": self.secure, "bound": self.demands.bound}
            heard = self.ask("own", prepared, setup.own.init(x), outcome.rounds, **options)
        except GivenUp:  # too few for a masked sum; what led to it is noted
            heard = setup.own.init(x)
        self.part = np.asarray(heard.part)

    def own_models(self, outcome: Outcome) -> Outcome:
        """Every site makes a model of its own, if the run says so, and tells how it fares with it; it stays there."""
        setup, x = self.setup, self.setup.algorithm.model(outcome.result.server)
        if setup.personal is None or not np.isfinite(np.asarray(x)).all():
            return outcome
        prepared = prepare(setup.personal, x, self.rows, setup.digest)
        heard = self.ask("personal", prepared, setup.personal.init(x), outcome.rounds)
        personal.write(self.folder, setup.problem, personal.recorded(self.config, setup.problem, heard), None)
        events = (*outcome.ledger.events, *self.federation.events[self.federation.reported :])
        self.federation.reported = len(self.federation.events)
        return outcome._replace(ledger=outcome.ledger._replace(events=events))

    def averages(self) -> tuple[str, ...]:
        """What is known of the last model where no site tells its own scores."""
        if self.summed is None or not self.summed.scores:
            return ()
        said = ", ".join(f"{name} {value:.4g}" for name, value in sorted(self.summed.scores.items()))
        why = "federation.secure masks evaluations too, so that the server learns sums and nothing of a single site"
        return (f"no site told its own scores: {why}; the mean over the sites that answered at the end: {said}",)

    def finish(self, outcome: Outcome) -> None:
        self.check_owner()
        x = self.setup.algorithm.model(outcome.result.server)
        self.wait()
        if self.table is None:  # stopped between the last round and here
            self.round = outcome.rounds
            self.evaluated(x, None)
        events = list(sentences_of(outcome.ledger.events))
        result, asked = self.timed(outcome.result), self.setup.sums is None
        options: dict[str, Any] = {"asked": asked, "part": self.part}
        problem = self.setup.problem  # as the last evaluation knows it
        write_result(self.config, self.folder, problem, x, result, self.table, self.config.name, events, **options)
        (self.folder / OWNER).unlink()


def read_receipts(path: Path) -> dict[str, Receipt]:
    """The receipts in a file of a run folder, by site."""
    try:
        return {site: Receipt(**receipt) for site, receipt in json.loads(read_text(path)).items()}
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{path} holds no receipts; give the receipts.json of a run") from None


def in_background(work: Callable[[], None]) -> Future[None]:
    """A function in a thread of its own, with which this process does not wait to end."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


server = server_app(main)  # what Flower loads
