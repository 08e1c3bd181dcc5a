"""The dual step and the trial of `scaffpd_model`: saddle points of the model over span(D), then over span(D, d, C).

All in double precision.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from equipoise.algorithms.server_model import constants, directions, saddle
from equipoise.algorithms.server_model.directions import TINY
from equipoise.algorithms.server_model.precision import joined, pairs
from equipoise.algorithms.server_model.state import Server, Trial
from equipoise.linear_algebra import solve
from equipoise.objectives.dual import Dual
from equipoise.protocol import Vector

ROUNDING = np.finfo(np.float64).eps


def update_dual(server: Server, dual: Dual, interior: Any) -> Server:
    """The weights, and the gradient of their sum at the best point of span(D)."""
    centre, memory = server.centre, server.memory
    f, G, A = joined(centre.f), centre.C @ memory.D.T, inside(server)
    C_perp = centre.C - G @ memory.D
    solution = saddle.solve(interior, f, G, A, server.shape.q * (C_perp @ C_perp.T))
    useful = solution.residual <= constants.USELESS
    lam = jnp.where(useful, solution.lam, dual.best_response(f))
    a = jnp.where(useful & memory.used, solution.a, 0)
    c = lam @ centre.C + a @ jnp.einsum("n,nkd->kd", lam, memory.Y)
    return server._replace(lam=lam, a=a, c=c)


def next_trial(server: Server, dual: Dual, interior: Any, d: Vector) -> Server:
    """Where the model over span(D, d, C) has its saddle point."""
    centre, memory, shape, L, lam, a, c = (*server[:1], *server[2:5], server.lam, server.a, server.c)
    f, A, G = joined(centre.f), inside(server), centre.C @ memory.D.T
    here = f + G @ a + jnp.einsum("nij,i,j->n", A, a, a) / 2
    C_a, G_a = centre.C + memory.image(a), G + A @ a

    slope = -(c @ d)
    no_descent = slope < constants.NO_DESCENT * jnp.linalg.norm(c) * jnp.linalg.norm(d)  # noise, or nobody answered
    d = jnp.where(no_descent | jnp.all(d == 0), -c / (lam @ L), d)
    slope = jnp.maximum(-(c @ d), TINY)

    cross = memory.Y @ d
    explained = jnp.einsum("ni,ni->n", cross, solve(A, cross))
    along = jnp.maximum(shape.kappa * slope, explained + constants.UNEXPLAINED * shape.kappa * slope) * (1 + shape.nu)
    E = jnp.concatenate(
        [jnp.concatenate([A, cross[:, :, None]], 2), jnp.concatenate([cross, along[:, None]], 1)[:, None, :]], 1
    )
    new = d - (memory.D @ d) @ memory.D
    new = new / jnp.maximum(jnp.linalg.norm(new), TINY)
    C_perp = C_a - G_a @ memory.D
    C_perp = C_perp - (C_perp @ new)[:, None] * new[None, :]
    inverse = 1 / ((lam @ L) * (1 + shape.nu))
    slopes = jnp.concatenate([G_a, (C_a @ d)[:, None]], axis=1)

    # After several failures the gradient mapping: no directions, and a curvature that no client exceeds.
    safe = shape.in_a_row >= constants.IN_A_ROW
    surely = 1 / (jnp.max(L) * 2.0 ** (shape.in_a_row - constants.IN_A_ROW).astype(f.dtype))
    inverse = jnp.where(safe, surely, inverse)
    values = jnp.where(safe, f, here)
    slopes = jnp.where(safe, 0, slopes)
    gradients = jnp.where(safe, centre.C, C_perp)
    Q = inverse * (gradients @ gradients.T)
    solution = saddle.solve(interior, values, slopes, E, Q)
    useful = solution.residual <= constants.USELESS
    size = memory.D.shape[0]
    b = jnp.where(useful, solution.a, jnp.zeros(size + 1).at[-1].set(1))
    b = b.at[:-1].set(jnp.where(memory.used, b[:-1], 0))
    least = constants.SHORTEST_TRIAL
    b = b.at[-1].set(jnp.where(jnp.abs(b[-1]) < least, least, b[-1]))
    b = jnp.where(safe, 0, b)
    lam_b = jnp.where(useful, solution.lam, lam)
    coordinates = jnp.where(safe, 0, a + b[:-1])
    x = centre.x + coordinates @ memory.D + b[-1] * d - inverse * (lam_b @ gradients)
    values = values + slopes @ b + jnp.einsum("nij,i,j->n", E, b, b) / 2 - Q @ lam_b + lam_b @ Q @ lam_b / 2
    base, predicted = dual.value(f), dual.value(values)

    rounding = constants.PREDICTION_ROUNDING * ROUNDING * jnp.max(jnp.abs(f))
    done = (base - predicted <= rounding) & (slope <= constants.SLOPE_ROUNDING * rounding)
    trial = Trial(
        x=jnp.where(done, centre.x, x),
        label=jnp.where(done, centre.label, server.points + 1),
        coordinates=coordinates,
        slope=slope,
        predicted=pairs(predicted),
        lam=lam_b,
    )
    return server._replace(trial=trial, points=server.points + 1)


def inside(server: Server) -> Float[Array, "n k k"]:
    """A_i: the curvature on span(D), raised where it is uncertain and where the model promised too much."""
    A = directions.within(server.memory, constants.FLAT * jnp.min(server.L))
    return directions.cautious(server.memory, A) * (1 + server.shape.nu)
