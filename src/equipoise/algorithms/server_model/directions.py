"""What the server of `scaffpd_model` knows of the clients' curvature: directions, and every client's images of them.

    D      [k, d]       orthonormal directions, newest first; unused rows are zero
    Y_i    [k, d]       H_i D, what the curvature of client i makes of them
    U_i    [k, k]       how uncertain Y_i is: 0 where both ends of a difference were heard, 1 where nothing is known

Every move s of the model adds a direction, and c_i(x + s) - c_i(x) is its image, at no cost. A client that was not
heard at both ends gets an estimate: its old images for the part of s that lies in D, the others' mean for the rest;
what it says later corrects the estimate with the gain of a Kalman filter, whose covariance is U. All functions are for
arrays of double precision.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from equipoise.algorithms.server_model import constants
from equipoise.linear_algebra import eigh, eigvalsh

TINY = 1e-300  # where a quotient of two zeros must be zero


class Memory(NamedTuple):
    """The directions, their images, and the images' uncertainty."""

    D: Float[Array, "k d"]
    Y: Float[Array, "n k d"]
    U: Float[Array, "n k k"]

    @property
    def used(self) -> Bool[Array, " k"]:
        return jnp.any(self.D != 0, axis=1)

    def image(self, a: Float[Array, " k"]) -> Float[Array, "n d"]:
        """H_i D'a, as far as the images know."""
        return jnp.einsum("k,nkd->nd", a, self.Y)


class Difference(NamedTuple):
    """A move s and what it did to the clients' gradients."""

    y: Float[Array, "n d"]  # H_i s, heard or estimated
    memory: Memory  # with the corrections that it brought
    U: Float[Array, "n 1+k 1+k"]  # the uncertainty of (H_i s/|s|, Y_i)


def empty(n: int, k: int, d: int, dtype: DTypeLike) -> Memory:
    return Memory(jnp.zeros((k, d), dtype), jnp.zeros((n, k, d), dtype), jnp.zeros((n, k, k), dtype))


def within(memory: Memory, floor: Float[Array, ""]) -> Float[Array, "n k k"]:
    """The curvature D H_i D' inside the directions: the symmetric part, with eigenvalues of at least `floor`.

    Unused directions get the mean curvature on the diagonal, where it keeps their coordinates at zero.
    """
    A = products(memory)
    traces = jnp.trace(A, axis1=1, axis2=2)
    used = memory.used
    count = jnp.maximum(jnp.sum(used, dtype=A.dtype), 1)
    floor = jnp.maximum(floor, constants.FLAT_BESIDE * jnp.max(traces) / count)
    values, vectors = eigh((A + A.mT) / 2)
    raised = jnp.einsum("nij,nj,nkj->nik", vectors, jnp.maximum(values, floor), vectors)
    both = used[:, None] & used[None, :]
    spare = jnp.where(used, 0, jnp.maximum(jnp.mean(traces) / count, floor))
    return jnp.where(both, raised, 0) + jnp.diag(spare)[None]


def cautious(memory: Memory, A: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
    """`A` with the largest curvature added where the images are uncertain."""
    both = jnp.einsum("j,k->jk", memory.used.astype(A.dtype), memory.used.astype(A.dtype))
    top = eigvalsh(A * both[None])[:, -1]
    return A + top[:, None, None] * memory.U


def products(memory: Memory) -> Float[Array, "n k k"]:
    return jnp.einsum("njd,kd->njk", memory.Y, memory.D)


def difference(
    memory: Memory,
    s: Float[Array, " d"],
    coordinates: Float[Array, " k"],
    change: Float[Array, "n d"],
    here: Bool[Array, " n"],
    clean: Bool[Array, " n"],
    since: Float[Array, "n d"],
    noise: Float[Array, " n"],
    weights: Float[Array, " n"],
    blind: Float[Array, ""],
) -> Difference:
    """The images of the move s.

    Args:
        s: the move; D'`coordinates` of it was planned inside the directions.
        change: c_i at the new point, as far as heard, less c_i at the old one, heard or estimated.
        here: who was heard at the new point; clean: who was heard at the old one too.
        since: from where client i was last heard to the old point; infinite for one never heard.
        noise: the squared size of what rounding does to a change, in units of L_i^2.
        weights: of the clean clients, whose mean stands for those who were not heard.
        blind: the curvature to assume across D when nobody is clean.
    """
    D, Y, U = memory
    size = jnp.linalg.norm(s)
    e = s - coordinates @ D
    inside = D @ e
    a, across = coordinates + inside, e - inside @ D
    image = memory.image(a)
    some = jnp.sum(jnp.where(clean, weights, 0))
    innovation = jnp.where(clean[:, None], change - image, 0)
    shared = jnp.where(some > 0, (weights @ innovation) / jnp.maximum(some, TINY), blind * across)
    y = image + shared[None, :]

    Ua = U @ a
    corner = (Ua @ a + across @ across) / size**2
    wide = jnp.concatenate(
        [
            jnp.concatenate([corner[:, None], Ua / size], 1)[:, None, :],
            jnp.concatenate([(Ua / size)[:, :, None], U], 2),
        ],
        1,
    )
    reach, beyond = span(D, since)
    reach = jnp.where(clean[:, None], 0, reach)
    beyond = jnp.where(clean, 0, beyond) + noise
    direction = jnp.concatenate([jnp.full((len(here), 1), 1.0) * size, reach], axis=1)
    spread = jnp.einsum("nij,nj->ni", wide, direction)
    variance = jnp.sum(spread * direction, axis=1)
    informative = here & (variance > 0)
    divisor = variance + beyond + TINY
    gain = spread / jnp.where(clean, jnp.maximum(variance, TINY), divisor)[:, None]
    gain = jnp.where(informative[:, None], gain, 0)
    surprise = jnp.where(here[:, None], change - y, 0)
    y = jnp.where(clean[:, None], change, y + size * gain[:, :1] * surprise)
    Y = Y + gain[:, 1:, None] * surprise[:, None, :]
    less = wide - jnp.einsum("ni,nj->nij", spread, spread) / divisor[:, None, None]
    # Of a clean client the row of s itself, without the difference of two nearly equal numbers.
    row = wide[:, 0, :] * (beyond / divisor)[:, None]
    exact = less.at[:, 0, :].set(row).at[:, :, 0].set(row)
    less = jnp.where(clean[:, None, None], exact, less)
    wide = jnp.where(informative[:, None, None], less, wide)
    return Difference(y, Memory(D, Y, U), wide)


def corrected(
    memory: Memory,
    surprise: Float[Array, "n d"],
    back: Bool[Array, " n"],
    since: Float[Array, "n d"],
    noise: Float[Array, " n"],
) -> Memory:
    """The images after clients `back` were heard at the very point where they had been estimated: `surprise` off."""
    D, Y, U = memory
    reach, beyond = span(D, since)
    spread = jnp.einsum("nij,nj->ni", U, reach)
    variance = jnp.sum(spread * reach, axis=1)
    divisor = variance + beyond + noise + TINY
    informative = (back & (variance > 0)).astype(U.dtype)
    gain = informative[:, None] * spread / divisor[:, None]
    return Memory(D, Y + gain[:, :, None] * surprise[:, None, :], U - jnp.einsum("ni,nj->nij", gain, spread))


def span(D: Float[Array, "k d"], since: Float[Array, "n d"]) -> tuple[Array, Array]:
    """Coordinates of a displacement in D, and the square of what lies across; of an infinite one 0 and infinity."""
    finite = jnp.isfinite(since[:, :1])
    since = jnp.where(finite, since, 0)
    reach = since @ D.T
    beyond = jnp.maximum(jnp.sum(since**2, axis=1) - jnp.sum(reach**2, axis=1), 0)
    return reach, jnp.where(finite[:, 0], beyond, jnp.inf)


def renewed(
    step: Difference,
    s: Float[Array, " d"],
    coordinates: Float[Array, " k"],
    forget: Bool[Array, ""],
    drop: Float[Array, ""],
) -> Memory:
    """The memory with s as its newest direction, orthonormal again.

    Where it was full, the two oldest directions become one: what the last move used of them. `forget` keeps but the
    newest of the old ones; a direction of which less than `drop` is new goes.
    """
    D, Y, _ = step.memory
    k = D.shape[0]
    used = step.memory.used
    count = jnp.sum(jnp.where(forget, used & (jnp.arange(k) < 1), used))
    eye = jnp.eye(k, k + 1, dtype=D.dtype)
    last = coordinates[-2:]
    largest = jnp.max(jnp.abs(last))
    last = jnp.where(largest > 0, last / jnp.maximum(largest, TINY), jnp.array([1.0, 0.0]))
    T = jnp.where(count == k, eye.at[k - 1, k - 1].set(last[0]).at[k - 1, k].set(last[1]), eye)
    T = jnp.where(forget & (jnp.arange(k + 1) > 1)[None, :], 0, T)
    T, D = orthonormal(T, T[:, :1] * s[None, :] + T[:, 1:] @ D, drop)
    Y = T[None, :, :1] * step.y[:, None, :] + jnp.einsum("jk,nkd->njd", T[:, 1:], Y)
    unit = jnp.concatenate([T[:, :1] * jnp.linalg.norm(s), T[:, 1:]], axis=1)
    U = jnp.einsum("ij,njk,lk->nil", unit, step.U, unit)
    return Memory(D, Y, jnp.clip(U, -constants.MOST_UNCERTAIN, constants.MOST_UNCERTAIN))


def orthonormal(
    T: Float[Array, "k j"], D: Float[Array, "k d"], drop: Float[Array, ""]
) -> tuple[Float[Array, "k j"], Float[Array, "k d"]]:
    """Gram and Schmidt on the rows of D, the first one first, and the same combinations of the rows of T.

    A row of which less than `drop` is new becomes zero; zero rows go last.
    """
    both = jnp.concatenate([D, T], axis=1)  # what is done to a row of D is done to the row of T behind it
    d = D.shape[1]

    def scaled(row: Array, least: Array) -> Array:
        size = jnp.linalg.norm(row[:d])
        return row * jnp.where(size > least, 1 / jnp.maximum(size, TINY), 0)

    def settle(j: Array, rows: Array) -> Array:
        done = jnp.where((jnp.arange(len(rows), dtype=j.dtype) < j)[:, None], rows, 0)
        row = scaled(rows[j], jnp.zeros_like(drop))
        for _ in range(2):  # twice is enough
            row = row - (done[:, :d] @ row[:d]) @ done
        return rows.at[j].set(scaled(row, drop))

    both = jax.lax.fori_loop(0, len(D), settle, both)
    D, T = both[:, :d], both[:, d:]
    order = jnp.argsort(jnp.all(D == 0, axis=1), stable=True)
    return T[order], D[order]
