"""What others show of a run while it runs: TensorBoard beside the history, MLflow where its own settings say."""

import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.errors import InputError
from equipoise.experiment import folders
from equipoise.experiment.config import Config
from equipoise.experiment.records import Row, flat

NAMED = 50  # clients whose weights are shown one by one
NOT_TAKEN = re.compile(r"[^A-Za-z0-9_. /-]")  # letters that MLflow refuses in the name of a metric


class Board(NamedTuple):
    """Takes every row of a history."""

    add: Callable[[Row], None]
    close: Callable[[], None]


def boards(config: Config, folder: Path, names: tuple[str, ...]) -> list[Board]:
    """Those that the run asks for."""
    tensorboard = [_tensorboard(folder, names)] if config.run.tensorboard else []
    return [*tensorboard, *([_mlflow(config, folder, names)] if config.run.mlflow else [])]


def numbers_of(row: Row, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """What is shown of a row."""
    for score, values in row.scores.items():
        numbers = [v for v in values if v is not None]
        if numbers:
            yield f"{score}/mean", float(np.mean(numbers))
            yield f"{score}/lowest", min(numbers)
            yield f"{score}/highest", max(numbers)
    for name, value in (("objective", row.objective), ("gap", row.gap), ("bytes", row.bytes_down + row.bytes_up)):
        if value is not None:
            yield name, value
    if len(names) <= NAMED:
        for name, weight in zip(names, row.lam or (), strict=False):
            if weight is not None:
                yield f"lambda/{name}", weight


def _tensorboard(folder: Path, names: tuple[str, ...]) -> Board:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError("run.tensorboard needs one more package: pip install 'equipoise[tensorboard]'") from None
    writer = SummaryWriter(str(folder / folders.BOARD))

    def add(row: Row) -> None:
        for name, value in numbers_of(row, names):
            writer.add_scalar(name, value, row.round)
        writer.flush()

    return Board(add, writer.close)


def _mlflow(config: Config, folder: Path, names: tuple[str, ...]) -> Board:
    """A run of MLflow's, named after the folder; a run that is resumed is another one there, with the same name."""
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise InputError("run.mlflow needs one more package: pip install 'equipoise[mlflow]'") from None
    try:
        client, title = MlflowClient(), config.name
        existing = client.get_experiment_by_name(title)
        experiment = client.create_experiment(title) if existing is None else existing.experiment_id
        run = client.create_run(experiment, run_name=folder.name).info.run_id
        client.log_batch(run, params=[Param(key, str(value)[:500]) for key, value in flat(config.used()).items()])
    except (MlflowException, ImportError) as error:  # of a database, MLflow imports a package that it may not have
        wrong = f"MLflow does not take the run ({' '.join(str(error).split()).rstrip('.')})"
        raise InputError(f"{wrong}; set MLFLOW_TRACKING_URI to a server or to sqlite:///mlflow.db") from None
    lost = False

    def add(row: Row) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(NOT_TAKEN.sub("_", name), value, now, row.round) for name, value in numbers_of(row, names)]
        tell(lambda: client.log_batch(run, metrics=metrics))

    def tell(do: Callable[[], object]) -> None:
        nonlocal lost
        try:
            if not lost:
                do()
        except MlflowException as error:
            lost = True
            why = " ".join(str(error).split())
            warnings.warn(f"MLflow takes no more of this run ({why}); it goes on, its history is whole", stacklevel=4)

    return Board(add, lambda: tell(lambda: client.set_terminated(run)))
