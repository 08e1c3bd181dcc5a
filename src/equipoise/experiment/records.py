"""What a run leaves behind: a folder, and what its files say.

    equipoise.json          what the folder is, and the version of its format
    config.toml             every setting, defaults included: the run can be repeated from it
    environment.json        versions, device, precision, the state of the source
    federation.json         whom it was trained on
    history.jsonl           one line per evaluated round
    checkpoint.safetensors  where to go on (`checkpoint.py`)
    model.safetensors       the trained model (`equipoise.artifact`)
    result.json             how it ended; its presence says that the run is finished
    personal.json           how every owner fares with the shared model and with its own, where it has one
    personal.safetensors    those models, where they were made here; over Flower each stays with its owner
    alone.json              of a comparison: what each client gets from a model of its own rows alone
    alone.safetensors       what each scored row adds to that score
    stage.1/                with [convexify], the run that trained the network: a run folder of its own
    convex.1/               with model.convexified, the run of the convex model of the network: another one
    chosen.json             settings that nobody gave: what was chosen, why, and all that was tried
    rows.safetensors        what each scored row adds to the score, where the rows were at hand: for comparisons
    agreement.json          of a run over Flower: its sites, and how they read their tables
    status.json, log.jsonl  of a run over Flower: how it stands, and all that happened

All files but the history are replaced whole. The history grows by lines, each written before the checkpoint that
counts on it and knows it by a digest; `resume` cuts off what no checkpoint covers. Not-a-number is null.
"""

import json
import math
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from equipoise import files, tensors
from equipoise.errors import InputError, require
from equipoise.files import write_whole

if TYPE_CHECKING:
    import polars as pl

MARKER, FORMAT = "equipoise.json", 1  # the format of the folders that this version writes
CONFIG, ENVIRONMENT, FEDERATION = "config.toml", "environment.json", "federation.json"
HISTORY, RESULT, CHECKPOINT, MODEL = "history.jsonl", "result.json", "checkpoint.safetensors", "model.safetensors"
AGREEMENT, ROW_SCORES = "agreement.json", "rows.safetensors"
STATUS, LOG = "status.json", "log.jsonl"
PERSONAL, OWN_MODELS, OWN_ROWS = "personal.json", "personal.safetensors", "personal-rows.safetensors"
OWN_PARTS = "own.safetensors"
ALONE, ALONE_ROWS = "alone.json", "alone.safetensors"
CHOSEN = "chosen.json"
FILES = (
    RESULT, CHECKPOINT, HISTORY, MODEL, ROW_SCORES, PERSONAL, OWN_MODELS, OWN_ROWS, OWN_PARTS, ALONE, ALONE_ROWS,
    FEDERATION, ENVIRONMENT, AGREEMENT, STATUS, LOG, CHOSEN,
)  # fmt: skip
STAGE_1, CONVEXIFIED = "stage.1", "convex.1"  # folders; no label of a run is called so (`folders.name`)


class JsonRecord(BaseModel):
    """Read and written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Choice(JsonRecord):
    """A setting that was chosen: what, why, and what would have been next."""

    key: str  # "section.key": set it, and nothing is chosen
    value: float | str
    why: str  # a sentence for people
    runner_up: float | str | None  # None: nothing else was usable
    tried: tuple[dict[str, float | str | None], ...]  # every candidate, as "value", and how good it was
    rounds: int  # of communication that it took
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def sentence(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:.4g}"
        return f"{self.key} was chosen: {value}; {self.why}"


class Choices(JsonRecord):
    """All of a run."""

    settings: tuple[Choice, ...]


# null: not known, or not finite
Number = Annotated[float | None, BeforeValidator(lambda v: v if not isinstance(v, float) or math.isfinite(v) else None)]
PerClient = tuple[Number, ...]  # an entry per client, in the federation's order
Kind = Literal["run", "plan"]


class Marker(JsonRecord):
    """What a folder is: one run, or a plan, whose runs have folders of their own below it."""

    equipoise: str  # version that began it
    format: int
    kind: Kind
    settings: str = ""  # a digest of those that a run was begun with


class Row(JsonRecord):
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
    validation: Number = None  # the worst fifth on validation rows, with `run.keep_best`
    lam: PerClient | None = None  # the weights of the clients, for methods that have them
    objective: Number = None  # max_lam sum lam_i f_i - psi(lam), of the training losses above
    gap: Number = None  # a bound on how far the objective was from its optimum when the round began
    distance: Number = None  # |x - x*|^2, where the saddle point is known


class ClientRecord(JsonRecord):
    """One client of the federation."""

    name: str
    train: int  # rows
    test: int
    counted: float | None = None  # as how many independent rows its scored ones count, with data.unit; None: each does
    baseline: Number = None  # with objective.of = "gains", the loss of its own model on rows that it has not seen


class FederationRecord(JsonRecord):
    """Whom a model was trained on."""

    what: str  # one sentence
    task: str  # "classification" or "regression"
    classes: tuple[str, ...]  # empty for a regression
    members: tuple[ClientRecord, ...]
    held_out: bool  # False: the scores are of the training rows, none having been held out
    parameters: int  # numbers of the model
    exchanges: tuple[str, ...]  # of the algorithm's round
    notes: tuple[str, ...] = ()  # what was left out, what was measured instead of chosen
    score: str | None = None  # that runs on it are summed up by, unless they say otherwise; None: the one of the task


class Environment(JsonRecord):
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
    files: dict[str, str] = {}  # digests of the files that the rows were read from
    started: str  # UTC, ISO 8601


class RunResult(JsonRecord):
    """How a run ended. The clients' values are in the row of the model, see `Run.final`."""

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
    # Of all clients' scored rows, from the least likely to the likeliest: mean probability, share that came, rows.
    calibration: tuple[tuple[float, float, int], ...] = ()
    best_round: int | None = None  # with `run.keep_best`, the round whose model this is; None: the last
    events: tuple[str, ...] = ()  # what went wrong on the way, a sentence each


class PersonalRecord(JsonRecord):
    """Every owner with the shared model and with its own, on the same rows as the scores of the last row."""

    kind: str  # "best", "fine_tuning" or "moreau"
    measure: str
    higher_is_better: bool
    shared: PerClient
    own: PerClient
    pull: PerClient | None = None  # with which an own model was tuned; 0: the owner keeps the shared one; -1: alone
    scores: dict[str, PerClient] = {}  # of own models, where the rows are at hand


class AloneRecord(JsonRecord):
    """How well each client is served by a model of its own rows alone."""

    measure: str  # the score that the bounds are of
    scores: dict[str, PerClient]  # on each client's held-out rows
    low: PerClient  # bounds of each client's score
    high: PerClient


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
    federation: FederationRecord
    rows: list[Row]
    outcome: RunResult | None  # None: not finished
    personal: PersonalRecord | None = None  # None: owners have no models of their own
    chosen: tuple[Choice, ...] = ()  # instead of being told

    @property
    def final(self) -> Row:
        """The row of the model that the run ended with: the last, or that of its best round."""
        best = None if self.outcome is None else self.outcome.best_round
        return self.rows[-1] if best is None else next(row for row in self.rows if row.round == best)


R = TypeVar("R", bound=JsonRecord)


def marker(folder: Path) -> Marker | None:
    """None for a folder without a marker: not one of ours, or of a version before markers."""
    path = folder / MARKER
    if not path.is_file():
        return None
    try:
        saved = Marker.model_validate_json(files.read_text(path))
    except (ValidationError, InputError):
        raise InputError(f"{path} is damaged, so that {folder} is left as it is; restore the file") from None
    written = f"{folder} was written by Equipoise {saved.equipoise} in format {saved.format}"
    require(saved.format == FORMAT, f"{written}, and this version knows format {FORMAT}; use that version")
    return saved


def read(path: str | Path) -> Run:
    """The folder, all of whose files fit together."""
    path = Path(path)
    marker(path)
    require((path / CONFIG).is_file(), f"{path} is not a run folder; give one that `equipoise run` made")
    read = Run(
        path,
        read_toml(path / CONFIG),
        read_record(path / ENVIRONMENT, Environment),
        read_record(path / FEDERATION, FederationRecord),
        read_rows(path / HISTORY),
        read_record(path / RESULT, RunResult) if finished(path) else None,
        read_record(path / PERSONAL, PersonalRecord) if finished(path) and (path / PERSONAL).is_file() else None,
        read_record(path / CHOSEN, Choices).settings if (path / CHOSEN).is_file() else (),
    )
    _check_fit(read)
    return read


def _check_fit(read: Run) -> None:
    """Files of different runs are told apart here, not by a report that fails."""
    n, path, outcome, own = len(read.federation.members), read.path / HISTORY, read.outcome, read.personal
    others = f"is not of the {n} clients of {FEDERATION}; one of the files is of another run"
    require(n > 0, f"{read.path / FEDERATION} names no clients; it is damaged")
    for row in read.rows:
        per_client = (row.loss, *row.scores.values(), *(() if row.lam is None else (row.lam,)))
        fits = (
            all(len(values) == n for values in per_client)
            and len(row.asked) == len(row.answered) == len(read.rows[0].asked)
            and row.scores.keys() == read.rows[0].scores.keys()
        )
        require(fits, f"{path}, round {row.round}, {others}")
    rounds = [row.round for row in read.rows]
    require(all(a < b for a, b in pairwise(rounds)), f"{path} does not go from round to round; it is damaged")
    if outcome is None:
        return
    fits = own is None or len(own.shared) == len(own.own) == len(own.pull or own.own) == n
    require(fits, f"{read.path / PERSONAL} {others}")
    fits = (
        len(outcome.low) == len(outcome.high) == n
        and rounds[-1:] == [outcome.rounds]
        and outcome.best_round in (None, *rounds)
        and outcome.measure in read.rows[-1].scores
    )
    require(fits, f"{read.path / RESULT} does not fit {HISTORY}; one of them is damaged or of another run")


def finished(path: Path) -> bool:
    """Whether a run folder has its result, which is written last."""
    return (path / RESULT).is_file()


def find(path: str | Path) -> list[Path]:
    """The run folder itself, or all that stand below it, by name."""
    path = Path(path)
    require(path.is_dir(), f"there is no folder {path}; give a run folder, or one that holds some")
    marked = marker(path)
    if marked is not None and marked.kind == "run":
        return [path]
    inside = (file.parent for file in path.rglob(FEDERATION))
    runs = sorted(run for run in inside if not {STAGE_1, CONVEXIFIED} & set(run.relative_to(path).parts))
    require(runs, f"{path} holds no runs; give a folder that `equipoise run`, `compare` or `sweep` made")
    return runs


def frame(path: str | Path) -> "pl.DataFrame":
    """Every run below a folder as one table: a row for each run, evaluated round and client."""
    import polars as pl

    tables = []
    for folder in find(path):
        run = read(folder)
        members = run.federation.members
        for row in run.rows:
            # A score may be called "loss", which is that of the held-out rows then.
            scores = {"test_loss" if name == "loss" else name: values for name, values in row.scores.items()}
            numbers = {"weight": row.lam or [None] * len(members), "loss": row.loss, **scores}
            columns: dict[str, Any] = {"run": str(folder), "label": run.outcome.label if run.outcome else folder.name}
            columns |= {"round": [row.round] * len(members), "client": [member.name for member in members]}
            columns["train_rows"] = [member.train for member in members]
            columns |= {name: pl.Series(values, dtype=pl.Float64) for name, values in numbers.items()}
            tables.append(pl.DataFrame(columns))
    require(tables, f"{path}: nothing was trained there yet")
    return pl.concat(tables, how="diagonal")


def write_record(path: Path, record: JsonRecord) -> None:
    """As JSON, whole or not at all."""
    write_whole(path, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path, kind: type[R]) -> R:
    """What `write_record` wrote, checked."""
    absent = f"{path.parent} has no {path.name}: it is not a run folder, or it was stopped before it began"
    require(path.is_file(), absent)
    return _parsed(path, files.read_text(path), kind)


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a file, unchecked."""
    try:
        return tomllib.loads(files.read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def append_row(path: Path, row: Row) -> str:
    """The line that was written."""
    line = row.model_dump_json() + "\n"
    files.append(path, line)
    return line


def write_row_scores(path: Path, scores: RowScores) -> None:
    """Accuracies as bytes, errors in single precision."""
    values = scores.values.astype(np.uint8 if scores.score == "accuracy" else np.float32)
    tensors.write(path, {"values": values}, json.dumps({"score": scores.score, "rows": scores.rows}))


def read_row_scores(path: Path) -> RowScores | None:
    """None for a run without them: of an earlier version, or over a network."""
    if not path.is_file():
        return None
    try:
        arrays, text = tensors.read(path)
        about = json.loads(text)
        return RowScores(about["score"], about["rows"], arrays["values"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); it is damaged: remove it to report without it") from None


def read_alone(folder: Path) -> AloneRecord | None:
    """None for a run that was not part of a comparison."""
    path = folder / ALONE
    return read_record(path, AloneRecord) if path.is_file() else None


def read_rows(path: Path) -> list[Row]:
    """The rows that were written to their end."""
    lines = files.read_text(path).split("\n")[:-1] if path.is_file() else []  # what follows the last newline is torn
    return [_parsed(path, line, Row) for line in lines]


def _parsed(path: Path, text: str, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
        raise InputError(f"{path} cannot be read ({why}); it is damaged or of another version") from None
