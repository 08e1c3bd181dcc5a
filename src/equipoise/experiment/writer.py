"""What a run writes while it runs: the history and the checkpoints."""

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from equipoise import certificates, files
from equipoise.engines.simulator import Result
from equipoise.evaluation import PerClient
from equipoise.experiment import checkpoint, records
from equipoise.experiment.boards import boards
from equipoise.experiment.config import Config
from equipoise.experiment.methods import dual_family, known_saddle
from equipoise.experiment.origin import Origin
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import Row
from equipoise.experiment.results import floats, in_units
from equipoise.objectives import Dual
from equipoise.protocol import Algorithm, Vector, Wire, wire
from equipoise.tasks import Task

Watch = Callable[[int, int, Row], None]  # rounds done, rounds in all, the last row
ROWS = 100  # of a history, unless asked otherwise


class Evaluation(NamedTuple):
    """How good a model is, for a row of the history."""

    losses: Any  # [n], of training
    objective: Any
    gap: Any
    table: PerClient


# Of a model, and the clients' weights, if the method has those of the objective.
Evaluate = Callable[[Vector, Any], Evaluation]


def local_evaluator(config: Config, problem: Problem, train: Any, scorer: Callable[[Vector], PerClient]) -> Evaluate:
    """Evaluates models where all rows are at hand."""
    maker, numbers = dual_family(config, problem.n)
    certify = certifier(problem.task, maker)
    operands = {name: jnp.asarray(value, problem.x.dtype) for name, value in numbers.items()}

    def evaluate(x: Vector, lam: Any) -> Evaluation:
        found = certify(operands, train, x, lam)
        return Evaluation(found.losses, found.robust, found.gap, in_units(problem, scorer(x)))

    return evaluate


@lru_cache(maxsize=64)
def certifier(task: Task, maker: Callable[..., Dual]) -> Callable:
    """Certificates of models for the dual that `maker` makes of numbers; compiled once for all numbers."""
    return jax.jit(lambda numbers, data, x, lam: certificates.certify(task, maker(**numbers), data, x, lam))


class Enough(Exception):
    """The certificate is as good as `run.until_gap` asks; `result` is where the run stands."""

    def __init__(self, result: Any):
        super().__init__("the objective is certified")
        self.result = result


def until_certified(engine: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What the engine returns, or where it stood when a pause found the objective certified."""
    try:
        return engine(*args, **options)
    except Enough as enough:
        return enough.result


class RunWriter:
    """Evaluates the model now and then, writes the history, and a checkpoint when one is due."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        problem: Problem,
        algorithm: Algorithm,
        crossing: Sequence[Wire],
        source: Origin,
        watch: Watch | None,
        evaluate: Evaluate,
    ):
        self.source = source
        self.written, self.digest = 0, hashlib.sha256()  # of the history: its length in bytes, and its digest
        self.config, self.folder, self.problem, self.algorithm, self.watch = config, folder, problem, algorithm, watch
        self.every = config.run.evaluate_every or max(1, config.run.rounds // ROWS)
        self.evaluate = evaluate
        self.saddle = known_saddle(config, problem)
        self.down, self.up = (np.array([getattr(e, way) for e in crossing], np.int64) for way in ("down", "up"))
        self.saved = time.monotonic()
        self.boards = boards(config, folder, problem.names)
        self.certified: float | None = None  # the relative gap, once it is as small as `run.until_gap` asks

    def start(self) -> Result | None:
        """The last checkpoint, the history cut back to it; None where there is none."""
        path = self.folder / records.CHECKPOINT
        if not path.is_file():
            return None
        return self.restore(checkpoint.load(path, self.algorithm, self.problem.x, self.source)).result

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
        self.write(self.problem.x, None, round=0, seconds=0.0, **counts)

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
        counted = {
            "round": result.rounds,
            "seconds": result.seconds,
            "asked": asked,
            "answered": answered,
            "broken": int(tally.broken.sum()),
            "bytes_down": int(np.dot(asked, self.down)),
            "bytes_up": int(np.dot(answered, self.up)),
        }
        self.write(self.algorithm.model(server), self.algorithm.weights(server), **counted | counts)

    def pause(self, result: Result) -> None:
        self.record(result)
        if self.certified is not None and result.rounds < self.config.run.rounds:
            raise Enough(result)
        due = time.monotonic() - self.saved >= self.config.run.checkpoint_seconds
        if due or result.rounds == self.config.run.rounds:
            self.save(result)

    def write(self, x: Vector, lam: Any, **counts: Any) -> None:
        # Only weights of the run's own objective certify anything about it.
        found = self.evaluate(x, lam if self.algorithm.dual is not None else None)
        row = Row(
            **counts,
            loss=floats(found.losses),
            scores={name: floats(values) for name, values in found.table.scores.items()},
            lam=None if lam is None else floats(lam),
            objective=float(found.objective),
            gap=float(found.gap),
            distance=None if self.saddle is None else _distance(x, self.saddle),
        )
        wanted = self.config.run.until_gap
        if wanted is not None and row.gap is not None and row.gap <= wanted * abs(row.objective or 0):
            self.certified = row.gap / abs(row.objective or 1)
        line = records.append_row(self.folder / records.HISTORY, row).encode()
        self.written += len(line)
        self.digest.update(line)
        for board in self.boards:
            board.add(row)
        if self.watch is not None:
            self.watch(row.round, self.config.run.rounds, row)

    def close(self) -> None:
        for board in self.boards:
            board.close()


def crossing_of(family: Algorithm | Partial, algorithm: Algorithm, problem: Problem) -> Sequence[Wire]:
    """What crosses in a round: the same for all numbers of a family."""
    shard = jax.eval_shape(lambda train: train.client(0), problem.train)
    if not isinstance(family, Partial):
        return wire(algorithm, problem.x, jax.eval_shape(algorithm.prepare, shard))
    known = _wires(family.func)
    shapes = str((problem.x.shape, problem.x.dtype, shard))
    if shapes not in known:
        known[shapes] = wire(algorithm, problem.x, jax.eval_shape(algorithm.prepare, shard))
    return known[shapes]


@lru_cache(maxsize=64)
def _wires(maker: Callable[..., Algorithm]) -> dict[str, Sequence[Wire]]:
    return {}


def _distance(x: Any, y: Any) -> float:
    with np.errstate(over="ignore"):  # a run that diverges says so in its result
        return float(np.sum((np.asarray(x, np.float64) - y) ** 2))
