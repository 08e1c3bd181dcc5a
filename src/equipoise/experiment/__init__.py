"""Experiments: from a configuration to run folders.

from equipoise import experiment

done = experiment.train({"data": {"silos": "hospitals", "label": "readmitted"}}, "runs/readmitted")
"""

import importlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.experiment import choice, config, folders, library, plan, reading, records, run

__all__ = ["choice", "config", "folders", "library", "plan", "reading", "records", "run", "train"]


def __getattr__(name: str) -> object:
    """Each file is imported when it is first asked for: a command begins at once."""
    if name not in __all__:
        raise AttributeError(f"module 'equipoise.experiment' has no attribute '{name}'")
    return importlib.import_module(f"equipoise.experiment.{name}")


def train(settings: Mapping[str, object], folder: str | PathLike[str], **options: Any) -> "records.Run":
    """One run of the settings of a configuration file, into `folder`; see `run.run`."""
    from equipoise.experiment import config, run

    return run.run(config.parse(settings), Path(folder), **options)
