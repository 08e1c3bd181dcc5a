"""From silo files to one fair model, with nothing to tune.

    silos = equipoise.data.silos.read("hospitals", label="readmitted")
    fitted = fit(silos, objective="chi2", rho=0.1)
    fitted.save("readmitted.safetensors")

The model is linear (softmax or linear regression with an l2 penalty): the problem is then convex, and SCAFF-PD's
step sizes can be measured instead of chosen. Anything else is a few more lines of the library (docs/silos.md).
"""

import math
from collections.abc import Callable
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from equipoise import algorithms, artifact, cohorts, evaluation, models, objectives, steps, tasks
from equipoise.data.silos import Silos
from equipoise.engines.simulator import Progress, simulate
from equipoise.errors import InputError, positive, require, unknown
from equipoise.evaluation import PerClient
from equipoise.metrics import gap_bound
from equipoise.models import Model
from equipoise.objectives import Dual
from equipoise.protocol import Vector

# The objectives, and the value of their parameter unless it is given.
PARAMETERS = {"agnostic": None, "average": None, "chi2": 0.1, "chi2_ball": 0.5, "cvar": 0.2, "kl": 0.1, "tv": 0.1}
ROBUST, PLAIN = ("scaffpd", "scaffpd_secure"), ("scaffold", "fedavg")


class Fitted(NamedTuple):
    """A trained model, and how it fares at every silo."""

    x: Vector
    model: Model
    loss: str  # its name in `models.LOSSES`
    silos: Silos
    weights: Float[np.ndarray, " n"]  # what each silo counts for in the end
    gap: float  # how far at most the objective was from its optimum when the last round began; NaN: no certificate
    table: PerClient  # on the rows held out, or on the training rows where none were; RMSE in the label's units
    settings: dict[str, Any]  # what `fit` was told

    def save(self, path: str | PathLike[str]) -> None:
        """A file that `artifact.predict` applies to new rows."""
        told = {name: [_number(v) for v in column] for name, column in self.table.scores.items()}
        metadata = {
            **self.settings,
            "silos": {"names": self.silos.names, "test rows": self.table.sizes.tolist(), "scores": told},
            "weights": self.weights.tolist(),
            "gap": _number(self.gap),
        }
        artifact.save(path, self.x, self.model, self.silos.encoding, loss=self.loss, metadata=metadata)

    def report(self, **how: Any) -> Any:
        """What to print; see `evaluation.report`."""
        return evaluation.report(self.table, self.silos.names, **how)


def fit(
    silos: Silos,
    *,
    objective: str | Callable[[int], Dual] = "chi2",
    rho: float | None = None,
    algorithm: str = "scaffpd",
    rounds: int = 100,
    local_steps: int = 10,
    l2: float = 1e-2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fitted:
    """Trains a linear model for all silos of `equipoise.data.silos.read`.

    Args:
        silos: the federation.
        objective: chi2, kl, tv, cvar, chi2_ball, agnostic, or average; or a function of the number of silos.
        rho: the objective's parameter: rho of chi2, kl and tv (small: robust, large: average), alpha of cvar, radius
            of chi2_ball.
        algorithm: scaffpd, scaffpd_secure; for the average also scaffold and fedavg, as baselines.
        rounds: rounds of communication; `gap` says whether they were enough.
        local_steps: gradient steps at a silo in every round.
        l2: coefficient of |x|^2/2, above zero.
        seed: for the intervals.
        progress: called now and then with (rounds done, rounds in all, gap).
    """
    positive("l2", l2)
    positive("local_steps", local_steps)
    n = len(silos.names)
    dual = _dual(objective, n, rho)
    if algorithm not in ROBUST + PLAIN:
        raise unknown("algorithm to fit with", algorithm, ROBUST + PLAIN)
    require(
        algorithm in ROBUST or objective == "average",
        f"{algorithm} minimises the average; say objective='average', or algorithm='scaffpd'",
    )
    loss = "cross_entropy" if silos.task == "classification" else "squared_error"
    model = models.linear(math.prod(silos.encoding.shape), silos.encoding.outputs)
    task = tasks.task_of(model.init, model.apply, models.LOSSES[loss], l2=l2)
    x, everyone = task.init(jax.random.key(seed)), cohorts.everyone(n)
    how: dict[str, Any] = {"steps": local_steps}
    if algorithm in ROBUST:
        rule, how["local_lr"], _ = steps.tuned(task, silos.train, x, dual, steps=local_steps, mu=l2)
        method = algorithms.named(algorithm)(task, dual, everyone, rule, **how)
    else:
        how["local_lr"] = 1 / steps.estimate_constants(task, silos.train, x, mu=l2).L_xx
        method = algorithms.named(algorithm)(task, everyone, **how)

    def certificate(server: Any) -> Any:
        if algorithm in PLAIN:
            return jnp.full((), jnp.nan, x.dtype)
        return gap_bound(dual, server.losses, server.lam, server.c, mu=l2)

    result = simulate(method, x, silos.train, seed, rounds=rounds, record=certificate, progress=progress)
    x = method.model(result.server)
    weights = np.full(n, 1 / n) if algorithm in PLAIN else np.asarray(result.server.lam)
    settings = {
        "objective": objective if isinstance(objective, str) else dual.name,
        "rho": rho if rho is not None or not isinstance(objective, str) else PARAMETERS[objective],
        "algorithm": algorithm,
        "rounds": result.rounds,
        "local steps": local_steps,
        "l2": l2,
        "seed": seed,
    }
    gap = float(result.history[-1]) if result.rounds else math.nan
    return Fitted(x, model, loss, silos, weights, gap, _evaluated(task, x, silos, seed), settings)


def _evaluated(task: tasks.Task, x: Vector, silos: Silos, seed: int) -> PerClient:
    draws = 0 if silos.task == "classification" else 200  # accuracies know their intervals without
    table = evaluation.evaluate(task, x, silos.train if silos.test is None else silos.test, draws=draws, key=seed)
    if silos.task == "classification":
        return table
    unit = silos.encoding.target.scale
    scores, resampled = ({**t, "rmse": t["rmse"] * unit} for t in (table.scores, table.resampled))
    return table._replace(scores=scores, resampled=resampled)


def _dual(objective: str | Callable[[int], Dual], n: int, rho: float | None) -> Dual:
    if not isinstance(objective, str):
        return objective(n)
    if objective not in PARAMETERS:
        raise unknown("objective to fit", objective, PARAMETERS)
    value = PARAMETERS[objective]
    if value is None and rho is not None:
        raise InputError(f"rho is {rho} but the objective '{objective}' has no parameter; leave it out")
    if objective == "average":
        return objectives.cvar(n, 1.0)  # of which equal weights are the only ones
    factory: Any = objectives.DUALS[objective]
    return factory(n) if value is None else factory(n, value if rho is None else rho)


def _number(value: Any) -> float | None:
    """What JSON can hold."""
    return float(value) if math.isfinite(value) else None
