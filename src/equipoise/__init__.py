"""Equipoise: one model that works for every data owner."""

import importlib
from typing import TYPE_CHECKING, Any

from equipoise import (
    algorithms,
    cohorts,
    cores,
    data,
    errors,
    fairness,
    metrics,
    objectives,
    programs,
    steps,
    tasks,
)
from equipoise.engines import Result, debug, kernel, simulate

if TYPE_CHECKING:
    from equipoise import artifact, evaluation, experiment, models

LATER = ("artifact", "evaluation", "experiment", "models")  # with libraries that not everybody needs at once

__all__ = [
    "Result",
    "algorithms",
    "artifact",
    "cohorts",
    "cores",
    "data",
    "debug",
    "errors",
    "evaluation",
    "experiment",
    "fairness",
    "kernel",
    "metrics",
    "models",
    "objectives",
    "programs",
    "simulate",
    "steps",
    "tasks",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in LATER:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
