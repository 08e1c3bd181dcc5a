"""SCAFF-PD that reveals no client's loss, gradient, update or weight: every reply is needed as a sum only.

    min_x  max_{lam in simplex}  sum_i lam_i f_i(x) - rho sum_i lam_i log(N lam_i)

Beyond the paper (Yu, Karimireddy, Ma and Jordan 2023), for the `kl` penalty only. With relative entropy instead of the
Euclidean distance in the dual step (4.1), lam_i is proportional to exp(w_i) throughout, and w_i moves by the client's
own loss alone: normalisation cancels. So w_i lives at the client, and the server divides sums.

    w_i                client.w              log lam_i up to a constant, the same for all; 0 at first
    L_i of before      client.loss
    p_i = exp(w_i - m) client.p              near lam_i; holds from `collect` to `improve`
    m                  server.shift          a running shift that keeps p_i in range, known to everybody
    the rest           as in scaffpd.py

    collect   down x, m, sigma, theta;  w_i = (w_i + sigma ((1 + theta) L_i - theta L_i before)) / (1 + rho sigma)
              up the sums of p_i, p_i c_i, p_i L_i, p_i w_i (and of exp(L_i / rho), for the certificate)
              c = sum p c / sum p;   m = (m + log sum p + sigma sum pL / sum p) / (1 + rho sigma)
    improve   down c;  J steps u -= eta_l (g_i(u) - c_i + c);  up the sums of p_i, p_i du_i
              x -= tau sum p du / sum p

The saddle point is that of `scaffpd` with the same penalty. The first round only listens (sigma = 0), so that m is
known before anybody moves. A client whose reply is lost keeps its w_i. A client does not answer where p_i > 2^10: no
server can single it out by a false m; its reply then counts as lost.

Totals are sums by what the algorithm needs; whether the server is kept from single ones is the engine's business.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_everyone, those_who_answered
from equipoise.errors import all_positive, is_concrete, require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, tree_where, weighted
from equipoise.steps import Rule, RuleState
from equipoise.tasks import Task

MOST = 2.0**10  # p_i above which a client does not answer
MOST_TILT = 2.0**16  # what exp(L_i / rho - level) is cut to where it has to fit into a masked sum
LEAST_TILT = 2.0**-10  # a sum below it has too few digits in a masked sum
Scalar = Float[Array, ""]


class Evidence(NamedTuple):
    """What the sums of a round say of the pair (x, lam) at which they were collected."""

    robust: Scalar  # max over lam of F(x, .)
    value: Scalar  # F(x, lam)
    gradient: Vector  # sum_i lam_i grad f_i(x)
    complete: Bool[Array, ""]  # everybody was heard, and no exponential left its range; else robust is of no use


class Server(NamedTuple):
    """The model, the shifts, and this round's step sizes."""

    x: Vector
    c: Vector  # holds from `collect` to `improve`
    shift: Scalar  # m
    level: Scalar  # the same for exp(L_i / rho)
    begun: Bool[Array, ""]  # whether anybody was ever heard
    answered: Bool[Array, " n"]  # who answered in this round so far
    evidence: Evidence
    steps: RuleState


class Client(NamedTuple):
    """A client's own weight and loss, and what it remembers within a round."""

    w: Scalar
    loss: Scalar
    heard: Bool[Array, ""]  # whether `loss` is one
    x: Vector
    c_i: Vector
    p: Scalar


class Question(NamedTuple):
    """The model, the shifts and the dual step sizes of the round."""

    x: Vector
    shift: Scalar
    level: Scalar
    sigma: Scalar
    theta: Scalar


class Answer(NamedTuple):
    """Needed as sums over the cohort."""

    p: Scalar
    gradient: Vector  # p_i c_i
    loss: Scalar  # p_i L_i
    w: Scalar  # p_i w_i
    tilted: Scalar  # exp(L_i / rho - level)
    beyond: Scalar  # 1 where that is out of range


class Correction(NamedTuple):
    """c^r."""

    c: Vector


@numbers_are_leaves(static=("tilt_cap",))
def scaffpd_sums(
    task: Task, dual: Dual, sample: Sample, rule: Rule, *, steps: int, local_lr: float, tilt_cap: float | None = None
) -> Algorithm[Server, Client]:
    """SCAFF-PD from sums alone, for the kl penalty; arguments as for `scaffpd`.

    `tilt_cap`: what exp(L_i / rho - level) is cut to, which costs the certificates of rounds where it is; None: what
    the numbers can hold. Sums of fixed point need MOST_TILT.
    """
    n, rho, sample = dual.n, dual.modulus, sample.among(dual.n)
    require(
        is_relative_entropy(dual),
        f"the objective is {dual.name}, and only for kl with equal reference weights can each client keep its own "
        "weight; give kl(n, rho), or use scaffpd_secure, which shows the server every loss",
    )
    check_everyone(sample, n, "SCAFF-PD from sums")
    all_positive(steps=steps, local_lr=local_lr)

    def ask(server: Server, i: Int[Array, ""]) -> Question:
        _, sigma, theta = server.steps.now
        return Question(server.x, server.shift, server.level, jnp.where(server.begun, sigma, 0), theta)

    def collect(message: Question, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        x, shift, level, sigma, theta = message
        loss, c_i = task.loss(x, data), task.grad(x, data, key)
        before = jnp.where(mine.heard, mine.loss, loss)
        w = (mine.w + sigma * ((1 + theta) * loss - theta * before)) / (1 + rho * sigma)
        p = jnp.exp(w - shift)
        p = jnp.where(p <= MOST, p, jnp.nan)  # not finite: no reply
        largest = jnp.log(jnp.finfo(x.dtype).max) / 2 if tilt_cap is None else math.log(tilt_cap)
        exponent, most = loss / rho - level, largest
        tilted = jnp.exp(jnp.minimum(exponent, most))
        beyond = jnp.where(exponent > most, jnp.ones_like(p), 0)
        answer = Answer(p, p * c_i, p * loss, p * w, tilted, beyond)
        return Client(w, loss, jnp.array(True), x, c_i, p), Reply(total=answer)

    def fold(server: Server, replies: Replies) -> Server:
        total: Answer = replies.total
        sigma = server.steps.now.sigma
        heard = total.p > 0
        safe = jnp.where(heard, total.p, 1)
        c, loss, w = total.gradient / safe, total.loss / safe, total.w / safe
        log_p = jnp.log(safe)
        answered = replies.cohort.mark(n)
        everybody = jnp.all(answered)
        # Who is missing may have had most of the weight, and comes back with it: m does not fall for that.
        drift = jnp.where(everybody, log_p, jnp.maximum(log_p, 0))
        shift = (server.shift + drift + sigma * loss) / (1 + rho * sigma)
        entropy = w - server.shift - log_p  # sum_i lam_i log lam_i
        log_tilted = jnp.log(jnp.where(total.tilted > 0, total.tilted, 1)) + server.level
        in_range = total.tilted > (0 if tilt_cap is None else LEAST_TILT)
        # Out of range, a bound from below: no mean of the losses is above the largest of them.
        level = jnp.where(total.beyond == 0, log_tilted, jnp.maximum(log_tilted, loss / rho))
        level = jnp.where(in_range, level, loss / rho)
        evidence = Evidence(
            robust=rho * (log_tilted - math.log(n)),
            value=loss - rho * (entropy + math.log(n)),
            gradient=c,
            complete=everybody & (total.beyond == 0) & in_range,
        )
        new = server._replace(c=c, shift=shift, level=level, begun=jnp.array(True), evidence=evidence)
        # `steps` is the same in both; nobody there: nothing is learned.
        new = tree_where(heard, new, server)
        return new._replace(answered=answered)

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.c)

    def improve(message: Correction, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        x = mine.x
        u = task.descend(x, data, key, steps=steps, lr=local_lr, shift=message.c - mine.c_i)
        return mine, Reply(total=weighted(mine.p, (x - u) / (local_lr * steps)))

    def update_primal(server: Server, replies: Replies) -> Server:
        return server._replace(x=server.x - server.steps.now.tau * mean(replies.total))

    def init(x: Vector) -> Server:
        zero, no = jnp.zeros((), x.dtype), jnp.array(False)
        evidence = Evidence(zero, zero, jnp.zeros_like(x), no)
        return Server(x, jnp.zeros_like(x), zero, zero, no, jnp.zeros(n, bool), evidence, rule.init(x.dtype))

    def init_client(x: Vector) -> Client:
        zero = jnp.zeros((), x.dtype)
        return Client(zero, zero, jnp.array(False), jnp.zeros_like(x), jnp.zeros_like(x), zero)

    first = Exchange("collect", rule.opening(sample), ask, collect, fold, writes=True)
    last = Exchange("improve", those_who_answered(sample), send_correction, improve, update_primal)
    exchanges = (
        first._replace(counts=lambda reply: reply.total.p),
        last._replace(counts=lambda reply: reply.total.weight),
    )
    return Algorithm("scaffpd_sums", n, task.size, task.prepare, init, init_client, exchanges)


def gap_from_sums(server: Server, *, mu: float) -> Scalar:
    """As `certificates.gap_bound`, of the pair (x, lam) of the last `collect`, from the sums alone; infinite where the
    evidence is not complete. `mu` is the strong convexity of every f_i."""
    robust, value, gradient, complete = server.evidence
    gap = robust - value + gradient @ gradient / (2 * mu)
    return jnp.where(complete, jnp.maximum(gap, 0), jnp.inf)  # below zero it is rounding


def is_relative_entropy(dual: Dual) -> bool:
    """To equal weights, and nothing else."""
    parts = dual.interior
    if parts is None or parts.entropy is None or not (parts.cap >= 1).all():
        return False
    calm = dual.best_response(jnp.zeros(dual.n))
    return not is_concrete(calm) or bool(jnp.allclose(calm, 1 / dual.n))


SCAFFPD_SUMS = Record.usual(
    scaffpd_sums,
    "ρ log 1/n Σ exp(f_i/ρ)",
    "beyond Yu et al. 2023",
    cohorts="everyone",
    minibatch_form="scaffpd_minibatch",
    only_dual="kl",
    weighs_itself=True,
)
