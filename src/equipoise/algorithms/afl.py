"""AFL: agnostic federated learning, where the model and the client weights move in every round.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

Mohri, Sivek and Suresh (2019), "Agnostic federated learning": one step of projected gradient descent in the model and
one of ascent in the weights, both at the same (x, lam). There psi = 0 on the simplex (`agnostic(n)`); with any other
dual its prox stands for the projection.

    w, lam                  server.x, server.lam
    w^A, lam^A              server.x_bar, server.lam_bar    means over the rounds so far, the paper's output
    gamma_w, gamma_lambda   local_lr, dual_lr

With local steps, as in Appendix F.1 of Yu et al. (2023), "SCAFF-PD", which prints no pseudo-code. Here it is

    y_i      J steps y -= eta_l g_i(y) from y = x,    L_i = f_i(x) on all local data
    lam^+  = prox(lam + gamma L),                     x^+ = x + eta_g sum_i lam_i^+ (y_i - x)

with eta_l, J, eta_g = local_lr, steps, server_lr. Local steps drift towards each client's own optimum: the fixed point
is near the saddle point, not at it. With one step there is no drift and it is the saddle point.

Avoided: q-FFL's public AFL (its `sampling=2`) moves lam but then gives every client weight one in the model's step;
FedTorch's centred version forgets all losses but the last client's.

Beyond the paper: cohorts. The losses of those who answered count N/m, which keeps the dual step unbiased under uniform
sampling; the others' are zero. The model moves by the weighted mean of those who answered.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise.algorithms.messages import its_lam
from equipoise.algorithms.record import SADDLE, Record
from equipoise.cohorts import Sample, check_same_clients
from equipoise.errors import all_positive
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, RandomKey, Replies, Reply, Vector, mean
from equipoise.tasks import Task


class Server(NamedTuple):
    """The two players and their averages over the rounds."""

    x: Vector
    lam: Float[Array, " n"]
    x_bar: Vector
    lam_bar: Float[Array, " n"]
    rounds: Int[Array, ""]


class Start(NamedTuple):
    """The model to train from."""

    x: Vector
    lam_i: Float[Array, ""] | None  # None: the server weighs the updates when it knows all losses


class Update(NamedTuple):
    """lam_i (y_i - x)."""

    dy: Vector


class Report(NamedTuple):
    """What the server sees of a client."""

    loss: Float[Array, ""]
    dy: Vector | None  # y_i - x; None where it is sent in the sum


@numbers_are_leaves
def afl(
    task: Task,
    dual: Dual,
    sample: Sample,
    *,
    local_lr: float,
    dual_lr: float,
    steps: int = 1,
    server_lr: float = 1.0,
    simultaneous: bool | None = None,
    averaged: bool = False,
) -> Algorithm[Server, None]:
    """AFL for `task`, robust over the client weights of `dual`.

    Args:
        task: the clients' losses f_i and (stochastic) gradients g_i.
        sample: everyone(n), the paper's setting, or uniform(n, m) or coin(n, p).
        steps: J; 1 is the paper's method.
        simultaneous: whether the model moves by lam, as printed, or by lam^+. None: as printed for one step, lam^+
            for more. By lam the server needs only the weighted sum of the updates; by lam^+ it sees each of them.
        averaged: ship x_bar, which Mohri's guarantee is about, not the last x, which is what converges to the last
            digit where there is curvature.
    """
    sample = sample.among(dual.n)
    n = check_same_clients(sample, dual.n, "AFL would count it twice")
    all_positive(local_lr=local_lr, dual_lr=dual_lr, steps=steps, server_lr=server_lr)
    at_once = steps == 1 if simultaneous is None else simultaneous

    def send(server: Server, i: Int[Array, ""]) -> Start:
        return Start(server.x, server.lam[i] if at_once else None)

    def train(message: Start, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        x, lam_i = message
        loss = task.loss(x, data)
        dy = task.descend(x, data, key, steps=steps, lr=local_lr) - x
        if lam_i is None:
            return None, Reply(each=Report(loss, dy))
        return None, Reply(total=Update(lam_i * dy), each=Report(loss, None))

    def move(server: Server, replies: Replies) -> Server:
        lam = ascend(dual, server.lam, replies.cohort, replies.each.loss, dual_lr)
        if at_once:
            mass = jnp.sum(jnp.where(replies.cohort.present, server.lam[jnp.asarray(replies.cohort.ids)], 0))
            dx = jnp.sum(server.lam) * mean((mass, replies.total.dy))
        else:
            dx = replies.cohort.share(lam) @ replies.each.dy
        x, rounds = server.x + server_lr * dx, server.rounds + 1
        step = 1 / rounds.astype(x.dtype)
        x_bar, lam_bar = (bar + step * (now - bar) for bar, now in ((server.x_bar, x), (server.lam_bar, lam)))
        return Server(x, lam, x_bar, lam_bar, rounds)

    def init(x: Vector) -> Server:
        lam = jnp.full(n, 1 / n, x.dtype)
        return Server(x, lam, x, lam, jnp.int32(0))

    exchange = Exchange("train", sample.open, send, train, move)
    last = Algorithm("afl", n, task.size, task.prepare, init, round=(exchange,), weights=its_lam, dual=dual)
    mean_of_rounds = last._replace(model=lambda server: server.x_bar, weights=lambda server: server.lam_bar)
    return mean_of_rounds if averaged else last


def ascend(
    dual: Dual, lam: Float[Array, " n"], cohort: Cohort, losses: Float[Array, " m"], step: float
) -> Float[Array, " n"]:
    """lam after a proximal ascent step on the losses of a cohort, each counted N/m; lam itself if nobody answered."""
    heard = jnp.sum(jnp.asarray(cohort.present), dtype=lam.dtype)
    v = dual.n / jnp.maximum(heard, 1) * losses  # zero for all others
    return jnp.where(heard > 0, dual.ascend(lam, cohort, step * v, step), lam)


AFL = Record.usual(afl, SADDLE, "Mohri et al. 2019", example={"dual_lr": 0.05}, defaults={"dual_lr": 0.01})
