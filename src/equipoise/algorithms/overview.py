"""What each algorithm asks of a federation: numbers are read off its own functions, words off its record."""

import inspect
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import objectives, tasks
from equipoise._jax import numbers_in
from equipoise.algorithms import ALGORITHMS, Record
from equipoise.data.shards import stack
from equipoise.protocol import wire_of_rows


class AlgorithmSummary(NamedTuple):
    """One row; d is the size of the model, n the number of clients; counts are numbers, not bytes."""

    name: str
    objective: str
    exchanges: tuple[str, ...]
    down: str  # from the server to a client, all exchanges of a round
    up: str
    client_keeps: str
    server_keeps: str
    seen: str  # what the server sees of a single client; the rest reaches it in sums only
    paper: str


# (d, n): d, n, n d and a constant told apart, and a check. More clients than those whose tangents are kept (heard.py).
PROBES = [(3, 16), (5, 16), (3, 20), (5, 20), (9, 23)]


@cache
def overview() -> tuple[AlgorithmSummary, ...]:
    return tuple(entry(record) for record in ALGORITHMS.values())


def entry(record: Record) -> AlgorithmSummary:
    rows = [measure(record, d, n) for d, n in PROBES]
    down, up, client, server, seen = (formula([row[column] for row in rows]) for column in range(5))
    exchanges = tuple(e.name for e in record.build_example(tasks.ridge(3), objectives.agnostic(2)).round)
    return AlgorithmSummary(record.name, record.objective, exchanges, down, up, client, server, seen, record.paper)


def details(row: AlgorithmSummary, record: Record) -> list[tuple[str, str]]:
    """All of an entry in words, and the settings of its record."""

    def setting(argument: inspect.Parameter) -> str:
        given = argument.default is not inspect.Parameter.empty
        start = argument.default if given else record.defaults.get(argument.name, "must be given")
        return f"{argument.name} = {start}"

    return [
        ("what", record.about),
        ("minimises", row.objective),
        ("paper", row.paper),
        ("exchanges", " → ".join(row.exchanges)),
        ("down", f"{row.down} numbers to a client in a round"),
        ("up", f"{row.up} numbers from a client in a round"),
        ("seen", f"{row.seen} of them in the clear; all else may reach the server as a sum (secure aggregation)"),
        ("client keeps", row.client_keeps),
        ("server keeps", row.server_keeps),
        ("cohorts", record.cohorts.replace("_", " ")),
        ("settings", ", ".join(map(setting, record.settings))),
    ]


def measure(record: Record, d: int, n: int) -> tuple[int, ...]:
    """Numbers down, up, kept by a client, kept by the server, seen of a single client."""
    algorithm = record.build_example(tasks.ridge(d), objectives.agnostic(n))
    x = jax.eval_shape(lambda: jnp.zeros(d))
    data = stack([(np.ones((d, d), x.dtype), np.ones(d, x.dtype))])
    exchanges = wire_of_rows(algorithm, x, data.client(0))
    return (
        sum(numbers_in(e.message) for e in exchanges),
        sum(numbers_in(e.reply) for e in exchanges),
        numbers_in(jax.eval_shape(algorithm.init_client, x)),
        numbers_in(jax.eval_shape(algorithm.init, x)),
        sum(numbers_in(e.reply.each) for e in exchanges),
    )


def formula(counts: list[int]) -> str:
    """The counts at PROBES as a d + b n + c n d + e, in words that a paper would use."""
    design = np.array([(d, n, n * d, 1) for d, n in PROBES], float)
    coefficients = np.rint(np.linalg.solve(design[:4], counts[:4])).astype(int)
    if not np.array_equal(design @ coefficients, counts):
        raise AssertionError(f"the counts {counts} are not of the form a d + b n + c n d + e")
    terms = [(coefficients[2], "nd"), (coefficients[0], "d"), (coefficients[1], "n"), (coefficients[3], "")]
    words = [f"{'' if k == 1 and unit else k}{unit}" for k, unit in terms if k]
    return " + ".join(words).replace("+ -", "− ") or "0"
