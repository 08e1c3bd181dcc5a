"""Experiments: from a configuration to run folders.

from equipoise import experiment

done = experiment.train({"data": {"silos": "hospitals", "label": "readmitted"}}, "runs/readmitted")
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any


def train(settings: Mapping[str, object], folder: str | PathLike[str], **options: Any) -> Any:
    """One run of the settings of a configuration file, into `folder`; see `run.run`."""
    from equipoise.experiment import config, run

    return run.run(config.parse(settings), Path(folder), **options)
