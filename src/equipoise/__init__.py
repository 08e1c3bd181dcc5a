"""Equipoise: one model that works for every data owner."""

import importlib
from typing import TYPE_CHECKING, Any

from equipoise import (
    algorithms,
    certificates,
    cohorts,
    cores,
    data,
    errors,
    evaluation,
    objectives,
    programs,
    steps,
    tasks,
)
from equipoise.engines import Result, debug, kernel, simulate
from equipoise.evaluation import fairness

if TYPE_CHECKING:
    from equipoise import artifact, experiment, models

LATER = ("artifact", "experiment", "models")  # with libraries that not everybody needs at once

__all__ = [
    "Result",
    "algorithms",
    "artifact",
    "certificates",
    "cohorts",
    "cores",
    "data",
    "debug",
    "errors",
    "evaluation",
    "experiment",
    "fairness",
    "kernel",
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
