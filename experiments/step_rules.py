"""How many rounds each step rule of SCAFF-PD needs on the synthetic robust regression.

N = 5, d = 10, 100 samples per client, mu_x = 0.1, exact gradients, float64, seed 0. Prints Markdown.
"""

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.certificates import certify
from equipoise.data import synthetic

jax.config.update("jax_enable_x64", True)
X0, TASK = jnp.zeros(10), eq.tasks.ridge(10, 0.1)


def first(history: np.ndarray, level: float) -> str:
    return str(int(np.argmax(history < level)) + 1) if (history < level).any() else f"> {len(history)}"


def distances(algorithm, shards, saddle, rounds):
    def record(server):
        return jnp.sum((algorithm.model(server) - jnp.asarray(saddle.x)) ** 2)

    return eq.simulate(algorithm, X0, shards, 0, rounds=rounds, record=record).history


def gaps(algorithm, dual, shards, mu, rounds):
    def record(server):
        lam = server.point.lam if algorithm.name == "scaffpd_ls" else server.lam
        return certify(TASK, dual, shards, algorithm.model(server), lam, mu=mu).gap

    return eq.simulate(algorithm, X0, shards, 0, rounds=rounds, record=record).history


def strongly_concave() -> None:
    print("\nRounds until |x - x*|^2 < 1e-20 for the chi2 penalty:\n")
    print(
        "| shift | rho | tuned, J=100 | tuned, J=1 | line search, J=20 | sharp_linear, J=1 | the paper's linear, J=1 |"
    )
    print("|---|---|---|---|---|---|---|")
    everyone = eq.cohorts.everyone(5)
    for shift in (0.1, 1.0):
        shards = synthetic.regression(shift=shift, key=jax.random.key(0))
        for rho in (0.01, 0.05, 0.1):
            dual, saddle = eq.objectives.chi2(5, rho), synthetic.saddle_point(shards, rho=rho)
            plain = eq.steps.estimate_constants(TASK, shards, X0)
            cells = []
            for steps in (100, 1):
                found = eq.steps.tuned(TASK, shards, X0, dual, steps=steps)
                algorithm = eq.algorithms.scaffpd(
                    TASK, dual, everyone, found.rule, steps=steps, local_lr=found.local_lr
                )
                cells.append(first(distances(algorithm, shards, saddle, 3000), 1e-20))
            search = eq.algorithms.scaffpd_ls(TASK, dual, everyone, steps=20, local_lr=1 / plain.L_xx, mu=plain.mu_x)
            cells.append(first(distances(search, shards, saddle, 3000), 1e-20))
            for rule in (eq.steps.sharp_linear(plain, dual), eq.steps.linear(plain, dual)):
                algorithm = eq.algorithms.scaffpd(TASK, dual, everyone, rule, steps=1, local_lr=0.1)
                cells.append(first(distances(algorithm, shards, saddle, 3000), 1e-20))
            print(f"| {shift} | {rho} | " + " | ".join(cells) + " |", flush=True)


def merely_concave() -> None:
    print("\nRounds until the duality gap is below 1e-8, psi = 0:\n")
    print("| dual | shift | tuned, J=100 | tuned, J=1 | line search, J=20 | sharp_accelerated, J=1 |")
    print("|---|---|---|---|---|---|")
    everyone = eq.cohorts.everyone(5)
    for dual in (eq.objectives.agnostic(5), eq.objectives.cvar(5, 0.4)):
        for shift in (0.1, 1.0):
            shards = synthetic.regression(shift=shift, key=jax.random.key(0))
            plain = eq.steps.estimate_constants(TASK, shards, X0)
            runs = []
            for steps in (100, 1):
                found = eq.steps.tuned(TASK, shards, X0, dual, steps=steps)
                runs.append(
                    eq.algorithms.scaffpd(TASK, dual, everyone, found.rule, steps=steps, local_lr=found.local_lr)
                )
            runs.append(
                eq.algorithms.scaffpd_ls(TASK, dual, everyone, steps=20, local_lr=1 / plain.L_xx, mu=plain.mu_x)
            )
            rule = eq.steps.sharp_accelerated(plain)
            runs.append(eq.algorithms.scaffpd(TASK, dual, everyone, rule, steps=1, local_lr=0.1))
            cells = [first(gaps(algorithm, dual, shards, plain.mu_x, 3000), 1e-8) for algorithm in runs]
            print(f"| {dual.name} | {shift} | " + " | ".join(cells) + " |", flush=True)


def ill_conditioned() -> None:
    """Inputs scaled so that the Hessians' condition number is about 1000."""
    print("\nCondition number about 1000, rho = 0.1: rounds until the duality gap is below 1e-10:\n")
    shards = synthetic.regression(key=jax.random.key(0))
    scale = jnp.asarray(np.geomspace(1, np.sqrt(850), 10))
    shards = shards._replace(inputs=shards.inputs * scale[None, None, :])
    dual, everyone = eq.objectives.chi2(5, 0.1), eq.cohorts.everyone(5)
    plain = eq.steps.estimate_constants(TASK, shards, X0)
    cases = {
        "sharp_linear, J=1": eq.algorithms.scaffpd(
            TASK, dual, everyone, eq.steps.sharp_linear(plain, dual), steps=1, local_lr=0.1
        )
    }
    for steps in (1, 20, 100):
        cases[f"line search, J={steps}"] = eq.algorithms.scaffpd_ls(
            TASK, dual, everyone, steps=steps, local_lr=1 / plain.L_xx, mu=plain.mu_x
        )
        found = eq.steps.tuned(TASK, shards, X0, dual, steps=steps)
        cases[f"tuned, J={steps}"] = eq.algorithms.scaffpd(
            TASK, dual, everyone, found.rule, steps=steps, local_lr=found.local_lr
        )
    print(f"condition number {plain.L_xx / plain.mu_x:.0f}\n\n| rule | rounds |\n|---|---|")
    for name, algorithm in cases.items():
        print(f"| {name} | {first(gaps(algorithm, dual, shards, plain.mu_x, 10000), 1e-10)} |", flush=True)


def partial_participation() -> None:
    print("\nscaffpd_partial, N = 20, rho = 0.05, J = 10, steps.tuned(share=m/20): |x - x*|^2 after\n")
    print("| m | 50 | 150 | 300 | 600 rounds |\n|---|---|---|---|---|")
    shards = synthetic.regression(n=20, key=jax.random.key(0))
    dual, saddle = eq.objectives.chi2(20, 0.05), synthetic.saddle_point(shards, rho=0.05)
    for m in (10, 5, 2):
        found = eq.steps.tuned(TASK, shards, X0, dual, steps=10, share=m / 20)
        algorithm = eq.algorithms.scaffpd_partial(
            TASK, dual, eq.cohorts.uniform(20, m), found.rule, steps=10, local_lr=found.local_lr
        )
        history = distances(algorithm, shards, saddle, 600)
        print(f"| {m} | " + " | ".join(f"{history[r - 1]:.0e}" for r in (50, 150, 300, 600)) + " |", flush=True)


if __name__ == "__main__":
    strongly_concave()
    merely_concave()
    ill_conditioned()
    partial_participation()
