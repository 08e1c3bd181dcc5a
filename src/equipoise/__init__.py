"""Equipoise: one model that works for every data owner."""

from equipoise import cores as _cores

_cores.use_all()  # before JAX starts its devices

from equipoise import algorithms, cohorts, data, errors, objectives, steps, tasks  # noqa: E402
from equipoise.engines import Result, debug, simulate  # noqa: E402

__all__ = [
    "Result",
    "algorithms",
    "cohorts",
    "data",
    "debug",
    "errors",
    "objectives",
    "simulate",
    "steps",
    "tasks",
]
__version__ = "0.1.0"
