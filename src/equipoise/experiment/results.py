"""What a run leaves behind at its end, and the records of what it is about."""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

import equipoise
from equipoise import artifact, evaluation, files
from equipoise.data.shards import ClientData, OwnerRows
from equipoise.engines.simulator import Result
from equipoise.errors import FileError, not_none
from equipoise.evaluation.intervals import UNKNOWN
from equipoise.evaluation.skill import skill_of
from equipoise.experiment import records
from equipoise.experiment.config import Config
from equipoise.experiment.problems import Problem
from equipoise.protocol import Algorithm, Vector

TENTHS = 10  # of the rows, of which a curve of calibration is made


def in_units(problem: Problem, table: evaluation.PerClient) -> evaluation.PerClient:
    """RMSE in the label's own units; beside a log loss the skill."""
    if problem.base is not None and "loss" in table.scores:
        return evaluation.with_skill(table, problem.base.loss)
    if problem.encoding is None or problem.encoding.task != "regression":
        return table
    unit = problem.encoding.target.scale

    def scaled(part: dict[str, Any], power: int) -> dict[str, Any]:
        return {name: v * unit**power if name == "rmse" else v for name, v in part.items()}

    return table._replace(
        scores=scaled(table.scores, 1), resampled=scaled(table.resampled, 1), squares=scaled(table.squares, 4)
    )


def write_row_scores(folder: Path, problem: Problem, x: Vector, rows: ClientData, score: str) -> None:
    """What each of the scored `rows` adds to the score, so that a report can compare two models row by row.

    Only where the rows are at hand: over a network they stay with their owners.
    """
    values = evaluation.of_rows(problem.plain_task, x, rows, score)
    if values is None or not np.isfinite(values).all():
        return
    if score == "skill":
        values = skill_of_rows(problem, values, rows)
    saved = records.RowScores(score, problem.digest_of_rows, values)
    records.write_row_scores(folder / records.ROW_SCORES, saved)


def calibration_of(problem: Problem, x: Vector, rows: ClientData) -> tuple[tuple[float, float, int], ...]:
    """Tenths of the scored rows, from the least likely to the likeliest.

    Empty where there are no probabilities, or some are not numbers: those of a model that diverged.
    """
    if problem.base is None:
        return ()
    columns = [evaluation.of_rows(problem.plain_task, x, rows, name) for name in ("predicted", "observed")]
    chance, came = (np.asarray(values, np.float64) for values in columns)
    if not np.isfinite(chance).all():
        return ()
    order = np.argsort(chance, kind="stable")
    parts = [part for part in np.array_split(order, TENTHS) if part.size]
    return tuple((float(chance[part].mean()), float(came[part].mean()), part.size) for part in parts)


def skill_of_rows(problem: Problem, losses: np.ndarray, rows: ClientData) -> np.ndarray:
    """What each row adds to the skill of its owner, of what it adds to the log loss; NaN where there is no skill."""
    scored = rows.test if isinstance(rows, OwnerRows) else rows
    return skill_of(losses, np.repeat(not_none(problem.base).loss, np.asarray(scored.sizes)))


def save_model(
    path: Path, problem: Problem, x: Vector, metadata: dict[str, object], part: ArrayLike | None = None
) -> None:
    """`part`: of an owner's own, or the mean of them."""
    params = problem.artifact_params(x)
    own = None if part is None else artifact.OwnPart(np.asarray(part), problem.own_inputs)
    artifact.save(path, params, problem.model, problem.encoding, loss=problem.loss, metadata=metadata, own=own)


def write_result(
    config: Config,
    folder: Path,
    problem: Problem,
    x: Vector,
    result: Result,
    table: evaluation.PerClient,
    label: str,
    events: list[str],
    *,
    asked: bool = True,
    best_round: int | None = None,
    calibration: tuple[tuple[float, float, int], ...] = (),
    part: ArrayLike | None = None,
) -> None:
    """The model, then the result: whoever sees the result sees a whole run. `asked`: clients told their own scores."""
    measure, summary, low, high, mean, worst, _ = standing_of(problem, table)
    if np.isfinite(np.asarray(x)).all():
        save_model(folder / records.MODEL, problem, x, {"config": config.used(), "clients": list(problem.names)}, part)
        if asked and not summary:
            events.append("no client could score the model at the end")
    else:
        events.append("the model is not finite: the step sizes are too large")
    outcome = records.RunResult(
        label=label,
        rounds=result.rounds,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        measure=measure,
        higher_is_better=problem.main_score(table).higher_is_better,
        summary=dict(summary),
        low=floats(low),
        high=floats(high),
        worst_low=worst.low,
        worst_high=worst.high,
        worst_estimate=worst.estimate,
        mean_low=mean.low,
        mean_high=mean.high,
        calibration=calibration,
        best_round=best_round,
        events=tuple(events),
    )
    records.write_record(folder / records.RESULT, outcome)
    with suppress(FileError):
        files.remove(folder / records.CHECKPOINT)  # with a result there is nothing to resume


def standing_of(problem: Problem, table: evaluation.PerClient) -> evaluation.Standing:
    """By the score that sums the problem up; nothing is known where no client has it."""
    measure, up, _ = problem.main_score(table)
    if np.isfinite(np.asarray(table.scores[measure])).any():
        return evaluation.standing(table, measure, up=up, counted=problem.counted)
    nothing = np.full(problem.n, np.nan)
    return evaluation.Standing(measure, {}, nothing, nothing, UNKNOWN, UNKNOWN, tuple(range(problem.n)))


def federation_record(
    problem: Problem, algorithm: Algorithm, notes: tuple[str, ...], baselines: np.ndarray | None = None
) -> records.FederationRecord:
    train = np.asarray(problem.train.sizes)
    test = np.zeros_like(train) if problem.test is None else np.asarray(problem.test.sizes)
    counted: list[Any] = [None] * problem.n if problem.counted is None else problem.counted.tolist()
    base: list[Any] = [None] * problem.n if baselines is None else baselines.tolist()
    return records.FederationRecord(
        what=problem.what,
        task="classification" if problem.classes else "regression",
        classes=problem.classes,
        members=tuple(
            records.ClientRecord(name=name, train=int(a), test=int(b), counted=c, baseline=d)
            for name, a, b, c, d in zip(problem.names, train, test, counted, base, strict=True)
        ),
        held_out=problem.test is not None,
        parameters=problem.x.size,
        exchanges=tuple(exchange.name for exchange in algorithm.round),
        notes=problem.notes + notes,
        score="skill" if problem.one_class_is_common else None,
    )


def environment_record(config: Config, files: dict[str, str], git: str | None) -> records.Environment:
    """`files` are the digests of those that the rows were read from, `git` is as `git_commit` says."""
    devices = jax.local_devices()
    return records.Environment(
        equipoise=equipoise.__version__,
        python=platform.python_version(),
        jax=jax.__version__,
        numpy=np.__version__,
        platform=f"{platform.system()} {platform.machine()}",
        device=devices[0].device_kind,
        devices=len(devices),
        precision=config.run.precision,
        git=git,
        files=files,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def git_commit() -> str | None:
    """Of the working directory, with "+" if it was changed; None where there is none."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return ask("rev-parse", "HEAD") + ("+" if ask("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def floats(values: ArrayLike) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float64).tolist())
