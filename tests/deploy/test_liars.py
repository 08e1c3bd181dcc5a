"""A site that sends false updates over Flower's messages: projected, it cannot move where the run ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr")

from equipoise.algorithms import project_updates
from equipoise.deploy import flower
from tests.algorithms.test_projection import DATA, LIAR, LIES, PLAIN, SADDLE, D, N, end, with_liar
from tests.deploy.grid import InProcess
from tests.deploy.setting import CALM, HASTY
from tests.problems import assert_same, few

SITES = tuple("abcd"[:N])
ROUNDS = 25


def over_flower(honest, lying, folder):
    """The server runs `honest`; so do all sites but one."""

    def open_site(context):
        name = flower.site_name(context)
        i = SITES.index(name)
        job = flower.Job(lying if i == LIAR else honest, jnp.zeros(D), DATA.client(i))
        return flower.Participant(name, folder / name, {"train": lambda: job})

    place = InProcess(flower.client_app(open_site), SITES)
    federation = flower.gather(place, sites=SITES, timeouts=HASTY)
    shard = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), DATA.client(0))
    outcome = flower.serve(
        honest, jnp.zeros(D), federation, 0, shard=shard, rounds=ROUNDS, demands=CALM._replace(bound=None)
    )
    return outcome.result.server.x


def away(x):
    return np.abs(np.asarray(x) - SADDLE).max()


@pytest.mark.parametrize(
    "lie", few([*LIES][:1], LIES, "algorithms/test_projection.py::test_a_liar_cannot_move_the_saddle_point")
)
def test_a_lying_site_slows_the_run_and_does_not_steer_it(lie, tmp_path):
    """The same as in the simulator, whose runs end at the saddle point (tests/algorithms/test_projection.py)."""
    guarded = project_updates(PLAIN, quadratic=True), project_updates(with_liar(lie), quadratic=True)
    found = over_flower(*guarded, tmp_path / "guarded")
    assert_same(found, end(guarded[1], ROUNDS).server.x, rtol=0, atol=1e-9)
    trusted = over_flower(PLAIN, with_liar(lie), tmp_path / "trusted")
    assert away(found) < 0.1 * away(trusted)
    assert away(found) < 0.2 * away(jnp.zeros(D))
