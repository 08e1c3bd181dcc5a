"""The server's part of a run over Flower: from a configuration to the same run folder as that of a local run."""

import json
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid
from pydantic import ValidationError

from equipoise.certificates import feasible, gap_bound
from equipoise.data.silos.agreement import agree
from equipoise.data.silos.statistics import Statistics
from equipoise.deploy import agreement, sentences
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.events import GivenUp, Outcome, ledger
from equipoise.deploy.modules import agreed_module, first_model
from equipoise.deploy.rounds import Demands, prepare, serve
from equipoise.deploy.scoring import SiteRows, Summed, read_sums
from equipoise.deploy.secure import SecureSums
from equipoise.deploy.site import SiteStatistics, settings
from equipoise.deploy.sites import ConnectedSites, Patience, gather
from equipoise.deploy.status import StatusWriter
from equipoise.engines.simulator import Result
from equipoise.errors import InputError, require
from equipoise.experiment import checkpoint, folders, origin, reading, records
from equipoise.experiment import config as configuration
from equipoise.experiment.config import Config
from equipoise.experiment.methods import build_dual
from equipoise.experiment.origin import Origin
from equipoise.experiment.problems import precision
from equipoise.experiment.results import environment_record, federation_record, in_units, write_result
from equipoise.experiment.writer import Enough, Evaluation, RunWriter, Watch, crossing_of, until_certified
from equipoise.files import remove, write_whole
from equipoise.privacy.disclosure import disclosed
from equipoise.protocol import Vector

OWNER = "server.txt"  # says which process writes the folder


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
    """Runs `told` over the nodes of `grid` into `folder`; resumes where an earlier run of the same was stopped."""
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
            federation = gathered(config, known, grid, status, stock)
            agreed = renewed(folder, federation, known) if known else settled(config, federation)
            write_whole(folder / agreement.FILE, agreed.model_dump_json(indent=1) + "\n")
            setup = agreement.setup(config, agreed)
            federation.ask("prepare", "train judge", everyone=False, warm=True)  # Flower's own nodes keep nothing
            if agreed.module is not None and not (folder / records.CHECKPOINT).is_file():
                setup = started(config, setup, federation)
            revealed = reveals(config, setup)
            print("\n".join(f"what the server learns: {sentence}" for sentence in revealed), flush=True)
            about = federation_record(setup.problem, setup.algorithm, (*setup.notes, *revealed))
            records.write_record(folder / records.ENVIRONMENT, environment_record(config, {}))
            records.write_record(folder / records.FEDERATION, about)
            writer = FederatedRun(config, folder, setup, federation, watch)
            outcome = writer.train(agreed.run)
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


def gathered(config: Config, known: Agreement | None, grid: Grid, status: StatusWriter, stock: bool) -> ConnectedSites:
    """Waits for the sites, numbered by name as the files of a folder are."""
    of = config.federation
    assert of is not None
    patience = Patience(of.gather, of.hello, of.question, of.exchange, of.poll)
    sites = known.sites if known else None if isinstance(of.sites, int) else tuple(sorted(of.sites))
    how: dict[str, Any] = {"n": of.sites} if sites is None else {"sites": sites}
    federation = gather(grid, patience=patience, observe=status.observe, stock=stock, **how)
    status.observe({"kind": "started", "transport": federation.transport.about})
    return federation


def settled(config: Config, federation: ConnectedSites) -> Agreement:
    """From statistics to an encoding that all sites have taken; rows stay where they are."""
    gone = [site for site in federation.sites if site not in federation.nodes]
    require(
        not gone,
        f"{', '.join(gone)} did not come: all sites have to be there when the encoding is agreed; start the missing "
        "ones, or leave them out of federation.sites",
    )
    answers = {site: _statistics(site, text) for site, text in federation.ask("statistics").items()}
    known: dict[str, Any] = {}
    if config.model.name == "torch":
        known["module"] = agreed_module({site: a.statistics for site, a in answers.items()})
    else:
        statistics = [Statistics.from_json(a.statistics)._replace(site=site) for site, a in answers.items()]
        known["encoding"] = agree(statistics, config.data.silo_options).to_json()
    agreed = Agreement(
        run=f"{int(time.time())}-{secrets.token_hex(4)}",
        sites=federation.sites,
        train=tuple(a.train for a in answers.values()),
        test=tuple(a.test for a in answers.values()),
        **known,
    )
    agreement.remote_problem(config, agreed)  # what does not fit is said before the sites are asked again
    replies = federation.ask("settle", agreed.model_dump_json())
    if agreement.needs_curvature(config):
        curvatures, slopes = zip(*(_measured(site, text) for site, text in replies.items()), strict=True)
        agreed = agreed.model_copy(update={"curvature": max(curvatures), "slope": math.hypot(*slopes)})
        federation.ask("settle", agreed.model_dump_json())
    return agreed


def reveals(config: Config, setup: Setup) -> tuple[str, ...]:
    """What the server learns of single sites."""
    of, problem = config.federation, setup.problem
    assert of is not None
    return tuple(
        disclosed(
            crossing_of(setup.algorithm, setup.algorithm, problem),
            masked=of.secure,
            sums_only=setup.sums is not None,
            measured=agreement.needs_curvature(config),
            n=problem.n,
            bound=of.secure_bound,
        )
    )


def renewed(folder: Path, federation: ConnectedSites, known: Agreement) -> Agreement:
    """The agreement of the run to resume, sent again to the sites that are there."""
    done = checkpoint.rounds(folder / records.CHECKPOINT)
    federation.where = (done, "")
    federation.events = [event._replace(round=done, last_round=done) for event in federation.events]
    federation.note("", "resumed", f"the server was started again after {done} rounds")
    federation.ask("settle", known.model_dump_json(), everyone=False)
    return known


def started(config: Config, setup: Setup, federation: ConnectedSites) -> Setup:
    """The run from the weights that the first site's module begins with."""
    problem, shard = setup.problem, setup.problem.train.client(0)
    algorithm = first_model(problem.n, problem.x)
    demands = Demands(least=1, tries=config.federation.tries if config.federation else 1, heavy=1.0)
    outcome = serve(
        algorithm,
        problem.x,
        federation,
        config.run.seed,
        shard=shard,
        rounds=1,
        part="start",
        config=setup.digest,
        demands=demands,
        note_under=0,
    )
    note = f"the model starts as the module of '{problem.names[0]}' does"
    return setup._replace(problem=replace(problem, x=outcome.result.server), notes=(*setup.notes, note))


def _statistics(site: str, text: str) -> SiteStatistics:
    try:
        return SiteStatistics.model_validate_json(text)
    except ValidationError:
        raise InputError(
            f"'{site}' told statistics that cannot be read; give it the same version of Equipoise"
        ) from None


def _measured(site: str, text: str) -> tuple[float, float]:
    """A site's curvature and slope at the start."""
    try:
        curvature, slope = map(float, json.loads(text))
    except (ValueError, TypeError):
        curvature = slope = math.nan
    require(
        0 < curvature < math.inf and 0 <= slope < math.inf,
        f"'{site}' measured no curvature ({text[:40]!r}); give the step sizes as numbers",
    )
    return curvature, slope


class FederatedRun:
    """Trains, evaluates the model now and then, and keeps the folder; a checkpoint follows every round.

    An evaluation goes out beside the next exchange of training, from a thread of its own; there is one at a time.
    """

    def __init__(self, config: Config, folder: Path, setup: Setup, federation: ConnectedSites, watch: Watch | None):
        self.config, self.folder, self.setup, self.federation = config, folder, setup, federation
        # The rows are at the sites, which know them by the digest of the agreement.
        source = Origin(settings=origin.flat(config), files={}, data=setup.digest, code=origin.code(config))
        crossing = crossing_of(setup.algorithm, setup.algorithm, setup.problem)
        self.writer = RunWriter(config, folder, setup.problem, setup.algorithm, crossing, source, watch, self.evaluated)
        self.dual = build_dual(config, setup.problem.n)
        of = config.federation
        assert of is not None
        self.secure = SecureSums(of.secure_bound, of.threshold) if of.secure else None
        self.demands = Demands(of.least, of.tries, of.heavy, of.quantile, of.slack, of.quorum)
        self.mine = secrets.token_hex(8)
        write_whole(folder / OWNER, self.mine)
        self.rows = SiteRows(setup.problem.train.client(0), setup.problem.train.client(0))
        self.judge = prepare(setup.scoring, setup.problem.x, self.rows, setup.digest)
        self.evaluation: Background | None = None
        self.round = 0  # of the model that is evaluated
        self.aside = 0.0  # seconds of waiting for evaluations, which are none of training
        self.table: Any = None  # of the last model
        self.summed: Summed | None = None  # the same, where sites tell sums only

    def train(self, name: str) -> Outcome:
        config, setup = self.config, self.setup
        start = self.start()
        try:
            return until_certified(
                serve,
                setup.algorithm,
                setup.problem.x,
                self.federation,
                config.run.seed,
                shard=setup.problem.train.client(0),
                rounds=config.run.rounds,
                config=setup.digest,
                run=name,
                demands=self.demands,
                secure=self.secure,
                pause=self.pause,
                resume=start,
            )
        except GivenUp as up:
            self.wait()
            self.save(up.outcome)  # with what led to it
            raise
        finally:
            self.writer.close()

    def start(self) -> Outcome | None:
        path = self.folder / records.CHECKPOINT
        if not path.is_file():
            self.evaluate(0, self.writer.begin)
            return None
        saved = checkpoint.load_server(path, self.setup.algorithm, self.setup.problem.x, self.writer.source)
        result = self.writer.restore(saved).result
        outcome = Outcome(result._replace(history=()), ledger(saved.more))
        if self.due(result.rounds):  # its row follows the checkpoint, so it is written again
            self.record(outcome)
        return outcome

    def due(self, rounds: int) -> bool:
        return rounds > 0 and (rounds % self.writer.every == 0 or rounds == self.config.run.rounds)

    def pause(self, outcome: Outcome) -> None:
        self.check_owner()
        self.wait()  # a checkpoint counts on the rows of the rounds before it
        self.save(outcome)
        if self.due(outcome.rounds):
            self.record(outcome)
        if outcome.rounds == self.config.run.rounds or self.config.run.until_gap is not None:
            self.wait()  # whether this round was the last
        if self.writer.certified is not None:
            raise Enough(outcome)

    def record(self, outcome: Outcome) -> None:
        traffic = outcome.ledger.traffic
        down, up = sum(t.down for t in traffic), sum(t.up for t in traffic)
        result = self.timed(outcome.result)
        self.evaluate(outcome.rounds, lambda: self.writer.record(result, bytes_down=down, bytes_up=up))

    def evaluate(self, round: int, write: Callable[[], None]) -> None:
        """Writes a row of the history beside the training of the next round."""
        self.wait()
        self.round = round

        def work() -> None:
            with precision(self.config):
                write()

        self.evaluation = Background(work)

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

    def timed(self, result: Result) -> Result:
        return result._replace(seconds=max(result.seconds - self.aside, 0.0))

    def evaluated(self, x: Vector, lam: Any) -> Evaluation:
        """How the model fares at every site that answers."""
        problem, federation = self.setup.problem, self.federation
        lam = None if lam is None else feasible(self.dual, jnp.asarray(lam))
        start = self.judge.algorithm.init(x)
        start = start if lam is None else start._replace(weights=jnp.asarray(lam, x.dtype))
        if self.summed is not None:
            start = start._replace(level=jnp.asarray(self.summed.level, x.dtype))
        try:
            found = serve(
                self.judge.algorithm,
                x,
                federation,
                self.config.run.seed,
                shard=self.rows,
                rounds=1,
                part="judge",
                demands=self.demands._replace(least=0, tries=1),
                secure=self.secure,
                note_under=self.round,
                prepared=self.judge,
                start=start,
            ).result.server
        except GivenUp:  # too few for a masked sum; what led to it is noted
            found = start
        self.table = in_units(problem, found.table)
        if self.setup.sums is not None:
            level = 0.0 if self.summed is None else self.summed.level
            mu = problem.task.strong_convexity
            self.summed = read_sums(found.sums, self.setup.sums, level, n=problem.n, mu=mu)
            return Evaluation(found.losses, self.summed.objective, self.summed.gap, self.table)
        losses, gap = found.losses, np.nan
        complete = bool(np.isfinite(losses).all())
        objective = float(self.dual.value(losses)) if complete else np.nan
        mu = problem.task.strong_convexity
        if complete and lam is not None and mu is not None and np.isfinite(found.gradient).all():
            gap = float(gap_bound(self.dual, losses, lam, found.gradient, mu=mu))
        return Evaluation(losses, objective, gap, self.table)

    def averages(self) -> tuple[str, ...]:
        """What is known of the last model where no site tells its own scores."""
        if self.summed is None or not self.summed.scores:
            return ()
        said = ", ".join(f"{name} {value:.4g}" for name, value in sorted(self.summed.scores.items()))
        return (f"no site told its own scores; the mean over the sites that answered at the end: {said}",)

    def finish(self, outcome: Outcome) -> None:
        self.check_owner()
        problem, server = self.setup.problem, outcome.result.server
        x = self.setup.algorithm.model(server)
        self.wait()
        if self.table is None:  # stopped between the last round and here
            self.round = outcome.rounds
            self.evaluated(x, None)
        events = list(sentences.of(outcome.ledger.events))
        result, asked = self.timed(outcome.result), self.setup.sums is None
        write_result(self.config, self.folder, problem, x, result, self.table, self.config.name, events, asked=asked)
        (self.folder / OWNER).unlink()


class Background:
    """A function in a thread of its own; `result` waits for it and raises what it raised."""

    def __init__(self, work: Callable[[], None]):
        self.error: BaseException | None = None

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self) -> None:
        self.thread.join()
        if self.error is not None:
            raise self.error
