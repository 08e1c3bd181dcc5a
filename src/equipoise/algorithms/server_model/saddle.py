"""The small saddle problem that the server of `scaffpd_model` solves: quadratic models of n losses in k directions.

    max_{lam in Lam}  min_{a in R^k}  sum_i lam_i (f_i + G_i a + a' A_i a / 2) - lam' Q lam / 2 - psi(lam)

A primal-dual interior point method with Mehrotra's predictor and corrector. Lam and psi come as a dual's `Interior`:
parts w of the weights with w >= 0 and w <= cap, which for most duals are the weights themselves. Its unknowns are
w, a, the multiplier nu of the sum, and the slacks and prices of the bounds and of a ball. One step solves the system of
order m + k + 1 (+ 1 with a ball) that is left when all others are eliminated, by two Cholesky factors: one of its part
in w, one of what that leaves of the rest.

Double precision throughout, whatever the run uses: callers trace it under `jax.enable_x64`, which JAX allows inside a
program that otherwise has single precision only; it is then compiled like everything else.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise import linear_algebra
from equipoise.algorithms.server_model import constants
from equipoise.objectives.dual import Interior
from equipoise.protocol import tree_where


class Solution(NamedTuple):
    """Where the method stopped."""

    lam: Float[Array, " n"]
    a: Float[Array, " k"]
    residual: Float[Array, ""]  # of the optimality conditions, relative to the scale of the losses


class Iterate(NamedTuple):
    """The unknowns. The slacks are those of w >= 0, of w <= cap where there is one, and of the ball."""

    w: Float[Array, " m"]
    a: Float[Array, " k"]
    nu: Float[Array, ""]
    slack: Float[Array, " p"]
    price: Float[Array, " p"]  # their multipliers


class Residuals(NamedTuple):
    """What is left of the optimality conditions at an iterate."""

    slopes: Float[Array, " m"]  # of the Lagrangian in w
    models: Float[Array, "m k"]  # gradients of the n models at a
    rest: Float[Array, " k+1"]  # in a, and of the sum
    ball: Float[Array, ""]  # what its slack lacks; the other slacks are exact
    products: Float[Array, ""]  # mean of slack times price


def below(root: Float[Array, "m m"], right: Float[Array, "m j"], *, transpose: bool = False) -> Float[Array, "m j"]:
    """The factor's inverse, or its transpose's, times `right`."""
    return jax.lax.linalg.triangular_solve(root, right, left_side=True, lower=True, transpose_a=transpose)


def longest(iterate: Iterate, step: Iterate) -> Array:
    """The largest step up to 1 that keeps all slacks and prices positive."""
    values, changes = (jnp.concatenate([x.slack, x.price]) for x in (iterate, step))
    return jnp.minimum(1, jnp.min(jnp.where(changes < 0, -values / jnp.where(changes < 0, changes, -1), jnp.inf)))


class Scaled(NamedTuple):
    """The problem in the parts of the weights, in units in which every residual is compared with one."""

    f: Float[Array, " m"]
    G: Float[Array, "m k"]
    A: Float[Array, "m k k"]
    Q: Float[Array, "m m"]
    quadratic: Float[Array, ""]
    entropy: Float[Array, ""]
    scale: Float[Array, ""]  # of the losses
    unit: Float[Array, ""]  # of the directions


def scaled(
    dual: Interior,
    f: Float[Array, " n"],
    G: Float[Array, "n k"],
    A: Float[Array, "n k k"],
    Q: Float[Array, "n n"],
) -> Scaled:
    """One scale for the losses and one for the directions."""
    (n, k), owner, split, zero = G.shape, dual.owner, len(dual.owner) != len(f), jnp.zeros(())
    quadratic = zero if dual.quadratic is None else jnp.asarray(dual.quadratic, zero.dtype)
    entropy = zero if dual.entropy is None else jnp.asarray(dual.entropy, zero.dtype)
    modulus = jnp.maximum(quadratic, entropy)
    if dual.smooth is not None:
        bends = jax.hessian(dual.smooth)(jnp.asarray(dual.p))
        modulus = jnp.maximum(modulus, jnp.max(jnp.diagonal(bends)))

    diagonal = jnp.diagonal(Q)
    f = (f[owner] if split else f) - jnp.asarray(dual.cost, f.dtype)
    spread = [
        jnp.ptp(f),
        modulus / n,
        constants.COUPLING * jnp.sqrt(jnp.max(diagonal) * modulus),
        jnp.ptp(diagonal) / n,
    ]
    scale = jnp.max(jnp.stack([*spread, constants.LOSS_DIGITS * jnp.max(jnp.abs(f)), jnp.asarray(1e-300)]))
    trace = jnp.trace(A, axis1=1, axis2=2).sum() / (n * max(k, 1))
    unit = jnp.where(trace > 0, jnp.sqrt(scale / jnp.where(trace > 0, trace, 1)), 1)
    f, G, A, Q = (f - jnp.max(f)) / scale, G * (unit / scale), A * (unit**2 / scale), Q / scale
    if split:
        G, A, Q = G[owner], A[owner], Q[owner][:, owner]
    return Scaled(f, G, A, Q, quadratic / scale, entropy / scale, scale, unit)


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
        a = linear_algebra.solve(jnp.tensordot(lam, A, 1), -(lam @ G))
        return Solution(lam, a, jnp.zeros(()))
    m, p = len(dual.owner), jnp.asarray(dual.p)
    capped = np.flatnonzero(np.isfinite(dual.cap))
    ball = dual.radius is not None
    zero = jnp.zeros(())
    f, G, A, Q, quadratic, entropy, scale, unit = scaled(dual, f, G, A, Q)

    def penalty_slopes(w: Array) -> tuple[Array, Array]:
        """First derivative of psi, and the second of all of it but `smooth`."""
        first, second = quadratic * (w - p), jnp.full(m, 1.0) * quadratic
        if dual.entropy is not None:  # its slope goes on as a line below a weight that no longer counts
            floor = jnp.maximum(w / p, constants.NEGLIGIBLE)
            first = first + entropy * (jnp.log(floor) + 1 + (w / p - floor) / floor)
            second = second + entropy / (p * floor)
        if dual.smooth is not None:
            first = first + jax.grad(dual.smooth)(w) / scale
        return first, second

    def bends(w: Array) -> Array:
        """The second derivative of `smooth`, and Q."""
        return Q if dual.smooth is None else Q + jax.hessian(dual.smooth)(w) / scale

    def slacks(w: Array, caps: ArrayLike, of_ball: ArrayLike) -> Array:
        """All constraints as one vector: w, then caps - w, then the ball."""
        parts = [w, caps - w[capped]] if capped.size else [w]
        return jnp.concatenate([*parts, jnp.atleast_1d(of_ball)] if ball else parts)

    def of_ball(w: Array) -> Array:
        return zero if dual.radius is None else dual.radius - jnp.sum((w - p) ** 2)

    def on_weights(per_bound: Array, sign: float) -> Array:
        """Sums over the bounds of every weight; those of caps count with the sign."""
        return per_bound[:m].at[capped].add(sign * per_bound[m : m + capped.size]) if capped.size else per_bound[:m]

    def residuals(iterate: Iterate) -> Residuals:
        models = A @ iterate.a
        slopes = (
            f
            + (G + models / 2) @ iterate.a
            - Q @ iterate.w
            - penalty_slopes(iterate.w)[0]
            + on_weights(iterate.price, -1.0)
            - iterate.nu
        )
        models, lacking = G + models, zero
        if ball:
            slopes, lacking = slopes - 2 * iterate.price[-1] * (iterate.w - p), of_ball(iterate.w) - iterate.slack[-1]
        rest = jnp.append(iterate.w @ models, 1 - jnp.sum(iterate.w))
        return Residuals(slopes, models, rest, lacking, iterate.slack @ iterate.price / iterate.slack.size)

    def size(r: Residuals) -> Array:
        return jnp.max(jnp.abs(jnp.concatenate([r.slopes, r.rest, jnp.stack([r.ball, n * r.products])])))

    def system(iterate: Iterate, r: Residuals) -> tuple[Array, Array, Array, Array]:
        """The matrix [[-H, B], [B', R]] of a Newton step, H in w and B, R for a, the sum and the ball's price.

        H is a matrix and what comes to its diagonal. The steps in all other slacks and prices are eliminated.
        """
        bend = penalty_slopes(iterate.w)[1] + on_weights(iterate.price / iterate.slack, 1.0) + constants.REGULAR
        bend = bend + 2 * iterate.price[-1] if ball else bend
        in_a = jnp.tensordot(iterate.w, A, 1) + constants.REGULAR * jnp.eye(k)
        B = jnp.concatenate([r.models, jnp.full((m, 1), -1.0)], axis=1)
        R = jnp.pad(in_a, (0, 1))
        if ball:
            B = jnp.concatenate([B, -2 * (iterate.w - p)[:, None]], axis=1)
            R = jnp.pad(R, (0, 1)).at[-1, -1].set(iterate.slack[-1] / iterate.price[-1])
        return bends(iterate.w), bend, B, R

    def advance(state: tuple) -> tuple:
        iterate, r, best, best_size, i, _ = state
        dense, bend, B, R = system(iterate, r)
        root = linear_algebra.cholesky(dense + jnp.diag(bend + constants.CHOLESKY * jnp.max(jnp.diagonal(dense))))
        V = below(root, B)
        small = R + V.T @ V
        sizes = jnp.sqrt(jnp.diagonal(small))  # of the unknowns beside w, which are of all kinds
        small_root = linear_algebra.cholesky(
            small / (sizes[:, None] * sizes[None, :]) + constants.CHOLESKY * jnp.eye(len(sizes))
        )

        def solved(one: Array, two: Array) -> tuple[Array, Array]:
            u = below(root, one[:, None])
            right = (two[:, None] + V.T @ u) / sizes[:, None]
            y = below(small_root, below(small_root, right), transpose=True) / sizes[:, None]
            return below(root, V @ y - u, transpose=True)[:, 0], y[:, 0]

        # Products that vanish before the slopes do would leave no room to move: logarithms are far from linear.
        least = jnp.where(jnp.max(jnp.abs(r.slopes)) > n * r.products, constants.CENTRING, constants.LATE_CENTRING)

        def newton(_: Array, carry: tuple) -> tuple:
            """First the predictor, then the corrector, whose target and second order the predictor gives."""
            target, second = carry[:2]
            up = (target - second) / iterate.slack - iterate.price
            one, two = -(r.slopes + on_weights(up, -1.0)), -r.rest
            if ball:
                two = jnp.append(two, up[-1] * iterate.slack[-1] / iterate.price[-1] - r.ball)
            dw, y = solved(one, two)
            left = one + dense @ dw + bend * dw - B @ y  # the first was with a little added
            more = solved(left, two - dw @ B - R @ y)
            dw, y = dw + more[0], y + more[1]
            slack = slacks(dw, 0.0, r.ball - 2 * (iterate.w - p) @ dw)
            price = up - iterate.price / iterate.slack * slack
            price = price.at[-1].set(y[-1]) if ball else price
            step = Iterate(dw, y[:k], y[k], slack, price)
            length = longest(iterate, step)
            ahead = (iterate.slack + length * slack) @ (iterate.price + length * price) / slack.size
            centring = jnp.maximum((ahead / r.products) ** 3, least)
            return centring * r.products, slack * price, step, length

        nothing = jax.tree.map(jnp.zeros_like, iterate)
        *_, step, length = jax.lax.fori_loop(0, 2, newton, (zero, nothing.slack, nothing, zero))
        length = constants.BOUNDARY * length
        new = jax.tree.map(lambda x, dx: x + length * dx, iterate, step)
        fine = jnp.all(jnp.isfinite(jnp.concatenate([new.w, new.a, new.price]))) & (length >= constants.STUCK)
        iterate = tree_where(fine, new, iterate)
        r = residuals(iterate)
        now = size(r)
        best = tree_where(now < best_size, (iterate.w, iterate.a), best)
        return iterate, r, best, jnp.minimum(now, best_size), i + 1, fine

    def unfinished(state: tuple) -> Array:
        *_, best_size, i, fine = state
        return fine & (i < constants.MOST_ITERATIONS) & (best_size >= constants.SOLVED)

    finite_cap = np.where(np.isfinite(dual.cap), dual.cap, 1.0)
    w = jnp.asarray(finite_cap / finite_cap.sum())
    slack = slacks(w, dual.cap[capped], of_ball(w))
    iterate = Iterate(w, jnp.zeros(k), zero, slack, jnp.ones_like(slack))
    r = residuals(iterate)
    state = (iterate, r, (iterate.w, iterate.a), size(r), jnp.int32(0), jnp.array(True))
    *_, (w, a), residual, _, _ = jax.lax.while_loop(unfinished, advance, state)
    return Solution(weights_of_parts(dual, w, n), a * unit, residual)


def weights_of_parts(dual: Interior, w: Float[Array, " m"], n: int) -> Float[Array, " n"]:
    """Weights that sum to one; what the residual left outside of a ball comes in, towards its centre."""
    w = jnp.maximum(w, 0)
    lam = jnp.zeros(n).at[dual.owner].add(w) if len(dual.owner) != n else w
    lam = lam / jnp.sum(lam)
    if dual.radius is not None:
        p = jnp.asarray(dual.p)
        far = jnp.sum((lam - p) ** 2)
        lam = p + (lam - p) * jnp.sqrt(jnp.minimum(1, dual.radius / jnp.maximum(far, 1e-300)))
    return lam
