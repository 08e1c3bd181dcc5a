"""An algorithm over a federation as pure functions, for loops of your own under jit, scan, vmap or grad:

    federation = prepare(algorithm, data)        every client's data through the algorithm's `prepare`
    state = init(algorithm, x)                   before the first round
    state = step(algorithm, state, federation, key)                     one round

The key is either one of the round's own, as in blackjax (jax.lax.scan over jax.random.split(key, rounds)), or the
run's, the same for all rounds: the number of the round is folded into it, and it then draws what `simulate` draws.

`simulate` is a driver of these, and compiles them for you. Inside jit an algorithm may be built from traced numbers
(a step size, a penalty), so that one program serves many settings.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Bool, Int, PyTree

from equipoise import protocol
from equipoise.engines.client_data import PreparedData, SpreadData, StackedData
from equipoise.engines.client_data import prepare_data as prepare
from equipoise.engines.fold import fold
from equipoise.engines.layout import SIDE_BY_SIDE, Layout
from equipoise.protocol import Algorithm, Client, Cohort, Data, Exchange, RandomKey, Replies, Server, Vector

__all__ = ["Lost", "State", "Tally", "exchange_once", "init", "prepare", "step"]

Lost = Callable[[Int[Array, ""], int, Int[ArrayLike, " m"]], Bool[Array, " m"]]


class Tally(NamedTuple):
    """What was asked and what came back."""

    asked: Int[Array | np.ndarray, " exchanges"]  # messages sent to clients, per exchange
    answered: Int[Array | np.ndarray, " exchanges"]  # replies that arrived and were finite
    broken: Int[Array | np.ndarray, " n"]  # replies that arrived but were not finite, per client

    @staticmethod
    def nothing(algorithm: Algorithm) -> "Tally":
        exchanges = len(algorithm.round)
        return Tally(np.zeros(exchanges, np.int64), np.zeros(exchanges, np.int64), np.zeros(algorithm.n, np.int64))


class State(NamedTuple, Generic[Server, Client]):
    """A federation between two rounds."""

    round: Int[Array, ""]  # rounds done
    server: Server
    clients: Client  # every client's own state, with a leading axis of clients
    tally: Tally  # int32: a driver that may count beyond takes it out and starts again at zero


def init(algorithm: Algorithm[Server, Client], x: Vector) -> State[Server, Client]:
    """The federation before its first round, from the model x."""
    x = jnp.asarray(x)
    clients = jax.vmap(algorithm.init_client, in_axes=None, axis_size=algorithm.n)(x)
    # No type is left for JAX to guess ("weak"): the state before the first round is of the types of all others.
    server, clients = jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), (algorithm.init(x), clients))
    return State(jnp.int32(0), server, clients, no_counts(algorithm))


def no_counts(algorithm: Algorithm) -> Tally:
    return jax.tree.map(lambda t: jnp.zeros(t.shape, jnp.int32), Tally.nothing(algorithm))


def step(
    algorithm: Algorithm[Server, Client],
    state: State[Server, Client],
    federation: PreparedData,
    key: RandomKey,
    *,
    lost: Lost | None = None,
    layout: Layout = SIDE_BY_SIDE,
) -> State[Server, Client]:
    """One round; `key` is its own, or the run's, of which every round takes its own. `lost` is as in `simulate`."""
    r, server, clients, tally = state
    asked, answered, broken = [], [], jnp.asarray(tally.broken)
    keys_of_round = protocol.round_keys(key, r, len(algorithm.round))
    for k, (exchange, keys) in enumerate(zip(algorithm.round, keys_of_round, strict=True)):
        gone = None if lost is None else partial(lost, r, k)
        server, clients, seen = exchange_once(exchange, server, clients, federation, keys, layout, gone)
        asked.append(seen.asked)
        answered.append(seen.answered)
        broken = broken.at[jnp.asarray(seen.ids)].add(seen.broken.astype(broken.dtype))
    tally = Tally(tally.asked + jnp.stack(asked), tally.answered + jnp.stack(answered), broken)
    return State(r + 1, server, clients, tally)


class ExchangeCounts(NamedTuple):
    """The counts of one exchange."""

    asked: Int[Array, ""]
    answered: Int[Array, ""]
    ids: Int[Array | np.ndarray, " m"]
    broken: Bool[Array, " m"]


def exchange_once(
    exchange: Exchange[Server, Client],
    server: Server,
    clients: Client,
    federation: PreparedData,
    keys: tuple[RandomKey, RandomKey],
    layout: Layout = SIDE_BY_SIDE,
    gone: Callable[[Int[ArrayLike, " m"]], Bool[Array, " m"]] | None = None,
) -> tuple[Server, Client, ExchangeCounts]:
    """One trip server -> clients -> server; `gone` says of ids whose replies get lost."""
    opening, working = keys
    server, cohort = exchange.open(server, opening)
    asked = cohort.present
    if gone is not None:
        cohort = cohort._replace(present=cohort.present & ~gone(cohort.ids))
    if layout.mesh is None:
        slots, rows = jnp.arange(cohort.ids.shape[0]), jnp.asarray(cohort.ids)
        on_block = block_of(exchange, layout)
        clients, total, heard = on_block(slots, cohort, rows, clients, cohort.ids, federation, server, working)
    else:
        clients, total, heard = on_devices(exchange, layout, cohort, clients, federation, server, working)
    each, arrived, broken = heard
    server = exchange.close(server, Replies(total, each, Cohort(cohort.ids, arrived)))
    return server, clients, ExchangeCounts(count(asked), count(arrived), cohort.ids, broken)


def block_of(exchange: Exchange[Server, Client], layout: Layout) -> Callable[..., tuple[Client, PyTree, tuple]]:
    """What runs a device's clients: their states, the sum of their replies, and what is known of each of them."""

    def on_client(slot: Array, i: Array, mine: Client, shard: Data, server: Server, working: RandomKey) -> tuple:
        message, key = exchange.send(server, i), protocol.slot_key(working, slot)
        new, reply = protocol.run_client(exchange, message, mine, shard, key)
        return new, reply, protocol.is_finite(reply)

    def on_clients(slots: Array, *rows_and_rest: PyTree) -> tuple:
        if slots.shape[0] > 1:
            return jax.vmap(on_client, in_axes=(0, 0, 0, 0, None, None))(slots, *rows_and_rest)
        # Not as a stack of one: XLA would reorder the examples of a stack for every product with them.
        *rows, server, working = rows_and_rest
        slot, i, mine, shard = jax.tree.map(lambda a: a[0], (slots, *rows))
        return jax.tree.map(lambda a: a[None], on_client(slot, i, mine, shard, server, working))

    # Jitted, so that it is traced once even where its shapes are asked for first.
    @partial(jax.jit, inline=True)
    def on_slice(
        slots: Array, members: Cohort, rows: Array, table: Client, data: Data, server: Server, working: RandomKey
    ) -> tuple:
        """Runs the clients `part`, whose states stand in the rows `rows` of `table`."""
        mine = jax.tree.map(lambda t: t[rows], table)
        new, reply, finite = on_clients(slots, members.ids, mine, data, server, working)
        here = jnp.asarray(members.present)
        arrived = here & finite
        if exchange.writes:
            table = jax.tree.map(Cohort(rows, arrived).put, table, new)
        total, each = fold(reply, arrived)
        return table, total, (each, arrived, here & ~finite)

    def on_block(
        slots: Array,
        members: Cohort,
        rows: Array | np.ndarray,
        table: Client,
        places: Array | np.ndarray,
        federation: PreparedData,
        *rest: PyTree,
    ) -> tuple:
        """Runs a device's share of the cohort, a slice at a time; the data of its clients stands at `places`."""
        size = slots.shape[0]
        lanes = min(layout.clients_per_batch, size)
        if lanes == size:
            return on_slice(slots, members, rows, table, federation.rows(places), *rest)
        pieces = jax.tree.map(lambda a: in_slices(a, lanes), (slots, members, rows, places))

        def one(piece: tuple, table: Client) -> tuple:
            slots, members, rows, places = piece
            return on_slice(slots, members, rows, table, federation.rows(places), *rest)

        shape = jax.eval_shape(one, jax.tree.map(lambda a: a[0], pieces), table)[1]

        def forward(carry: tuple, piece: tuple) -> tuple:
            table, total = carry
            table, more, rows = one(piece, table)
            return (table, jax.tree.map(jnp.add, total, more)), rows

        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
        sliced: PyTree
        (table, total), sliced = jax.lax.scan(forward, (table, nothing), pieces)
        return table, total, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:size], sliced)

    return on_block


def on_devices(
    exchange: Exchange[Server, Client],
    layout: Layout,
    cohort: Cohort,
    clients: Client,
    federation: PreparedData,
    server: Server,
    working: RandomKey,
) -> tuple[Client, PyTree, tuple]:
    """The same with the cohort spread over the devices of a mesh."""
    assert layout.mesh is not None
    on_block = block_of(exchange, layout)
    m, devices = cohort.ids.shape[0], layout.mesh.size
    slots, members = jax.tree.map(lambda a: in_slices(a, devices).ravel(), (jnp.arange(m), cohort))
    spread, whole = PartitionSpec("clients"), PartitionSpec()
    mine, at_hand = clients, federation
    apart = isinstance(federation.source, SpreadData)
    if not (apart and isinstance(cohort.ids, np.ndarray) and federation.source.in_order(cohort.ids, layout.rows(m))):
        mine = jax.tree.map(lambda table: table[members.ids], clients)
        if apart:  # the devices hand each other the rows of those who are asked
            at_hand = jax.tree.map(lambda table: table[members.ids], federation)
            mine, at_hand = jax.lax.with_sharding_constraint((mine, at_hand), layout.by_client)

    def on_device(slots: Array, members: Cohort, mine: Client, at_hand: PreparedData, *rest: PyTree) -> tuple:
        places = np.arange(slots.shape[0], dtype=np.int32)
        own = PreparedData(StackedData(at_hand.source.tree)) if apart else at_hand
        mine, total, rows = on_block(slots, members, places, mine, places if apart else members.ids, own, *rest)
        return mine, jax.lax.psum(total, "clients"), rows

    new, total, heard = jax.shard_map(
        on_device,
        mesh=layout.mesh,
        in_specs=(spread, spread, spread, spread if apart else whole, whole, whole),
        out_specs=(spread, whole, spread),
        check_vma=False,
    )(slots, members, mine, at_hand, server, working)
    each, arrived, broken = jax.tree.map(lambda a: a[:m], heard)
    if exchange.writes:
        put = Cohort(cohort.ids, arrived).put
        clients = jax.tree.map(lambda table, rows: put(table, rows[:m]), clients, new)
    return clients, total, (each, arrived, broken)


def in_slices(a: ArrayLike, size: int) -> Array:
    """`a` cut into slices of `size`; the last one is filled up with zeros: absent slots."""
    a = jnp.asarray(a)
    return jnp.pad(a, (0, -a.shape[0] % size)).reshape(-1, size)


def count(mask: Bool[ArrayLike, " m"]) -> Int[Array, ""]:
    return jnp.sum(jnp.asarray(mask), dtype=jnp.int32)
