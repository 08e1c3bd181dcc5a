"""What every constant in the server of `scaffpd_model` does at half and at twice its value. Prints Markdown.

    python experiments/server_model_constants.py                    # all of them: server_model/constants.py
    python experiments/server_model_constants.py FORGET NO_DESCENT

Rounds until (P(x_r) - P*)/(P(x_0) - P*) is below 1e-6, P the robust objective and P* the least value that any of the
runs reaches, on five federations: squared losses with a condition of 900 (chi2; agnostic with a quarter of the replies
lost; three of six clients in a round) and logistic ones (chi2, in double and in single precision, where it is
1e-4). The constants are operands of one program for each federation; "-": not within 60 rounds.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.algorithms.server_model import constants

N, DIM, ROWS, ROUNDS = 6, 12, 40, 60
NAMES = [name for name in vars(constants) if name.isupper()]
VALUES = {name: float(getattr(constants, name)) for name in NAMES}


def federation(*, classes: bool, precision: type = np.float64) -> eq.data.Shards:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(N, ROWS, DIM)) * np.geomspace(1, 30, DIM)
    truth = (rng.normal(size=DIM) + 0.5 * rng.normal(size=(N, DIM))) / np.geomspace(1, 30, DIM)
    labels = np.einsum("nmd,nd->nm", inputs, truth) + rng.normal(size=(N, ROWS))
    labels = (labels > 0).astype(np.int32) if classes else labels.astype(precision)
    return eq.data.stack(list(zip(inputs.astype(precision), labels, strict=True)))


def logistic(w: Any, inputs: Any, labels: Any) -> Any:
    score = inputs @ w
    return jnp.logaddexp(0, score) - labels * score


def lost(round: Any, exchange: int, ids: Any) -> Any:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), round), exchange)
    return jax.random.bernoulli(key, 0.25, jnp.shape(ids))


def robust_values(
    data: eq.data.Shards, task: eq.tasks.Task, dual: Any, sample: Any, lost: Callable | None
) -> Callable[[Any], Any]:
    """The robust objective of every round, as a function of the constants."""
    algorithm = eq.algorithms.scaffpd_model(task, dual, sample, steps=5, memory=4)
    clients = eq.kernel.prepare(algorithm, data)

    def run(values: Any) -> Any:
        for name, value in zip(NAMES, values, strict=True):
            setattr(constants, name, value)

        def one(state: Any, _: Any) -> tuple[Any, Any]:
            state = eq.kernel.step(algorithm, state, clients, jax.random.key(0), lost=lost)
            x = algorithm.model(state.server)
            return state, dual.value(jax.vmap(task.loss, (None, 0))(x, data))

        start = eq.kernel.init(algorithm, jnp.zeros(DIM, data.inputs.dtype))
        return jax.lax.scan(one, start, length=ROUNDS + 1)[1]

    return run


def problems() -> dict[str, tuple[Callable, float]]:
    """Columns of the table: their runs, and the error that they have to reach."""
    ridge, convex = eq.tasks.ridge(DIM, 0.1), eq.tasks.over_examples("logistic", DIM, logistic, l2=1e-2, convex=True)
    squared, classes = federation(classes=False), federation(classes=True)
    single = federation(classes=True, precision=np.float32)
    everyone, chi2 = eq.cohorts.everyone(N), eq.objectives.chi2(N, 0.1)
    return {
        "squared": (robust_values(squared, ridge, chi2, everyone, None), 1e-6),
        "replies lost": (robust_values(squared, ridge, eq.objectives.agnostic(N), everyone, lost), 1e-6),
        "few clients": (robust_values(squared, ridge, chi2, eq.cohorts.uniform(N, N // 2), None), 1e-6),
        "logistic": (robust_values(classes, convex, chi2, everyone, None), 1e-4),
        "single": (robust_values(single, convex, chi2, everyone, None), 1e-4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    jax.config.update("jax_enable_x64", True)
    names = parser.parse_args().names or NAMES
    standard = np.array(list(VALUES.values()))
    rows = [standard]
    for name in names:
        for factor in (0.5, 2.0):
            rows.append(np.where(np.array(NAMES) == name, factor * standard, standard))
    rounds: dict[str, list[str]] = {}
    for column, (run, level) in problems().items():
        values = np.asarray(jax.jit(lambda all, run=run: jax.lax.map(run, all))(jnp.asarray(np.array(rows))), float)
        error = (values - np.nanmin(values)) / (values[0, 0] - np.nanmin(values))
        reached = error <= level
        rounds[column] = [str(np.argmax(row)) if row.any() else "-" for row in reached]
    print(f"| constant | {' | '.join(rounds)} |")
    print(f"|---|{'---:|' * len(rounds)}")
    print(f"| as they are | {' | '.join(found[0] for found in rounds.values())} |")
    for k, name in enumerate(names):
        halves = [f"{found[2 * k + 1]}, {found[2 * k + 2]}" for found in rounds.values()]
        print(f"| `{name}` = {VALUES[name]:g} | {' | '.join(halves)} |")


if __name__ == "__main__":
    main()
