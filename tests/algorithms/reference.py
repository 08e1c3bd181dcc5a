"""The papers' pseudo-code in plain NumPy, one client after the other, for exact gradients of the ridge loss.

Written from the papers, not from the library: nothing here imports it. `clients` is a list of (A, y); every function
yields the server's variables after each round.
"""

import numpy as np

MU = 0.1


def loss(x, client):
    a, y = client
    return np.mean((a @ x - y) ** 2) + MU / 2 * x @ x


def gradient(x, client):
    a, y = client
    return 2 / len(y) * a.T @ (a @ x - y) + MU * x


def project(v):
    """Onto the simplex, by bisection on the multiplier."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        nu = (low + high) / 2
        low, high = (nu, high) if np.maximum(v - nu, 0).sum() > 1 else (low, nu)
    return np.maximum(v - (low + high) / 2, 0)


def chi2_prox(v, step, rho):
    """argmin over the simplex of rho/(2N) sum (N lam_i - 1)^2 + |lam - v|^2 / (2 step)."""
    n = len(v)
    return project((v + step * rho) / (1 + step * rho * n))


def fedavg(x, clients, rounds, *, steps, lr, server_lr, weights):
    for _ in range(rounds):
        moved = []
        for client in clients:
            y = x
            for _ in range(steps):
                y = y - lr * gradient(y, client)
            moved.append(y - x)
        x = x + server_lr * np.average(moved, axis=0, weights=weights)
        yield x


def sgd(x, clients, rounds, *, lr):
    for _ in range(rounds):
        x = x - lr * np.mean([gradient(x, client) for client in clients], axis=0)
        yield x


def scaffold(x, clients, cohorts, *, steps, lr, server_lr, option):
    """Karimireddy et al., Algorithm 1; `cohorts` lists who is sampled in each round."""
    n = len(clients)
    c, c_i = np.zeros_like(x), [np.zeros_like(x) for _ in clients]
    for cohort in cohorts:
        dy, dc = [], []
        for i in cohort:
            y = x
            for _ in range(steps):
                y = y - lr * (gradient(y, clients[i]) - c_i[i] + c)
            new = gradient(x, clients[i]) if option == 1 else c_i[i] - c + (x - y) / (steps * lr)
            dy.append(y - x)
            dc.append(new - c_i[i])
            c_i[i] = new
        x = x + server_lr * np.mean(dy, axis=0)
        c = c + len(cohort) / n * np.mean(dc, axis=0)
        yield x, c, np.array(c_i)


def drfa(w, clients, snapshots, cohorts, probes, *, steps, lr, dual_lr, rho):
    """Deng et al., Algorithms 1 and 2; cohorts of None: everyone, lam-weighted (the full form)."""
    n = len(clients)
    lam = np.full(n, 1 / n)
    for t_snap, cohort, probe in zip(snapshots, cohorts, probes, strict=True):
        ends, snaps = [], []
        for i in range(n) if cohort is None else cohort:
            u = w
            for t in range(1, steps + 1):
                u = u - lr * gradient(u, clients[i])
                if t == t_snap:
                    snaps.append(u)
            ends.append(u)
        weights = lam if cohort is None else None
        w, z = np.average(ends, axis=0, weights=weights), np.average(snaps, axis=0, weights=weights)
        v = np.zeros(n)
        for i in probe:
            v[i] = n / len(probe) * loss(z, clients[i])
        lam = chi2_prox(lam + steps * dual_lr * v, steps * dual_lr, rho)
        yield w, lam


def scaffpd(x, clients, rules, *, steps, lr, rho):
    """Yu et al., Algorithms 1 and 2; `rules` lists (tau, sigma, theta) of each round."""
    n = len(clients)
    lam, before = np.full(n, 1 / n), None
    for tau, sigma, theta in rules:
        losses = np.array([loss(x, client) for client in clients])
        c_i = [gradient(x, client) for client in clients]
        s = (1 + theta) * losses - theta * (losses if before is None else before)
        lam = chi2_prox(lam + sigma * s, sigma, rho)
        c = sum(weight * g for weight, g in zip(lam, c_i, strict=True))
        total = 0
        for i, client in enumerate(clients):
            u = x
            for _ in range(steps):
                u = u - lr * (gradient(u, client) - c_i[i] + c)
            total = total + lam[i] * (x - u) / (lr * steps)
        x, before = x - tau * total, losses
        yield x, lam, losses, c


def scaffpd_minibatch(x, clients, rules, *, steps, lr, rho, lost=()):
    """Option II of SCAFFOLD's control variates in SCAFF-PD; `lost` are (round, client) whose update does not arrive."""
    n = len(clients)
    lam, before, c_i = np.full(n, 1 / n), None, np.zeros((n, len(x)))
    for r, (tau, sigma, theta) in enumerate(rules):
        losses = np.array([loss(x, client) for client in clients])
        s = (1 + theta) * losses - theta * (losses if before is None else before)
        lam = chi2_prox(lam + sigma * s, sigma, rho)
        c, here, moved = lam @ c_i, [i for i in range(n) if (r, i) not in lost], {}
        for i in here:
            u, seen = x, []
            for _ in range(steps):
                seen.append(gradient(u, clients[i]))
                u = u - lr * (seen[-1] - c_i[i] + c)
            moved[i] = (x - u) / (lr * steps)
            c_i[i] = np.mean(seen, axis=0)
        x = x - tau * sum(lam[i] * moved[i] for i in here) / lam[here].sum()
        before = losses
        yield x, lam, c_i.copy()
