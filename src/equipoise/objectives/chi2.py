"""The chi-square divergence from equal weights, as a penalty (SCAFF-PD eq (3.3)) and as a ball around them.

Both lie on the path lam(c) = argmin_{lam in Delta} c |lam|^2/2 - <v, lam>, which leads from the face of
the largest v (c = 0) to equal weights (c = infinity): the penalty fixes c, the ball asks where the path
enters it.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, make_dual, no_penalty, number, value_of
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.projections import SearchStart, moderate, simplex
from equipoise.objectives.record import Record


@numbers_are_leaves
def chi2(n: int, rho: float) -> Dual:
    """psi(lam) = rho/(2n) sum_i (n lam_i - 1)^2 on the simplex Delta, SCAFF-PD eq (3.3).

    prox(v, step) = argmin_{lam in Delta} rho/(2n) sum_i (n lam_i - 1)^2 + |lam - v|^2/(2 step).
    A small rho is close to `agnostic`, a large one to the average.
    """
    n, rho = clients(n), number("rho", rho)

    def penalty(lam: Array) -> Array:
        return moderate(rho * n / 2, lam.dtype) * jnp.sum((lam - 1 / n) ** 2)

    def prox(v: Array, step: Array | float, start: SearchStart | None = None) -> Array:
        # On Delta a constant added to v changes nothing, so the centre 1/n drops out and the curvature stays.
        return simplex(v, 1 + step * moderate(rho * n, v.dtype), start)

    def best_response(losses: Array) -> Array:
        return simplex(losses, rho * n)

    interior = Interior.weights(n, quadratic=rho * n)
    operators = penalty, prox, best_response, value_of(best_response, penalty)
    return make_dual(Dual("chi2", n, *operators, modulus=rho * n, interior=interior, prox_given=prox))


@numbers_are_leaves(static=("radius",))
def chi2_ball(n: int, radius: float) -> Dual:
    """psi = 0 on {lam in Delta : 1/(2n) sum_i (n lam_i - 1)^2 <= radius}.

    prox(v, step) = argmin_{lam in that set} |lam - v|^2, whatever the step. From radius (n - 1)/2 on the
    ball holds all of Delta. Equal losses are answered by equal weights.
    """
    n, radius = clients(n), number("radius", radius, traced=False)
    k = np.arange(1, n + 1)
    # What |lam - 1/n|^2 <= 2 radius/n leaves beyond equal weights on k clients; from 1 on it binds nobody.
    room = np.clip(2 * radius / n - (n - k) / (k * n), -1, 1)

    def entry(v: Array) -> Array:
        """The smallest c with lam(c) in the ball.

        With v sorted downwards and A_k = sum_{i<=k} (v_i - v_{k+1}), lam(c) lives on k clients for c in
        (A_{k-1}, A_k], and there |lam(c)|^2 = D_k/c^2 + 1/k with D_k = sum_{i<=k} (v_i - mean_k)^2
        = D_{k-1} + A_{k-1}^2/(k (k-1)). The recursion runs on x_k = D_k/A_k^2, which takes no difference
        of close numbers and no square of a large one.
        """
        if n == 1:
            return jnp.zeros((), v.dtype)
        info = jnp.finfo(v.dtype)
        u = jnp.sort(v)[::-1]
        gaps = jnp.minimum(u[:-1] - u[1:], info.max / (256 * n))  # no sum of them overflows
        count = jnp.arange(1, n + 1, dtype=v.dtype)
        mass = jnp.cumsum(count[:-1] * gaps)
        mass = jnp.concatenate([jnp.zeros(1, v.dtype), mass, jnp.full(1, info.max / 256, v.dtype)])
        grow = 1 / jnp.maximum(count * (count - 1), 1)
        ratio = jnp.where(mass[1:] > 0, mass[:-1] / jnp.maximum(mass[1:], info.tiny), 0) ** 2
        _, x = lax.associative_scan(lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]), (ratio, ratio * grow))
        left = jnp.asarray(room, v.dtype)
        place = jnp.argmax((x <= left).at[-1].set(True))
        before = jnp.where(place > 0, x[place - 1], 0)
        c = mass[place] * jnp.sqrt((before + grow[place]) / jnp.maximum(left[place], info.tiny))
        return jnp.clip(c, mass[place], mass[place + 1])

    def prox(v: Array, step: Array | float) -> Array:
        return simplex(v, jnp.maximum(entry(v), 1))

    def best_response(losses: Array) -> Array:
        return simplex(losses, entry(losses))

    operators = no_penalty, prox, best_response, value_of(best_response)
    interior = Interior.weights(n, radius=2 * radius / n)
    return make_dual(Dual("chi2_ball", n, *operators, modulus=0.0, interior=interior))


CHI2 = Record("chi2", chi2, example={"rho": 0.1}, defaults={"rho": 0.1})
CHI2_BALL = Record("chi2_ball", chi2_ball, example={"radius": 0.5}, defaults={"radius": 0.5})
