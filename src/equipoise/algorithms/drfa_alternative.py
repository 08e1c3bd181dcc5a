"""DRFA's alternative: local descent as in DRFA, full-batch ascent in the client weights every tau steps.

    min_w  max_{lam in Lam}  sum_i lam_i f_i(w) - psi(lam)

Section 5.2 of Deng, Kamani and Mahdavi (2020), "Distributionally robust federated averaging":

    lam^(s+1) = Proj_Lam(lam^(s) + gamma grad_lam F(w-bar^(s), lam^(s)))

on the losses of all N clients over all their data, at the model the stage starts from: no snapshot, no factor tau.
The model moves as in `drfa`, by clients drawn from lam^(s). In the paper's letters:

    w-bar, lam        server.w, server.lam
    lam^(s+1)         server.lam_next       holds from `probe`'s close to `train`'s
    eta, gamma, tau   local_lr, dual_lr, steps

The ascent goes through the prox of the dual instead of the gradient of psi, so that every dual can be taken, also those
whose psi has no gradient at the border of its set. Without a penalty the two are the same; for chi2 too, the prox with
step gamma / (1 - gamma rho N) being the printed step with gamma.

With `everyone(n)` the model is the lam-weighted mean (see `drfa`). It is then AFL with simultaneous local steps, and
for tau = 1 AFL as printed, round for round: the sense in which AFL is DRFA at tau = 1. DRFA itself probes at its
snapshot, which for tau = 1 is the new model: the same two updates in turns instead of at once.

Public code: FedTorch has none of it (nor DRFA-Prox).

Beyond the paper: a client that is lost drops out of its mean; losses count N over those who answered.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.algorithms.afl import ascend
from equipoise.algorithms.messages import Loss, ModelMessage, WeightedStart, its_lam
from equipoise.algorithms.record import SADDLE, Record
from equipoise.cohorts import Sample, check_by_weight, everyone
from equipoise.errors import all_positive
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, weighted
from equipoise.tasks import Task


class Server(NamedTuple):
    """The model, the client weights, and those of the next round."""

    w: Vector
    lam: Float[Array, " n"]
    lam_next: Float[Array, " n"]


@numbers_are_leaves
def drfa_alternative(
    task: Task, dual: Dual, sample: Sample, *, steps: int, local_lr: float, dual_lr: float
) -> Algorithm[Server, None]:
    """DRFA's alternative for `task`, robust over the weights of `dual`; `sample` is by_weight(m), or everyone(n)."""
    n, sample = dual.n, sample.among(dual.n)
    check_by_weight(sample, n, "DRFA")
    all_positive(steps=steps, local_lr=local_lr, dual_lr=dual_lr)

    def send_model(server: Server, i: Int[Array, ""]) -> ModelMessage:
        return ModelMessage(server.w)

    def probe(message: ModelMessage, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        return None, Reply(each=Loss(task.loss(message.x, data)))  # over all local data

    def decide(server: Server, replies: Replies) -> Server:
        return server._replace(lam_next=ascend(dual, server.lam, replies.cohort, replies.each.loss, dual_lr))

    def choose_by_weight(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server, sample(key, server.lam)  # lam^(s), not yet lam^(s+1)

    def send_start(server: Server, i: Int[Array, ""]) -> WeightedStart:
        return WeightedStart(server.w, sample.weight(server.lam, i))

    def train(message: WeightedStart, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        w, weight = message
        w_i = task.descend(w, data, key, steps=steps, lr=local_lr)
        return None, Reply(total=weighted(weight, w_i - w))

    def average(server: Server, replies: Replies) -> Server:
        return server._replace(w=server.w + mean(replies.total), lam=server.lam_next)

    def init(w: Vector) -> Server:
        lam = jnp.full(n, 1 / n, w.dtype)
        return Server(w, lam, lam)

    def model(server: Server) -> Vector:
        return server.w

    exchanges = (
        Exchange("probe", everyone(n).open, send_model, probe, decide),
        Exchange("train", choose_by_weight, send_start, train, average),
    )
    return Algorithm(
        "drfa_alternative", n, task.size, task.prepare, init, round=exchanges, model=model, weights=its_lam, dual=dual
    )


DRFA_ALTERNATIVE = Record.usual(
    drfa_alternative,
    SADDLE,
    "Deng et al. 2020, 5.2",
    example={"dual_lr": 0.05},
    defaults={"dual_lr": 0.01},
    cohorts="by_weight",
)
