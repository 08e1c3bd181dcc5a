"""What replies tell the server of `scaffpd_model`: of the trial, of the clients' curvature, and of its own model.

All in double precision.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.server_model import constants, directions
from equipoise.algorithms.server_model.directions import TINY, Memory
from equipoise.algorithms.server_model.precision import joined, pairs
from equipoise.algorithms.server_model.state import Point, Server, Shape
from equipoise.objectives.dual import Dual
from equipoise.protocol import mean, neutral, tree_where


def heard_at_centre(
    server: Server, here: Bool[Array, " n"], loss: Float[Array, " n"], c_i: Float[Array, "n d"], eps: float
) -> Server:
    """Clients `here` have said what they have to say of the centre itself."""
    centre = server.centre
    back = here & ~centre.heard_here
    f = joined(centre.f)
    surprise = jnp.where(back[:, None], c_i - centre.C, 0)
    memory = directions.corrected(server.memory, surprise, back, since(centre), noise(centre, server.L, eps))
    heard = centre.heard | here
    f, C = jnp.where(back, loss, f), jnp.where(back[:, None], c_i, centre.C)
    # One never heard counts as the mean of the others.
    count = jnp.sum(heard, dtype=f.dtype)
    f = neutral(f, heard)
    C = jnp.where(heard[:, None], C, mean((count, heard.astype(f.dtype) @ C))[None, :])
    anchor = jnp.where(here[:, None], centre.x[None, :], centre.anchor)
    centre = centre._replace(f=pairs(f), C=C, heard_here=centre.heard_here | here, heard=heard, anchor=anchor)
    first = server.shape.q == 0
    q = jnp.where(first, jnp.mean(1 / server.L), server.shape.q)
    return server._replace(
        centre=centre, memory=memory, shape=server.shape._replace(q=q), age=jnp.where(here, 0, server.age)
    )


def retreat(server: Server) -> Server:
    """Nobody could say anything of the trial: the next one goes less far."""
    shape = server.shape
    nu = jnp.maximum(constants.LOST_TRIAL * shape.nu, constants.LOST_DAMPING)
    nu, kappa = jnp.minimum(nu, constants.MOST_DAMPING), constants.LOST_TRIAL * shape.kappa
    return server._replace(shape=shape._replace(nu=nu, kappa=kappa))


class Look(NamedTuple):
    """What the replies at a trial show: losses and gradients at both ends of the move, and its images."""

    s: Float[Array, " d"]  # the move
    difference: directions.Difference
    f: Float[Array, " n"]  # at the centre
    new_f: Float[Array, " n"]  # at the trial
    half: Float[Array, " n"]  # the change of the loss by the trapezoid rule
    C: Float[Array, "n d"]
    new_C: Float[Array, "n d"]
    same: Float[Array, " n"]  # losses in a row that agreed with that rule


def judged(
    server: Server,
    dual: Dual,
    here: Bool[Array, " n"],
    loss: Float[Array, " n"],
    c_i: Float[Array, "n d"],
    eps: float,
) -> Server:
    """What the replies at the trial say of it, of the clients' curvature, and of the model."""
    centre, trial = server.centre, server.trial
    look = looked(server, here, loss, c_i, eps)
    unlike = not_quadratic(server, look, here, eps)
    memory, off_images = rescaled(server, look, here, unlike)
    kappa, q = curvature_along(server, memory, look)
    base, got, predicted = dual.value(look.f), dual.value(look.new_f), jnp.sum(trial.predicted)
    worse = got > base
    nu, taken_back = damping(server.shape, base, got, predicted, unlike)
    renewed = directions.renewed(
        look.difference._replace(memory=memory),
        look.s,
        trial.coordinates,
        off_images > constants.FORGET,
        jnp.maximum(constants.NEW, jnp.minimum(unlike, constants.MOST_NEW)),
    )
    memory = tree_where(look.s @ look.s > constants.STOOD_STILL * (centre.x @ centre.x), renewed, memory)

    heard = centre.heard | here
    back, left = here & ~centre.heard_here, centre.heard_here & ~here
    anchor = jnp.where(here[:, None], trial.x[None, :], jnp.where(left[:, None], centre.x[None, :], centre.anchor))
    there = Point(trial.x, trial.label, pairs(look.new_f), look.new_C, here, heard, anchor)
    anchor = jnp.where(back[:, None], trial.x[None, :], centre.anchor)
    stays = centre._replace(f=pairs(look.f), C=look.C, heard=heard, anchor=anchor)
    return server._replace(
        centre=tree_where(worse, stays, there),
        memory=memory,
        shape=Shape(kappa, q, nu, taken_back, jnp.where(worse, server.shape.in_a_row + 1, 0)),
        same=look.same,
    )


def looked(
    server: Server, here: Bool[Array, " n"], loss: Float[Array, " n"], c_i: Float[Array, "n d"], eps: float
) -> Look:
    """Clients `here` were heard at the trial; the others get the values that their images imply."""
    centre, trial, L, lam = server.centre, server.trial, server.L, server.lam
    s = trial.x - centre.x
    clean = here & centre.heard_here
    difference = directions.difference(
        server.memory,
        s,
        trial.coordinates,
        jnp.where(here[:, None], c_i - centre.C, 0),
        here,
        clean,
        since(centre),
        noise(centre, L, eps),
        jnp.where(clean, lam + constants.LEAST_WEIGHT, 0),
        constants.ASSUMED * (lam @ L),
    )
    y, back = difference.y, here & ~centre.heard_here
    C = jnp.where(back[:, None], c_i - y, centre.C)
    new_C = jnp.where(here[:, None], c_i, C + y)
    half = (C + new_C) @ s / 2
    f = jnp.where(back, loss - half, joined(centre.f))
    new_f = jnp.where(here, loss, f + half)

    # A loss that agrees with the trapezoid rule up to rounding is taken from it; the rest is averaged.
    off = new_f - f - half
    agrees = here & (jnp.abs(off) <= constants.TRAPEZOID_ROUNDING * eps * jnp.maximum(jnp.abs(new_f), jnp.abs(f)))
    same = jnp.where(agrees, jnp.minimum(server.same + 1, constants.LOSSES_AVERAGED), 1)
    new_f, f = jnp.where(agrees, f + half + off / same, new_f), jnp.where(agrees, f + off / same, f)
    return Look(s, difference, f, new_f, half, C, new_C, same)


def not_quadratic(server: Server, look: Look, here: Bool[Array, " n"], eps: float) -> Float[Array, ""]:
    """How far the losses are off the trapezoid rule, which is exact where they are quadratic; the largest."""
    rounding = constants.LOSS_ROUNDING * eps / constants.NOT_QUADRATIC * jnp.max(jnp.abs(look.f))
    explained = jnp.abs(look.difference.y @ look.s) / 2
    unlike = jnp.abs(look.new_f - look.f - look.half) / (explained + rounding + TINY)
    return jnp.max(jnp.where(here & server.centre.heard_here, unlike, 0))


def rescaled(
    server: Server, look: Look, here: Bool[Array, " n"], unlike: Float[Array, ""]
) -> tuple[Memory, Float[Array, ""]]:
    """The images, fitted to what was seen where losses are not quadratic; and how far off they were."""
    clean, trial, memory = here & server.centre.heard_here, server.trial, look.difference.memory
    A = directions.within(server.memory, constants.FLAT * jnp.min(server.L))
    e = look.s - trial.coordinates @ server.memory.D
    seen = look.difference.y @ memory.D.T
    expected = jnp.einsum("nij,j->ni", A, trial.coordinates) * memory.used.astype(A.dtype)[None, :] + memory.Y @ e
    length = jnp.maximum(jnp.sum(expected**2, axis=1), TINY)
    weights = jnp.where(clean, server.lam, 0)
    weight = jnp.sum(weights)
    off_images = jnp.sqrt(jnp.sum((seen - expected) ** 2, axis=1) / length)
    off_images = jnp.where(weight > constants.WEIGHT_SEEN, mean((weight, weights @ off_images)), 0)
    scale = jnp.clip(jnp.sum(seen * expected, axis=1) / length, constants.LEAST_SCALE, constants.MOST_SCALE)
    typical = jnp.where(weight > 0, mean((weight, weights @ scale)), 1)
    curved = (unlike > constants.NOT_QUADRATIC) & jnp.any(memory.used)
    scale = jnp.where(curved, jnp.where(clean, scale, typical), 1)
    return memory._replace(Y=memory.Y * scale[:, None, None]), off_images


def curvature_along(server: Server, memory: Memory, look: Look) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """kappa_i and q: the curvature along what was new in the move, per client and on the whole."""
    trial, c, D = server.trial, server.c, memory.D
    e = look.s - trial.coordinates @ server.memory.D
    h = (look.difference.y - memory.image(trial.coordinates)) @ e
    t = jnp.maximum(-(c @ e) / trial.slope, constants.SHORTEST)
    kappa = jnp.clip(h / (trial.slope * t**2), constants.LEAST_CURVATURE, constants.MOST_CURVATURE)
    c_perp = c - (D @ c) @ D
    least = constants.LEAST_CURVATURE * trial.slope * t**2
    q = (trial.slope * t) ** 2 / jnp.maximum(server.lam @ h, least) / jnp.maximum(c_perp @ c_perp, TINY)
    return kappa, q


def damping(
    shape: Shape, base: Float[Array, ""], got: Float[Array, ""], predicted: Float[Array, ""], unlike: Float[Array, ""]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """nu, as the radius of a trust region: more where the robust value fell by less than predicted, less where it did.

    Where losses are quadratic the first trial that fails is forgiven: only the curvature that it met was not known.
    """
    curved = unlike > constants.NOT_QUADRATIC
    ratio = (base - got) / jnp.maximum(base - predicted, TINY)
    poor = (got > base) | (curved & (ratio < constants.POOR))
    good = ~poor & (ratio > constants.GOOD)
    taken_back = jnp.where(poor, shape.taken_back + 1, jnp.where(good | (got < base), 0, shape.taken_back))
    more = jnp.minimum(jnp.maximum(constants.MORE_DAMPING * shape.nu, constants.FIRST_DAMPING), constants.MOST_DAMPING)
    less = jnp.where(shape.nu > constants.NO_DAMPING, shape.nu / constants.LESS_DAMPING, 0)
    return jnp.where(poor & (curved | (taken_back > 1)), more, jnp.where(good, less, shape.nu)), taken_back


def since(centre: Point) -> Float[Array, "n d"]:
    """From where every client was last heard to the centre; infinite for one never heard."""
    return jnp.where(centre.heard[:, None], centre.x[None, :] - centre.anchor, jnp.inf)


def noise(centre: Point, L: Float[Array, " n"], eps: float) -> Float[Array, " n"]:
    """What rounding does to a difference of two gradients, squared, in units of L_i^2."""
    return (
        constants.GRADIENT_ROUNDING * eps * (jnp.linalg.norm(centre.C, axis=1) / L + jnp.linalg.norm(centre.x))
    ) ** 2
