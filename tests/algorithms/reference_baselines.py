"""The fair methods' pseudo-code in plain NumPy, one client after the other, for exact gradients of the ridge loss.

Written from the papers, not from the library: nothing here imports it. `clients` is a list of (A, y); every function
yields the server's variables after each round.
"""

import numpy as np
from scipy.optimize import root

from tests.algorithms.reference import chi2_prox, gradient, loss, project


def train(x, client, *, steps, lr, anchor=0.0, slope=lambda f: 1.0):
    """Local steps y -= lr (slope(f) grad f + anchor (y - x))."""
    y = x
    for _ in range(steps):
        y = y - lr * (slope(loss(y, client)) * gradient(y, client) + anchor * (y - x))
    return y


def descent_ascent(x, clients, rounds, *, lr, dual_lr):
    """Projected gradient descent-ascent on sum_i lam_i f_i(x) over the simplex: Mohri et al., exact gradients."""
    lam = np.full(len(clients), 1 / len(clients))
    for _ in range(rounds):
        slope_x = sum(weight * gradient(x, client) for weight, client in zip(lam, clients, strict=True))
        slope_lam = np.array([loss(x, client) for client in clients])
        x, lam = x - lr * slope_x, project(lam + dual_lr * slope_lam)
        yield x, lam


def afl(x, clients, cohorts, *, steps, lr, server_lr, dual_lr, rho, simultaneous):
    """AFL with local steps; `cohorts` lists who takes part in each round."""
    n = len(clients)
    lam = np.full(n, 1 / n)
    seen = []
    for cohort in cohorts:
        v = np.zeros(n)
        for i in cohort:
            v[i] = n / len(cohort) * loss(x, clients[i])
        old, lam = lam, chi2_prox(lam + dual_lr * v, dual_lr, rho)
        weights = (old if simultaneous else lam)[cohort]
        moved = [train(x, clients[i], steps=steps, lr=lr) - x for i in cohort]
        x = x + server_lr * np.average(moved, axis=0, weights=weights)
        seen.append((x, lam))
        yield x, lam, np.mean([s[0] for s in seen], axis=0), np.mean([s[1] for s in seen], axis=0)


def drfa_alternative(w, clients, cohorts, *, steps, lr, gamma, rho):
    """Deng et al., Section 5.2, for the gradient of the chi2 penalty; cohorts of None: everyone, lam-weighted."""
    n = len(clients)
    lam = np.full(n, 1 / n)
    for cohort in cohorts:
        slope = np.array([loss(w, client) for client in clients]) - rho * n * (lam - 1 / n)
        who = range(n) if cohort is None else cohort
        ends = [train(w, clients[i], steps=steps, lr=lr) for i in who]
        w = np.average(ends, axis=0, weights=lam if cohort is None else None)
        lam = project(lam + gamma * slope)
        yield w, lam


def qffl(x, clients, cohorts, *, q, lr, steps=None):
    """Li et al., Algorithm 1 (steps of None: q-FedSGD) and Algorithm 2 (q-FedAvg); L = 1/lr."""
    for cohort in cohorts:
        deltas, hs = [], []
        for i in cohort:
            f = loss(x, clients[i]) + 1e-10
            g = gradient(x, clients[i]) if steps is None else (x - train(x, clients[i], steps=steps, lr=lr)) / lr
            deltas.append(f**q * g)
            hs.append(q * f ** (q - 1) * np.sum(g**2) + f**q / lr)
        x = x - sum(deltas) / sum(hs)
        yield x


def fedprox(x, clients, rounds, *, mu, steps, lr, server_lr, weights):
    for _ in range(rounds):
        ends = [train(x, client, steps=steps, lr=lr, anchor=mu) for client in clients]
        x = x + server_lr * (np.average(ends, axis=0, weights=weights) - x)
        yield x


def propfair(x, clients, rounds, *, bound, margin, steps, lr, server_lr, weights):
    """Zhang et al.: FedAvg on -log(M - f), which goes on as its tangent above M - eps."""

    def slope(f):
        return 1 / (bound - f) if bound - f >= margin else 1 / margin

    for _ in range(rounds):
        ends = [train(x, client, steps=steps, lr=lr, slope=slope) for client in clients]
        x = x + server_lr * (np.average(ends, axis=0, weights=weights) - x)
        yield x


def term(x, clients, rounds, *, t, steps, lr, server_lr, weights):
    for _ in range(rounds):
        losses = np.array([loss(x, client) for client in clients])
        tilted = np.asarray(weights) * np.exp(t * losses)
        lam = tilted / tilted.sum()
        moved = np.array([train(x, client, steps=steps, lr=lr) - x for client in clients])
        x = x + server_lr * lam @ moved
        yield x, lam


def delta_fl(x, clients, cohorts, *, theta, steps, lr, server_lr, exact):
    """Pillutla et al.: every loss as often as its client has samples, the quantile by its index in the sorted list."""
    for cohort in cohorts:
        losses = {i: loss(x, clients[i]) for i in cohort}
        copies = np.sort(np.concatenate([np.full(len(clients[i][1]), losses[i]) for i in cohort]))
        index = int(np.ceil(np.round((1 - theta) * len(copies), 9))) - 1
        q = copies[max(index, 0)]
        weights = np.array([float(len(clients[i][1])) if losses[i] >= q else 0.0 for i in cohort])
        if exact:  # the tail holds theta of the samples, and those at its end only what is left of it
            at = np.array([losses[i] == q for i in cohort])
            weights[at] *= (theta * len(copies) - weights[~at].sum()) / weights[at].sum()
        moved = [train(x, clients[i], steps=steps, lr=lr) - x for i in cohort]
        x = x + server_lr * np.average(moved, axis=0, weights=weights)
        yield x, dict(zip(cohort, weights, strict=True))


def agnostic_fedavg(x, clients, domains, rounds, *, p, steps, lr, dual_lr, server_lr, window):
    """Ro et al.; `domains` lists the domain of each of a client's examples. The penalty of the loss is added once."""
    lam, counted = np.full(p, 1 / p), [np.ones(p)] * window
    for _ in range(rounds):
        alpha = lam / np.mean(counted, axis=0)
        counts, sums, betas, deltas = np.zeros(p), np.zeros(p), [], []
        for (a, y), where in zip(clients, domains, strict=True):
            beta = sum(alpha[i] * np.sum(where == i) for i in range(p))
            for i in range(p):
                counts[i] += np.sum(where == i)
                sums[i] += sum(loss(x, (a[j : j + 1], y[j : j + 1])) for j in np.flatnonzero(where == i))
            u = x
            for _ in range(steps):
                examples = [gradient(u, (a[j : j + 1], y[j : j + 1])) for j in range(len(y))]
                u = u - lr / beta * sum(alpha[i] * g for i, g in zip(where, examples, strict=True))
            betas.append(beta)
            deltas.append(x - u)
        x = x - server_lr * np.average(deltas, axis=0, weights=betas)
        means = np.divide(sums, counts, out=np.zeros(p), where=counts > 0)
        lam = lam * np.exp(dual_lr * means)
        lam = lam / lam.sum()
        counted = [*counted[1:], counts]
        yield x, lam


def drift_bias(clients, *, steps, lr, rho):
    """Where local steps come to rest: sum_i lam_i (y_i(x) - x) = 0, lam the best response to the chi2 penalty at x."""
    n = len(clients)

    def residual(x):
        lam = project(1 / n + np.array([loss(x, client) for client in clients]) / (rho * n))
        return sum(weight * (train(x, c, steps=steps, lr=lr) - x) for weight, c in zip(lam, clients, strict=True))

    found = root(residual, np.zeros(clients[0][0].shape[1]), tol=1e-14)
    assert np.abs(found.fun).max() < 1e-12
    return found.x


def fedopt(x, clients, rounds, *, steps, lr, server_lr, kind, b1=0.9, b2=0.99, tau=1e-3):
    """Reddi et al., Algorithm 2 ("adam", "yogi"), and FedAvgM of Hsu et al. ("momentum", b1)."""
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for _ in range(rounds):
        delta = np.mean([train(x, client, steps=steps, lr=lr) - x for client in clients], axis=0)
        if kind == "momentum":
            m = b1 * m + delta
            x = x + server_lr * m
        else:
            m = b1 * m + (1 - b1) * delta
            if kind == "adam":
                v = b2 * v + (1 - b2) * delta**2
            else:
                v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
            x = x + server_lr * m / (np.sqrt(v) + tau)
        yield x
