"""One run: from a configuration to a folder with a model, a history and a result. `records.py` says what is in it."""

import hashlib
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import equipoise
from equipoise import artifact, certificates, evaluation, files
from equipoise.engines.simulator import Lost, Result, broken_replies, simulate
from equipoise.engines.sweep import Trial, sweep
from equipoise.errors import FileError, InputError, LostReplies, Stopped, require
from equipoise.evaluation import PerClient, standing
from equipoise.experiment import build, checkpoint, config, folders, origin, records
from equipoise.experiment.build import Method, Problem
from equipoise.experiment.config import Config
from equipoise.experiment.origin import Origin
from equipoise.experiment.records import Row
from equipoise.files import write_whole
from equipoise.objectives import Dual
from equipoise.protocol import Algorithm, RandomKey, Vector, Wire, as_key, wire
from equipoise.tasks import Task

Watch = Callable[[int, int, Row], None]  # rounds done, rounds in all, the last row
ROWS = 100  # of a history, unless asked otherwise


class Session(NamedTuple):
    """A run whose folder this process holds: begun, or about to be resumed."""

    config: Config
    folder: Path
    label: str
    problem: Problem
    algorithm: Algorithm
    family: Any  # for the engine, see `build.Method`
    data: "Federated"
    writer: "Scribe"
    start: Result | None  # where to resume


@dataclass(frozen=True, eq=False)
class Federated:
    """A problem's rows, in the shapes that the programs of a run are compiled for."""

    task: Task
    train: Any
    test: Any

    @property
    def scored(self) -> Any:
        """The rows that models are scored on."""
        return self.train if self.test is None else self.test

    @cached_property
    def judge(self) -> Callable[[Vector], PerClient]:
        """Scores models, one after the other."""
        return evaluation.evaluator(self.task, self.scored)


def run(
    told: Config,
    folder: Path,
    *,
    label: str | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
    problem: Problem | None = None,
) -> records.Run:
    """Runs `told` into `folder`, which must not hold a run yet, unless `overwrite` says so.

    `problem` saves reading the data again where several runs share it. Ctrl-C raises `Stopped` after a checkpoint.
    """
    with begun(told, folder, label, watch, overwrite=overwrite, problem=problem) as session:
        alone(session)
    return records.read(folder)


def resume(
    folder: Path, *, label: str | None = None, watch: Watch | None = None, problem: Problem | None = None
) -> records.Run:
    """Goes on where the last checkpoint stands, bit for bit as if the run had never stopped."""
    with resumed(folder, label, watch, problem=problem) as session:
        alone(session)
    return records.read(folder)


@contextmanager
def begun(
    told: Config,
    folder: Path,
    label: str | None = None,
    watch: Watch | None = None,
    *,
    overwrite: bool = False,
    problem: Problem | None = None,
    data: Federated | None = None,
    method: Method | None = None,
) -> Iterator[Session]:
    """A new run, in its precision. A mistake in the settings leaves no folder behind."""
    folders.check(folder, "run", overwrite=overwrite)
    with build.precision(told), ExitStack() as held:

        def begin() -> None:
            settings = origin.digest_of_settings(told)
            held.enter_context(folders.writing(folder, "run", overwrite=overwrite, settings=settings))
            write_whole(folder / records.CONFIG, told.toml())

        yield held.enter_context(_session(told, folder, label, watch, problem, data, method, begin))


@contextmanager
def resumed(
    folder: Path,
    label: str | None = None,
    watch: Watch | None = None,
    *,
    problem: Problem | None = None,
    data: Federated | None = None,
    method: Method | None = None,
) -> Iterator[Session]:
    """A run that was stopped, in its precision."""
    with folders.resuming(folder) as marker:
        require(not records.finished(folder), f"{folder} is finished; there is nothing to resume")
        require(
            not (folder / records.AGREEMENT).is_file(),
            f"the clients of {folder} are machines: go on with `equipoise flower server {folder / records.CONFIG} "
            f"--out {folder}`",
        )
        told = config.parse(config.read(folder / records.CONFIG), source=str(folder / records.CONFIG))
        # With a checkpoint what was changed is said in detail, see `checkpoint.load`.
        require(
            (folder / records.CHECKPOINT).is_file() or marker.settings == origin.digest_of_settings(told),
            f"{folder / records.CONFIG} is not what the run was begun with: it was changed or is damaged; restore it, "
            "or begin anew with --overwrite",
        )
        session = _session(told, folder, label, watch, problem, data, method, lambda: None)
        with build.precision(told), session as found:
            yield found


@contextmanager
def _session(
    told: Config,
    folder: Path,
    label: str | None,
    watch: Watch | None,
    problem: Problem | None,
    data: Federated | None,
    method: Method | None,
    begin: Callable[[], None],
) -> Iterator[Session]:
    this = problem or build.problem(told)
    data = data or Federated(this.task, this.train, this.test)
    algorithm, notes, family = method or build.method_of(told, this)
    source = origin.of(told, this)
    begin()
    crossing = wire_of(family, algorithm, this)
    scribe = Scribe(told, folder, this, algorithm, crossing, source, watch, at_home(told, this, data))
    try:
        start = scribe.start()  # before anything is written: a run that is not this one is left as it is
        records.write_record(folder / records.ENVIRONMENT, environment(told, source.files))
        records.write_record(folder / records.FEDERATION, federation(this, algorithm, notes))
        if start is None:
            scribe.begin()
        yield Session(told, folder, label or told.name, this, algorithm, family, data, scribe, start)
    finally:
        scribe.close()


def alone(session: Session) -> None:
    """Runs it to its end, by itself."""
    settings = session.config.run
    with warnings.catch_warnings(action="ignore", category=LostReplies):  # they are among the result's events
        try:
            result = until_certified(
                simulate,
                session.family,
                session.problem.x,
                session.data.train,
                settings.seed,
                rounds=settings.rounds,
                clients_per_batch=settings.clients_per_batch,
                devices=settings.devices,
                lost=_lost(session.config),
                resume=session.start,
                pause=session.writer.pause,
                every=session.writer.every,
            )
        except Stopped as stop:
            session.writer.save(stop.result)
            raise
    complete(session, result)


def together(sessions: Sequence[Session], width: int) -> None:
    """Runs them to their ends as one compiled program, `width` side by side, up to rounding as if each were alone.

    They are of one family, with data of one shape and as many rounds, see `plan`.
    """
    settings = sessions[0].config.run
    trials = [Trial(s.family.keywords, s.problem.x, s.data.train, s.config.run.seed, _lost(s.config)) for s in sessions]
    try:
        results = sweep(
            sessions[0].family.func,
            trials,
            rounds=settings.rounds,
            at_once=width,
            clients_per_batch=settings.clients_per_batch,
            resume=[s.start for s in sessions],
            pause=lambda i, result: sessions[i].writer.pause(result),
            every=sessions[0].writer.every,
        )
    except Stopped as stop:
        for session, result in zip(sessions, stop.result, strict=True):
            if result is not None:
                session.writer.save(result)
        raise
    for session, result in zip(sessions, results, strict=True):
        complete(session, result)


def complete(session: Session, result: Result) -> None:
    """Scores the model where a run ended, and writes what it leaves behind."""
    told, this, x = session.config, session.problem, session.algorithm.model(result.server)
    with warnings.catch_warnings(action="ignore", category=LostReplies):  # a model that is not finite is an event
        table = in_units(this, evaluation.evaluate(this.task, x, session.data.scored, key=told.run.seed))
    keep_rows(session.folder, this, x, evaluation.chosen(table, None))
    events = [sentence] if (sentence := broken_replies(result.tally)) else []
    finish(told, session.folder, this, x, result, table, session.label, events)


class Enough(Exception):
    """The certificate is as good as `run.until_gap` asks; `result` is where the run stands."""

    def __init__(self, result: Any):
        super().__init__("the objective is certified")
        self.result = result


def until_certified(engine: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """What the engine returns, or where it stood when a pause found the objective certified."""
    try:
        return engine(*args, **how)
    except Enough as enough:
        return enough.result


class Seen(NamedTuple):
    """What a model is like, for a row of the history."""

    losses: Any  # [n], of training
    objective: Any
    gap: Any
    table: PerClient


Look = Callable[[Vector, Any], Seen]  # at a model, and the clients' weights, if the method has those of the objective


def at_home(told: Config, this: Problem, data: Federated) -> Look:
    """Looks at models where all rows are at hand."""
    maker, numbers = build.dual_family(told, this.n)
    certify, judge = certifier(this.task, maker), data.judge
    operands = {name: jnp.asarray(value, this.x.dtype) for name, value in numbers.items()}

    def look(x: Vector, lam: Any) -> Seen:
        found = certify(operands, data.train, x, lam)
        return Seen(found.losses, found.robust, found.gap, in_units(this, judge(x)))

    return look


@lru_cache(maxsize=64)
def certifier(task: Task, maker: Callable[..., Dual]) -> Callable:
    """Certificates of models for the dual that `maker` makes of numbers; compiled once for all numbers."""
    return jax.jit(lambda numbers, data, x, lam: certificates.certify(task, maker(**numbers), data, x, lam))


class Scribe:
    """Evaluates the model now and then, writes the history, and a checkpoint when one is due."""

    def __init__(
        self,
        told: Config,
        folder: Path,
        this: Problem,
        algorithm: Algorithm,
        crossing: Sequence[Wire],
        source: Origin,
        watch: Watch | None,
        look: Look,
    ):
        self.source = source
        self.written, self.digest = 0, hashlib.sha256()  # of the history: its length in bytes, and its digest
        self.told, self.folder, self.this, self.algorithm, self.watch = told, folder, this, algorithm, watch
        self.every = told.run.evaluate_every or max(1, told.run.rounds // ROWS)
        self.look = look
        self.saddle = build.saddle(told, this)
        self.down, self.up = (np.array([getattr(e, way) for e in crossing], np.int64) for way in ("down", "up"))
        self.saved = time.monotonic()
        self.board = _board(folder) if told.run.tensorboard else None
        self.certified: float | None = None  # the relative gap, once it is as small as `run.until_gap` asks

    def start(self) -> Result | None:
        """The last checkpoint, the history cut back to it; None where there is none."""
        path = self.folder / records.CHECKPOINT
        if not path.is_file():
            return None
        return self.restore(checkpoint.load(path, self.algorithm, self.this.x, self.source)).result

    def restore(self, saved: checkpoint.Saved) -> checkpoint.Saved:
        """The history as the checkpoint knows it."""
        content = checkpoint.cut(self.folder / records.HISTORY, saved.history)
        self.written, self.digest = len(content), hashlib.sha256(content)
        return saved

    def begin(self) -> None:
        """A history with the first model only."""
        files.remove(self.folder / records.HISTORY)
        exchanges = (0,) * len(self.algorithm.round)
        counts = {"asked": exchanges, "answered": exchanges, "broken": 0, "bytes_down": 0, "bytes_up": 0}
        self.write(self.this.x, None, round=0, seconds=0.0, **counts)

    def save(self, result: Result, more: dict[str, Any] | None = None) -> None:
        """A checkpoint; what it counts on is on the disk before."""
        files.sync(self.folder / records.HISTORY)
        written = checkpoint.Written(length=self.written, digest=self.digest.hexdigest())
        checkpoint.save(self.folder / records.CHECKPOINT, result, written, self.source, more)
        self.saved = time.monotonic()

    def record(self, result: Result, **counts: Any) -> None:
        """A row of where a run stands; `counts` are those that are not the simulator's."""
        server, tally = result.server, result.tally
        asked, answered = tuple(map(int, tally.asked)), tuple(map(int, tally.answered))
        told = {
            "round": result.rounds,
            "seconds": result.seconds,
            "asked": asked,
            "answered": answered,
            "broken": int(tally.broken.sum()),
            "bytes_down": int(np.dot(asked, self.down)),
            "bytes_up": int(np.dot(answered, self.up)),
        }
        self.write(self.algorithm.model(server), self.algorithm.weights(server), **told | counts)

    def pause(self, result: Result) -> None:
        self.record(result)
        if self.certified is not None and result.rounds < self.told.run.rounds:
            raise Enough(result)
        due = time.monotonic() - self.saved >= self.told.run.checkpoint_seconds
        if due or result.rounds == self.told.run.rounds:
            self.save(result)

    def write(self, x: Vector, lam: Any, **counts: Any) -> None:
        this = self.this
        # Only weights of the run's own objective certify anything about it.
        seen = self.look(x, lam if self.algorithm.dual is not None else None)
        row = Row(
            **counts,
            loss=_floats(seen.losses),
            scores={name: _floats(values) for name, values in seen.table.scores.items()},
            lam=None if lam is None else _floats(lam),
            objective=float(seen.objective),
            gap=float(seen.gap),
            distance=None if self.saddle is None else _distance(x, self.saddle),
        )
        wanted = self.told.run.until_gap
        if wanted is not None and row.gap is not None and row.gap <= wanted * abs(row.objective or 0):
            self.certified = row.gap / abs(row.objective or 1)
        line = records.append_row(self.folder / records.HISTORY, row).encode()
        self.written += len(line)
        self.digest.update(line)
        if self.board is not None:
            _show(self.board, row, this.names)
        if self.watch is not None:
            self.watch(row.round, self.told.run.rounds, row)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def wire_of(family: Algorithm | Partial, algorithm: Algorithm, this: Problem) -> Sequence[Wire]:
    """What crosses in a round: the same for all numbers of a family."""
    shard = jax.eval_shape(lambda train: train.client(0), this.train)
    if not isinstance(family, Partial):
        return wire(algorithm, this.x, jax.eval_shape(algorithm.prepare, shard))
    known = _wires(family.func)
    shapes = str((this.x.shape, this.x.dtype, shard))
    if shapes not in known:
        known[shapes] = wire(algorithm, this.x, jax.eval_shape(algorithm.prepare, shard))
    return known[shapes]


@lru_cache(maxsize=64)
def _wires(maker: Callable[..., Algorithm]) -> dict[str, Sequence[Wire]]:
    return {}


def in_units(this: Problem, table: PerClient) -> PerClient:
    """RMSE in the label's own units."""
    if this.encoding is None or this.encoding.task != "regression":
        return table
    unit = this.encoding.target.scale

    def scaled(part: dict[str, Any], power: int) -> dict[str, Any]:
        return {name: v * unit**power if name == "rmse" else v for name, v in part.items()}

    return table._replace(
        scores=scaled(table.scores, 1), resampled=scaled(table.resampled, 1), squares=scaled(table.squares, 4)
    )


def draws_of(this: Problem) -> int:
    """Resamplings for intervals: none, because accuracy and RMSE bring what their bounds need."""
    return 0


def keep_rows(folder: Path, this: Problem, x: Vector, score: str) -> None:
    """What each scored row adds to the score, so that a report can compare two models row by row.

    Only where the rows are at hand: over a network they stay with their owners.
    """
    test = this.train if this.test is None else this.test
    values = evaluation.of_rows(this.task, x, test, score)
    if values is None or not np.isfinite(values).all():
        return
    digest = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(test):
        digest.update(np.ascontiguousarray(leaf).data)
    records.write_row_scores(folder / records.ROW_SCORES, records.RowScores(score, digest.hexdigest(), values))


def finish(
    told: Config,
    folder: Path,
    this: Problem,
    x: Vector,
    result: Result,
    table: PerClient,
    label: str,
    events: list[str],
    *,
    asked: bool = True,
) -> None:
    """The model, then the result: whoever sees the result sees a whole run. `asked`: clients told their own scores."""
    measure = evaluation.chosen(table, None)
    known = bool(np.isfinite(np.asarray(table.scores[measure])).any())
    if np.isfinite(np.asarray(x)).all():
        metadata = {"config": told.used(), "clients": list(this.names)}
        artifact.save(
            folder / records.MODEL,
            this.artifact_vector(x),
            this.model,
            this.encoding,
            loss=this.loss,
            metadata=metadata,
        )
        if asked and not known:
            events.append("no client could score the model at the end")
    else:
        events.append("the model is not finite: the step sizes are too large")
    nothing: tuple[None, ...] = (None,) * this.n
    found = standing(table, measure) if known else None
    outcome = records.Outcome(
        label=label,
        rounds=result.rounds,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        measure=measure,
        higher_is_better=evaluation.higher_is_better(measure),
        summary=dict(found.summary) if found else {},
        low=_floats(found.low) if found else nothing,
        high=_floats(found.high) if found else nothing,
        worst_low=found.worst.low if found else None,
        worst_high=found.worst.high if found else None,
        worst_estimate=found.worst.estimate if found else None,
        mean_low=found.mean.low if found else None,
        mean_high=found.mean.high if found else None,
        events=tuple(events),
    )
    records.write_record(folder / records.RESULT, outcome)
    with suppress(FileError):
        files.remove(folder / records.CHECKPOINT)  # with a result there is nothing to go on with


def federation(this: Problem, algorithm: Algorithm, notes: tuple[str, ...]) -> records.Federation:
    train = np.asarray(this.train.sizes)
    test = np.zeros_like(train) if this.test is None else np.asarray(this.test.sizes)
    return records.Federation(
        what=this.what,
        task="classification" if this.classes else "regression",
        classes=this.classes,
        members=tuple(
            records.Member(name=name, train=int(a), test=int(b))
            for name, a, b in zip(this.names, train, test, strict=True)
        ),
        held_out=this.test is not None,
        parameters=this.x.size,
        exchanges=tuple(exchange.name for exchange in algorithm.round),
        notes=this.notes + notes,
    )


def environment(told: Config, files: dict[str, str]) -> records.Environment:
    """`files` are the digests of those that the rows were read from."""
    devices = jax.local_devices()
    return records.Environment(
        equipoise=equipoise.__version__,
        python=platform.python_version(),
        jax=jax.__version__,
        numpy=np.__version__,
        platform=f"{platform.system()} {platform.machine()}",
        device=devices[0].device_kind,
        devices=len(devices),
        precision=told.run.precision,
        git=_git(),
        files=files,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _git() -> str | None:
    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return ask("rev-parse", "HEAD") + ("+" if ask("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _lost(told: Config) -> Lost | None:
    """Every reply is lost with the chance that the configuration gives."""
    if not told.run.lost:
        return None
    return Partial(_gone, as_key(told.run.seed), jnp.asarray(told.run.lost))


def _gone(key: RandomKey, share: Any, round: Any, exchange: int, ids: Any) -> Any:
    key = jax.random.fold_in(jax.random.fold_in(key, round), exchange)
    return jax.random.bernoulli(jax.random.fold_in(key, 1), share, jnp.shape(ids))


def _board(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError("run.tensorboard needs one more package: pip install 'equipoise[tensorboard]'") from None
    return SummaryWriter(str(folder / folders.BOARD))


def _show(board: Any, row: Row, names: tuple[str, ...]) -> None:
    for score, values in row.scores.items():
        known = [v for v in values if v is not None]
        if known:
            board.add_scalar(f"{score}/mean", float(np.mean(known)), row.round)
            board.add_scalar(f"{score}/lowest", min(known), row.round)
            board.add_scalar(f"{score}/highest", max(known), row.round)
    for name, value in (("objective", row.objective), ("gap", row.gap), ("bytes", row.bytes_down + row.bytes_up)):
        if value is not None:
            board.add_scalar(name, value, row.round)
    for name, weight in zip(names, row.lam or (), strict=False):
        if len(names) <= 50:
            board.add_scalar(f"lambda/{name}", weight, row.round)
    board.flush()


def _distance(x: Any, y: Any) -> float:
    with np.errstate(over="ignore"):  # a run that diverges says so in its result
        return float(np.sum((np.asarray(x, np.float64) - y) ** 2))


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float64).tolist())
