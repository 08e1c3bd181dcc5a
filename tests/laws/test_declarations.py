"""What every algorithm declares about itself is so: names in its messages, state it writes, weights it has."""

import jax
import jax.numpy as jnp
import pytest

import equipoise as eq
from equipoise.engines.debug import ExchangeError
from equipoise.errors import InputError
from equipoise.protocol import wire
from tests.problems import DIM, LOCAL, N, build, each_algorithm, start, unequal


def traced(algorithm):
    """Each exchange with whether its `work` changes any leaf of the client's state, read off the traced function."""
    shard = algorithm.prepare(unequal().client(0))
    client, key = jax.eval_shape(algorithm.init_client, start()), jax.random.key(0)
    for exchange, shapes in zip(algorithm.round, wire(algorithm, start(), shard), strict=True):
        jaxpr = jax.make_jaxpr(exchange.work)(shapes.message, client, shard, key).jaxpr
        first, count = len(jax.tree.leaves(shapes.message)), len(jax.tree.leaves(client))
        given, kept = jaxpr.invars[first : first + count], jaxpr.outvars[:count]
        yield exchange, shapes, any(new is not old for new, old in zip(kept, given, strict=True))


@each_algorithm
def test_an_exchange_writes_state_if_and_only_if_it_says_so(name):
    for exchange, _, changes in traced(build(name)):
        assert exchange.writes == changes, exchange.name


@each_algorithm
def test_every_array_that_crosses_has_a_name(name):
    def check(tree):
        if isinstance(tree, tuple):
            assert hasattr(tree, "_fields"), f"a tuple without names: {tree}"
            for part in tree:
                check(part)
        else:
            assert tree is None or isinstance(tree, jax.ShapeDtypeStruct)

    for _, shapes, _ in traced(build(name)):
        for crossing in (shapes.message, shapes.reply.total, shapes.reply.each):
            assert crossing is None or hasattr(crossing, "_fields")
            check(crossing)


def test_weights_of_domains_are_not_those_of_clients():
    given = {"dual_lr": 0.1, "domains": 2, "domain_of": lambda shard: (shard.labels > 0).astype(jnp.int32)}
    algorithm = eq.algorithms.agnostic_fedavg(eq.tasks.ridge(DIM, 0.1), eq.cohorts.everyone(N), **LOCAL, **given)
    assert algorithm.weights(algorithm.init(start())) is None


def undeclared():
    algorithm = build("scaffold")
    return algorithm._replace(round=(algorithm.round[0]._replace(writes=False),))


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (lambda a: eq.simulate(a, start(), unequal(), 0, rounds=1), InputError),
        (lambda a: eq.debug(a, start(), unequal(), 0, rounds=1), ExchangeError),
        (lambda a: eq.debug(a, start(), unequal(), 0, rounds=1, jit=True), ExchangeError),
        (lambda a: wire(a, start(), unequal().client(0)), InputError),
    ],
)
def test_state_that_is_written_without_saying_so_is_refused(run, error):
    with pytest.raises(error, match="'train' changes the state of its clients without saying so"):
        run(undeclared())
