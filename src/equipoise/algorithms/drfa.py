"""DRFA: distributionally robust federated averaging, with a random snapshot to learn the client weights from.

    min_w  max_{lam in Lam}  sum_i lam_i f_i(w) - psi(lam)

Algorithm 1 of Deng, Kamani and Mahdavi (2020), "Distributionally robust federated averaging"; with a penalised dual
it is their Algorithm 2, DRFA-Prox. In their letters:

    w-bar, lam        server.w, server.lam
    t'                server.t_snap         holds from `train`'s opening to its close
    w^(t')            server.w_snap         holds from `train`'s close to `probe`
    eta, gamma, tau   local_lr, dual_lr, steps

D^(s) is drawn i.i.d. from lam, a client as often as it is drawn (`by_weight(m)`): only then is the plain mean of
line 11 unbiased. The losses of line 14 come from a minibatch where the task has one, else from all of a client's data.

Beyond the paper: with `everyone(n)` all clients take part, the means of lines 11-12 are lam-weighted and U = [N];
the variance-free form for few clients. A client that is lost drops out of its mean, and N/m counts those who answered.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.algorithms.messages import Loss, ModelMessage, its_lam
from equipoise.algorithms.record import SADDLE, Record
from equipoise.cohorts import Sample, check_by_weight, everyone, uniform
from equipoise.errors import all_positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, weighted
from equipoise.tasks import Task


class Server(NamedTuple):
    """The model, the client weights, and the snapshot of this round."""

    w: Vector
    lam: Float[Array, " n"]
    t_snap: Int[Array, ""]
    w_snap: Vector


class Start(NamedTuple):
    """The model to train from, when to take the snapshot, and what the client counts."""

    w: Vector
    t_snap: Int[Array, ""]
    weight: Float[Array, ""]


class Update(NamedTuple):
    """How far the model and the snapshot are from the start."""

    w: Vector
    snap: Vector


@numbers_are_leaves
def drfa(
    task: Task, dual: Dual, sample: Sample, *, steps: int, local_lr: float, dual_lr: float
) -> Algorithm[Server, None]:
    """DRFA for `task`, robust over the client weights of `dual`; `sample` is by_weight(m), or everyone(n)."""
    n, sample = dual.n, sample.among(dual.n)
    check_by_weight(sample, n, "DRFA")
    require(sample.m <= n, f"DRFA asks {sample.m} of {n} clients for their loss; give by_weight(m) with m <= {n}")
    all_positive(steps=steps, local_lr=local_lr, dual_lr=dual_lr)
    probed = uniform(n, sample.m) if sample.n is None else everyone(n)

    def choose_by_weight(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        for_cohort, for_snap = jax.random.split(key)
        t_snap = jax.random.randint(for_snap, (), 1, steps + 1, jnp.int32)  # line 3
        return server._replace(t_snap=t_snap), sample(for_cohort, server.lam)  # line 2

    def send_model(server: Server, i: Int[Array, ""]) -> Start:
        return Start(server.w, server.t_snap, sample.weight(server.lam, i))  # line 4

    def train(message: Start, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        w, t_snap, weight = message
        w_i, snap = task.descend(w, data, key, steps=steps, lr=local_lr, snapshot=t_snap)  # lines 6-8
        return None, Reply(total=weighted(weight, Update(w_i - w, snap - w)))  # line 10

    def average(server: Server, replies: Replies) -> Server:
        update = mean(replies.total)
        return server._replace(w=server.w + update.w, w_snap=server.w + update.snap)  # lines 11-12

    def choose_uniformly(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server, probed(key)  # line 13

    def send_snapshot(server: Server, i: Int[Array, ""]) -> ModelMessage:
        return ModelMessage(server.w_snap)  # line 14

    def probe(message: ModelMessage, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        return None, Reply(each=Loss(task.loss(message.x, data, key)))  # line 14

    def ascend(server: Server, replies: Replies) -> Server:
        losses = replies.each.loss
        m = jnp.maximum(jnp.sum(replies.cohort.present, dtype=losses.dtype), 1)
        v, sigma = n / m * losses, steps * dual_lr  # line 15, zero for all others
        lam = dual.ascend(server.lam, replies.cohort, sigma * v, sigma)  # line 16; Algorithm 2
        return server._replace(lam=lam)

    def init(w: Vector) -> Server:
        return Server(w, jnp.full(n, 1 / n, w.dtype), jnp.int32(1), w)

    def model(server: Server) -> Vector:
        return server.w

    exchanges = (
        Exchange("train", choose_by_weight, send_model, train, average),
        Exchange("probe", choose_uniformly, send_snapshot, probe, ascend),
    )
    return Algorithm("drfa", n, task.size, task.prepare, init, round=exchanges, model=model, weights=its_lam, dual=dual)


DRFA = Record.usual(
    drfa, SADDLE, "Deng et al. 2020", example={"dual_lr": 0.01}, defaults={"dual_lr": 0.01}, cohorts="by_weight"
)
