"""Control variates under noise: `python experiments/minibatch_noise.py --picture docs/minibatch_noise.svg`.

SCAFF-PD on the papers' synthetic regression (5 clients, 100 rows each), whose saddle point is known, with minibatches
of 4 rows: how far the model is from it after equally many gradients of minibatches at every client. The old control
variate c_i is one minibatch's gradient at x; the new one is the mean of the last round's local gradients; two points
correct every local step by the gradient of its own minibatch at x, and take the whole shard's besides (25 minibatches).
Squared distances, the mean over five seeds of the minibatches, from x = 0. Prints a table and draws the curves, but
those of two points, which would leave no room for the others.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.data import synthetic
from equipoise.report import pictures

BATCH, ROWS, EVALUATIONS, EVERY, SEEDS = 4, 100, 40_000, 1_000, range(5)
SETTINGS = {"50 local steps, J eta L = 3": (50, 3.0), "20 local steps, J eta L = 0.5": (20, 0.5)}
OLD, NEW, TWO = "old: one minibatch at x", "new: mean of the local gradients", "two points"
METHODS = {
    OLD: (eq.algorithms.scaffpd, {}, lambda steps: steps + 1),
    NEW: (eq.algorithms.scaffpd_minibatch, {}, lambda steps: steps),
    TWO: (
        eq.algorithms.scaffpd_minibatch,
        {"correction": "two_point"},
        lambda steps: 2 * steps + ROWS // BATCH,
    ),
}


def curve(method: str, steps: int, path: float) -> np.ndarray:
    """Mean squared distances from the saddle point after 0, 1,000, 2,000, ... gradients of minibatches."""
    build, choice, cost = METHODS[method]
    data = synthetic.regression(n=5, samples=ROWS, shift=1.0, key=jax.random.key(0))
    saddle = jnp.asarray(synthetic.saddle_point(data, rho=2.0).x)
    hessians = 2 * np.einsum("nmp,nmq->npq", data.inputs, data.inputs) / ROWS + 0.1 * np.eye(10)
    lr = path / (steps * float(np.linalg.eigvalsh(hessians).max()))
    algorithm = build(
        eq.tasks.ridge(10, batch=BATCH),
        eq.objectives.chi2(5, 2.0),
        eq.cohorts.everyone(5),
        eq.steps.constant(tau=steps * lr, sigma=0.02, theta=0.0),
        steps=steps,
        local_lr=lr,
        **choice,
    )

    def distance(server) -> jax.Array:
        return jnp.sum((server.x - saddle) ** 2)

    rounds = EVALUATIONS // cost(steps)
    runs = [eq.simulate(algorithm, jnp.zeros(10), data, seed, rounds=rounds, record=distance).history for seed in SEEDS]
    start = float(jnp.sum(saddle**2))
    after = np.concatenate([[start], np.mean(runs, axis=0)])
    return after[np.arange(0, EVALUATIONS + 1, EVERY) // cost(steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=None)
    given = parser.parse_args()
    with jax.enable_x64(True):
        found = {name: {method: curve(method, *how) for method in METHODS} for name, how in SETTINGS.items()}
    print("| | control variate | after 5,000 | after 10,000 | after 40,000 | mean of the last 20,000 |")
    print("|---|---|---:|---:|---:|---:|")
    for name, curves in found.items():
        for method, values in curves.items():
            numbers = [values[5], values[10], values[40], values[-20:].mean()]
            print(f"| {name} | {method} | {' | '.join(f'{v:.2e}' for v in numbers)} |")
    if given.picture is not None:
        charts = {
            f"{name}; log10 of squared distance": {m: np.log10(curves[m][1:]).tolist() for m in (OLD, NEW)}
            for name, curves in found.items()
        }
        x_name = "thousand minibatch gradients at every client"
        title = "SCAFF-PD with minibatches: distance from the saddle point"
        given.picture.write_text(pictures.panels(title, charts, columns=2, x_name=x_name))


if __name__ == "__main__":
    main()
