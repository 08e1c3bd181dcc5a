"""The simulator's loop in plain Python: slow, steppable, and its errors name round, exchange and client."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from equipoise.engines.checks import check_run
from equipoise.engines.feed import feed
from equipoise.engines.simulator import Lost, Result, Tally, warn_of_broken
from equipoise.errors import EquipoiseError
from equipoise.protocol import (
    Algorithm,
    Cohort,
    RandomKey,
    Replies,
    Reply,
    Server,
    Vector,
    exchange_keys,
    is_finite,
    run_client,
    slot_key,
)


class ExchangeError(EquipoiseError):
    """Something failed in one exchange; the cause is attached."""


def debug(
    algorithm: Algorithm,
    x: Vector,
    data: Any,
    key: RandomKey | int,
    *,
    rounds: int,
    record: Callable[[Server], PyTree] | None = None,
    lost: Lost | None = None,
    strict: bool = True,
    jit: bool = False,
) -> Result:
    """As `simulate`, a client at a time.

    Args:
        strict: a reply that is not finite is an error that names its client, instead of a lost reply.
        jit: compile what clients do; faster, but no breakpoint or print in there sees numbers.
    """
    key = jax.random.key(key) if isinstance(key, int) else key
    check_run(algorithm, x, data, rounds, None)
    source = feed(algorithm.prepare, data).source
    n, keep = algorithm.n, record or (lambda server: ())
    works = [jax.jit(partial(run_client, e)) if jit else partial(run_client, e) for e in algorithm.round]
    server = algorithm.init(x)
    clients = [algorithm.init_client(x) for _ in range(n)]
    history, tally = [], Tally.nothing(algorithm)

    for r in range(rounds):
        for k, exchange in enumerate(algorithm.round):
            where = f"round {r}, exchange '{exchange.name}'"
            opening, working = exchange_keys(key, r, k)
            server, cohort = named(where + ", open", exchange.open, server, opening)
            gone = np.zeros(len(cohort.ids), bool) if lost is None else np.asarray(lost(jnp.int32(r), k, cohort.ids))
            replies: dict[int, Reply] = {}
            for slot in np.flatnonzero(cohort.present):
                tally.asked[k] += 1
                i = int(cohort.ids[slot])
                at = f"{where}, client {i}"
                message = named(at + ", send", exchange.send, server, jnp.int32(i))
                mine, reply = named(
                    at + ", work", works[k], message, clients[i], source.client(i), slot_key(working, slot)
                )
                if gone[slot]:
                    continue
                if not is_finite(reply):
                    if strict:
                        raise ExchangeError(f"{at}: the reply is not finite; try smaller steps, or look at its data")
                    tally.broken[i] += 1
                    continue
                tally.answered[k] += 1
                clients[i], replies[int(slot)] = mine, reply
            message = jax.eval_shape(exchange.send, server, jnp.int32(0))
            like = jax.eval_shape(exchange.work, message, clients[0], source.client(0), working)[1]
            server = named(where + ", close", exchange.close, server, collect(replies, like, cohort))
        history.append(keep(server))
    table = jax.tree.map(lambda *rows: jnp.stack(rows), *clients)
    result = Result(server, table, stacked(history), rounds, tally, float("nan"), 0.0)
    warn_of_broken(result)
    return result


def named(where: str, call: Callable, *args: Any) -> Any:
    """call(*args), whose errors say where they happened."""
    try:
        return call(*args)
    except Exception as error:
        raise ExchangeError(f"{where}: {error}") from error


def collect(replies: dict[int, Reply], like: Reply, cohort: Cohort) -> Replies:
    """What the server may see: the sum of `total`, the rows of `each`, who answered."""
    m = len(cohort.ids)
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
    rows = [replies.get(slot, nothing) for slot in range(m)]
    total = jax.tree.map(lambda *a: jnp.sum(jnp.stack(a), axis=0), *[row.total for row in rows])
    each = jax.tree.map(lambda *a: jnp.stack(a), *[row.each for row in rows])
    return Replies(total, each, Cohort(cohort.ids, jnp.array([slot in replies for slot in range(m)])))


def stacked(history: list) -> PyTree[np.ndarray]:
    return jax.tree.map(lambda *rows: np.stack(rows), *history) if history else ()
