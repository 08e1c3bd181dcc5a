"""Exchanges that train nothing, in the form that engines run: an evaluation, sums over clients, models of their own."""

from collections.abc import Callable

from equipoise.protocol import Algorithm, Client, Data, Exchange, Server, Vector, its_x, keeps_nothing


def as_it_is(shard: Data) -> Data:
    """`prepare` where the clients' rows are what is asked about."""
    return shard


def measurement(
    name: str,
    n: int,
    size: int,
    *exchanges: Exchange[Server, Client],
    init: Callable[[Vector], Server],
    model: Callable[[Server], Vector] = its_x,
    prepare: Callable[[Data], Data] = as_it_is,
    init_client: Callable[[Vector], Client] = keeps_nothing,  # type: ignore[assignment]
) -> Algorithm[Server, Client]:
    """One round of `exchanges` with n clients, about models of `size` numbers."""
    return Algorithm(name, n, size, prepare, init, init_client, exchanges, model)
