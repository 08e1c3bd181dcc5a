"""SCAFF-PD: accelerated primal-dual descent with bias-corrected local steps.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

Algorithms 1 and 2 of Yu, Karimireddy, Ma and Jordan (2023), "SCAFF-PD: Communication efficient fair and robust
federated learning", in their letters:

    x^r, lam^r         server.x, server.lam
    [L_1 .. L_N]       server.losses         of a client that is lost: the last value heard
    c^r                server.c              holds from `collect` (secure: `weigh`) to `improve`
    c_i^r = g_i(x^r)   client.c_i            holds, with x^r, from `collect` to `improve`
    tau, sigma, theta  server.steps.now
    eta_l, J           local_lr, steps

The paper's lines have no numbers; counted from the one after the inputs, comments and `for` included:

    Algorithm 1                                       Algorithm 2, LOCAL-UPDATE(x, c_i, c)
     3  set tau_r, sigma_r, theta_r                    1  u_{i,0} = x
     5  L_i^r = f_i(x^r), c_i^r = g_i(x^r), sent up    3  u_{i,j} = u_{i,j-1} - eta_l (g_i(u_{i,j-1}) - c_i + c)
     7  s^r, lam^{r+1}, Eq. (4.1)                      4  Delta u_i = (x - u_{i,J}) / (eta_l J)
     9  c^r = sum_i lam_i^{r+1} c_i^r, sent down
    11  Delta u_i^r, Algorithm 2, sent up
    12  x^{r+1}, Eq. (4.2)

Beyond the paper:
  - A client lost in a round keeps its last loss in the dual step (`heard`, `neutral`), and the sums over lam are
    rescaled to those who answered (`answered`). With everyone present this is the paper's algorithm, step for step.
  - `moved` and `coupling` measure how far the model went and how the losses changed over it; `rule.guard` bounds sigma
    by their ratio where a rule asks for it. The constant rules and those of Conditions 5.1 and 5.2 leave it alone.
  - `secure`: three exchanges, for c^r as a sum of its own (`weighing`), so that no single gradient is seen.
  - `uniform(n, m)` as the sample: m of n clients in a round, which is another algorithm (scaffpd_partial.py).
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise.algorithms.messages import Loss, LossAndGradient, ModelMessage, its_lam, send_model
from equipoise.algorithms.record import SADDLE, Record
from equipoise.algorithms.scaffpd_partial import scaffpd_partial
from equipoise.cohorts import Sample, check_everyone, those_who_answered
from equipoise.errors import all_positive
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, mean, neutral, weighted
from equipoise.steps import Rule, RuleState
from equipoise.tasks import Task


class Server(NamedTuple):
    """The two players, what was heard of the clients, and this round's step sizes."""

    x: Vector
    lam: Float[Array, " n"]
    losses: Float[Array, " n"]
    heard: Bool[Array, " n"]  # whose loss was ever heard
    answered: Bool[Array, " n"]  # who answered in this round so far
    c: Vector
    moved: Float[Array, ""]  # |x^r - x^{r-1}|^2 in the norm of the local steps, for the rule's guard
    steps: RuleState


class Client(NamedTuple):
    """What a client remembers within a round, so that neither has to be sent again."""

    x: Vector
    c_i: Vector


class Weight(NamedTuple):
    """Secure form: what the client counts."""

    lam_i: Float[Array, ""]


class Correction(NamedTuple):
    """c^r and what the client counts."""

    c: Vector
    lam_i: Any  # a number; None where the server sees the update and weighs it itself


@numbers_are_leaves
def scaffpd(
    task: Task, dual: Dual, sample: Sample, rule: Rule, *, steps: int, local_lr: float, secure: bool = False
) -> Algorithm[Server, Client]:
    """SCAFF-PD for `task`, robust over the client weights of `dual`.

    Args:
        task: the clients' losses f_i and (stochastic) gradients g_i.
        sample: everyone(), the paper's setting; with uniform(n, m) see scaffpd_partial.py, whose states are its own.
        rule: step sizes tau, sigma, theta of every round (Conditions 5.1 and 5.2), from `equipoise.steps`.
        secure: three exchanges instead of two, so that of gradients and updates the server sees only weighted sums.
    """
    n, sample = dual.n, sample.among(dual.n)
    if sample.m < n and not secure:
        return cast(Any, scaffpd_partial(task, dual, sample, rule, steps=steps, local_lr=local_lr))
    check_everyone(sample, n, "the secure form of SCAFF-PD" if secure else "SCAFF-PD")
    all_positive(steps=steps, local_lr=local_lr)

    # (1) Collect gradients and the loss vector.

    def collect(message: ModelMessage, _: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        x = message.x
        loss, c_i = task.loss(x, data), task.grad(x, data, key)  # line 5
        return Client(x, c_i), Reply(each=Loss(loss) if secure else LossAndGradient(loss, c_i))

    # (2) Update the dual lam, Eq. (4.1).

    def update_dual(server: Server, replies: Replies) -> Server:
        losses = replies.cohort.put(server.losses, replies.each.loss)
        answered = replies.cohort.mark(n)
        heard = server.heard | answered
        before = jnp.where(server.heard, server.losses, losses)  # x^{-1} = x^0
        change = losses - before
        coupling = mean((server.moved, jnp.sum((change - jnp.mean(change)) ** 2)))
        rule_state = rule.guard(server.steps, coupling)
        _, sigma, theta = rule_state.now
        s = neutral((1 + theta) * losses - theta * before, heard)  # line 7
        lam = dual.prox(server.lam + sigma * s, sigma)  # line 7, Eq. (4.1)
        c = server.c if secure else replies.cohort.share(lam) @ replies.each.gradient  # line 9
        return server._replace(lam=lam, losses=losses, heard=heard, answered=answered, c=c, steps=rule_state)

    # (3) Update the primal x: Algorithm 2 on the clients, then Eq. (4.2).

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.c, server.lam[i])  # line 9

    def improve(message: Correction, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        (c, lam_i), (x, c_i) = message, mine
        u = task.descend(x, data, key, steps=steps, lr=local_lr, shift=c - c_i)  # Algorithm 2, lines 1-3
        du = (x - u) / (local_lr * steps)  # Algorithm 2, line 4
        return mine, Reply(total=weighted(lam_i, du))  # line 11

    def update_primal(server: Server, replies: Replies) -> Server:
        du = jnp.sum(server.lam) * mean(replies.total)  # sum_i lam_i du_i; sum(lam) is 1 on a simplex
        tau = server.steps.now.tau
        x = server.x - tau * du  # line 12, Eq. (4.2)
        return server._replace(x=x, moved=tau**2 * jnp.maximum(server.c @ du, 0))

    def init(x: Vector) -> Server:
        nobody, lam, zero = jnp.zeros(n, bool), jnp.full(n, 1 / n, x.dtype), jnp.zeros((), x.dtype)
        return Server(x, lam, jnp.zeros_like(lam), nobody, nobody, jnp.zeros_like(x), zero, rule.init(x.dtype))

    def init_client(x: Vector) -> Client:
        return Client(jnp.zeros_like(x), jnp.zeros_like(x))

    first = Exchange("collect", rule.opening(sample), send_model, collect, update_dual, writes=True)  # line 3
    # Who did not answer in the first exchange has no c_i of this round.
    last = Exchange("improve", those_who_answered(sample), send_correction, improve, update_primal)
    plain = Algorithm(
        "scaffpd", n, task.size, task.prepare, init, init_client, (first, last), weights=its_lam, dual=dual
    )
    if not secure:
        return plain._replace(corrected=True)
    return plain._replace(name="scaffpd_secure", round=(first, weighing(sample, n), last))


def weighing(sample: Sample, n: int) -> Exchange:
    """(2') Secure form only: c^r as a sum, so that no single gradient is seen."""

    def send_weight(server: Any, i: Int[Array, ""]) -> Weight:
        return Weight(server.lam[i])

    def weigh(message: Weight, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        return mine, Reply(total=weighted(message.lam_i, mine.c_i))

    def update_correction(server: Any, replies: Replies) -> Any:
        return server._replace(c=jnp.sum(server.lam) * mean(replies.total), answered=replies.cohort.mark(n))

    return Exchange("weigh", those_who_answered(sample), send_weight, weigh, update_correction)


SCAFFPD = Record.usual(
    scaffpd,
    SADDLE,
    "Yu et al. 2023",
    not_settings=("secure",),
    cohorts="everyone",
    corrected=True,
    releases=lambda steps: {"collect": (1, 1), "improve": (0 if steps == 1 else steps, 0)},  # see private.py
    minibatch_form="scaffpd_minibatch",
)
SCAFFPD_SECURE = SCAFFPD._replace(
    name="scaffpd_secure", factory=partial(scaffpd, secure=True), corrected=False, releases=None
)
