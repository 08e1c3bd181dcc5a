"""Runs an algorithm on one machine, as one compiled program: clients under vmap, rounds in a loop on the device."""

import operator
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Bool, Int, PyTree

from equipoise.engines.checks import check_run
from equipoise.engines.feed import Feed, feed
from equipoise.engines.layout import Layout, lay_out
from equipoise.errors import LostReplies, Stopped, require
from equipoise.protocol import (
    Algorithm,
    Client,
    Cohort,
    Exchange,
    RandomKey,
    Replies,
    Server,
    Vector,
    exchange_keys,
    is_finite,
    run_client,
    slot_key,
)

Lost = Callable[[Int[Array, ""], int, Int[ArrayLike, " m"]], Bool[Array, " m"]]
Progress = Callable[[int, int, Any], None]
CHUNK_SECONDS = 0.25  # how long the device runs between two looks at the clock and at Ctrl-C


class Tally(NamedTuple):
    """What was asked and what came back."""

    asked: Int[Array | np.ndarray, " exchanges"]  # messages sent to clients, per exchange
    answered: Int[Array | np.ndarray, " exchanges"]  # replies that arrived and were finite
    broken: Int[Array | np.ndarray, " n"]  # replies that arrived but were not finite, per client

    @staticmethod
    def nothing(algorithm: Algorithm) -> "Tally":
        exchanges = len(algorithm.round)
        return Tally(np.zeros(exchanges, np.int64), np.zeros(exchanges, np.int64), np.zeros(algorithm.n, np.int64))


class Result(NamedTuple):
    """Where a run ended, and what `record` saw of every round."""

    server: Server
    clients: Client
    history: PyTree[np.ndarray]  # leading axis: rounds
    rounds: int
    tally: Tally
    seconds: float  # running, without compiling
    compile_seconds: float


def simulate(
    algorithm: Algorithm,
    x: Vector,
    data: Any,
    key: RandomKey | int,
    *,
    rounds: int,
    record: Callable[[Server], PyTree] | None = None,
    clients_per_batch: int | None = None,
    devices: int | None = None,
    progress: Progress | None = None,
    lost: Lost | None = None,
    resume: Result | None = None,
    pause: Callable[[Result], None] | None = None,
    every: int = 1,
) -> Result:
    """Runs `algorithm` from x for `rounds` rounds over the clients of `data`.

    Args:
        algorithm: from `equipoise.algorithms`.
        x: the first model, a flat vector of `algorithm.size`; its dtype is the precision of the run.
        data: Shards, or anything with `.n` and `.client(i)`.
        key: a jax.random key, or an integer seed.
        rounds: how many rounds, those of `resume` included.
        record: what to keep of the server after every round; comes back as `history`.
        clients_per_batch: how many clients of a cohort run side by side on a device (None: chosen for the device).
            Less takes less memory and gives the same result up to the order of sums.
        devices: over how many devices to spread a cohort (None: all, where that pays); the cores of a CPU count.
        progress: called now and then with (rounds done, rounds in all, the last record).
        lost: which clients' replies get lost: lost(round, exchange, ids) -> [m]; for studies of drop-out.
        resume: an earlier result to continue, bit for bit as if it had never stopped.
        pause: called after every `every` rounds and after the last with the result so far (without its history), whose
            arrays are gone when it returns: for evaluation and checkpoints.
        every: see `pause`.

    Ctrl-C raises `Stopped`, whose `result` holds all rounds finished until then.
    """
    key = key if isinstance(key, jax.Array) else jax.random.key(key)
    check_run(algorithm, x, data, rounds, clients_per_batch)
    require(every >= 1, f"every is {every}; give how many rounds lie between two pauses, at least 1")
    source = feed(algorithm.prepare, data)
    layout = lay_out(source, largest_cohort(algorithm, x), devices, clients_per_batch)
    keep = record or (lambda server: ())
    if resume is None:
        clients = jax.vmap(algorithm.init_client, in_axes=None, axis_size=algorithm.n)(x)
        resume = Result(algorithm.init(x), clients, None, 0, Tally.nothing(algorithm), 0.0, 0.0)
    server, clients, past, done, tally, seconds, compile_seconds = resume
    require(done <= rounds, f"the result to resume has {done} rounds already; ask for more than {done}")

    def one_round(r: Array, server: Server, clients: Client, source: Feed, key: RandomKey) -> tuple:
        counts = []
        for k, exchange in enumerate(algorithm.round):
            gone = None if lost is None else partial(lost, r, k)
            keys = exchange_keys(key, r, k)
            server, clients, count = run_exchange(exchange, server, clients, source, keys, layout, gone)
            counts.append(count)
        asked, answered, broken = zip(*counts, strict=True)
        return server, clients, Tally(jnp.stack(asked), jnp.stack(answered), sum(broken, jnp.zeros_like(broken[0])))

    def advance(carry: tuple, source: Feed, key: RandomKey, start: Array, stop: Array) -> tuple:
        def body(r: Array, carry: tuple) -> tuple:
            server, clients, history, tally = carry
            server, clients, count = one_round(r, server, clients, source, key)
            history = jax.tree.map(lambda h, row: h.at[r - done].set(row), history, keep(server))
            return server, clients, history, jax.tree.map(jnp.add, tally, count)

        zero = jax.tree.map(lambda t: jnp.zeros(t.shape, jnp.int32), tally)
        return jax.lax.fori_loop(start, stop, body, (*carry, zero))

    history = jax.tree.map(
        lambda s: jnp.zeros((max(rounds - done, 1), *s.shape), s.dtype), jax.eval_shape(keep, server)
    )
    # Copied once, because the loop takes over the buffers that it is given.
    carry = layout.place(jax.tree.map(jnp.array, (server, clients, history)))
    source, key = layout.share(source), layout.place(key)
    clock = time.perf_counter()
    run = (
        jax.jit(advance, donate_argnums=0, out_shardings=layout.whole)
        .lower(carry, source, key, jnp.int32(0), jnp.int32(0))
        .compile()
    )
    compile_seconds += time.perf_counter() - clock

    at, chunk = done, 1
    with interrupts_deferred() as interrupted:
        while at < rounds and not interrupted:
            halt = rounds if pause is None else min(rounds, at - at % every + every)
            stop, clock = min(at + chunk, halt), time.perf_counter()
            *carry, count = run(tuple(carry), source, key, jnp.int32(at), jnp.int32(stop))
            tally = jax.tree.map(lambda t, c: t + np.asarray(c), tally, count)  # waits for the device
            elapsed = time.perf_counter() - clock
            seconds += elapsed
            pace = (stop - at) / max(elapsed, 1e-9)
            at, chunk = stop, max(1, min(10 * chunk, int(pace * CHUNK_SECONDS)))
            if pause is not None and at == halt:
                pause(Result(carry[0], carry[1], None, at, tally, seconds, compile_seconds))
            if progress is not None:
                progress(at, rounds, jax.tree.map(operator.itemgetter(at - done - 1), carry[2]))
    new = jax.tree.map(lambda h: np.asarray(h[: at - done]), carry[2])
    joined = new if past is None else jax.tree.map(lambda a, b: np.concatenate([a, b]), past, new)
    result = Result(carry[0], carry[1], joined, at, tally, seconds, compile_seconds)
    if interrupted:
        raise Stopped(result)
    warn_of_broken(result)
    return result


@contextmanager
def interrupts_deferred() -> Iterator[list]:
    """Ctrl-C in here fills the list instead of breaking off a step; a second one breaks off after all."""
    seen: list = []

    def remember(*signal_and_frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(signal_and_frame)

    try:
        before = signal.signal(signal.SIGINT, remember)
    except ValueError:  # only the main thread hears signals
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def run_exchange(
    exchange: Exchange,
    server: Server,
    clients: Client,
    source: Feed,
    keys: tuple[RandomKey, RandomKey],
    layout: Layout,
    gone: Callable[[Any], Any] | None,
) -> tuple[Server, Client, Tally]:
    opening, working = keys
    server, cohort = exchange.open(server, opening)
    m = cohort.ids.shape[0]
    asked = cohort.present
    if gone is not None:
        cohort = cohort._replace(present=cohort.present & ~gone(cohort.ids))

    def on_client(slot: Array, i: Any, here: Any, mine: Client, shard: Any, server: Server) -> tuple:
        new, reply = run_client(exchange, exchange.send(server, i), mine, shard, slot_key(working, slot))
        finite = is_finite(reply)
        reply = jax.tree.map(lambda a: jnp.where(here & finite, a, jnp.zeros_like(a)), reply)
        return new, reply, here & finite, here & ~finite

    on_clients = jax.vmap(on_client, in_axes=(0, 0, 0, 0, 0, None))

    def on_slice(slots: Array, part: Cohort, rows: Array, table: Client, source: Feed, server: Server) -> tuple:
        """Runs the clients `part`, whose states stand in the rows `rows` of `table`."""
        mine = jax.tree.map(lambda t: t[rows], table)
        new, reply, arrived, broken = on_clients(slots, part.ids, part.present, mine, source.rows(part.ids), server)
        if exchange.writes:
            table = jax.tree.map(Cohort(rows, arrived).put, table, new)
        total = jax.tree.map(lambda a: jnp.sum(a, axis=0), reply.total)
        return table, total, (reply.each, arrived, broken)

    def on_block(slots: Array, part: Cohort, rows: Array, table: Client, source: Feed, server: Server) -> tuple:
        """Runs a device's share of the cohort, a slice at a time."""
        size = slots.shape[0]
        lanes = layout.lanes(size)
        if lanes == size:
            return on_slice(slots, part, rows, table, source, server)
        pieces = jax.tree.map(lambda a: in_slices(a, lanes), (slots, part, rows))
        shape = jax.eval_shape(on_slice, *jax.tree.map(lambda a: a[0], pieces), table, source, server)[1]

        def step(carry: tuple, piece: tuple) -> tuple:
            (slots, part, rows), (table, total) = piece, carry
            table, more, rest = on_slice(slots, part, rows, table, source, server)
            return (table, jax.tree.map(jnp.add, total, more)), rest

        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
        sliced: Any
        (table, total), sliced = jax.lax.scan(step, (table, nothing), pieces)
        return table, total, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:size], sliced)

    if layout.mesh is None:
        rows = jnp.asarray(cohort.ids)
        clients, total, (each, arrived, broken) = on_block(jnp.arange(m), cohort, rows, clients, source, server)
    else:
        devices = layout.mesh.size
        slots, part = jax.tree.map(lambda a: in_slices(a, devices).ravel(), (jnp.arange(m), cohort))
        mine = jax.tree.map(lambda table: table[part.ids], clients)

        def on_device(slots: Array, part: Cohort, mine: Client, source: Feed, server: Server) -> tuple:
            mine, total, rest = on_block(slots, part, jnp.arange(slots.shape[0]), mine, source, server)
            return mine, jax.lax.psum(total, "clients"), rest

        spread, whole = PartitionSpec("clients"), PartitionSpec()
        new, total, rest = jax.shard_map(
            on_device,
            mesh=layout.mesh,
            in_specs=(spread, spread, spread, whole, whole),
            out_specs=(spread, whole, spread),
            check_vma=False,
        )(slots, part, mine, source, server)
        each, arrived, broken = jax.tree.map(lambda a: a[:m], rest)
        if exchange.writes:
            put = Cohort(cohort.ids, arrived).put
            clients = jax.tree.map(lambda table, rows: put(table, rows[:m]), clients, new)
    broken = jnp.zeros(source.n, jnp.int32).at[jnp.asarray(cohort.ids)].add(broken.astype(jnp.int32))
    tally = Tally(count(asked), count(arrived), broken)
    return exchange.close(server, Replies(total, each, Cohort(cohort.ids, arrived))), clients, tally


def largest_cohort(algorithm: Algorithm, x: Vector) -> int:
    server, key = algorithm.init(x), jax.random.key(0)
    return max(exchange.open(server, key)[1].ids.shape[0] for exchange in algorithm.round)


def in_slices(a: ArrayLike, size: int) -> Array:
    """`a` cut into slices of `size`; the last one is filled up with zeros: absent slots."""
    a = jnp.asarray(a)
    return jnp.pad(a, (0, -a.shape[0] % size)).reshape(-1, size)


def count(mask: Bool[ArrayLike, " m"]) -> Int[Array, ""]:
    return jnp.sum(jnp.asarray(mask), dtype=jnp.int32)


def warn_of_broken(result: Result) -> None:
    broken = np.flatnonzero(result.tally.broken)
    if broken.size:
        names = ", ".join(map(str, broken[:8])) + (", ..." if broken.size > 8 else "")
        warnings.warn(
            f"{result.tally.broken.sum()} replies of {broken.size} clients ({names}) were not finite and were left "
            "out; if there are many, the step sizes are too large",
            LostReplies,
            stacklevel=3,
        )
