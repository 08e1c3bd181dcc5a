"""SCAFF-PD with a line search: no primal or dual step size to choose, and none that could be chosen wrong.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

Beyond the paper: the test of APDB (Hamedani and Aybat 2021), carried over to SCAFF-PD's rounds, with step sizes that
may grow again. A round tries a step (x, lam) -> (x+, lam+); whether it was good shows only when the clients report
their losses at x+, which they do at the start of the next round. There the server computes

    E = Phi(x+, lam+) - Phi(x, lam+) - <c, x+ - x>                  how far Phi is from linear along the step
        + (1 - delta)/2 <c, x+ - x>                                  -|x+ - x|^2 / tau in the metric of the local steps
        + sigma/(2 c_alpha) |q|^2                                    q = f(x+) - f(x), less its mean
        - (1 - c_alpha - delta)/(2 sigma) |lam+ - lam|^2

with c = sum_i lam+_i grad f_i(x). E <= 0: the step is kept and the next tau is tried larger. E > 0: it is taken back,
tau is halved, and the round tries again from (x, lam): a rejected trial costs one round, and every round counts.

    x, lam, L, C          server.point        the last point kept: model, weights, losses and gradients there
    L_before              server.before       the losses at the point kept before it
    x+, lam+, c           server.trial        the step under trial
    tau, sigma            trial.sizes         of the trial; server.kept are those of the last step that was kept
    gamma = sigma / tau                       grows as in Condition 5.1 up to mu / mu_lam, its value in Condition 5.2
    mu                                        mu_x as J local steps see it: (1 - (1 - eta_l mu_x)^J) / (J eta_l)
    eta_l, J              local_lr, steps

The extrapolation theta is the smallest that keeps the telescoping sum of the analysis:

    theta = max{ (sigma_kept/sigma) / (1 + mu_lam sigma_kept),  (tau_kept/tau) (1 - mu tau) } <= sigma_kept/sigma.

Until a trial is kept after one that was taken back, tau moves in leaps and nothing is extrapolated: a start that is far
off is left behind in a few rounds. The first line of E is taken twice, from the losses and by the trapezoid rule
<grad Phi(x+) - grad Phi(x), x+ - x> / 2, and both must pass: losses are exact far away and drown in rounding nearby,
with the trapezoid it is the other way round.

It needs losses and gradients without noise (`task.loss` and `task.grad` on all local data): noise in E would reject
good steps. The server sees every c_i, because a step that is taken back needs them again under other weights. A trial
is judged when all clients have answered: a round in which one is lost changes nothing and is run again, so where a
client may stay away for good, use `scaffpd`.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise import protocol
from equipoise.algorithms.messages import LossAndGradient, ModelMessage
from equipoise.algorithms.record import SADDLE, Record
from equipoise.cohorts import Sample, check_everyone
from equipoise.errors import all_positive, is_concrete
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, RandomKey, Replies, Reply, Vector, Weighted, mean
from equipoise.tasks import Task

C_ALPHA, DELTA = 0.9, 0.05
LEAP, GROW, SHRINK = 4.0, 1.05, 0.5  # a start that is far off is left in leaps, up or down
FIRST_COUPLING = 1 / 4  # sigma tau |P C|^2 of the first trials


class Point(NamedTuple):
    """A pair of players and what all clients said of the model."""

    x: Vector
    lam: Float[Array, " n"]
    losses: Float[Array, " n"]
    table: Float[Array, "n d"]  # C


class Sizes(NamedTuple):
    """The step sizes of one trial."""

    tau: Float[Array, ""]
    sigma: Float[Array, ""]


class Trial(NamedTuple):
    """A step that is not judged yet."""

    x: Vector
    lam: Float[Array, " n"]
    c: Vector
    sizes: Sizes


class Server(NamedTuple):
    """Where it stands, what it tries, and how the last steps were sized."""

    point: Point
    before: Float[Array, " n"]
    trial: Trial
    kept: Sizes
    starting: Bool[Array, ""]  # no trial was kept yet after one that was taken back
    rejected: Int[Array, ""]  # trials taken back so far
    accepted: Bool[Array, ""]  # whether the last trial was kept
    begun: Bool[Array, ""]  # whether all clients were ever heard
    judged: Bool[Array, ""]  # whether all clients were heard in this round


class Client(NamedTuple):
    """The model and the gradient at the last point kept, and at the one under trial."""

    point: tuple[Vector, Vector]
    trial: tuple[Vector, Vector]


class Correction(NamedTuple):
    """c, what the client counts, and whether to start from the point under trial or from the one before it."""

    c: Vector
    lam_i: Float[Array, ""]
    accepted: Bool[Array, ""]


@numbers_are_leaves
def scaffpd_ls(
    task: Task, dual: Dual, sample: Sample, *, steps: int, local_lr: float, mu: float, tau: float = 1.0
) -> Algorithm[Server, Client]:
    """SCAFF-PD with a line search.

    Args:
        task: the clients' losses and gradients, over all of their data.
        sample: everyone().
        local_lr: eta_l, up to 1 / L_xx (`steps.estimate_constants`); with one step it does not matter.
        mu: mu_x, strong convexity of the losses; the task's l2 coefficient is a safe choice.
        tau: the first primal step to try; one that is a thousand times off costs a few rounds.
    """
    n, sample = dual.n, sample.among(dual.n)
    check_everyone(sample, n, "SCAFF-PD with a line search")
    all_positive(steps=steps, local_lr=local_lr, mu=mu, tau=tau)
    kept = 1 - local_lr * mu
    mu_local = (1 - (max(kept, 0) if is_concrete(kept) else jnp.maximum(kept, 0)) ** steps) / (steps * local_lr)
    mu_lam = dual.modulus
    limit = math.inf if is_concrete(mu_lam) and mu_lam == 0 else mu_local / mu_lam

    # (1) Collect losses and gradients at the point under trial.

    def send_trial(server: Server, i: Int[Array, ""]) -> ModelMessage:
        return ModelMessage(server.trial.x)

    def collect(message: ModelMessage, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        x = message.x
        c_i = task.grad(x, data)
        return mine._replace(trial=(x, c_i)), Reply(each=LossAndGradient(task.loss(x, data), c_i))

    # (2) Judge the trial; update the dual for the next one, Eq. (4.1).

    def judge_and_update_dual(server: Server, replies: Replies) -> Server:
        point, trial = server.point, server.trial
        loss, c_i = replies.each
        new = Point(trial.x, trial.lam, replies.cohort.put(point.losses, loss), replies.cohort.put(point.table, c_i))
        nothing_tried = ~server.begun
        good = is_good(point, trial, new)
        accepted = nothing_tried | good
        rejected = server.rejected + jnp.where(accepted, 0, 1)
        starting = server.starting & ((rejected == 0) | ~accepted)
        growth = jnp.where(nothing_tried, 1, jnp.where(rejected == 0, LEAP, GROW))
        shrink = jnp.where(server.starting, 1 / LEAP, SHRINK)
        step = trial.sizes.tau * jnp.where(accepted, growth, shrink).astype(trial.sizes.tau.dtype)
        kept = protocol.tree_where(good, trial.sizes, server.kept)
        before = jnp.where(accepted, jnp.where(starting | nothing_tried, new.losses, point.losses), server.before)
        point = protocol.tree_where(accepted, new, point)

        first = FIRST_COUPLING / (step**2 * coupling(point.table))
        gamma = jnp.where(starting, first, kept.sigma / kept.tau / (1 - jnp.minimum(mu_local * step, 0.5)))
        sigma = jnp.minimum(gamma, limit) * step
        theta = jnp.maximum(kept.sigma / sigma / (1 + mu_lam * kept.sigma), kept.tau / step * (1 - mu_local * step))
        theta = jnp.where(starting, 0, jnp.clip(theta, 0, kept.sigma / sigma))
        s = (1 + theta) * point.losses - theta * before
        lam = dual.prox(point.lam + sigma * s, sigma)
        trial = Trial(point.x, lam, lam @ point.table, Sizes(step, sigma))
        yes = jnp.array(True)
        after = Server(point, before, trial, kept, starting, rejected, accepted, begun=yes, judged=yes)
        return protocol.tree_where(jnp.all(replies.cohort.mark(n)), after, server._replace(judged=~yes))

    def is_good(point: Point, trial: Trial, new: Point) -> Bool[Array, ""]:
        """E <= 0."""
        dx, sigma = new.x - point.x, trial.sizes.sigma
        slope = trial.c @ dx
        by_losses = trial.lam @ (new.losses - point.losses) - slope
        by_gradients = (trial.lam @ (new.table - point.table)) @ dx / 2
        q = new.losses - point.losses
        q = q - jnp.mean(q)
        dlam = new.lam - point.lam
        rest = (1 - DELTA) / 2 * slope + sigma / (2 * C_ALPHA) * (q @ q)
        rest = rest - (1 - C_ALPHA - DELTA) / (2 * sigma) * (dlam @ dlam)
        rounding = 64 * jnp.finfo(dx.dtype).eps * jnp.max(jnp.abs(point.losses))
        return (by_losses + rest <= rounding) & (by_gradients + rest <= 0)

    # (3) Try a primal step from the point that was kept: Algorithm 2 on the clients, then Eq. (4.2).

    def everybody_if_judged(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        cohort = sample(key)
        return server, cohort._replace(present=cohort.present & server.judged)

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.trial.c, server.trial.lam[i], server.accepted)

    def improve(message: Correction, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        c, lam_i, accepted = message
        x, c_i = protocol.tree_where(accepted, mine.trial, mine.point)
        u = task.descend(x, data, key, steps=steps, lr=local_lr, shift=c - c_i)
        return Client((x, c_i), mine.trial), Reply(total=Weighted(lam_i, lam_i * (x - u) / (local_lr * steps)))

    def update_primal(server: Server, replies: Replies) -> Server:
        trial = server.trial
        du = jnp.sum(trial.lam) * mean(replies.total)
        x = jnp.where(server.judged, server.point.x - trial.sizes.tau * du, trial.x)
        return server._replace(trial=trial._replace(x=x))

    def init(x: Vector) -> Server:
        lam, zero, no = jnp.full(n, 1 / n, x.dtype), jnp.zeros((), x.dtype), jnp.array(False)
        point = Point(x, lam, jnp.zeros_like(lam), jnp.zeros((n, x.size), x.dtype))
        trial = Trial(x, lam, jnp.zeros_like(x), Sizes(zero + tau, zero + 1))
        kept = Sizes(zero + tau, zero + 1)
        return Server(point, point.losses, trial, kept, ~no, jnp.int32(0), ~no, begun=no, judged=no)

    def init_client(x: Vector) -> Client:
        return Client((jnp.zeros_like(x),) * 2, (jnp.zeros_like(x),) * 2)

    exchanges = (
        Exchange("collect", sample.open, send_trial, collect, judge_and_update_dual, writes=True),
        Exchange("improve", everybody_if_judged, send_correction, improve, update_primal, writes=True),
    )
    made = Algorithm("scaffpd_ls", n, task.size, task.prepare, init, init_client, exchanges, dual=dual)
    return made._replace(model=lambda server: server.point.x, weights=lambda server: server.point.lam)


def coupling(table: Float[Array, "n d"]) -> Float[Array, ""]:
    """|P C|^2 in the Frobenius norm, P removing the mean row; never zero."""
    centred = table - jnp.mean(table, axis=0, keepdims=True)
    return jnp.maximum(jnp.sum(centred**2), jnp.finfo(table.dtype).eps)


SCAFFPD_LS = Record.usual(
    scaffpd_ls,
    SADDLE,
    "beyond Yu et al. 2023",
    example={"mu": 0.1, "tau": 0.01},
    defaults={"mu": "auto"},
    cohorts="everyone",
    descent=None,
    minibatch_form="scaffpd_minibatch",
)
