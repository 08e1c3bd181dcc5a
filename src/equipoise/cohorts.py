"""Who takes part in an exchange.

Among many clients a cohort is drawn at the cost of those it asks: no draw sorts all n, and only `by_weight`, which has
to read n weights, reads n numbers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from equipoise.errors import InputError, require
from equipoise.leaves import Recipe, numbers_are_leaves, tree_of_numbers
from equipoise.protocol import Cohort, RandomKey, Server

Weights = Float[Array, " n"]
FEW = 1024  # clients up to which drawing a number for each is cheapest
BLOCK = 32  # clients that are drawn from together, where there are more


@tree_of_numbers
class Sample(NamedTuple):
    """A way to draw cohorts; call it with a key (and the client weights, where it draws by them)."""

    name: str
    n: int | None  # clients to draw from; None: as many as there are weights
    m: int  # slots of a cohort
    distinct: bool  # no client stands twice in a cohort
    draw: Callable[[RandomKey, Weights | None], Cohort]
    recipe: Recipe | None = None  # set by `numbers_are_leaves`

    def __call__(self, key: RandomKey, weights: Weights | None = None) -> Cohort:
        return self.draw(key, weights)

    def among(self, n: int) -> "Sample":
        """Itself, where it says how many clients there are; `everyone()` becomes everyone(n)."""
        return everyone(n) if self.m == 0 else self

    def open(self, server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        """`open` of an exchange that draws a cohort and changes nothing."""
        return server, self.draw(key, None)

    def weight(self, lam: Weights, i: Int[ArrayLike, ""]) -> Float[Array, ""]:
        """What client i's answer counts for so that the cohort's mean estimates the lam-weighted one."""
        return lam[i] if self.distinct else jnp.ones_like(lam[0])  # drawn by lam: counted already


@numbers_are_leaves
def everyone(n: int | None = None) -> Sample:
    """All n clients, in order; without n, all those of the algorithm's dual."""
    if n is None:
        return Sample("everyone()", None, 0, True, _of_unknown_size)
    check_clients(n)
    # NumPy, not JAX: an engine that sees constants in the identity order need not gather rows.
    cohort = Cohort(np.arange(n, dtype=np.int32), np.ones(n, bool))
    return Sample(f"everyone({n})", n, n, True, lambda key, weights: cohort)


def _of_unknown_size(key: RandomKey, weights: Weights | None) -> Cohort:
    raise InputError(
        "everyone() does not say how many clients there are, and nor does this algorithm; give everyone(n)"
    )


@numbers_are_leaves
def uniform(n: int, m: int) -> Sample:
    """m distinct clients out of n, uniformly."""
    check_clients(n)
    require(1 <= m <= n, f"a cohort of {m} out of {n} clients cannot be drawn without repeats; give 1 <= m <= {n}")

    few = n <= FEW or 4 * m > n

    def draw(key: RandomKey, weights: Weights | None) -> Cohort:
        ids = jax.lax.top_k(jax.random.bits(key, (n,), jnp.uint32), m)[1] if few else _distinct(key, n, m)
        return Cohort(ids.astype(jnp.int32), jnp.ones(m, bool))

    return Sample(f"uniform({n}, {m})", n, m, True, draw)


@numbers_are_leaves
def by_weight(m: int) -> Sample:
    """m independent draws from the client weights, with replacement: a client may stand in several slots."""
    require(m >= 1, f"a cohort of {m} is empty; give m >= 1")

    def draw(key: RandomKey, weights: Weights | None) -> Cohort:
        if weights is None:
            raise InputError("by_weight draws from client weights and this algorithm has none; use uniform(n, m)")
        return Cohort(_weighted(key, weights, m), jnp.ones(m, bool))

    return Sample(f"by_weight({m})", None, m, False, draw)


@numbers_are_leaves(static=("p",))
def coin(n: int, p: float) -> Sample:
    """Every client with probability p: the cohort's size varies, its shape does not.

    Among many clients there are slots for 8 standard deviations more than n p; who does not fit, once in 10^14 draws or
    less, is left out.
    """
    check_clients(n)
    require(0 < p <= 1, f"the probability of taking part is {p}; give 0 < p <= 1")
    slots = math.ceil(n * p + 8 * math.sqrt(n * p) + 8)
    if n <= FEW or 2 * slots > n:
        ids = np.arange(n, dtype=np.int32)
        return Sample(
            f"coin({n}, {p})", n, n, True, lambda key, weights: Cohort(ids, jax.random.bernoulli(key, p, (n,)))
        )

    def draw(key: RandomKey, weights: Weights | None) -> Cohort:
        # From one client who takes part to the next the gaps are geometric: floor of an exponential variable.
        gaps = jnp.floor(jax.random.exponential(key, (slots,)) / -math.log1p(-p))
        ids = jnp.cumsum(jnp.minimum(gaps, n).astype(jnp.int32) + 1) - 1
        return Cohort(jnp.minimum(ids, n - 1), ids < n)

    return Sample(f"coin({n}, {p})", n, slots, True, draw)


def _distinct(key: RandomKey, n: int, m: int) -> Int[Array, " m"]:
    """m distinct numbers below n, uniformly: repeated numbers are drawn again until all differ.

    No number is treated differently from another, so all sets of m are equally likely.
    """

    def again(state: tuple) -> tuple:
        ids, repeated, t = state
        fresh = _below(jax.random.fold_in(key, t), n, (m,))
        ids = jnp.where(repeated, fresh, ids)
        order = jnp.argsort(ids)
        ahead = ids[order]
        same = jnp.concatenate([jnp.zeros(1, bool), ahead[1:] == ahead[:-1]])
        return ids, jnp.zeros(m, bool).at[order].set(same), t + 1

    start = (jnp.zeros(m, jnp.int32), jnp.ones(m, bool), jnp.int32(0))
    return jax.lax.while_loop(lambda state: jnp.any(state[1]), again, start)[0]


def _below(key: RandomKey, n: int, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Numbers below n, each as likely as any other up to n/2^32: in a third of `randint`'s operations."""
    return (jax.random.bits(key, shape, jnp.uint32) % jnp.uint32(n)).astype(jnp.int32)


def _weighted(key: RandomKey, weights: Weights, m: int) -> Int[Array, " m"]:
    """m independent draws by the weights; never one of weight zero.

    Of many, first a block, then one of the block; a block by its sum, in the same way. The members of a block lie far
    apart, so that all sums are one sum of vectors.
    """
    levels = [weights]
    while levels[-1].size > FEW:
        levels.append(_block_sums(levels[-1]))
    u = jax.random.uniform(key, (len(levels), m), weights.dtype)
    ids = _first_above(u[-1], levels[-1][None])
    for members, blocks, part in zip(levels[-2::-1], levels[:0:-1], u[-2::-1], strict=True):
        places = ids[:, None] + blocks.size * jnp.arange(BLOCK, dtype=jnp.int32)[None]
        weight = members.at[places].get(mode="fill", fill_value=0)
        ids = ids + blocks.size * _first_above(part, weight)
    return ids


def _block_sums(weights: Weights) -> Float[Array, " blocks"]:
    """Block k has the weights k, k + blocks, k + 2 blocks, ..."""
    blocks = -(-weights.size // BLOCK)
    *full, last = (weights[k * blocks : (k + 1) * blocks] for k in range(BLOCK))
    return sum(full, jnp.pad(last, (0, blocks - last.size)))


def _first_above(u: Float[Array, " m"], weights: Float[Array, "*m k"]) -> Int[Array, " m"]:
    """In every row the first entry with a weight whose cumulated weight is above the part u of the sum."""
    # By rounding, sums of more may be less: entries without weight are left out by their weight, not by their sum.
    cumulated = jnp.where(weights > 0, jnp.cumsum(weights, axis=1), 0)
    above = cumulated > u[:, None] * jnp.max(cumulated, axis=1, keepdims=True)
    return jnp.min(jnp.where(above, jnp.arange(weights.shape[1], dtype=jnp.int32)[None], weights.shape[1] - 1), axis=1)


def those_who_answered(sample: Sample) -> Callable[[Any, RandomKey], tuple[Any, Cohort]]:
    """`open` of an exchange after the first: only who answered in that one, which `server.answered` says."""
    return lambda server, key: (server, sample(key)._replace(present=server.answered))


def check_clients(n: int) -> None:
    """A federation has at least one."""
    require(n >= 1, f"{n} clients cannot make a federation; give at least one")


def check_distinct(sample: Sample, why: str) -> int:
    """The number of clients of a sample that an algorithm with client state may use."""
    if sample.m == 0:
        sample(jax.random.key(0))  # says what is missing
    if not sample.distinct or sample.n is None:
        raise InputError(
            f"{sample.name} may draw a client twice in one exchange, but {why}; "
            "use everyone(n), uniform(n, m) or coin(n, p)"
        )
    return sample.n


def check_same_clients(sample: Sample, n: int, why: str) -> int:
    """`check_distinct` of an algorithm with a dual over n clients."""
    require(
        check_distinct(sample, why) == n,
        f"the cohorts are drawn from {sample.n} clients but the dual is for {n}; build both for the same",
    )
    return n


def check_by_weight(sample: Sample, n: int, who: str) -> None:
    """Drawn by the clients' weights, or all of them."""
    require(
        sample.n is None or (sample.n == n and sample.m == n),
        f"{who} draws its clients by their weights: give by_weight(m), or everyone({n}), not {sample.name}",
    )


def check_everyone(sample: Sample, n: int, who: str) -> None:
    """All clients of the dual take part."""
    require(
        sample.n == n and sample.m == n,
        f"{who} asks all {n} clients of its dual in every round: give everyone({n}), not {sample.name}",
    )
