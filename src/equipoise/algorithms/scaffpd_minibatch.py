"""SCAFF-PD for minibatches and networks: control variates from the local steps themselves.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

The paper's, Yu, Karimireddy, Ma and Jordan (2023): the two exchanges, the dual step (4.1), the corrected local steps of
Algorithm 2 and the primal step (4.2). Its c_i = g_i(x), one gradient at x, is right for exact gradients (`scaffpd`);
of one minibatch it is noisy, and on unlike clients it overshoots along the local path.

Beyond the paper, `correction = "average"`: c_i is the mean of the J local gradients of the client's last round, as in
option II of SCAFFOLD (Karimireddy et al. 2020), and c weighs all of them by the new lam:

    collect   down x; up L_i of the whole shard
              lam by the prox;  c = sum_i lam_i C_i  (zero in the first round, which is plain averaging)
    improve   down c; u = J steps u -= eta_l (g_i(u) - c_i + c); up du_i = (x - u)/(J eta_l); c_i <- du_i + c_i - c
              C_i <- du_i + C_i - c of those heard;  x -= tau sum_i lam_i du_i

    C                 server.table           the server's copy of every c_i; N x d floats
    c_i               client.c_i             stays from round to round
    the rest          as in scaffpd.py

A reply that does not count leaves c_i and C_i as they were, at both ends, in every engine. No gradients are computed
beyond the local ones, and d + 1 numbers go up instead of 2d + 1. The local steps have to be plain descent.

Also beyond the paper, `correction = "two_point"`: u -= eta_l (g_i(u; b) - g_i(x; b) + c), both gradients on the same
minibatch b and c of whole shards (SVRG; Johnson and Zhang 2013). Twice the gradients and a pass over the shard; the
noise vanishes at the saddle point, so no step size has to fall.

`secure = true` takes three exchanges: c and the step come as weighted sums, and the server keeps no table.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree

from equipoise import local
from equipoise.algorithms.messages import Loss, LossAndGradient, ModelMessage, send_model
from equipoise.algorithms.record import LOCAL_DEFAULTS, LOCAL_EXAMPLE, SADDLE, Record
from equipoise.algorithms.scaffpd import Client, Correction, those_who_answered, weighing
from equipoise.cohorts import Sample, check_everyone
from equipoise.errors import all_positive, one_of
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import (
    Algorithm,
    Cohort,
    Data,
    Exchange,
    RandomKey,
    Replies,
    Reply,
    Vector,
    mean,
    neutral,
    weighted,
)
from equipoise.steps import Rule, RuleState, constant
from equipoise.tasks import Task


class Server(NamedTuple):
    """The two players, what was heard of the clients, and this round's step sizes."""

    x: Vector
    lam: Float[Array, " n"]
    losses: Float[Array, " n"]
    heard: Bool[Array, " n"]  # whose loss was ever heard
    answered: Bool[Array, " n"]  # who answered in this round so far
    c: Vector  # holds from `collect` (secure: `weigh`) to `improve`
    table: PyTree[Array]  # C [n, d]; None where the server sees sums only, or where every round collects gradients
    steps: RuleState


class Update(NamedTuple):
    """A client's own du."""

    du: Vector


@numbers_are_leaves
def scaffpd_minibatch(
    task: Task,
    dual: Dual,
    sample: Sample,
    rule: Rule,
    *,
    steps: int,
    local_lr: float,
    correction: Literal["average", "two_point"] = "average",
    secure: bool = False,
) -> Algorithm[Server, Client]:
    """SCAFF-PD whose control variates do not need exact gradients; `sample` is everyone(n).

    On networks a sigma of about 0.4/n and theta = 0 serve: weights are of the size 1/n, which larger steps make swing,
    and extrapolation amplifies the noise.
    """
    n, sample = dual.n, sample.among(dual.n)
    check_everyone(sample, n, "SCAFF-PD with minibatches")
    all_positive(steps=steps, local_lr=local_lr)
    one_of("correction", correction, ("average", "two_point"))
    two_point = correction == "two_point"
    tabled = not secure and not two_point

    # (1) Losses of whole shards, and for two points their gradients.

    def start_round(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server._replace(steps=rule.next(server.steps)), sample(key)

    def collect(message: ModelMessage, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        x = message.x
        loss = task.loss(x, data)
        if not two_point:
            return mine._replace(x=x), Reply(each=Loss(loss))
        c_i = task.grad(x, data)
        return Client(x, c_i), Reply(each=Loss(loss) if secure else LossAndGradient(loss, c_i))

    # (2) The dual step, Eq. (4.1), and c by the new weights.

    def update_dual(server: Server, replies: Replies) -> Server:
        _, sigma, theta = server.steps.now
        losses = replies.cohort.put(server.losses, replies.each.loss)
        answered = replies.cohort.mark(n)
        heard = server.heard | answered
        before = jnp.where(server.heard, server.losses, losses)
        s = neutral((1 + theta) * losses - theta * before, heard)
        lam = dual.prox(server.lam + sigma * s, sigma)
        c = server.c
        if tabled:
            c = lam @ server.table  # over all n: sum_i lam_i (c - c_i) = 0, whoever was heard how often
        elif not secure:
            c = replies.cohort.share(lam) @ replies.each.gradient
        return server._replace(lam=lam, losses=losses, heard=heard, answered=answered, c=c)

    # (3) Corrected local steps, and the primal step, Eq. (4.2).

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.c, None if tabled else server.lam[i])

    def improve(message: Correction, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        c, (x, c_i) = message.c, mine
        if two_point:

            def difference(u: Vector, draw: RandomKey) -> Vector:
                return task.grad(u, data, draw) - task.grad(x, data, draw)

            u = local.descend(difference, x, jax.random.split(key, steps), steps=steps, lr=local_lr, shift=c)
        else:
            u = task.descend(x, data, key, steps=steps, lr=local_lr, shift=c - c_i)
        du = (x - u) / (local_lr * steps)
        if not two_point:
            mine = Client(x, du + c_i - c)  # the mean of its J gradients
        return mine, Reply(each=Update(du)) if tabled else Reply(total=weighted(message.lam_i, du))

    def update_primal(server: Server, replies: Replies) -> Server:
        if tabled:
            du = replies.cohort.share(server.lam) @ replies.each.du
            rows = replies.each.du + server.table[jnp.asarray(replies.cohort.ids)] - server.c[None]
            server = server._replace(table=replies.cohort.put(server.table, rows))
        else:
            du = jnp.sum(server.lam) * mean(replies.total)
        return server._replace(x=server.x - server.steps.now.tau * du)

    def init(x: Vector) -> Server:
        nobody, lam = jnp.zeros(n, bool), jnp.full(n, 1 / n, x.dtype)
        table = jnp.zeros((n, x.size), x.dtype) if tabled else None
        return Server(x, lam, jnp.zeros_like(lam), nobody, nobody, jnp.zeros_like(x), table, rule.init(x.dtype))

    first = Exchange("collect", start_round, send_model, collect, update_dual, writes=True)
    middle = weighing(sample, n)
    last = Exchange(
        "improve", those_who_answered(sample), send_correction, improve, update_primal, writes=not two_point
    )
    return Algorithm(
        name="scaffpd_minibatch",
        n=n,
        size=task.size,
        prepare=task.prepare,
        init=init,
        init_client=lambda x: Client(jnp.zeros_like(x), jnp.zeros_like(x)),
        round=(first, middle, last) if secure else (first, last),
        weights=lambda server: server.lam,
        dual=dual,
    )


SCAFFPD_MINIBATCH = Record(
    "scaffpd_minibatch",
    scaffpd_minibatch,
    objective=SADDLE,
    paper="beyond Yu et al. 2023",
    example={"rule": constant(tau=0.1, sigma=0.5, theta=0.0), **LOCAL_EXAMPLE},
    defaults=LOCAL_DEFAULTS,
    cohorts="everyone",
    network_rule=lambda n: {"sigma": 0.4 / n, "theta": 0.0},
)
