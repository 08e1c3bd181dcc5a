"""Equipoise: one model that works for every data owner."""

import importlib
from typing import TYPE_CHECKING, Any

from equipoise import cores

cores.use_all()  # before JAX starts its devices

from equipoise import algorithms, certificates, cohorts, data, errors, evaluation, objectives, steps, tasks  # noqa: E402
from equipoise.engines import Result, debug, simulate  # noqa: E402
from equipoise.evaluation import fairness  # noqa: E402

if TYPE_CHECKING:
    from equipoise import artifact, experiment, models

LATER = ("artifact", "experiment", "models")  # with libraries that not everybody needs at once

__all__ = [
    "Result",
    "algorithms",
    "artifact",
    "certificates",
    "cohorts",
    "data",
    "debug",
    "errors",
    "evaluation",
    "experiment",
    "fairness",
    "models",
    "objectives",
    "simulate",
    "steps",
    "tasks",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in LATER:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
