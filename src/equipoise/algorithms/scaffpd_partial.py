"""SCAFF-PD with a few clients per round, which still converges linearly to the exact saddle point.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

Beyond the paper, whose Algorithm 1 asks every client in every round. A round of this one asks m of N clients twice:

    collect   S1, uniform without replacement: refresh L_i and c_i at x; the rows of the others stay as they were
              s = (1 + theta) L - theta L_before,  lam by the prox over all N,  c = sum over all N of lam_i C_i
    improve   S2, m draws from lam with replacement: J steps u -= eta_l (g_i(u) - c_i + c), each with its own last c_i
              x -= tau * mean of du over the slots

    L, C              server.losses, server.table      the last value heard from every client; N x d floats
    c_i               client state                     what the client last sent; `improve` only reads it
    the rest          as in scaffpd.py

Because S2 is drawn by lam, the plain mean is unbiased for sum_i lam_i du_i, and at the saddle point every du_i is zero,
whoever is drawn: so the noise vanishes there, and no step size has to fall. A cohort that is renormalised instead
(S2 = S1) also gets there, but far slower. With everyone(n) both cohorts are everybody and this is SCAFF-PD itself.
Clients never heard from hold no row: they are left out of c and S2, and their loss counts as the others' mean. The
server sees every c_i: a table cannot be kept from sums.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.messages import LossAndGradient, ModelMessage, its_lam, send_model
from equipoise.algorithms.record import SADDLE, Record
from equipoise.cohorts import Sample, by_weight, check_same_clients
from equipoise.errors import all_positive
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
    Weighted,
    mean,
    neutral,
)
from equipoise.steps import Rule, RuleState
from equipoise.tasks import Task


class Server(NamedTuple):
    """The two players, the last words of every client, and this round's step sizes."""

    x: Vector
    lam: Float[Array, " n"]
    losses: Float[Array, " n"]
    table: Float[Array, "n d"]
    heard: Bool[Array, " n"]  # who has a row
    c: Vector  # holds from `collect` to `improve`
    steps: RuleState


class Correction(NamedTuple):
    """The model to start from, c, and what the client counts."""

    x: Vector
    c: Vector
    weight: Float[Array, ""]


@numbers_are_leaves
def scaffpd_partial(
    task: Task, dual: Dual, sample: Sample, rule: Rule, *, steps: int, local_lr: float
) -> Algorithm[Server, Vector]:
    """SCAFF-PD with cohorts of `sample`, uniform(n, m); arguments as for `scaffpd`."""
    sample = sample.among(dual.n)
    n = check_same_clients(sample, dual.n, "SCAFF-PD keeps one control variate per client")
    all_positive(steps=steps, local_lr=local_lr)
    second = sample if sample.m == n else by_weight(sample.m)

    def collect(message: ModelMessage, _: Vector, data: Data, key: RandomKey) -> tuple[Vector, Reply]:
        c_i = task.grad(message.x, data, key)
        return c_i, Reply(each=LossAndGradient(task.loss(message.x, data), c_i))

    def update_dual(server: Server, replies: Replies) -> Server:
        loss, c_i = replies.each
        _, sigma, theta = server.steps.now
        losses = replies.cohort.put(server.losses, loss)
        table = replies.cohort.put(server.table, c_i)
        heard = server.heard | replies.cohort.mark(n)
        before = jnp.where(server.heard, server.losses, losses)
        s = neutral((1 + theta) * losses - theta * before, heard)
        lam = dual.prox(server.lam + sigma * s, sigma)
        # A sum of products: with a million rows a product of a vector and a matrix takes twice as long, on one core.
        c = jnp.sum(Cohort(jnp.arange(n), heard).share(lam)[:, None] * table, axis=0)
        return server._replace(lam=lam, losses=losses, table=table, heard=heard, c=c)

    def choose_by_weight(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        weights = jnp.where(server.heard, server.lam, 0)
        some = jnp.sum(weights) > 0  # not so only while nobody that was heard from has any weight
        cohort = second(key, jnp.where(some, weights, 1))
        return server, cohort._replace(present=cohort.present & server.heard[jnp.asarray(cohort.ids)] & some)

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.x, server.c, second.weight(server.lam, i))

    def improve(message: Correction, c_i: Vector, data: Data, key: RandomKey) -> tuple[Vector, Reply]:
        x, c, weight = message
        u = task.descend(x, data, key, steps=steps, lr=local_lr, shift=c - c_i)
        return c_i, Reply(total=Weighted(weight, weight * (x - u) / (local_lr * steps)))

    def update_primal(server: Server, replies: Replies) -> Server:
        du = jnp.sum(server.lam) * mean(replies.total)
        return server._replace(x=server.x - server.steps.now.tau * du)

    def init(x: Vector) -> Server:
        lam, nobody = jnp.full(n, 1 / n, x.dtype), jnp.zeros(n, bool)
        return Server(x, lam, jnp.zeros_like(lam), jnp.zeros((n, x.size), x.dtype), nobody, x, rule.init(x.dtype))

    exchanges = (
        Exchange("collect", rule.opening(sample), send_model, collect, update_dual, writes=True),
        Exchange("improve", choose_by_weight, send_correction, improve, update_primal),
    )
    return Algorithm(
        "scaffpd_partial", n, task.size, task.prepare, init, jnp.zeros_like, exchanges, weights=its_lam, dual=dual
    )


SCAFFPD_PARTIAL = Record.usual(scaffpd_partial, SADDLE, "beyond Yu et al. 2023", minibatch_form="scaffpd_minibatch")
