"""Small federations over the Grid in this process."""

import jax
import numpy as np

import equipoise as eq
from equipoise.deploy import flower
from equipoise.deploy.flower import Demands, Job, Participant, Timeouts
from tests.deploy.grid import InProcess
from tests.problems import DIM, N, start, unequal

SITES = tuple("abcde"[:N])
SMALL = 3  # rows
SHARD = eq.data.Shards(
    jax.ShapeDtypeStruct((1, DIM), np.float64),
    jax.ShapeDtypeStruct((1,), np.float64),
    jax.ShapeDtypeStruct((), np.int32),
)
CALM = Demands(least=0, heavy=1.0)  # as the simulator; small problems put much weight on one client
HASTY = Timeouts(gather=0.5, hello=0.2, question=0.5, exchange=0.2, poll=0.001)


def shorter(shard):
    return shard._replace(inputs=shard.inputs[:SMALL], labels=shard.labels[:SMALL])


def app(algorithm, folder, *, apart=False, jobs=None, **how):
    """A ClientApp whose sites hold one client's rows each; `apart`: small sites hold shorter arrays than large ones."""
    data = unequal()
    own = [data.client(i) for i in range(N)]
    if apart:
        own = [shard if shard.sizes > SMALL else shorter(shard) for shard in own]

    def open_site(context):
        name = flower.site_name(context)
        part = {"train": lambda: Job(algorithm, start(), own[SITES.index(name)])}
        return Participant(name, folder / name, part if jobs is None else jobs(name), **how)

    return flower.client_app(open_site, questions=tuple(how.get("answers", ())))


def federate(algorithm, folder, *, fault=None, **how):
    grid = InProcess(app(algorithm, folder, **how), SITES, fault)
    return flower.gather(grid, sites=SITES, timeouts=HASTY)


def serve(algorithm, federation, key, demands=CALM, **how):
    return flower.serve(algorithm, start(), federation, key, shard=SHARD, demands=demands, **how)
