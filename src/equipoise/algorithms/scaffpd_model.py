"""SCAFF-PD with a model at the server: nothing to tune, and several times fewer rounds.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

Beyond the paper. The server of SCAFF-PD hears f_i and c_i = grad f_i of everybody in every round and uses them for one
step each. This one keeps k directions D with every client's images Y_i = H_i D of them, so it knows each f_i on
span(D), and solves a small saddle problem there instead of taking steps tau and sigma. P is the robust value
max_lam sum_i lam_i f_i - psi(lam). One round:

    collect   down x_new; up f_i, c_i there.  Judge the trial: the centre x moves there iff P does not rise; D and Y
              gain s = x_new - x and its images c_i(x_new) - c_i(x)
    dual      (lam, a) = argmax_lam min_a lam.(f + G a + a'A_i a/2) - q/2 |lam C_perp|^2 - psi(lam)
              c = sum_i lam_i (c_i + Y_i a)
    improve   down c, lam_i; client: J steps u -= 1/L_i (grad f_i(u) - c_i + c) from x; up the sum of lam_i (x - u)
    trial     the same saddle problem at x + D'a over span(D, d), d = -sum_i lam_i (x - u_i), with the curvature lam.L
              across it, which makes every c_i a direction too: x_new = x + D'(a + b) + t d - lam' C_perp / (lam.L)

    f, C             server.centre      losses and gradients at the centre, heard or estimated (`heard_here`)
    D, Y, U          server.memory      directions, images, their uncertainty
    G = C D', A_i                       slopes and curvature inside D; C_perp is what is left of C across D
    L_i              server.L           each client's own smoothness where it is, measured by the client
    kappa_i, q, nu   server.shape       curvature along d per client, inverse curvature across D, damping

This file has the two exchanges. What the server does between them is in server_model: directions.py (D, Y, U),
saddle.py (the small saddle problems), interior.py (what they need of a dual), judge.py (what replies tell), trial.py
(the dual step and the trial), sampling.py (whom to hear in a round of few), precision.py and state.py.

The weights that it reports are those that certify most at the centre, where the losses are strongly convex.

Guarantees. P(x) never rises where all clients answer. After three trials in a row that were taken back, the next is
the minimax gradient mapping with max_i L_i (Nesterov 2004, 2.3), which cannot fail and contracts by 1 - mu/L: so at
least one round in four does. One client and one local step are conjugate gradients.

Lost replies and few clients per round. A client that is not heard is estimated by its images, and where those are
uncertain the model is more curved; what it says later corrects them. Then P(x) rests on estimates and may rise.
A client never heard counts as the mean of the others. With uniform(n, m) a round hears m clients, everybody in the
first: a quarter of them again at the centre, which measures the new direction, about a third by age at random, the
rest by weight and age. Exchange 2 asks the m/2 largest weights and those whose estimates could
be most wrong, as far as the robust value feels it; they say f_i and c_i at the centre again: a third more bytes up and,
measured, a third to a half fewer rounds. With everyone(n) nothing is said twice, unless `repeat`
asks for it.

Precision. Sums, solves and comparisons at the server have double precision in runs of single precision too: they are
traced under `jax.enable_x64`, so that XLA compiles double precision operations into the same program, in every engine.
Between exchanges the state has the run's precision; losses are kept as pairs of numbers that sum to double precision,
and a change of loss too small for single precision is taken from the gradients by the trapezoid rule. The trial is
rounded before it is broadcast.

It needs losses and gradients of whole shards (`task.loss`, `task.grad` without a key); local steps may use minibatches.
The server sees every c_i, so there is no secure form. The losses should be convex: on others P still never rises, but
nothing is promised.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from equipoise.algorithms.messages import LossAndGradient
from equipoise.algorithms.record import SADDLE, Record
from equipoise.algorithms.server_model import constants, heard, judge, saddle, state
from equipoise.algorithms.server_model.interior import interior_of
from equipoise.algorithms.server_model.precision import in_double, joined
from equipoise.algorithms.server_model.sampling import clients_to_hear, to_correct
from equipoise.algorithms.server_model.state import Server
from equipoise.algorithms.server_model.trial import next_trial, update_dual
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import positive, require
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
    tree_where,
    weighted,
)
from equipoise.steps import client_smoothness, rough_smoothness
from equipoise.tasks import Task

FALLEN = 0.5  # of a client's curvature at the start: what is not below counts as the same, as it is for quadratics


class Client(NamedTuple):
    """The model and the gradient at the centre and at the point under trial, by their labels; and curvatures."""

    centre: tuple[Int[Array, ""], Vector, Vector]
    trial: tuple[Int[Array, ""], Vector, Vector]
    L: Float[Array, ""]  # L_i
    met: Float[Array, ""]  # what the last local steps met


class Place(NamedTuple):
    """A point, by itself (where clients say things again) or with its label and that of the centre."""

    x: Vector
    label: Int[Array, ""] | None = None
    centre: Int[Array, ""] | None = None


class Correction(NamedTuple):
    """Where to start, c, and what the client counts."""

    where: Array  # the centre's label; where clients say things again the centre itself
    c: Vector
    lam_i: Float[Array, ""]


class Answer(NamedTuple):
    """A client's own loss, gradient and smoothness."""

    loss: Float[Array, ""]
    gradient: Vector
    L: Float[Array, ""]


class Prepared(NamedTuple):
    """A client's data and its smoothness."""

    data: Data
    L: Float[Array, ""]


@numbers_are_leaves
def scaffpd_model(
    task: Task, dual: Dual, sample: Sample, *, steps: int, memory: int = 5, repeat: bool = False
) -> Algorithm[Server, Client]:
    """SCAFF-PD with a model at the server.

    Args:
        task: the clients' losses and gradients, over all of their data.
        dual: the set Lam and penalty psi, on the simplex; one of your own needs no `interior` where psi is smooth and
            Lam is all of the simplex.
        sample: everyone(n); or uniform(n, m), with a memory of about 2n/m.
        steps: J, local steps.
        memory: k, the directions kept: k + 2 tables of n d numbers at the server.
        repeat: whether clients say f_i and c_i at the centre again in exchange 2 also where all are asked, for
            federations that lose many replies: half as much again up, and far fewer rounds.
    """
    sample = sample.among(dual.n)
    n = check_distinct(sample, "SCAFF-PD with a model keeps what every client said")
    require(
        n == dual.n, f"the cohorts are drawn from {n} clients but the dual is for {dual.n}; build both for the same"
    )
    interior = interior_of(dual)
    positive("steps", steps)
    require(isinstance(memory, int) and memory >= 2, f"memory is {memory}; give the number of directions, at least 2")
    m, mu = sample.m, task.curves if task.strong_convexity is None else task.strong_convexity
    sampled = m < n
    again = sampled or repeat
    quadratic = task.examples is not None and task.examples.linear  # squares of a linear model
    everybody = np.arange(n, dtype=np.int32)

    # (1) Collect losses and gradients at the point under trial.

    def prepare(shard: Data) -> Prepared:
        data = task.prepare(shard)
        x = task.init(jax.random.key(0))
        floats = [a.dtype for a in jax.tree.leaves(shard) if jnp.issubdtype(a.dtype, jnp.floating)]
        x = x.astype(floats[0]) if floats else x
        return Prepared(data, client_smoothness(task, x, data))

    def choose_cohort(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        if not sampled:
            return server, sample(key)
        first = ~jnp.any(server.centre.heard)
        return server, Cohort(everybody, first | jnp.asarray(clients_to_hear(server, key, m)))

    def send_trial(server: Server, i: Int[Array, ""]) -> Place:
        return Place(server.trial.x) if again else Place(server.trial.x, server.trial.label, server.centre.label)

    def collect(message: Place, mine: Client, data: Prepared, key: RandomKey) -> tuple[Client, Reply]:
        x, label, centre_label = message
        c_i, loss = task.grad(x, data.data), task.loss(x, data.data)
        # Where losses are not quadratic the curvature falls on the way: to a hundredth where classes can be told apart.
        start = data.L.astype(x.dtype)
        now = start if quadratic else rough_smoothness(task, x, data.data)
        L = jnp.maximum(mine.met, jnp.where(now < FALLEN * start, now, start))
        reply = Reply(each=Answer(loss, c_i, L))
        if label is None or centre_label is None:
            return mine._replace(L=L), reply
        centre = tree_where(mine.trial[0] == centre_label, mine.trial, mine.centre)
        return Client(centre, (label, x, c_i), L, mine.met), reply

    # (2) Judge the trial, and solve for the weights.

    @in_double
    def judge_and_update_dual(server: Server, replies: Replies, eps: float) -> Server:
        here = replies.cohort.mark(n)
        loss, c_i, L = (replies.cohort.put(jnp.zeros((n, *a.shape[1:]), a.dtype), a) for a in replies.each)
        anywhere = server.centre.heard | here
        L = jnp.where(here, L, server.L)
        L = jnp.where(jnp.any(anywhere), neutral(L, anywhere), L)
        said = heard.noted(server.heard, server.trial.x, here, loss, c_i)
        server = server._replace(L=L, age=jnp.where(here, 0, server.age + 1), heard=said)
        server = jax.lax.cond(
            server.trial.label == server.centre.label,
            lambda: judge.heard_at_centre(server, here, loss, c_i, eps),
            lambda: jax.lax.cond(
                jnp.any(here), lambda: judge.judged(server, dual, here, loss, c_i, eps), lambda: judge.retreat(server)
            ),
        )
        return update_dual(server, dual, interior)

    # (3) Local steps from the centre: Algorithm 2 on the clients, then the trial.

    def choose_who_corrects(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        if not sampled:
            return server, sample(key)
        return server, Cohort(to_correct(server, dual, m), jnp.any(server.centre.heard) & jnp.ones(m, bool))

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.centre.x if again else server.centre.label, server.c, server.lam[i])

    def improve(message: Correction, mine: Client, data: Prepared, key: RandomKey) -> tuple[Client, Reply]:
        where, c, lam_i = message
        each = None
        if again:
            x, c_i = where, task.grad(where, data.data)
            each = LossAndGradient(task.loss(x, data.data), c_i)
        else:
            on_trial = mine.trial[0] == where
            _, x, c_i = tree_where(on_trial, mine.trial, mine.centre)
            # One who missed the centre has nothing to say.
            lam_i = jnp.where(on_trial | (mine.centre[0] == where), lam_i, 0)
        L = jnp.where(mine.L > 0, mine.L, data.L.astype(x.dtype))
        u = task.descend(x, data.data, key, steps=steps, lr=1 / L, shift=c - c_i)
        # Where losses are not quadratic L_i may grow too: the local steps just taken show it.
        bent, moved = jnp.linalg.norm(task.grad(u, data.data) - c_i), jnp.linalg.norm(u - x)
        visible = bent > constants.CURVATURE_ROUNDING * jnp.finfo(x.dtype).eps * jnp.linalg.norm(c_i)
        met = jnp.where(visible, mean((moved, bent)), 0)
        return mine._replace(L=jnp.maximum(L, met), met=met), Reply(total=weighted(lam_i, x - u), each=each)

    @in_double
    def update_trial(server: Server, replies: Replies, eps: float) -> Server:
        if again:
            here = replies.cohort.mark(n)
            loss, c_i = (replies.cohort.put(jnp.zeros((n, *a.shape[1:]), a.dtype), a) for a in replies.each)
            server = judge.heard_at_centre(server, here, loss, c_i, eps)
        return next_trial(server, dual, interior, -mean(replies.total))

    def init_client(x: Vector) -> Client:
        nothing = (jnp.int32(-1), jnp.zeros_like(x), jnp.zeros_like(x))
        return Client(nothing, nothing, jnp.zeros((), x.dtype), jnp.zeros((), x.dtype))

    @jax.jit
    def certifying(server: Server) -> Float[Array, " n"]:
        """argmax_lam lam.f - psi(lam) - |sum_i lam_i c_i|^2 / (2 mu): no weights certify more at the centre."""
        with jax.enable_x64(True):
            f, C = joined(server.centre.f.astype(jnp.float64)), server.centre.C.astype(jnp.float64)
            Q = C / jnp.array(mu)[None] @ C.T if isinstance(mu, tuple) else C @ C.T / (mu or 1.0)
            solution = saddle.solve(interior, f, jnp.zeros((n, 0)), jnp.zeros((n, 0, 0)), Q)
            lam = jnp.where(solution.residual <= constants.USELESS, solution.lam, server.lam.astype(jnp.float64))
            return lam.astype(server.lam.dtype)

    return Algorithm(
        name="scaffpd_model",
        n=n,
        size=task.size,
        prepare=prepare,
        init=lambda x: state.initial(x, n, memory),
        init_client=init_client,
        round=(
            Exchange("collect", choose_cohort, send_trial, collect, judge_and_update_dual, writes=True),
            Exchange("improve", choose_who_corrects, send_correction, improve, update_trial, writes=True),
        ),
        model=lambda server: server.centre.x,
        weights=lambda server: server.lam if mu is None else certifying(server),
        cuts=lambda server: heard.cuts(server.heard, server.lam, server.trial.lam),
        dual=dual,
    )


SCAFFPD_MODEL = Record(
    "scaffpd_model",
    scaffpd_model,
    objective=SADDLE,
    paper="beyond Yu et al. 2023",
    example={"steps": 5, "memory": 3},
    defaults={"steps": 10},
    descent=None,
)
