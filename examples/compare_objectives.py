# %% [markdown]
# # Compare objectives on one federation
#
# For a researcher: handwritten digits over five unlike clients, one algorithm, several objectives. Which of them helps
# the worst-served client, what does it cost the average, and how far is each from its own optimum?

# %%
import jax
import jax.numpy as jnp

import equipoise as eq

N = 5
data = eq.data.load("digits").flat()
parts, summary = eq.data.partition.dirichlet(data.labels, n=N, alpha=0.3, key=0)
train, test = eq.data.pools(data, parts, key=0, test=0.5)
task = eq.tasks.least_squares(features=64, outputs=10, l2=1e-2, centred=True)
print("training rows:", [int(size) for size in train.sizes])

# %% [markdown]
# ## One program for a whole family
#
# The penalty rho of the chi-square objective is a leaf of the algorithm, no part of its structure: `eq.sweep` compiles
# once and runs all of them. A large rho is for the average client, a small one for the worst.

# %%
x = task.init(jax.random.key(0))
local_lr = 1 / eq.steps.smoothness(task, train, x)  # 1/L: the longest safe step
rule = eq.steps.constant(tau=10 * local_lr, sigma=0.2, theta=1.0)


def make(rho):
    dual = eq.objectives.chi2(N, rho)
    return eq.algorithms.scaffpd(task, dual, eq.cohorts.everyone(N), rule, steps=10, local_lr=local_lr)


rhos = (100.0, 0.1, 0.001)
methods = [make(rho) for rho in rhos]
results = eq.sweep(eq.grid(methods, x, train), rounds=400)

# %% [markdown]
# ## What each is worth
#
# Accuracies are of held-out rows; the certificate says by how much, at most, the best possible robust objective is
# lower.

# %%
print(f"{'rho':>6} {'average':>8} {'worst client':>13} {'effective clients':>18} {'certified within':>17}")
for rho, algorithm, result in zip(rhos, methods, results, strict=True):
    model, weights = algorithm.model(result.server), algorithm.weights(result.server)
    accuracy = eq.evaluation.evaluate(task, model, test).scores["accuracy"]
    known = eq.certificates.certify(task, eq.objectives.chi2(N, rho), train, model, weights)
    share = float(known.gap / jnp.abs(known.robust))
    clients = float(eq.fairness.effective_clients(weights))
    print(f"{rho:6g} {accuracy.mean():8.1%} {accuracy.min():13.1%} {clients:18.2f} {share:17.1e}")

# %% [markdown]
# "Effective clients" is 1 / Σ λ²: with a large rho all five count, with a small one hardly more than the hardest.
# Five clients and one division prove nothing: `equipoise sweep` repeats it over seeds, and
# `equipoise path` draws the curve.
