"""What replies tell the server of `scaffpd_model`: of the trial, of the clients' curvature, and of its own model.

All in double precision.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from equipoise.algorithms.server_model import directions
from equipoise.algorithms.server_model.directions import TINY
from equipoise.algorithms.server_model.precision import joined, pairs
from equipoise.algorithms.server_model.state import Point, Server, Shape
from equipoise.objectives.dual import Dual
from equipoise.protocol import mean, neutral, tree_where

NOT_QUADRATIC = 1e-4  # a trapezoid that is this far off a loss
FORGET = 0.2  # images that are this far off: only the newest direction stays


def heard_at_centre(
    server: Server, here: Bool[Array, " n"], loss: Float[Array, " n"], c_i: Float[Array, "n d"], eps: float
) -> Server:
    """Clients `here` have said what they have to say of the centre itself."""
    at = server.at
    back = here & ~at.heard_here
    f = joined(at.f)
    surprise = jnp.where(back[:, None], c_i - at.C, 0)
    memory = directions.corrected(server.memory, surprise, back, since(at), noise(at, server.L, eps))
    heard = at.heard | here
    f, C = jnp.where(back, loss, f), jnp.where(back[:, None], c_i, at.C)
    # One never heard counts as the mean of the others.
    count = jnp.sum(heard, dtype=f.dtype)
    f = neutral(f, heard)
    C = jnp.where(heard[:, None], C, mean((count, heard.astype(f.dtype) @ C))[None, :])
    anchor = jnp.where(here[:, None], at.x[None, :], at.anchor)
    at = at._replace(f=pairs(f), C=C, heard_here=at.heard_here | here, heard=heard, anchor=anchor)
    first = server.shape.q == 0
    q = jnp.where(first, jnp.mean(1 / server.L), server.shape.q)
    return server._replace(at=at, memory=memory, shape=server.shape._replace(q=q), age=jnp.where(here, 0, server.age))


def retreat(server: Server) -> Server:
    """Nobody could say anything of the trial: the next one goes less far."""
    shape = server.shape
    return server._replace(
        shape=shape._replace(nu=jnp.minimum(jnp.maximum(4 * shape.nu, 1), 64), kappa=4 * shape.kappa)
    )


def judged(
    server: Server,
    dual: Dual,
    here: Bool[Array, " n"],
    loss: Float[Array, " n"],
    c_i: Float[Array, "n d"],
    eps: float,
) -> Server:
    """What the replies at the trial say of it, of the clients' curvature, and of the model."""
    at, trial, shape, L, lam = server.at, server.trial, server.shape, server.L, server.lam
    s = trial.x - at.x
    e = s - trial.coordinates @ server.memory.D
    clean = here & at.heard_here
    A = directions.within(server.memory, 1e-10 * jnp.min(L))
    change = jnp.where(here[:, None], c_i - at.C, 0)
    weights = jnp.where(clean, lam + 1e-9, 0)
    seen_difference = directions.difference(
        server.memory,
        s,
        trial.coordinates,
        change,
        here,
        clean,
        since(at),
        noise(at, L, eps),
        weights,
        0.1 * (lam @ L),
    )
    y = seen_difference.y

    # Those not heard there, or not here, get the values that their images imply.
    back = here & ~at.heard_here
    C = jnp.where(back[:, None], c_i - y, at.C)
    new_C = jnp.where(here[:, None], c_i, C + y)
    half = (C + new_C) @ s / 2
    f = jnp.where(back, loss - half, joined(at.f))
    new_f = jnp.where(here, loss, f + half)

    # A loss that agrees with the trapezoid rule up to rounding is taken from it; the rest is averaged.
    off = new_f - f - half
    agrees = here & (jnp.abs(off) <= 16 * eps * jnp.maximum(jnp.abs(new_f), jnp.abs(f)))
    same = jnp.where(agrees, jnp.minimum(server.same + 1, 20), 1)
    new_f, f = jnp.where(agrees, f + half + off / same, new_f), jnp.where(agrees, f + off / same, f)
    base, got, predicted = dual.value(f), dual.value(new_f), jnp.sum(trial.predicted)

    # How far from quadratic, and how far off the old images?
    size = jnp.max(jnp.abs(f))
    unlike = jnp.abs(new_f - f - half) / (jnp.abs(y @ s) / 2 + 64 * eps / NOT_QUADRATIC * size + TINY)
    unlike = jnp.max(jnp.where(clean, unlike, 0))
    curved = unlike > NOT_QUADRATIC
    memory = seen_difference.memory
    seen = y @ memory.D.T
    expected = jnp.einsum("nij,j->ni", A, trial.coordinates) * memory.used.astype(A.dtype)[None, :] + memory.Y @ e
    length = jnp.maximum(jnp.sum(expected**2, axis=1), TINY)
    weights = jnp.where(clean, lam, 0)
    off_images = jnp.sqrt(jnp.sum((seen - expected) ** 2, axis=1) / length)
    off_images = jnp.where(jnp.sum(weights) > 1e-3, mean((jnp.sum(weights), weights @ off_images)), 0)
    scale = jnp.clip(jnp.sum(seen * expected, axis=1) / length, 0.2, 5)
    typical = jnp.where(jnp.sum(weights) > 0, mean((jnp.sum(weights), weights @ scale)), 1)
    any_memory = jnp.any(memory.used)
    scale = jnp.where(curved & any_memory, jnp.where(clean, scale, typical), 1)
    memory = memory._replace(Y=memory.Y * scale[:, None, None])

    # The curvature along what was new in the move, per client and on the whole.
    h = (y - memory.image(trial.coordinates)) @ e
    n_d = trial.slope
    t = jnp.maximum(-(server.c @ e) / n_d, 1e-6)
    kappa = jnp.clip(h / (n_d * t**2), 1e-3, 1e3)
    c_perp = server.c - (memory.D @ server.c) @ memory.D
    q = (n_d * t) ** 2 / jnp.maximum(lam @ h, 1e-3 * n_d * t**2) / jnp.maximum(c_perp @ c_perp, TINY)

    ratio = (base - got) / jnp.maximum(base - predicted, TINY)
    worse = got > base
    poor = worse | (curved & (ratio < 0.25))
    good = ~poor & (ratio > 0.5)
    taken_back = jnp.where(poor, shape.taken_back + 1, jnp.where(good | (got < base), 0, shape.taken_back))
    more = jnp.minimum(jnp.maximum(2 * shape.nu, 0.25), 64)
    less = jnp.where(shape.nu > 0.05, shape.nu / 3, 0)
    nu = jnp.where(poor & (curved | (taken_back > 1)), more, jnp.where(good, less, shape.nu))
    in_a_row = jnp.where(worse, shape.in_a_row + 1, 0)

    renewed = directions.renewed(
        seen_difference._replace(memory=memory),
        s,
        trial.coordinates,
        off_images > FORGET,
        jnp.maximum(1e-6, jnp.minimum(unlike, 0.1)),
    )
    memory = tree_where(s @ s > 1e-28 * (at.x @ at.x), renewed, memory)

    heard = at.heard | here
    left = at.heard_here & ~here
    anchor = jnp.where(here[:, None], trial.x[None, :], jnp.where(left[:, None], at.x[None, :], at.anchor))
    there = Point(trial.x, trial.label, pairs(new_f), new_C, here, heard, anchor)
    anchor = jnp.where(back[:, None], trial.x[None, :], at.anchor)
    stays = at._replace(f=pairs(f), C=C, heard=heard, anchor=anchor)
    return server._replace(
        at=tree_where(worse, stays, there),
        memory=memory,
        shape=Shape(kappa, q, nu, taken_back, in_a_row),
        same=same,
    )


def since(at: Point) -> Float[Array, "n d"]:
    """From where every client was last heard to the centre; infinite for one never heard."""
    return jnp.where(at.heard[:, None], at.x[None, :] - at.anchor, jnp.inf)


def noise(at: Point, L: Float[Array, " n"], eps: float) -> Float[Array, " n"]:
    """What rounding does to a difference of two gradients, squared, in units of L_i^2."""
    return (4 * eps * (jnp.linalg.norm(at.C, axis=1) / L + jnp.linalg.norm(at.x))) ** 2
