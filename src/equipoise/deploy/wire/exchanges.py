"""What an algorithm exchanges, read off its functions before anything is sent."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import PyTree

from equipoise._jax import compiled, once
from equipoise.errors import require
from equipoise.protocol import Algorithm, Data, Exchange, Reply, Vector, client_program
from equipoise.tensors import named

program = once(compiled)  # a function's own, also for sites that share a process: traced and compiled once


class ExchangeSpec(NamedTuple):
    """One exchange of a round, seen from the network."""

    at: int  # its place in the round
    exchange: Exchange
    message: PyTree[jax.ShapeDtypeStruct]
    reply: Reply  # of shapes
    varies: tuple[bool, ...]  # of every leaf of the message: each client is sent its own
    reads: bool  # what a client does depends on what it remembers

    @property
    def alike(self) -> bool:
        """Every client is sent the same."""
        return not any(self.varies)

    def table(self, n: int) -> PyTree[jax.ShapeDtypeStruct]:
        """A message to n clients at once: what differs has a row for each."""
        leaves, tree = jax.tree.flatten(self.message)
        rows = [jax.ShapeDtypeStruct((n, *a.shape), a.dtype) for a in leaves]
        return jax.tree.unflatten(tree, [r if v else a for r, a, v in zip(rows, leaves, self.varies, strict=True)])

    def joined(self, messages: Sequence[PyTree]) -> PyTree[np.ndarray]:
        """The messages to some clients as one such table."""
        columns = zip(*(jax.tree.leaves(message) for message in messages), strict=True)
        leaves = [np.stack(c) if v else np.asarray(c[0]) for c, v in zip(columns, self.varies, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.message), leaves)

    def row(self, table: PyTree[np.ndarray], k: int) -> PyTree[np.ndarray]:
        """The message to the k-th of them."""
        leaves = [a[k] if v else a for a, v in zip(jax.tree.leaves(table), self.varies, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.message), leaves)


Specs = dict[str, ExchangeSpec]  # by the exchange's name, in order


def exchange_specs(algorithm: Algorithm, x: Vector, shard: Data) -> Specs:
    """The specs of a round; `shard` is a client's, or shapes like one: only its number of rows may differ."""
    prepared = jax.eval_shape(program(algorithm.prepare), shard)
    client = jax.eval_shape(algorithm.init_client, x)
    server = jax.eval_shape(algorithm.init, x)
    i, key = jax.eval_shape(lambda: (jnp.int32(0), jax.random.key(0)))
    specs: Specs = {}
    for k, exchange in enumerate(algorithm.round):
        require(exchange.name not in specs, f"{algorithm.name} has two exchanges '{exchange.name}'; rename one")
        sent = program(exchange.send).trace(server, i)
        message = shapes_of(sent.out_info)
        done = client_program(exchange).trace(message, client, prepared, key)
        first, count = len(jax.tree.leaves(message)), len(jax.tree.leaves(client))
        mine = done.jaxpr.jaxpr.invars[first : first + count]
        specs[exchange.name] = ExchangeSpec(
            k,
            exchange,
            message,
            shapes_of(done.out_info[1]),
            varies=depends(sent.jaxpr, sent.jaxpr.jaxpr.invars[-1]),
            reads=uses(done.jaxpr, mine, beside=0 if exchange.writes else count),
        )
    return specs


def shapes_of(tree: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def uses(traced: ClosedJaxpr, variables: list, beside: int = 0) -> bool:
    """Whether a traced function does anything with some of its arguments; its first `beside` results do not count."""
    seen = [v for equation in traced.jaxpr.eqns for v in equation.invars] + traced.jaxpr.outvars[beside:]
    return any(v is given for v in seen for given in variables)


def depends(traced: ClosedJaxpr, variable: Any) -> tuple[bool, ...]:
    """Which results of a traced function depend on one of its arguments."""
    reached = [variable]
    for equation in traced.jaxpr.eqns:
        if any(v is r for v in equation.invars for r in reached):
            reached += equation.outvars
    return tuple(any(v is r for r in reached) for v in traced.jaxpr.outvars)


def fingerprint(algorithm: Algorithm, specs: Specs, config: str = "") -> str:
    """Equal for a server and a site that mean the same by every message; `config` is what else has to be equal."""

    def said(tree: Any) -> list:
        return [(name, str(a.dtype), a.shape) for name, a in named(tree)]

    shapes = [(name, said(spec.message), said(spec.reply)) for name, spec in specs.items()]
    return hashlib.sha256(repr((algorithm.name, algorithm.n, algorithm.size, shapes, config)).encode()).hexdigest()[:16]
