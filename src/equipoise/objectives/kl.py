"""Relative entropy: the tilted, log-mean-exp objective (TERM with t = 1/rho)."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp, rel_entr
from jax.typing import ArrayLike

from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, make_dual, number, reference
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.projections import moderate
from equipoise.objectives.record import Record


def omega(z: Array) -> Array:
    """Wright's omega: the y > 0 with y + log y = z (Lawrence, Corless and Jeffrey 2012)."""
    z = jnp.maximum(z, -80)  # y is nothing there, but its logarithm must exist
    above = jnp.maximum(z, 1)
    y = jnp.where(z > 1, above - jnp.log(above) * (1 - 1 / above), 1 / (1 + jnp.exp(-jnp.minimum(z, 1))))
    for _ in range(2):  # Fritsch, Shafer and Crowley's fourth-order step, in ratios: y^2 may overflow
        r = (z - y - jnp.log(y)) / (1 + y)
        y = y * (1 + r * (1 + r * 2 / 3 - r / (2 * (1 + y))) / (1 + r * 2 / 3 - r / (1 + y)))
    return y


@numbers_are_leaves(static=("p",))
def kl(n: int, rho: float, *, p: ArrayLike | None = None) -> Dual:
    """psi(lam) = rho sum_i lam_i log(lam_i/p_i) on the simplex Delta; p is 1/n unless given.

    prox(v, step) = argmin_{lam in Delta} rho sum_i lam_i log(lam_i/p_i) + |lam - v|^2/(2 step).
    The best response is proportional to p_i exp(f_i/rho), the value is rho log sum_i p_i exp(f_i/rho).
    """
    n, rho, weights = clients(n), number("rho", rho), reference(p, n)
    logs = np.log(weights)

    def penalty(lam: Array) -> Array:
        return moderate(rho, lam.dtype) * jnp.sum(rel_entr(lam, jnp.asarray(weights, lam.dtype)))

    def prox(v: Array, step: Array | float) -> Array:
        # lam_i + a log(lam_i/p_i) = w_i - nu with a = rho step: lam_i = a omega((w_i - nu)/a + log(p_i/a)).
        info = jnp.finfo(v.dtype)
        a = jnp.clip(moderate(rho, v.dtype) * step, info.eps**2, info.max / 256)
        p, logp = jnp.asarray(weights, v.dtype), jnp.asarray(logs, v.dtype)
        w = v - jnp.max(v)

        def weights_and_slopes(nu: Array) -> tuple[Array, Array]:
            x = (w - nu) / a
            y = omega(x + (logp - jnp.log(a)))
            # Below y = 1 the exponential form holds more digits: it lets a tend to infinity.
            lam = jnp.where(y > 1, a * y, p * jnp.exp(x - y))
            return lam, lam / (1 + y)  # and -a times its derivative in nu

        def newton(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            nu, _, i = state
            lam, slope = weights_and_slopes(nu)
            move = a * ((jnp.sum(lam) - 1) / jnp.sum(slope))
            return nu + move, move, i + 1

        def moving(state: tuple[Array, Array, Array]) -> Array:
            nu, move, i = state
            return (jnp.abs(move) > 4 * info.eps * (jnp.abs(nu) + a)) & (i < 60)

        # The sum falls in nu and is convex, and it is at least 1 at this start, since either some lam_i > 1
        # or all lam_i >= p_i exp((w_i - nu - 1)/a): Newton's steps rise to the root and never pass it.
        start = a * logsumexp(logp + w / a) - 1
        nu, _, _ = lax.while_loop(moving, newton, (start, jnp.ones_like(a), jnp.int32(0)))
        lam, slope = weights_and_slopes(nu)
        for _ in range(2):  # the digits of nu that one number cannot hold
            lam = jnp.maximum(lam - slope * ((jnp.sum(lam) - 1) / jnp.sum(slope)), 0)
        return lam

    def best_response(losses: Array) -> Array:
        tilt = jnp.asarray(logs, losses.dtype) + (losses - jnp.max(losses)) / moderate(rho, losses.dtype)
        lam = jnp.exp(tilt - jnp.max(tilt))
        return lam / jnp.sum(lam)

    def value(losses: Array) -> Array:
        scale, p = moderate(rho, losses.dtype), jnp.asarray(weights, losses.dtype)
        top = jnp.max(losses)
        x = (losses - top) / scale
        # A large rho makes the mean of exp(x) one minus a little: log1p keeps the little.
        less = jnp.sum(p * jnp.expm1(x))
        return top + scale * jnp.where(
            less > -0.5, jnp.log1p(jnp.maximum(less, -0.5)), logsumexp(jnp.asarray(logs, losses.dtype) + x)
        )

    interior = Interior.weights(n, entropy=rho, p=weights)
    return make_dual(Dual("kl", n, penalty, prox, best_response, value, modulus=rho, interior=interior))


KL = Record("kl", kl, example={"rho": 0.5}, defaults={"rho": 0.1}, not_settings=("p",))
