"""Every dual with several parameters: how to build it, measure its prox against a reference, sample its set."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from equipoise.objectives import DUALS, Dual
from tests.objectives import dual_references as ref
from tests.objectives.dual_references import Long


class Case(NamedTuple):
    name: str
    argument: str  # rho, radius, alpha, q or bound
    value: float
    uneven: bool = False  # reference weights other than 1/n

    def __str__(self):
        return f"{self.name}-{self.value:g}{'-uneven' * self.uneven}"

    def p(self, n):
        return np.arange(1, n + 1) / (n * (n + 1) / 2) if self.uneven else np.full(n, 1 / n)

    def arguments(self, n) -> dict[str, Any]:
        named = {self.argument: self.value} if self.argument else {}
        return named | ({"p": self.p(n)} if self.uneven else {})


CASES = [
    Case("agnostic", "", 0),
    Case("chi2", "rho", 1e-3),
    Case("chi2", "rho", 2.0),
    Case("chi2_ball", "radius", 1e-3),
    Case("chi2_ball", "radius", 0.4),
    Case("cvar", "alpha", 1e-9),
    Case("cvar", "alpha", 1.0),
    Case("cvar", "alpha", 0.3),
    Case("kl", "rho", 1e-3),
    Case("kl", "rho", 2.0, uneven=True),
    Case("tv", "rho", 1e-3),
    Case("tv", "rho", 0.4, uneven=True),
    Case("qffl", "q", 0.3),
    Case("qffl", "q", 1.0, uneven=True),
    Case("qffl", "q", 5.0, uneven=True),
    Case("propfair", "bound", 2.0),
    Case("propfair", "bound", 1e-4, uneven=True),
]
ONE_EACH = [case for i, case in enumerate(CASES) if case.name not in [c.name for c in CASES[i + 1 :]]]
STEPLESS = ("agnostic", "chi2_ball", "cvar")


@cache  # a dual compiles its operators once, so tests share it
def build(case: Case, n: int) -> Dual:
    return DUALS[case.name](n, **case.arguments(n))


def prox_error(case: Case, lam, v, step) -> float:
    """The largest error of lam = prox(v, step), absolute on the simplex and relative off it."""
    dtype = v.dtype
    if not np.isfinite(lam).all() or lam.dtype != dtype:
        return np.inf

    def rounded(x):
        return np.asarray(x, dtype).astype(Long)

    lam, v, step, p = lam.astype(Long), v.astype(Long), rounded(step), rounded(case.p(len(v)))
    value, tiny = rounded(case.value), np.finfo(dtype).tiny
    if case.name == "kl":
        return float(ref.kl_residual(lam, v, step, value, p / p.sum()))
    if case.name == "qffl":
        right = ref.qffl(v, step, value, p)
        near = (abs(lam - right) - 2 * tiny) / np.maximum(right, tiny)
        # A large q makes lam itself ill-conditioned; what the equation then asks is to hold.
        some = np.where(v > 0, v, 1)
        holds = np.where(v > 0, abs(lam + step * (lam / p) ** (1 / value) - v) / some, np.inf)
        return float(np.minimum(near, holds).max())
    if case.name == "propfair":
        # v - step bound is rounded once; every lam that one rounding can explain is right.
        slack = np.finfo(dtype).eps * (abs(v) + step * value)
        low, high = (ref.propfair(v + s, step, value, p, rounded(case.value / 100)) for s in (-slack, slack))
        return float(((np.maximum(low - lam, lam - high) - 2 * tiny) / np.maximum(high, tiny)).max())
    plain: dict[str, Callable] = {
        "agnostic": lambda: ref.agnostic(v, step),
        "chi2": lambda: ref.chi2(v, step, value),
        "chi2_ball": lambda: ref.chi2_ball(v, step, case.value),
        "cvar": lambda: ref.cvar(v, step, case.value),
        "tv": lambda: ref.tv(v, step, value, p),
    }
    return float(max(abs(lam - plain[case.name]()).max(), abs(lam.sum() - 1)))


def nasty(n: int, dtype) -> np.ndarray:
    """Vectors that break naive projections: every scale, ties, constants, mixtures of scales, many digits."""
    rng = np.random.default_rng(n)
    draw = rng.standard_normal(n)
    half = rng.random(n) / n
    half[0] = 0.5
    rows = [
        *(scale * draw for scale in (1e-30, 1e-9, 1e-2, 1.0, 30.0, 1e5, 1e12, 1e30)),
        *(np.full(n, scale) for scale in (-1e30, 0.0, 1e-30, 1.0, 1e30)),
        *(scale * rng.integers(0, 3, n) for scale in (1e-3, 1.0, 1e30)),
        draw * 10.0 ** rng.uniform(-30, 30, n),
        10.0 ** rng.uniform(-8, 1, n),
        -(2.0 ** -np.minimum(np.arange(n), 90)),
        1e5 + np.round(draw, 2),
        half,
        rng.dirichlet(np.full(n, 0.1)),
    ]
    return np.array(rows).astype(dtype)


def feasible(case: Case, n: int, count: int, seed: int) -> np.ndarray:
    """Points all over the set Lambda of the dual."""
    rng = np.random.default_rng(seed)
    p = case.p(n)
    if case.name == "qffl":
        return p * rng.exponential(1.0, (count, n)) ** 2
    if case.name == "propfair":
        return p / (case.value / 100) * rng.random((count, n)) ** 4 + 1e-12
    if case.name == "cvar":
        cap = min(1.0, 1 / (case.value * n))
        vertex = np.clip(1 - cap * np.arange(n), 0, cap)
        corners = rng.permuted(np.tile(vertex, (count, 3, 1)), axis=2)
        return np.einsum("ck,ckn->cn", rng.dirichlet(np.full(3, 0.5), count), corners)
    lam = np.concatenate([rng.dirichlet(np.full(n, 0.3), count - n), np.eye(n)])
    if case.name == "chi2_ball":
        away = lam - 1 / n
        reach = np.sqrt(2 * case.value / n / np.maximum((away**2).sum(1, keepdims=True), 1e-300))
        lam = 1 / n + np.minimum(reach, 1) * away
    return lam


def violation(case: Case, lam) -> float:
    """By how much lam leaves the set Lambda."""
    n, lam = len(lam), lam.astype(Long)
    over = max(0, -lam.min())
    if case.name == "propfair":
        return float(max(over, (lam * (case.value / 100) / case.p(n)).max() - 1))
    if case.name == "qffl":
        return float(over)
    over = max(over, abs(lam.sum() - 1))
    if case.name == "cvar":
        over = max(over, lam.max() - 1 / (Long(case.value) * n))
    if case.name == "chi2_ball":
        over = max(over, np.sqrt(((lam - 1 / Long(n)) ** 2).sum()) - np.sqrt(2 * Long(case.value) / n))
    return float(over)
