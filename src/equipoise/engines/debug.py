"""The simulator's loop in plain Python: slow, steppable, and its errors name round, exchange and client."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from equipoise.data.shards import ClientData
from equipoise.engines.checks import all_finite, as_vector, check_data, check_start, require_finite
from equipoise.engines.client_data import StackedData, prepare_data
from equipoise.engines.fold import Collected
from equipoise.engines.kernel import Lost, Tally
from equipoise.engines.made_from import made_from
from equipoise.engines.simulator import Model, Result, broken_replies
from equipoise.errors import EquipoiseError, LostReplies
from equipoise.protocol import Algorithm, Client, RandomKey, Reply, Server, as_key, exchange_keys, run_client, slot_key

Made = TypeVar("Made")


class ExchangeError(EquipoiseError):
    """Something failed in one exchange; the cause is attached."""


def debug(
    algorithm: Algorithm[Server, Client],
    x: Model,
    data: ClientData,
    key: RandomKey | int,
    *,
    rounds: int,
    record: Callable[[Server], PyTree] | None = None,
    lost: Lost | None = None,
    strict: bool = True,
    jit: bool = False,
) -> Result[Server, Client, Model]:
    """As `simulate`, a client at a time.

    Args:
        strict: a reply that is not finite is an error that names its client, instead of a lost reply.
        jit: compile the algorithm's functions; faster, but no breakpoint or print in there sees numbers.
    """
    key, (flat, in_given_form) = as_key(key), as_vector(x)
    check_start(algorithm, flat, rounds)
    check_data(algorithm, flat, data)
    require_finite(all_finite(data))
    compiled: Callable = jax.jit if jit else lambda function: function
    source = compiled(partial(prepare_data, algorithm))(data).source
    if isinstance(source, StackedData):
        source = jax.tree.map(np.asarray, source)  # whose rows cost no compilation
    n, keep = algorithm.n, compiled(record or (lambda server: ()))
    steps = [[*map(compiled, (e.open, e.send, partial(run_client, e), e.close))] for e in algorithm.round]
    server = algorithm.init(flat)
    clients = [algorithm.init_client(flat) for _ in range(n)]
    history, tally = [], Tally.nothing(algorithm)

    for r in range(rounds):
        for k, (exchange, (open_, send, work, close)) in enumerate(zip(algorithm.round, steps, strict=True)):
            where = f"round {r}, exchange '{exchange.name}'"
            opening, working = exchange_keys(key, r, k)
            server, cohort = named(where + ", open", open_, server, opening)
            gone = np.zeros(len(cohort.ids), bool) if lost is None else np.asarray(lost(jnp.int32(r), k, cohort.ids))
            replies: dict[int, Reply] = {}
            for slot in np.flatnonzero(cohort.present):
                tally.asked[k] += 1
                i = int(cohort.ids[slot])
                client = f"{where}, client {i}"
                message = named(client + ", send", send, server, jnp.int32(i))
                shard = jax.tree.map(jnp.asarray, source.client(i))
                mine, reply = named(client + ", work", work, message, clients[i], shard, slot_key(working, slot))
                if gone[slot]:
                    continue
                if not finite(reply):
                    if strict:
                        raise ExchangeError(
                            f"{client}: the reply is not finite; try smaller steps, or look at its data"
                        )
                    tally.broken[i] += 1
                    continue
                tally.answered[k] += 1
                clients[i], replies[int(slot)] = mine, reply
            message = jax.eval_shape(exchange.send, server, jnp.int32(0))
            like = jax.eval_shape(exchange.work, message, clients[0], source.client(0), working)[1]
            collected = Collected(like, cohort)
            for place, answer in replies.items():
                collected.add(place, answer)
            server = named(where + ", close", close, server, collected.folded())
        history.append(keep(server))
    table = jax.tree.map(lambda *rows: jnp.stack(rows), *clients)
    origin = made_from(algorithm, data)
    model, took = in_given_form(algorithm.model(server)), (float("nan"), 0.0)
    kept = jax.tree.map(lambda *rows: np.stack(rows), *history) if history else ()
    result = Result(server, table, kept, rounds, tally, *took, algorithm.name, origin=origin, model=model)
    if sentence := broken_replies(result.tally):
        warnings.warn(sentence, LostReplies, stacklevel=2)
    return result


def finite(reply: Reply) -> bool:
    """As `is_finite`, without compiling anything."""
    return all(np.isfinite(a).all() for a in jax.tree.leaves(reply) if jnp.issubdtype(a.dtype, jnp.inexact))


def named(where: str, call: Callable[..., Made], *args: PyTree) -> Made:
    """call(*args), whose errors say where they happened."""
    try:
        return call(*args)
    except Exception as error:
        raise ExchangeError(f"{where}: {error}") from error
