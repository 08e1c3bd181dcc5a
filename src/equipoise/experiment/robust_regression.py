"""The robust regression of SCAFF-PD's Section 6.1 and Figure 2: how fast each method reaches the saddle point.

N = 5 clients, d = 10, 100 samples each, clients' truths 0.1 apart, mu_x = 0.1, J = 100 local steps, exact gradients,
float64; distances are |x - x*|^2 to a saddle point found by another solver. SCAFF-PD takes its step sizes from a rule
(`steps.tuned`); DRFA, in its full form, gets the best of a grid; SCAFFOLD and FedAvg minimise the average instead, so
they end at a distance that no step size can change.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import algorithms, cohorts, objectives, steps, tasks
from equipoise.data import Shards, synthetic
from equipoise.engines import simulate
from equipoise.protocol import Algorithm

RHOS = (0.01, 0.05, 0.1)
LEVELS = (1e-3, 1e-6, 1e-12)
METHODS = ("SCAFF-PD", "DRFA", "SCAFFOLD", "FedAvg")
N, DIM, MU, LOCAL_STEPS = 5, 10, 0.1, 100
DRFA_GRID = [(local_lr, dual_lr) for local_lr in (2e-4, 4e-4, 1e-3) for dual_lr in (1e-2, 1e-1)]


class Curve(NamedTuple):
    """One method on one problem."""

    method: str
    rho: float
    settings: str
    distances: np.ndarray  # |x - x*|^2 after every round
    losses: np.ndarray  # f_i at the end

    def rounds_to(self, level: float) -> int | None:
        """The first round from which on the distance stays below `level`."""
        above = np.flatnonzero(~(self.distances < level))
        first = int(above[-1]) + 2 if above.size else 1
        return first if first <= len(self.distances) else None


Progress = Callable[[str, int, int], None]


def run(
    *, rounds: int = 200, rhos: tuple[float, ...] = RHOS, seed: int = 0, progress: Progress | None = None
) -> Iterator[Curve]:
    """Yields the curves one by one, so that what is finished is never lost."""
    with jax.enable_x64(True):
        shards = synthetic.regression(n=N, dim=DIM, samples=100, shift=0.1, key=jax.random.key(seed))
        task, everyone = tasks.ridge(DIM, MU), cohorts.everyone(N)
        for rho in rhos:
            dual = objectives.chi2(N, rho)
            saddle = synthetic.saddle_point(shards, mu=MU, rho=rho)

            measure = partial(curve, rho, task, shards, saddle.x, rounds, progress)
            found = steps.tuned(task, shards, jnp.zeros(DIM), dual, steps=LOCAL_STEPS)
            yield measure(
                "SCAFF-PD",
                f"steps.tuned: local_lr {found.local_lr:.2g}",
                algorithms.scaffpd(task, dual, everyone, found.rule, steps=LOCAL_STEPS, local_lr=found.local_lr),
            )
            tried = [
                measure(
                    "DRFA",
                    f"best of {len(DRFA_GRID)}: local_lr {local_lr:g}, dual_lr {dual_lr:g}",
                    algorithms.drfa(task, dual, everyone, steps=LOCAL_STEPS, local_lr=local_lr, dual_lr=dual_lr),
                )
                for local_lr, dual_lr in DRFA_GRID
            ]
            yield min(tried, key=lambda c: np.median(c.distances[-20:]))
            for name, build in (("SCAFFOLD", algorithms.scaffold), ("FedAvg", algorithms.fedavg)):
                yield measure(name, "local_lr 0.01", build(task, everyone, steps=LOCAL_STEPS, local_lr=0.01))


def curve(
    rho: float,
    task: tasks.Task,
    shards: Shards,
    x_star: np.ndarray,
    rounds: int,
    progress: Progress | None,
    name: str,
    settings: str,
    algorithm: Algorithm,
) -> Curve:
    """One run of a method towards x_star."""
    target, label = jnp.asarray(x_star), f"{name}, rho={rho:g}"
    result = simulate(
        algorithm,
        jnp.zeros(DIM),
        shards,
        0,
        rounds=rounds,
        record=lambda server: jnp.sum((algorithm.model(server) - target) ** 2),
        progress=None if progress is None else lambda done, of, last: progress(label, done, of),
    )
    losses = tasks.losses(task, algorithm.model(result.server), shards)
    return Curve(name, rho, settings, result.history, np.asarray(losses))


def plot(curves: list[Curve], path: Path) -> None:
    """The paper's Figure 2: distance to the saddle point against rounds, one panel for each rho."""
    from matplotlib.figure import Figure

    rhos = sorted({c.rho for c in curves})
    figure = Figure(figsize=(4 * len(rhos), 3.4), layout="constrained")
    for axis, rho in zip(np.atleast_1d(figure.subplots(1, len(rhos), sharey=True)), rhos, strict=True):
        for c in (c for c in curves if c.rho == rho):
            axis.semilogy(np.arange(1, len(c.distances) + 1), np.maximum(c.distances, 1e-30), label=c.method)
        axis.set_title(f"ρ = {rho:g}")
        axis.set_xlabel("communication rounds")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("‖x − x*‖²")
    figure.axes[-1].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
