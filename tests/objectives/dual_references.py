"""The prox of every dual once more, written for certainty: numpy, extended precision, sorts and bisection.

Nothing here shares code or method with src/. Arguments arrive rounded to the dtype under test, so that what is
left between the two is the method's own error.
"""

import numpy as np

Long = np.longdouble


def bisect(mass, low, high, steps=90):
    """The nu in [low, high] where the decreasing function mass(nu) crosses one."""
    low, high = Long(low), Long(high)
    for _ in range(steps):
        middle = (low + high) / 2
        if mass(middle) > 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def simplex(v):
    """Held, Wolfe and Crowder 1974, by sorting."""
    v = v - v.max()
    u = np.sort(v)[::-1]
    shift = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    return np.maximum(v - shift[np.flatnonzero(u > shift)[-1]], 0)


def agnostic(v, step):
    return simplex(v)


def chi2(v, step, rho):
    return simplex((v - v.max()) / (1 + step * rho * len(v)))


def cvar(v, step, alpha):
    n = len(v)
    cap = min(Long(1), 1 / (Long(alpha) * n))
    v = v - np.sort(v)[n - int(np.ceil(alpha * n))]  # or the level drowns among values of 1e30
    return np.clip(v - bisect(lambda nu: np.clip(v - nu, 0, cap).sum(), -2 * cap, cap), 0, cap)


def chi2_ball(v, step, radius):
    n = len(v)
    v = v - v.max()
    room = 2 * Long(radius) / n

    def outside(c):
        lam = simplex(v / c)
        return ((lam - 1 / Long(n)) ** 2).sum() > room

    if not outside(Long(1)):
        return simplex(v)
    low, high = Long(0), 2 * np.log(n / room + n + np.ptp(v) + 2)  # log c
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if outside(np.exp(middle)) else (low, middle)
    return simplex(v / np.exp(high))


def tv(v, step, rho, p):
    a = step * rho
    w = (v - v.max()) - p
    w = w - w.max()  # the largest is 0: then the level is in [-a - 1, -a], and counted from -a in [-1, 0]

    def lam(nu):
        return np.maximum(p + np.maximum(w - nu, 0) + np.minimum(w - nu + 2 * a, 0), 0)

    if np.all((w + 2 * a >= 0) | (p == 0)):  # nobody has a reason to move
        return p / p.sum()
    return lam(bisect(lambda nu: lam(nu).sum(), -1, 0))


def kl_residual(lam, v, step, rho, p):
    """How far lam is from solving lam_i + a log(lam_i/p_i) = v_i - nu for one nu, with sum lam = 1."""
    a = step * rho
    v = v - v.max()
    held = lam > 1e-30
    some = np.where(held, lam, 1)
    slope = np.where(held, lam / (lam + a), 0)
    level = (slope * (v - lam - a * np.log(some / p))).sum() / slope.sum()
    low, high = np.zeros_like(v), np.full_like(v, 2)
    for _ in range(80):
        middle = (low + high) / 2
        over = middle + a * np.log(middle / p) > v - level
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return max(abs(lam - low).max(), abs(lam.sum() - 1))


def qffl(v, step, q, p):
    """Bisection on x = log lam, of lam + step (lam/p)^{1/q} = v."""
    v = np.maximum(v, 0)
    with np.errstate(divide="ignore"):
        want = np.where(v > 0, np.log(v), -np.inf)

    def over(x):
        return np.logaddexp(x, np.log(step) + (x - np.log(p)) / q) > want

    low, high = np.full_like(v, -10_000), np.full_like(v, 100)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = np.where(over(middle), low, middle), np.where(over(middle), middle, high)
    return np.where(v > 0, np.exp(low), 0)


def propfair(v, step, bound, p, margin):
    """The positive root of lam^2 - beta lam - step p = 0, under the cap."""
    beta = v - step * bound
    wide = np.sqrt(beta**2 + 4 * step * p)
    stable = np.where(beta > 0, 1, wide - beta)
    return np.minimum(np.where(beta > 0, (beta + wide) / 2, 2 * step * p / stable), p / margin)
