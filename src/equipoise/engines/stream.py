"""Rounds over data that stays in memory-mapped files: of each cohort's clients the rows are read, and no others.

While the device computes, a thread reads the rows of the next exchange. Whom that asks is guessed from the server as it
is before this one, which is right wherever the cohort depends on the key alone; a wrong guess is read again, so the
result is always that of data in memory.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial, PyTreeDef
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise._jax import cached_program, compiled
from equipoise.data.shards import Shards
from equipoise.engines import kernel
from equipoise.engines.kernel import State
from equipoise.errors import require
from equipoise.protocol import Data, RandomKey, Server, round_keys


def is_mapped(data: object) -> bool:
    """Whether the data is in files that are mapped into memory (`np.load(..., mmap_mode="r")`, `np.memmap`)."""
    mapped = any(isinstance(a, np.memmap) for a in jax.tree.leaves(data))
    require(not mapped or isinstance(data, Shards), "memory-mapped data has to be Shards; give eq.data.Shards")
    return mapped


class Gathered(NamedTuple):
    """The prepared data of one cohort, in the order of its slots."""

    tree: PyTree[Array]

    def rows(self, ids: ArrayLike) -> Data:
        return self.tree


@cached_program
def programs(structure: PyTreeDef) -> tuple[Callable, Callable]:
    """Who is asked in an exchange, and the exchange itself on their rows."""

    def asked(numbers: list[Array], server: Server, key: RandomKey, r: Array, *, k: int) -> Array:
        algorithm = structure.unflatten(numbers)
        opening, _ = round_keys(key, r, len(algorithm.round))[k]
        return jnp.asarray(algorithm.round[k].open(server, opening)[1].ids)

    def exchange(
        numbers: list[Array], state: State, shards: Shards, key: RandomKey, lose: Partial | None, *, k: int
    ) -> State:
        algorithm = structure.unflatten(numbers)
        r, server, clients, tally = state
        gone = None if lose is None else partial(lose, r, k)
        data: PyTree = Gathered(jax.vmap(algorithm.prepare)(shards))
        keys = round_keys(key, r, len(algorithm.round))[k]
        server, clients, seen = kernel.exchange_once(algorithm.round[k], server, clients, data, keys, gone=gone)
        tally = kernel.Tally(
            jnp.asarray(tally.asked).at[k].add(seen.asked),
            jnp.asarray(tally.answered).at[k].add(seen.answered),
            jnp.asarray(tally.broken).at[jnp.asarray(seen.ids)].add(seen.broken.astype(jnp.int32)),
        )
        return State(r + int(k + 1 == len(algorithm.round)), server, clients, tally)

    return compiled(asked, static_argnames="k"), compiled(exchange, static_argnames="k", donate_argnums=1)


def rounds(structure: PyTreeDef, data: object) -> Callable:
    """As `simulator.rounds_of`, with rows from files."""
    asked, exchange = programs(structure)
    reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="equipoise-rows")

    def read(asked_for: Array | np.ndarray) -> tuple[np.ndarray, Shards]:
        ids = np.asarray(asked_for)
        order = np.argsort(ids)  # files are read in one direction
        rows = jax.tree.map(lambda a: np.asarray(a[ids[order]])[np.argsort(order)], data)
        return ids, rows

    def advance(
        numbers: list[Array], state: State, inputs: PyTree, stop: Array, *, length: int
    ) -> tuple[State, PyTree]:
        algorithm, (_, key, keep, lose) = structure.unflatten(numbers), inputs
        exchanges = len(algorithm.round)
        state = state._replace(tally=kernel.no_counts(algorithm))
        seen: list[PyTree] = []
        ahead: Future | None = None
        for r in range(int(state.round), int(stop)):
            for k in range(exchanges):
                ids = np.asarray(asked(numbers, state.server, key, jnp.int32(r), k=k))
                guessed, rows = ahead.result() if ahead is not None else (None, None)
                if guessed is None or not np.array_equal(guessed, ids):
                    _, rows = read(ids)
                after, then = (k + 1) % exchanges, r + (k + 1 == exchanges)
                guess = asked(numbers, state.server, key, jnp.int32(then), k=after)
                state = exchange(numbers, state, rows, key, lose, k=k)
                ahead = reader.submit(read, guess)
            seen.append(jax.tree.map(np.asarray, keep(state.server)))
        if not seen:
            return state, jax.tree.map(lambda s: np.zeros((0, *s.shape), s.dtype), jax.eval_shape(keep, state.server))
        return state, jax.tree.map(lambda *a: np.stack(a), *seen)

    return advance
