"""What holds for every algorithm over Flower: the same numbers as the simulator (`make test`: of each kind)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from tests.deploy.setting import federate, serve
from tests.problems import N, assert_same, build, each_kind, start, unequal

KEY = jax.random.key(3)


def states(algorithm, folder, outcome):
    """What each site remembers, as the simulator's table."""
    from equipoise.deploy.site.messages import Memory

    like, table = jax.eval_shape(algorithm.init_client, start()), []
    for site, mark in zip(outcome.ledger.sites, outcome.ledger.counted, strict=True):
        found = Memory(folder / site / f"train-{outcome.ledger.run}.safetensors", like).states()
        table.append(found.get(mark, algorithm.init_client(start())))
    return jax.tree.map(lambda *a: np.stack(a), *table)


def by_simulator(algorithm, **how):
    return eq.simulate(algorithm, start(), unequal(), KEY, clients_per_batch=N, devices=1, **how)


@partial(each_kind, kinds=("scaffold", "scaffpd"))
def test_over_flower_as_in_the_simulator(name, tmp_path):
    """Sampled clients, minibatches, state, unequal sites; replies that get lost after the work was done."""
    algorithm = build(name, batch=3, m=3)

    def lost(round, exchange, ids):
        return jnp.asarray(ids) == (round + exchange) % N

    names = [e.name for e in algorithm.round]

    def lose(message, reply):
        if message.metadata.message_type != "train.exchange":
            return reply
        at = message.content["at"]
        gone = "abcde"[(at["round"] + names.index(at["exchange"])) % N]
        return None if gone == federation.grid.site(message) else reply

    expected = by_simulator(algorithm, rounds=3, record=lambda server: server, lost=lost)
    federation = federate(algorithm, tmp_path, apart=True)
    federation.grid.fault = lose
    federation.timeouts = federation.timeouts._replace(exchange=0.0)  # the grid answers at once or never
    outcome = serve(algorithm, federation, KEY, rounds=3, record=lambda server: server)
    assert_same((outcome.result.server, outcome.result.history), (expected.server, expected.history))
    assert_same(outcome.result.tally, expected.tally)
    if jax.tree.leaves(expected.clients):
        assert_same(states(algorithm, tmp_path, outcome), expected.clients)
