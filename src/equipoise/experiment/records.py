"""What a run leaves behind: a folder, and what its files say.

    config.toml             every setting, defaults included: the run can be repeated from it
    environment.json        versions, device, precision, the state of the source
    federation.json         whom it was trained on
    history.jsonl           one line per evaluated round
    checkpoint.safetensors  where to go on (`checkpoint.py`)
    model.safetensors       the trained model (`equipoise.artifact`)
    result.json             how it ended; its presence says that the run is finished
    rows.safetensors        what each scored row adds to the score, where the rows were at hand: for comparisons
    agreement.json          of a run over Flower: its sites, and how they read their tables

All files but the history are replaced whole. The history grows by lines, each written before the checkpoint that
counts on it; `resume` cuts off what no checkpoint covers. Not-a-number is null.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from equipoise.errors import InputError, require
from equipoise.files import write_whole

CONFIG, ENVIRONMENT, FEDERATION = "config.toml", "environment.json", "federation.json"
HISTORY, RESULT, CHECKPOINT, MODEL = "history.jsonl", "result.json", "checkpoint.safetensors", "model.safetensors"
AGREEMENT, ROW_SCORES = "agreement.json", "rows.safetensors"


class Record(BaseModel):
    """Read and written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


Number = Annotated[float | None, BeforeValidator(_finite)]  # null: not known, or not finite
PerClient = tuple[Number, ...]  # an entry per client, in the federation's order


class Row(Record):
    """One evaluated round; counts, bytes and seconds are totals since the start."""

    round: int
    seconds: float  # running, without compiling and evaluating
    asked: tuple[int, ...]  # messages to clients, per exchange of the algorithm
    answered: tuple[int, ...]  # replies that counted, per exchange
    broken: int  # replies that were not finite
    bytes_down: int
    bytes_up: int
    loss: PerClient  # f_i of each client's training rows
    scores: dict[str, PerClient]  # on each client's held-out rows; "loss" among them
    lam: PerClient | None = None  # the weights of the clients, for methods that have them
    objective: Number = None  # max_lam sum lam_i f_i - psi(lam), of the training losses above
    gap: Number = None  # a bound on how far the objective was from its optimum when the round began
    distance: Number = None  # |x - x*|^2, where the saddle point is known


class Member(Record):
    """One client of the federation."""

    name: str
    train: int  # rows
    test: int


class Federation(Record):
    """Whom a model was trained on."""

    what: str  # one sentence
    task: str  # "classification" or "regression"
    classes: tuple[str, ...]  # empty for a regression
    members: tuple[Member, ...]
    held_out: bool  # False: the scores are of the training rows, none having been held out
    parameters: int  # numbers of the model
    exchanges: tuple[str, ...]  # of the algorithm's round
    notes: tuple[str, ...] = ()  # what was left out, what was measured instead of chosen


class Environment(Record):
    """Where a run took place."""

    equipoise: str
    python: str
    jax: str
    numpy: str
    platform: str
    device: str
    devices: int
    precision: str
    git: str | None  # commit of the working directory, with "+" if it was changed
    started: str  # UTC, ISO 8601


class Outcome(Record):
    """How a run ended. The clients' values are in the last row."""

    label: str  # what to call the run beside others
    rounds: int
    seconds: float
    compile_seconds: float
    measure: str  # the score that the summary is of
    higher_is_better: bool
    summary: dict[str, Number]  # as `fairness.summary`: mean, worst20, best20, min, max, std, ...
    low: PerClient  # bounds of each client's score
    high: PerClient
    worst_low: Number  # bounds of the mean over the worst share
    worst_high: Number
    worst_estimate: Number = None  # that mean, corrected for chance: the worst of noisy scores look worse than they are
    mean_low: Number = None  # bounds of the mean over the clients
    mean_high: Number = None
    events: tuple[str, ...] = ()  # what went wrong on the way, a sentence each


class RowScores(NamedTuple):
    """What each scored row adds to a score, client after client: 1 or 0 to an accuracy, a squared error to an RMSE."""

    score: str
    rows: str  # a digest of the rows: runs with the same one were scored on the same rows
    values: np.ndarray


class Run(NamedTuple):
    """A run folder, read."""

    path: Path
    config: dict[str, Any]
    environment: Environment
    federation: Federation
    rows: list[Row]
    outcome: Outcome | None  # None: not finished


R = TypeVar("R", bound=Record)


def read(path: str | Path) -> Run:
    path = Path(path)
    require((path / CONFIG).is_file(), f"{path} is no run folder; give one that `equipoise run` made")
    return Run(
        path,
        tomllib.loads((path / CONFIG).read_text()),
        read_record(path / ENVIRONMENT, Environment),
        read_record(path / FEDERATION, Federation),
        read_rows(path / HISTORY),
        read_record(path / RESULT, Outcome) if finished(path) else None,
    )


def finished(path: Path) -> bool:
    return (path / RESULT).is_file()


def find(path: str | Path) -> list[Path]:
    """The run folder itself, or all that stand below it, by name."""
    path = Path(path)
    require(path.is_dir(), f"there is no folder {path}; give a run folder, or one that holds some")
    found = sorted(file.parent for file in path.rglob(FEDERATION))
    require(found, f"{path} holds no runs; give a folder that `equipoise run`, `compare` or `sweep` made")
    return found


def write_record(path: Path, record: Record) -> None:
    write_whole(path, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path, kind: type[R]) -> R:
    require(path.is_file(), f"{path.parent} has no {path.name}: it is no run folder, or it was stopped before it began")
    return _parsed(path, path.read_text(), kind)


def write_row_scores(path: Path, found: RowScores) -> None:
    values = found.values.astype(np.uint8 if found.score == "accuracy" else np.float32)
    write_whole(path, safetensors.numpy.save({"values": values}, metadata={"score": found.score, "rows": found.rows}))


def read_row_scores(path: Path) -> RowScores | None:
    """None where there are none: of a run of an earlier version, or over a network."""
    if not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            told = file.metadata() or {}
            return RowScores(told["score"], told["rows"], file.get_tensor("values"))
    except (safetensors.SafetensorError, OSError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error}); it is damaged: remove it to report without it") from None


def append_row(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(row.model_dump_json() + "\n")


def read_rows(path: Path) -> list[Row]:
    """The rows that were written to their end."""
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []  # what follows the last newline is torn
    return [_parsed(path, line, Row) for line in lines]


def cut_rows(path: Path, last: int) -> list[Row]:
    """Leaves the rows up to round `last`, which is where the checkpoint stands."""
    rows = [row for row in read_rows(path) if row.round <= last]
    write_whole(path, "".join(row.model_dump_json() + "\n" for row in rows))
    return rows


def _parsed(path: Path, text: str, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        why = f"{where}: {first['msg']}"
        raise InputError(f"{path} cannot be read ({why}); it is damaged or of another version") from None
