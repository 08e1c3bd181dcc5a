"""The methods of the benchmark. Nothing is tuned for any of them, and own parts, metric and l2 (but for the default's,
which chooses it) are the same.

A method is settings of a run, over the library's defaults, or a function that fits a model to a `Federation`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from equipoise.bench import outside
from equipoise.bench.federations import Federation
from equipoise.experiment.choice import ROUNDS, left_open

Kind = Literal["method", "setting", "bound", "entered"]
DEFAULT, ALONE = "default", "alone"  # what a user gets, and what an owner has already
FIXED = "fixed"  # that all are compared with: of the rows that change one setting, it is the one without the change
AVERAGE = {"objective": {"name": "average"}}


class Method(NamedTuple):
    """One row of the table."""

    about: str
    kind: Kind  # setting: `fixed` with one setting changed, which decides on that default
    settings: Mapping[str, Any] | None = None  # of a run
    fit: Callable[[Federation], outside.Predict] | None = None  # or a model
    code: str = ""  # a digest of the file, of one that is entered


OPENED = left_open({"partition": {"kind": "natural"}})
CHOSEN = {section: OPENED[section] for section in ("model", "objective")}  # what `equipoise run` leaves to folds


def _trains(algorithm: str, about: str, objective: Mapping[str, Any] = AVERAGE["objective"]) -> Method:
    """For as many rounds as in `equipoise compare`: where nothing is certified, no training rows are set aside."""
    sections = {"algorithm": {"name": algorithm}, "objective": objective, "run": {"rounds": ROUNDS}}
    return Method(about, "method", sections)


def _changed(about: str, **sections: Any) -> Method:
    return Method(about, "setting", sections)


METHODS: dict[str, Method] = {
    DEFAULT: Method("`equipoise run`, told whose data it is and nothing else", "method", CHOSEN),
    FIXED: Method("the same, with l2 0.01 and rho 0.1 instead of choosing them", "setting", {}),
    "FedAvg": _trains("fedavg", "McMahan et al. 2017"),
    "FedProx": _trains("fedprox", "Li et al. 2020"),
    "SCAFFOLD": _trains("scaffold", "Karimireddy et al. 2020"),
    "q-FedAvg": _trains("qfedavg", "Li et al. 2020, of losses"),
    "DRFA": _trains("drfa", "Deng et al. 2020, of losses", {"name": "agnostic", "of": "losses"}),
    "objective: average": _changed("the mean over the owners", **AVERAGE),
    "objective: losses": _changed("the same objective, of losses instead of gains", objective={"of": "losses"}),
    "objective: gains": _changed("the same objective, of gains instead of losses", objective={"of": "gains"}),
    "objective: CVaR 0.4": _changed("the worst two fifths", objective={"name": "cvar", "alpha": 0.4}),
    "rounds: 10": _changed("ten rounds", run={"rounds": 10}),
    "rounds: 100": _changed("a hundred rounds", run={"rounds": 100}),
    "own: none": _changed("no part of the model is the owners' own", model={"own": "none"}),
    "own: intercept": _changed("every owner has an intercept of its own", model={"own": "intercept"}),
    "metric: none": _changed("trained as it is", model={"metric": "none"}),
    "metric: auto": _changed("trained where it is well conditioned", model={"metric": "auto"}),
    "l2: 0.1": _changed("a heavy penalty", model={"l2": 0.1}),
    "l2: 0.01": _changed("a tenth of that", model={"l2": 0.01}),
    "l2: 0.001": _changed("a light penalty", model={"l2": 0.001}),
    "l2: auto": _changed("a penalty chosen by folds at the owners", model={"l2": "auto"}),
    ALONE: Method("each owner's own linear model, l2 by its own folds", "bound", fit=outside.alone),
    "boosting alone": Method("scikit-learn's, each owner's own", "bound", fit=outside.boosting_alone),
    "pooled linear": Method("scikit-learn's, sees all rows and owners' names", "bound", fit=outside.pooled_linear),
    "pooled boosting": Method("scikit-learn's, sees all rows and base rates", "bound", fit=outside.pooled_boosting),
}
