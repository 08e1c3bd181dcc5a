"""What a run writes while it runs: the history and the checkpoints."""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import jax
import numpy as np
from jax import Array
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike, DTypeLike

from equipoise import certificates, evaluation, files, tasks
from equipoise._jax import cached_program, compiled
from equipoise.certificates import Certificate
from equipoise.data import ClientData
from equipoise.engines.simulator import Result
from equipoise.evaluation import PerClient, skill
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment import checkpoint, records
from equipoise.experiment.boards import boards
from equipoise.experiment.config import Config
from equipoise.experiment.methods import baselines_of, build_dual, crossing, known_saddle
from equipoise.experiment.origin import Origin
from equipoise.experiment.problems import Problem
from equipoise.experiment.results import floats, in_units
from equipoise.leaves import numbers_of
from equipoise.protocol import Algorithm, Vector

Watch = Callable[[int, int, records.Row], None]  # rounds done, rounds in all, the last row
ROWS = 100  # of a history, unless asked otherwise


class Evaluation(NamedTuple):
    """How good a model is, for a row of the history."""

    losses: ArrayLike  # [n], of training
    objective: SupportsFloat
    gap: SupportsFloat
    table: PerClient


# The mean over the worst fifth of the clients on validation rows, or their loss, and whether more is better.
Judge = Callable[[Vector], tuple[float, bool]]
# Of a model, and the clients' weights, if the method has those of the objective.
Evaluate = Callable[[Vector, ArrayLike | None], Evaluation]


def local_evaluator(config: Config, problem: Problem) -> Evaluate:
    """Evaluates models where all rows are at hand."""
    dual, train = build_dual(config, problem), problem.compiled_for
    structure, operands = jax.tree.structure(dual), numbers_of(dual, problem.x.dtype)
    certify, respond = certifier(problem.task, structure), responder(structure)
    # Over Flower no site tells its own: runs on owners' files are certified, and end, here as they are there.
    curvatures = certificates.curvatures(problem.task, train) if problem.divided else None

    def evaluate(x: Vector, lam: ArrayLike | None) -> Evaluation:
        if lam is None:
            lam = respond(operands, tasks.losses(problem.task, x, train))
        certificate = certify(operands, train, curvatures, x, lam)  # runs while the scorer is called
        table = in_units(problem, problem.scorer(x))
        losses, objective, gap = jax.device_get((certificate.losses, certificate.robust, certificate.gap))
        return Evaluation(losses, objective, gap, table)

    return evaluate


@cached_program
def certifier(task: tasks.Task, dual: PyTreeDef) -> Callable:
    """Certificates of models for duals of that structure; compiled once for all their numbers."""

    def certify(numbers: tuple, data: ClientData, bends: Array | None, x: Vector, lam: Array) -> Certificate:
        return certificates.certify(task, dual.unflatten(numbers), data, x, lam, curvatures=bends)

    return compiled(certify)


@cached_program
def responder(dual: PyTreeDef) -> Callable:
    """The best response to losses, which serves all tasks."""
    return compiled(lambda numbers, losses: dual.unflatten(numbers).best_response(losses))


def validator(problem: Problem, by: str = "worst fifth") -> Judge | None:
    """Scores models on the rows that were set aside; None: none were.

    By the score of the worst fifth; or by the mean loss, which is known from all rows together: the worst fifth of many
    owners with a few validation rows each are those with the worst luck, who are worst off with any trained model.
    """
    if problem.validation is None:
        return None
    rows, has_base = problem.with_rows(problem.train, problem.validation), problem.base is not None
    scorer = evaluation.evaluator(problem.plain_task, rows, scores=problem.scores)
    bases = skill.bases(problem.train, problem.validation, len(problem.classes)) if has_base else None

    def judge(x: Vector) -> tuple[float, bool]:
        table = scorer(x)
        if bases is not None:
            table = evaluation.with_skill(table, bases.loss)
        name, up, _ = ("loss", False, None) if by == "loss" else problem.main_score(table)
        values = np.asarray(table.scores[name], np.float64)
        heard = values[np.isfinite(values)]
        if not heard.size:
            return math.nan, up
        return float(heard.mean() if by == "loss" else worst_mean(heard, up)), up

    return judge


@dataclass(eq=False)
class RunWriter:
    """Evaluates the model now and then, writes the history, and a checkpoint when one is due."""

    config: Config
    folder: Path
    problem: Problem
    algorithm: Algorithm
    source: Origin
    watch: Watch | None
    evaluate: Evaluate
    judge: Judge | None = None
    weights: Callable[[Any], Any] | None = None  # of a server, where not the algorithm's own: compiled once
    best: checkpoint.Best | None = None  # with a judge, from the first model on
    certified: float | None = None  # the relative gap, once it is as small as `run.until_gap` asks

    def __post_init__(self) -> None:
        config, problem = self.config, self.problem
        self.written, self.digest = 0, hashlib.sha256()  # of the history: its length in bytes, and its digest
        self.every = config.run.evaluate_every or max(1, config.run.rounds // ROWS)
        self.saddle = known_saddle(config, problem)
        wires = crossing(self.algorithm, problem)
        self.down, self.up = (np.array([getattr(wire, way) for wire in wires], np.int64) for way in ("down", "up"))
        self.sent = problem.sent
        base = baselines_of(config, problem)
        self.base = 0.0 if base is None else float(np.mean(base))  # gains may be about zero: a share is of losses
        self.saved = time.monotonic()
        self.boards = boards(config, self.folder, problem.names)

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
        self.best = saved.best
        return saved

    def begin(self, x: Vector | None = None) -> None:
        """A history with the first model only, if there is no other to begin with."""
        files.remove(self.folder / records.HISTORY)
        nobody = (0,) * len(self.algorithm.round)
        counts = {"asked": nobody, "answered": nobody, "bytes_down": self.sent.down, "bytes_up": self.sent.up}
        self.write(self.problem.x if x is None else x, None, round=0, seconds=0.0, broken=0, **counts)

    def save(self, result: Result, more: dict[str, object] | None = None) -> None:
        """A checkpoint; what it counts on is on the disk before."""
        files.sync(self.folder / records.HISTORY)
        written = checkpoint.Written(length=self.written, digest=self.digest.hexdigest())
        checkpoint.save(self.folder / records.CHECKPOINT, result, written, self.source, more, self.best)
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
            "bytes_down": self.sent.down + int(np.dot(asked, self.down)),
            "bytes_up": self.sent.up + int(np.dot(answered, self.up)),
        }
        weights = self.weights or self.algorithm.weights
        self.write(self.algorithm.model(server), weights(server), server, **counted | counts)

    def callback(self, result: Result) -> None:
        self.record(result)
        if not self.is_done(result) and time.monotonic() - self.saved >= self.config.run.checkpoint_seconds:
            self.save(result)

    def is_done(self, result: Result) -> bool:
        """Whether `run.until_gap` or `run.patience` ends the run here."""
        patience = self.config.run.patience
        waited = patience is not None and self.best is not None and result.rounds - self.best.round >= patience
        return self.certified is not None or waited

    def write(self, x: Vector, lam: ArrayLike | None, server: Any = None, **counts: Any) -> None:
        # Only weights of the run's own objective certify anything about it.
        evaluation = self.evaluate(x, lam if self.algorithm.dual is not None else None)
        objective = float(evaluation.objective)
        with np.errstate(over="ignore"):  # a run that diverges says so in its result
            distance = None if self.saddle is None else float(np.sum((np.asarray(x, np.float64) - self.saddle) ** 2))
        row = records.Row(
            **counts,
            validation=self._validate(x, counts["round"]),
            loss=floats(evaluation.losses),
            scores={name: floats(values) for name, values in evaluation.table.scores.items()},
            lam=None if lam is None else floats(lam),
            objective=objective,
            gap=min(float(evaluation.gap), self._gap_of_cuts(x, objective, server)),
            distance=distance,
        )
        wanted, size = self.config.run.until_gap, abs((row.objective or 0) + self.base)
        if wanted is not None and row.gap is not None and row.gap <= wanted * size:
            self.certified = row.gap / (size or 1)
        line = records.append_row(self.folder / records.HISTORY, row).encode()
        self.written += len(line)
        self.digest.update(line)
        for board in self.boards:
            board.add(row)
        if self.watch is not None:
            self.watch(row.round, self.config.run.rounds, row)

    def _gap_of_cuts(self, x: Vector, objective: float, server: Any) -> float:
        """What all that the server has heard so far proves; infinite: nothing. NaN of what is not known stays one."""
        mu, dual = self.problem.task.strong_convexity, self.algorithm.dual
        if server is None or mu is None or dual is None or self.config.privacy is not None:
            return math.inf
        cuts = self.algorithm.cuts(server)
        if cuts is None:
            return math.inf
        bound = certificates.bound_of_cuts(dual, cuts, mu, np.asarray(x))
        return max(objective - bound, 0.0) + certificates.resolution(x.dtype) * abs(objective)

    def _validate(self, x: Vector, round: int) -> float | None:
        """The model's value on validation rows; it is kept if no earlier one was as good."""
        if self.judge is None:
            return None
        value, up = self.judge(x)
        before = math.nan if self.best is None else self.best.value
        if self.best is None or math.isnan(before) or (value > before if up else value < before):
            self.best = checkpoint.Best(round, value, np.asarray(x))
        return value

    def close(self) -> None:
        for board in self.boards:
            board.close()


def weights_of(algorithm: Algorithm, dtype: DTypeLike) -> Callable[[Any], Any]:
    """The clients' weights of a server, by a program that all algorithms of that structure share."""
    numbers = numbers_of(algorithm, dtype)
    if not numbers:
        return algorithm.weights
    return lambda server: _weights(jax.tree.structure(algorithm))(numbers, server)


@cached_program
def _weights(structure: PyTreeDef) -> Callable:
    return compiled(lambda numbers, server: structure.unflatten(numbers).weights(server))
