"""The simulator's loop in plain Python: slow, steppable, and its errors name round, exchange and client."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from equipoise.data.shards import ClientData
from equipoise.engines.checks import all_finite, check_data, check_start, require_finite
from equipoise.engines.feed import feed
from equipoise.engines.fold import fold_slots
from equipoise.engines.kernel import Lost, Tally
from equipoise.engines.simulator import Result, warn_of_broken
from equipoise.errors import EquipoiseError
from equipoise.protocol import (
    Algorithm,
    RandomKey,
    Reply,
    Server,
    Vector,
    as_key,
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
    data: ClientData,
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
    key, x = as_key(key), jnp.asarray(x)
    check_start(algorithm, x, rounds)
    check_data(algorithm, x, data)
    require_finite(all_finite(data))
    source = feed(algorithm, data).source
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
            server = named(where + ", close", exchange.close, server, fold_slots(replies, like, cohort))
        history.append(keep(server))
    table = jax.tree.map(lambda *rows: jnp.stack(rows), *clients)
    result = Result(server, table, stacked(history), rounds, tally, float("nan"), 0.0, algorithm.name)
    warn_of_broken(result)
    return result


def named(where: str, call: Callable, *args: Any) -> Any:
    """call(*args), whose errors say where they happened."""
    try:
        return call(*args)
    except Exception as error:
        raise ExchangeError(f"{where}: {error}") from error


def stacked(history: list) -> PyTree[np.ndarray]:
    return jax.tree.map(lambda *rows: np.stack(rows), *history) if history else ()
