"""Equipoise: one model that works for every data owner."""

import importlib

TYPE_CHECKING = (
    False  # as in `typing`, which is not loaded here: Ctrl-C is not answered in a sentence before `__main__`
)
if TYPE_CHECKING:
    from equipoise import (
        algorithms,
        artifact,
        certificates,
        cohorts,
        data,
        errors,
        evaluation,
        experiment,
        metric,
        models,
        objectives,
        steps,
        tasks,
    )
    from equipoise._jax import keep_programs, use_all_cores
    from equipoise.engines import kernel
    from equipoise.engines.debug import debug
    from equipoise.engines.simulator import Result, simulate
    from equipoise.engines.sweep import Trial, grid, sweep
    from equipoise.estimator import Fitted, fit
    from equipoise.evaluation import fairness
    from equipoise.leaves import numbers_are_leaves
    from equipoise.sklearn import EquipoiseClassifier, EquipoiseRegressor

ENGINES = ("Result", "Trial", "debug", "grid", "kernel", "simulate", "sweep")
SETUP = ("keep_programs", "use_all_cores")
LEAVES = ("numbers_are_leaves",)
ESTIMATOR = ("Fitted", "fit")
SKLEARN = ("EquipoiseClassifier", "EquipoiseRegressor")
__all__ = [
    "EquipoiseClassifier",
    "EquipoiseRegressor",
    "Fitted",
    "Result",
    "Trial",
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
    "fit",
    "grid",
    "keep_programs",
    "kernel",
    "metric",
    "models",
    "numbers_are_leaves",
    "objectives",
    "simulate",
    "steps",
    "sweep",
    "tasks",
    "use_all_cores",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Loaded when it is first asked for: what nobody asks for costs nothing, and Ctrl-C finds a command at once."""
    if name not in __all__:
        raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
    if name in ENGINES:
        return getattr(importlib.import_module("equipoise.engines"), name)
    if name in ESTIMATOR:
        return getattr(importlib.import_module("equipoise.estimator"), name)
    if name in SKLEARN:
        return getattr(importlib.import_module("equipoise.sklearn"), name)
    if name in LEAVES:
        return getattr(importlib.import_module("equipoise.leaves"), name)
    if name in SETUP:
        return getattr(importlib.import_module("equipoise._jax"), name)
    return importlib.import_module("equipoise.evaluation.fairness" if name == "fairness" else f"equipoise.{name}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
