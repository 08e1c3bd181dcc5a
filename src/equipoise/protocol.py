"""What a federated algorithm is: server state, client state, and the exchanges of a round.

An exchange is one trip server -> clients -> server, told by four pure functions:

    open   the server picks the cohort (and may set this round's step sizes)
    send   the server writes the message for client i
    work   client i answers, from that message, its own state and its own data
    close  the server folds what came back into its state

Nothing else crosses: `work` has no server argument, `open`/`send`/`close` have no data argument.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Key, PyTree

from equipoise._jax import cached_program, compiled
from equipoise.errors import InputError, is_concrete, require
from equipoise.leaves import Recipe, numbers_of, tree_of_numbers

Server = TypeVar("Server")  # an algorithm's own NamedTuple of arrays
Client = TypeVar("Client")  # the same, one per client; None when clients keep nothing
Message = Any  # a NamedTuple of arrays
Data = Any  # one client's shard, or what the task's `prepare` made of it
Vector = Float[Array, " d"]
RandomKey = Key[Array, ""]


class Cohort(NamedTuple):
    """The clients of one exchange: m slots, some of which may be empty or lost on the way."""

    ids: Int[Array | np.ndarray, " m"]
    present: Bool[Array | np.ndarray, " m"]

    def put(self, table: Array, rows: Array) -> Array:
        """`table` with the rows of the present clients replaced."""
        return table.at[self._where(table)].set(rows, mode="drop")

    def add(self, table: Array, rows: Array) -> Array:
        """`table` with the rows of the present clients added to theirs."""
        return table.at[self._where(table)].add(rows, mode="drop")

    def _where(self, table: Array) -> Int[Array, " m"]:
        return jnp.where(self.present, self.ids, table.shape[0])

    def mark(self, n: int) -> Bool[Array, " n"]:
        """Which of n clients are present."""
        return self.put(jnp.zeros(n, bool), jnp.ones(jnp.shape(self.ids), bool))

    def share(self, weights: Float[Array, " n"]) -> Float[Array, " m"]:
        """The present clients' weights, one per slot, rescaled to the sum of all n."""
        w = jnp.where(self.present, weights[jnp.asarray(self.ids)], 0)
        return mean((jnp.sum(w), w)) * jnp.sum(weights)


class Weighted(NamedTuple):
    """A value times its weight, and the weight: sums of both, over a cohort, are what `mean` needs."""

    weight: Float[Array, ""]
    value: PyTree[Array]


def weighted(weight: Float[Array, ""], value: PyTree[Array]) -> Weighted:
    """A value with its weight, ready to be summed over a cohort."""
    return Weighted(weight, jax.tree.map(lambda v: weight * v, value))


def mean(total: Weighted | tuple[Array, PyTree[Array]]) -> PyTree[Array]:
    """The weighted mean of a sum of `weighted` values; zero if nobody had weight."""
    weight, value = total
    return jax.tree.map(lambda v: v / jnp.where(weight > 0, weight, 1), value)


def neutral(table: Float[Array, " n"], heard: Bool[Array, " n"]) -> Float[Array, " n"]:
    """`table` with the mean of the others for clients never heard from: it moves no weight to or from them."""
    count = jnp.sum(heard, dtype=table.dtype)
    return jnp.where(heard, table, mean((count, jnp.sum(jnp.where(heard, table, 0)))))


def tree_where(condition: Bool[Array, ""], yes: PyTree[Array], no: PyTree[Array]) -> PyTree:
    """`jnp.where` for whole trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


class Reply(NamedTuple):
    """A client's answer, split by what the server is allowed to see of it; both parts are NamedTuples.

    A field `loss` of `each` is the client's own loss f_i: `clip_losses` reads it by that name.
    """

    total: PyTree[Array] = None  # only the sum over the cohort reaches the server
    each: PyTree[Array] = None  # the server sees every client's own value


class Replies(NamedTuple):
    """The answers of a cohort, as the server gets them."""

    total: PyTree[Array]  # summed over the present clients
    each: PyTree[Array]  # one row per slot; rows of absent clients are zero
    cohort: Cohort  # who answered


class Exchange(NamedTuple, Generic[Server, Client]):
    """One trip server -> clients -> server."""

    name: str
    open: Callable[[Server, RandomKey], tuple[Server, Cohort]]
    send: Callable[[Server, Int[Array, ""]], Message]
    work: Callable[[Message, Client, Data, RandomKey], tuple[Client, Reply]]
    close: Callable[[Server, Replies], Server]
    writes: bool = False  # whether `work` changes the client's state; if not, it hands it back as it was
    # The weight of a reply, where the client chooses it: near 1, summed over all clients.
    counts: Callable[[Reply], Float[Array, ""]] | None = None
    # The weights of all clients, where every message tells them.
    weights: Callable[[Message], Float[Array, " n"]] | None = None
    unit: bool = False  # every reply has the weight 1


def run_client(
    exchange: Exchange[Server, Client], message: Message, client: Client, data: Data, key: RandomKey
) -> tuple[Client, Reply]:
    """`exchange.work`; an error where it changes a state that the exchange does not say it writes."""
    new, reply = exchange.work(message, client, data, key)
    now, before = jax.tree.leaves(new), jax.tree.leaves(client)
    kept = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
    require(
        exchange.writes or kept,
        f"the exchange '{exchange.name}' changes the state of its clients without saying so; build it with "
        "Exchange(..., writes=True), or hand back the state as it was",
    )
    return new, reply


@cached_program
def client_program(exchange: Exchange) -> jax.stages.Wrapped:
    """`run_client` of an exchange by itself: traced once for its shapes, whether they are asked for or it is run."""
    return compiled(partial(run_client, exchange))


def keeps_nothing(x: Vector) -> None:
    """`init_client` of clients without a state."""


def its_x(server: Any) -> Vector:
    """`model` of a server whose state has one by that name."""
    return server.x


def no_weights(server: object) -> None:
    """`weights` of an algorithm that does not weigh clients."""


class Cuts(NamedTuple):
    """What a server has heard of every client's loss, at k points: each loss lies above its tangents there.

    Arrays of NumPy, for `certificates.bound_of_cuts`.
    """

    points: Float[np.ndarray, "k d"]
    losses: Float[np.ndarray, "k n"]
    gradients: Float[np.ndarray, "k n d"]
    present: Bool[np.ndarray, "k n"]  # who was heard there, about all of its rows
    off: Float[np.ndarray, "k n"]  # by how much, at most, a gradient is rounded
    weights: Float[np.ndarray, "j n"]  # of the clients, for which a bound may be a good one


def no_cuts(server: object) -> None:
    """`cuts` of an algorithm whose server does not keep what every client says of its loss."""


@tree_of_numbers
class Algorithm(NamedTuple, Generic[Server, Client]):
    """What every engine runs: a pytree of the numbers that it was made from, see `equipoise.leaves`."""

    name: str
    n: int  # clients it is built for
    size: int  # length of the model vector
    prepare: Callable[[Data], Data]  # what each client does with its shard once, before round 0
    init: Callable[[Vector], Server]
    init_client: Callable[[Vector], Client] = keeps_nothing  # type: ignore[assignment]  # of clients with a state
    round: tuple[Exchange[Server, Client], ...] = ()
    model: Callable[[Server], Vector] = its_x  # the parameters to evaluate and ship
    weights: Callable[[Server], Float[Array, " n"] | None] = no_weights  # what each client's loss counts
    cuts: Callable[[Server], Cuts | None] = no_cuts  # what proves that no model is much better; called on the host
    # Two exchanges with everybody: losses and gradients in the clear, then updates that the weighted gradient corrects.
    corrected: bool = False
    dual: Any = None  # the Dual that `weights` are of; None: of none that it was given
    recipe: Recipe | None = None  # set by `numbers_are_leaves`


class Wire(NamedTuple):
    """The shapes of one exchange, per participating client."""

    exchange: str
    message: PyTree[jax.ShapeDtypeStruct]
    reply: Reply

    @property
    def down(self) -> int:
        """Bytes from the server to one client."""
        return nbytes(self.message)

    @property
    def up(self) -> int:
        """Bytes from one client to the server."""
        return nbytes(self.reply)


def nbytes(tree: PyTree) -> int:
    """Bytes of all arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def wire(algorithm: Algorithm, x: Vector, shard: Data, *, prepares: bool = False) -> list[Wire]:
    """What crosses in each exchange, from the algorithm's own functions; `shard` is one client's, prepared."""
    shapes = crossing_of(jax.tree.structure(algorithm), prepares)
    crossed = jax.eval_shape(shapes, numbers_of(algorithm, x.dtype), x, shard)
    return [Wire(e.name, message, reply) for e, (message, reply) in zip(algorithm.round, crossed, strict=True)]


wire_of_rows = partial(wire, prepares=True)  # the same from a client's shard, or shapes like one, as it is


@cached_program
def crossing_of(structure: PyTreeDef, prepares: bool) -> Callable:
    """Messages and replies of algorithms of that structure, for their shapes; traced once, never run."""

    def crossing(numbers: list[Array], x: Vector, shard: Data) -> list[tuple[Message, Reply]]:
        algorithm = structure.unflatten(numbers)
        server, client = algorithm.init(x), algorithm.init_client(x)
        mine = algorithm.prepare(shard) if prepares else shard
        i, key = jnp.int32(0), jax.random.key(0)
        crossed = []
        for exchange in algorithm.round:  # `open` and `close` leave the shapes of the server's state as they are
            message = exchange.send(server, i)
            crossed.append((message, run_client(exchange, message, client, mine, key)[1]))
        return crossed

    return jax.jit(crossing)


# Every engine derives its keys from these coordinates, so all of them draw the same numbers.
PLACES = 1 << 31  # far from the numbers that somebody else folds into the same key, such as a study of drop-out


def as_key(seed: RandomKey | int) -> RandomKey:
    """The key of an integer seed from 0 to 2^64 - 1; a key stays as it is."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        require(seed.ndim == 0, f"{seed.size} keys were given; give one, or an integer seed")
        return seed
    if isinstance(seed, jax.Array) and seed.dtype == jnp.uint32 and seed.ndim == 1:
        return jax.random.wrap_key_data(seed)  # of jax.random.PRNGKey
    if not is_concrete(seed):
        return jax.random.key(seed)
    try:
        number = operator.index(seed)
    except TypeError:
        raise InputError(f"the seed is {seed!r}; give an integer, or a jax.random.key(...)") from None
    require(0 <= number < 2**64, f"the seed is {number}; give an integer from 0 to 2^64 - 1")
    low, high = number % 2**32, number // 2**32
    key = jax.random.key(np.uint32(low))
    return jax.random.fold_in(key, np.uint32(high)) if high else key  # 32 bits are all that a seed holds


def exchange_keys(key: RandomKey, round: ArrayLike, exchange: int) -> tuple[RandomKey, RandomKey]:
    """The keys of `open` and of the clients' `work` in one exchange of one round."""
    base, place = jax.random.fold_in(key, round), np.uint32(PLACES + 2 * exchange)
    return jax.random.fold_in(base, place), jax.random.fold_in(base, place + np.uint32(1))


def round_keys(key: RandomKey, round: ArrayLike, exchanges: int) -> list[tuple[RandomKey, RandomKey]]:
    """`exchange_keys` of every exchange, in one operation: random numbers are what takes longest to compile."""
    places = jnp.asarray(np.arange(PLACES, PLACES + 2 * exchanges, dtype=np.uint32))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, round), places)
    return [(keys[2 * k], keys[2 * k + 1]) for k in range(exchanges)]


def slot_key(working: RandomKey, slot: ArrayLike) -> RandomKey:
    """The key of the client in one slot of the cohort."""
    return jax.random.fold_in(working, slot)


def is_finite(reply: Reply) -> Bool[Array, ""]:
    """A non-finite reply is a lost reply, in every engine."""
    floats = [a for a in jax.tree.leaves(reply) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(a)) for a in floats])) if floats else jnp.array(True)
