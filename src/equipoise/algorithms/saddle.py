"""The small saddle problem that the server of `scaffpd_model` solves: quadratic models of n losses in k directions.

    max_{lam in Lam}  min_{a in R^k}  sum_i lam_i (f_i + G_i a + a' A_i a / 2) - lam' Q lam / 2 - psi(lam)

A primal-dual interior point method with Mehrotra's predictor and corrector. Lam and psi come as a dual's `Interior`:
parts w of the weights with w >= 0 and w <= cap, which for most duals are the weights themselves. Its unknowns are
w, a, the multiplier nu of the sum, s of w >= 0, v of w <= cap, and of a ball the slack t and its multiplier z. One step
solves the system of order m + k + 1 (+ 1 with a ball) that is left when s, v and t are eliminated.

Double precision throughout, whatever the run uses: callers trace it under `jax.enable_x64`, which JAX allows inside a
program that otherwise has single precision only; it is then compiled like everything else.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise.objectives.dual import Interior

TOLERANCE, MOST_ITERATIONS = 1e-11, 50
NEGLIGIBLE = 1e-12  # relative to p: a weight this small is as good as none
USELESS = 1e-2  # a residual, relative to the problem's scale, from which on the answer is none


class Solution(NamedTuple):
    """Where the method stopped."""

    lam: Float[Array, " n"]
    a: Float[Array, " k"]
    residual: Float[Array, ""]  # of the optimality conditions, relative to the scale of the losses


class Iterate(NamedTuple):
    """The unknowns; those that a dual does not have stay as they are."""

    w: Float[Array, " m"]
    a: Float[Array, " k"]
    nu: Float[Array, ""]
    s: Float[Array, " m"]
    v: Float[Array, " m"]
    t: Float[Array, ""]
    z: Float[Array, ""]

    def moved(self, step: "Iterate", length: Any) -> "Iterate":
        return Iterate(*(x + length * dx for x, dx in zip(self, step, strict=True)))


def solve(
    dual: Interior,
    f: Float[Array, " n"],
    G: Float[Array, "n k"],
    A: Float[Array, "n k k"],
    Q: Float[Array, "n n"],
) -> Solution:
    """The saddle point (lam, a); A_i and Q must be positive semidefinite."""
    n, k = G.shape
    if dual.only is not None:  # Lam is one point
        lam = jnp.asarray(dual.only)
        a = jnp.linalg.solve(jnp.tensordot(lam, A, 1), -(lam @ G))
        return Solution(lam, a, jnp.zeros(()))
    m, owner, cap = len(dual.owner), dual.owner, jnp.asarray(dual.cap)
    capped, p = jnp.isfinite(cap), jnp.asarray(dual.p)
    split = m != n
    ball = dual.radius is not None
    zero = jnp.zeros(())
    quadratic = zero if dual.quadratic is None else jnp.asarray(dual.quadratic, zero.dtype)
    entropy = zero if dual.entropy is None else jnp.asarray(dual.entropy, zero.dtype)
    modulus = jnp.maximum(quadratic, entropy)

    # One scale for the losses and one for the directions, so that every residual is compared with one.
    diagonal = jnp.diagonal(Q)
    f = f[owner] - jnp.asarray(dual.cost) if split else f
    spread = [jnp.ptp(f), modulus / n, 1e-3 * jnp.sqrt(jnp.max(diagonal) * modulus), jnp.ptp(diagonal) / n]
    scale = jnp.max(jnp.stack([*spread, 1e-14 * jnp.max(jnp.abs(f)), jnp.asarray(1e-300)]))
    trace = jnp.trace(A, axis1=1, axis2=2).sum() / (n * max(k, 1))
    unit = jnp.where(trace > 0, jnp.sqrt(scale / jnp.where(trace > 0, trace, 1)), 1)
    f, G, A, Q = (f - jnp.max(f)) / scale, G * (unit / scale), A * (unit**2 / scale), Q / scale
    if split:
        G, A, Q = G[owner], A[owner], Q[owner][:, owner]
    quadratic, entropy = quadratic / scale, entropy / scale
    pairs = float(m + np.isfinite(dual.cap).sum() + ball)
    rounding = 1e-13  # keeps the systems regular

    def penalty_slopes(w: Array) -> tuple[Array, Array]:
        """First and second derivative of psi."""
        first, second = quadratic * (w - p), jnp.full(m, 1.0) * quadratic
        if dual.entropy is not None:  # its slope goes on as a line below a weight that no longer counts
            floor = jnp.maximum(w / p, NEGLIGIBLE)
            first = first + entropy * (jnp.log(floor) + 1 + (w / p - floor) / floor)
            second = second + entropy / (p * floor)
        return first, second

    def below_cap(w: Array) -> Array:
        return jnp.where(capped, cap - w, 1)

    def slack(w: Array) -> Array:
        return jnp.ones(()) if dual.radius is None else dual.radius - jnp.sum((w - p) ** 2)

    class Residuals(NamedTuple):
        slopes: Array  # of the Lagrangian in w
        models: Array  # gradients of the n models at a, [m, k]
        in_a: Array
        of_sum: Array
        of_ball: Array
        complementarity: Array  # mean of all products of slack and multiplier

        def size(self) -> Array:
            parts = [jnp.abs(self.slopes), jnp.abs(self.in_a), jnp.abs(jnp.stack([self.of_sum, self.of_ball]))]
            return jnp.max(jnp.concatenate([*parts, jnp.atleast_1d(self.complementarity * n)]))

    def complementarity(at: Iterate) -> Array:
        total = at.s @ at.w + jnp.sum(jnp.where(capped, at.v * below_cap(at.w), 0))
        return (total + at.t * at.z if ball else total) / pairs

    def residuals(at: Iterate) -> Residuals:
        curved = A @ at.a
        values = f + G @ at.a + curved @ at.a / 2
        slopes = values - Q @ at.w - penalty_slopes(at.w)[0] + at.s - at.nu - at.v
        models = G + curved
        of_ball = jnp.zeros(())
        if ball:
            slopes, of_ball = slopes - 2 * at.z * (at.w - p), slack(at.w) - at.t
        return Residuals(slopes, models, at.w @ models, 1 - jnp.sum(at.w), of_ball, complementarity(at))

    def newton(at: Iterate, r: Residuals) -> Any:
        """The step for given targets of the products; one factorisation serves predictor and corrector."""
        room = below_cap(at.w)
        bend = penalty_slopes(at.w)[1] + at.s / at.w + jnp.where(capped, at.v / room, 0) + rounding
        if ball:
            bend = bend + 2 * at.z
        order = m + k + 1 + (1 if ball else 0)
        K = jnp.zeros((order, order)).at[:m, :m].set(-(Q + jnp.diag(bend)))
        K = K.at[:m, m : m + k].set(r.models).at[m : m + k, :m].set(r.models.T)
        K = K.at[m : m + k, m : m + k].set(jnp.tensordot(at.w, A, 1) + rounding * jnp.eye(k))
        K = K.at[:m, m + k].set(-1).at[m + k, :m].set(-1)
        if ball:
            K = K.at[:m, -1].set(-2 * (at.w - p)).at[-1, :m].set(-2 * (at.w - p)).at[-1, -1].set(at.t / at.z)
        factors = jax.scipy.linalg.lu_factor(K)

        def step(target: Any, second: Iterate) -> Iterate:
            """`second` is the predictor, whose products the corrector takes into account; zero for none."""
            s_up = (target - second.s * second.w) / at.w - at.s
            v_up = jnp.where(capped, (target + second.v * second.w) / room - at.v, 0)
            right = [-(r.slopes + s_up - v_up), -r.in_a, -jnp.atleast_1d(r.of_sum)]
            if ball:
                right.append(jnp.atleast_1d((target - second.z * second.t) / at.z - at.t - r.of_ball))
            b = jnp.concatenate(right)
            y = jax.scipy.linalg.lu_solve(factors, b)
            y = y + jax.scipy.linalg.lu_solve(factors, b - K @ y)
            dw = y[:m]
            dt = dz = jnp.zeros(())
            if ball:
                dz, dt = y[-1], r.of_ball - 2 * (at.w - p) @ dw
            return Iterate(
                dw,
                y[m : m + k],
                y[m + k],
                s_up - at.s / at.w * dw,
                jnp.where(capped, v_up + at.v / room * dw, 0),
                dt,
                dz,
            )

        return step

    def longest(at: Iterate, step: Iterate) -> Array:
        """The largest step up to 1 that keeps all slacks and multipliers positive."""
        slacks = [(at.w, step.w), (at.s, step.s)]
        slacks += [(below_cap(at.w), jnp.where(capped, -step.w, 0)), (jnp.where(capped, at.v, 1), step.v)]
        slacks += [(jnp.atleast_1d(at.t), jnp.atleast_1d(step.t)), (jnp.atleast_1d(at.z), jnp.atleast_1d(step.z))]
        values, changes = (jnp.concatenate(side) for side in zip(*slacks, strict=True))
        return jnp.minimum(1, jnp.min(jnp.where(changes < 0, -values / jnp.where(changes < 0, changes, -1), jnp.inf)))

    def advance(state: tuple) -> tuple:
        at, r, best, best_size, i, _ = state
        step = newton(at, r)
        nothing = Iterate(*(jnp.zeros_like(x) for x in at))
        predictor = step(0.0, nothing)
        ahead = complementarity(at.moved(predictor, longest(at, predictor)))
        centring = jnp.maximum((ahead / r.complementarity) ** 3, 1e-6)
        # Products that vanish before the slopes do would leave no room to move: logarithms are far from linear.
        behind = jnp.max(jnp.abs(r.slopes)) > n * r.complementarity
        centring = jnp.where(behind, jnp.maximum(centring, 0.5), centring)
        corrector = step(centring * r.complementarity, predictor)
        length = jnp.minimum(1, 0.99 * longest(at, corrector))
        new = at.moved(corrector, length)
        fine = jnp.all(jnp.isfinite(jnp.concatenate([new.w, new.a, new.s]))) & (length >= 1e-10)
        at = Iterate(*(jnp.where(fine, a, b) for a, b in zip(new, at, strict=True)))
        r = residuals(at)
        size = r.size()
        best = tuple(jnp.where(size < best_size, a, b) for a, b in zip((at.w, at.a), best, strict=True))
        return at, r, best, jnp.minimum(size, best_size), i + 1, fine

    def unfinished(state: tuple) -> Array:
        *_, size, i, fine = state
        return fine & (i < MOST_ITERATIONS) & (size >= TOLERANCE)

    one = jnp.ones(())
    finite_cap = np.where(np.isfinite(dual.cap), dual.cap, 1.0)
    w = jnp.asarray(finite_cap / finite_cap.sum())
    at = Iterate(w, jnp.zeros(k), 0 * one, jnp.ones(m), jnp.where(capped, 1.0, 0.0), slack(w), one)
    r = residuals(at)
    state = (at, r, (at.w, at.a), r.size(), jnp.int32(0), jnp.array(True))
    *_, (w, a), size, _, _ = jax.lax.while_loop(unfinished, advance, state)
    w = jnp.maximum(w, 0)
    lam = jnp.zeros(n).at[owner].add(w) if split else w
    lam = lam / jnp.sum(lam)
    if dual.radius is not None:  # what the residual left outside of the ball comes in, towards its centre
        far = jnp.sum((lam - p) ** 2)
        lam = p + (lam - p) * jnp.sqrt(jnp.minimum(1, dual.radius / jnp.maximum(far, 1e-300)))
    return Solution(lam, a * unit, size)
