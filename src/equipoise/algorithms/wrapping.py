"""An algorithm around an algorithm: what a wrapper keeps stands beside the algorithm's own state.

    chain(first, second)(algorithm)         second(first(algorithm)): the first is next to the algorithm
    wrap(algorithm, change)                 change(k, exchange) instead of its k-th exchange
    wrap_server(algorithm, init, change)    the same, and the server keeps init(x) beside its own state
    wrap_client(algorithm, init, change)    the same, and every client does

`change` is given an exchange over states `Beside(inner, own)` that leaves `own` alone, and hands back what is done
instead: exchange._replace(close=...). Numbers of a wrapper are leaves where its factory is marked with
`numbers_are_leaves`.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from jaxtyping import PyTree

from equipoise.protocol import (
    Algorithm,
    Client,
    Cohort,
    Data,
    Exchange,
    RandomKey,
    Replies,
    Reply,
    Server,
    Vector,
    no_cuts,
)

Inner = TypeVar("Inner")
Own = TypeVar("Own")
Wrapper = Callable[[Algorithm], Algorithm]


class Beside(NamedTuple, Generic[Inner, Own]):
    """An algorithm's state, and a wrapper's."""

    inner: Inner
    own: Own


def chain(*wrappers: Wrapper) -> Wrapper:
    """All of them, in this order from the inside to the outside; of none, the algorithm itself.

    chain(partial(clip_losses, factor=3.0), partial(with_server_optimizer, optimizer=optax.adam(0.1)))(algorithm)
    """

    def wrapped(algorithm: Algorithm) -> Algorithm:
        for wrapper in wrappers:
            algorithm = wrapper(algorithm)
        return algorithm

    return wrapped


def wrap(
    algorithm: Algorithm[Server, Client], change: Callable[[int, Exchange[Server, Client]], Exchange[Server, Client]]
) -> Algorithm[Server, Client]:
    """`algorithm` with its exchanges changed, whose states stay as they are."""
    changed = tuple(change(k, exchange) for k, exchange in enumerate(algorithm.round))
    return algorithm._replace(round=changed, cuts=no_cuts)  # what clients say may be another thing now


def wrap_server(
    algorithm: Algorithm[Server, Client],
    init: Callable[[Vector], Own],
    change: Callable[[int, Exchange[Beside[Server, Own], Client]], Exchange[Beside[Server, Own], Client]],
) -> Algorithm[Beside[Server, Own], Client]:
    """`algorithm`, whose server keeps something of the wrapper's, from init(x) on."""
    return _of_other_states(
        algorithm,
        init=lambda x: Beside(algorithm.init(x), init(x)),
        round=tuple(change(k, beside_server(exchange)) for k, exchange in enumerate(algorithm.round)),
        model=lambda server: algorithm.model(server.inner),
        weights=lambda server: algorithm.weights(server.inner),
        cuts=no_cuts,
    )


def wrap_client(
    algorithm: Algorithm[Server, Client],
    init: Callable[[Vector], Own],
    change: Callable[[int, Exchange[Server, Beside[Client, Own]]], Exchange[Server, Beside[Client, Own]]],
) -> Algorithm[Server, Beside[Client, Own]]:
    """`algorithm`, whose clients keep something of the wrapper's, from init(x) on."""
    return _of_other_states(
        algorithm,
        init_client=lambda x: Beside(algorithm.init_client(x), init(x)),
        round=tuple(change(k, beside_client(exchange)) for k, exchange in enumerate(algorithm.round)),
        cuts=no_cuts,
    )


def beside_server(exchange: Exchange[Server, Client]) -> Exchange[Beside[Server, Own], Client]:
    """The same exchange over states with something beside them at the server."""

    def open(server: Beside[Server, Own], key: RandomKey) -> tuple[Beside[Server, Own], Cohort]:
        inner, cohort = exchange.open(server.inner, key)
        return Beside(inner, server.own), cohort

    def close(server: Beside[Server, Own], replies: Replies) -> Beside[Server, Own]:
        return Beside(exchange.close(server.inner, replies), server.own)

    return _of_other_states(exchange, open=open, send=lambda server, i: exchange.send(server.inner, i), close=close)


def beside_client(exchange: Exchange[Server, Client]) -> Exchange[Server, Beside[Client, Own]]:
    """The same exchange over states with something beside them at the clients."""

    def work(
        message: PyTree, client: Beside[Client, Own], data: Data, key: RandomKey
    ) -> tuple[Beside[Client, Own], Reply]:
        inner, reply = exchange.work(message, client.inner, data, key)
        return Beside(inner, client.own), reply

    return _of_other_states(exchange, work=work)


def _of_other_states(made: Any, **changes: Callable | tuple) -> Any:
    """`made._replace`, which by its type keeps the states as they are."""
    return made._replace(**changes)
