"""SCAFF-PD with a model at the server: nothing to tune, and several times fewer rounds.

    min_x  max_{lam in Lam}  sum_i lam_i f_i(x) - psi(lam)

Beyond the paper. The server of SCAFF-PD hears f_i and c_i = grad f_i of everybody in every round and uses them for one
step each. This one keeps k directions D with every client's images Y_i = H_i D of them (directions.py), so it knows
each f_i on span(D), and solves a small saddle problem there (saddle.py) instead of taking steps tau and sigma. P is the
robust value max_lam sum_i lam_i f_i - psi(lam). One round:

    collect   down x_new; up f_i, c_i there.  Judge the trial: the centre x moves there iff P does not rise; D and Y
              gain s = x_new - x and its images c_i(x_new) - c_i(x)
    dual      (lam, a) = argmax_lam min_a lam.(f + G a + a'A_i a/2) - q/2 |lam C_perp|^2 - psi(lam)
              c = sum_i lam_i (c_i + Y_i a)
    improve   down c, lam_i; client: J steps u -= 1/L_i (grad f_i(u) - c_i + c) from x; up the sum of lam_i (x - u)
    trial     the same saddle problem at x + D'a over span(D, d), d = -sum_i lam_i (x - u_i), with the curvature lam.L
              across it, which makes every c_i a direction too: x_new = x + D'(a + b) + t d - lam' C_perp / (lam.L)

    f, C             server.at          losses and gradients at the centre, heard or estimated (`known`)
    D, Y, U          server.memory      directions, images, their uncertainty
    G = C D', A_i                       slopes and curvature inside D; C_perp is what is left of C across D
    L_i              server.L           each client's own smoothness, measured once by the client
    kappa_i, q, nu   server.shape       curvature along d per client, inverse curvature across D, damping

The weights that it reports are those that certify most at the centre, where the losses are strongly convex.

Guarantees. P(x) never rises where all clients answer. After three trials in a row that were taken back, the next is
the minimax gradient mapping with max_i L_i (Nesterov 2004, 2.3), which cannot fail and contracts by 1 - mu/L: so at
least one round in four does. One client and one local step are conjugate gradients.

Lost replies and few clients per round. A client that is not heard is estimated by its images, and where those are
uncertain the model is more curved; what it says later corrects them. Then P(x) rests on estimates and may rise.
A client never heard counts as the mean of the others. With uniform(n, m) a round hears m clients, everybody in the
first: a quarter of them again at the centre, which measures the new direction, about a third by age at random, the
rest by weight and age. Exchange 2 asks the m largest weights, and they say f_i and c_i at the centre again: a third
more bytes up and, measured, a third to a half fewer rounds. With everyone(n) nothing is said twice.

Precision. Sums, solves and comparisons at the server have double precision in runs of single precision too: they are
traced under `jax.enable_x64`, so that XLA compiles double precision operations into the same program, in every engine.
Between exchanges the state has the run's precision; losses are kept as pairs of numbers that sum to double precision,
and a change of loss too small for single precision is taken from the gradients by the trapezoid rule. The trial is
rounded before it is broadcast.

It needs losses and gradients of whole shards (`task.loss`, `task.grad` without a key); local steps may use minibatches.
The server sees every c_i, so there is no secure form. The losses should be convex: on others P still never rises, but
nothing is promised.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from equipoise.algorithms import directions, saddle
from equipoise.algorithms.directions import TINY, Memory
from equipoise.algorithms.messages import LossAndGradient
from equipoise.algorithms.record import SADDLE, Record
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import positive, require
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
from equipoise.steps import client_smoothness
from equipoise.tasks import Task

NOT_QUADRATIC = 1e-4  # a trapezoid that is this far off a loss
FORGET = 0.2  # images that are this far off: only the newest direction stays
IN_A_ROW = 3  # trials taken back before the gradient mapping
ROUNDING = np.finfo(np.float64).eps


class Point(NamedTuple):
    """The centre: the best model heard of, and what is known of every client there."""

    x: Vector
    label: Int[Array, ""]  # points are numbered, so that a client knows which one is meant
    f: Float[Array, "n 2"]  # pairs that sum to the loss
    C: Float[Array, "n d"]
    known: Bool[Array, " n"]  # heard here; else an estimate
    heard: Bool[Array, " n"]  # heard anywhere
    anchor: Float[Array, "n d"]  # where last heard


class Shape(NamedTuple):
    """What the model has learned about itself."""

    kappa: Float[Array, " n"]
    q: Float[Array, ""]
    nu: Float[Array, ""]
    taken_back: Int[Array, ""]  # trials since the last one that was as good as predicted
    in_a_row: Int[Array, ""]  # trials taken back since the last that was kept


class Trial(NamedTuple):
    """The point under trial and what the model says of it."""

    x: Vector
    label: Int[Array, ""]
    coordinates: Float[Array, " k"]  # a + b
    slope: Float[Array, ""]  # n = -c'd
    predicted: Float[Array, " 2"]  # P there, as a pair
    lam: Float[Array, " n"]


class Server(NamedTuple):
    """Where it stands, what it tries, and what it knows of the clients."""

    at: Point
    trial: Trial
    memory: Memory
    shape: Shape
    L: Float[Array, " n"]
    points: Int[Array, ""]  # labels given so far
    age: Float[Array, " n"]  # rounds since last heard
    same: Float[Array, " n"]  # losses in a row that agreed with the trapezoid rule
    lam: Float[Array, " n"]
    a: Float[Array, " k"]  # holds, with c, from `collect` to `improve`
    c: Vector


class Client(NamedTuple):
    """The model and the gradient at the centre and at the point under trial, by their labels; and L_i."""

    at: tuple[Int[Array, ""], Vector, Vector]
    trial: tuple[Int[Array, ""], Vector, Vector]
    L: Float[Array, ""]


class Place(NamedTuple):
    """A point, by itself (a few clients per round) or with its label and that of the centre."""

    x: Vector
    label: Int[Array, ""] | None = None
    centre: Int[Array, ""] | None = None


class Correction(NamedTuple):
    """Where to start, c, and what the client counts."""

    where: Any  # the centre's label; with a few clients per round the centre itself
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


def scaffpd_model(task: Task, dual: Dual, sample: Sample, *, steps: int, memory: int = 5) -> Algorithm:
    """SCAFF-PD with a model at the server.

    Args:
        task: the clients' losses and gradients, over all of their data.
        dual: the set Lam and penalty psi, on the simplex.
        sample: everyone(n); or uniform(n, m), with a memory of about 2n/m.
        steps: J, local steps.
        memory: k, the directions kept: k + 2 tables of n d numbers at the server.
    """
    n = check_distinct(sample, "SCAFF-PD with a model keeps what every client said")
    require(
        n == dual.n, f"the cohorts are drawn from {n} clients but the dual is for {dual.n}; build both for the same"
    )
    require(
        dual.interior is not None,
        f"the weights of '{dual.name}' are no shares, which SCAFF-PD with a model needs; "
        "give an objective on the simplex, such as chi2, or use scaffpd",
    )
    interior: Any = dual.interior
    positive("steps", steps)
    require(isinstance(memory, int) and memory >= 2, f"memory is {memory}; give the number of directions, at least 2")
    k, m, mu = memory, sample.m, task.strong_convexity
    sampled = m < n
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
        first = ~jnp.any(server.at.heard)
        return server, Cohort(everybody, first | jnp.asarray(to_hear(server, key, m)))

    def send_trial(server: Server, i: Int[Array, ""]) -> Place:
        return Place(server.trial.x) if sampled else Place(server.trial.x, server.trial.label, server.at.label)

    def collect(message: Place, mine: Client, data: Prepared, key: RandomKey) -> tuple[Client, Reply]:
        x, label, centre = message
        c_i, loss = task.grad(x, data.data), task.loss(x, data.data)
        L = jnp.maximum(mine.L, data.L.astype(x.dtype))
        reply = Reply(each=Answer(loss, c_i, L))
        if label is None or centre is None:
            return mine._replace(L=L), reply
        at = choose(mine.trial[0] == centre, mine.trial, mine.at)
        return Client(at, (label, x, c_i), L), reply

    # (2) Judge the trial, and solve for the weights.

    @in_double
    def judge_and_update_dual(server: Server, replies: Replies, eps: float) -> Server:
        here = replies.cohort.mark(n)
        loss, c_i, L = (replies.cohort.put(jnp.zeros((n, *a.shape[1:]), a.dtype), a) for a in replies.each)
        heard = server.at.heard | here
        L = jnp.where(here, L, server.L)
        L = jnp.where(jnp.any(heard), neutral(L, heard), L)
        server = server._replace(L=L, age=jnp.where(here, 0, server.age + 1))
        server = jax.lax.cond(
            server.trial.label == server.at.label,
            lambda: heard_at_centre(server, here, loss, c_i, eps),
            lambda: jax.lax.cond(
                jnp.any(here), lambda: judged(server, dual, here, loss, c_i, eps), lambda: retreat(server)
            ),
        )
        return update_dual(server, dual, interior)

    # (3) Local steps from the centre: Algorithm 2 on the clients, then the trial.

    def heaviest(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        if not sampled:
            return server, sample(key)
        ids = jnp.argsort(-jnp.round(server.lam, 6))[:m].astype(jnp.int32)  # weights of nothing tie
        return server, Cohort(ids, jnp.any(server.at.heard) & jnp.ones(m, bool))

    def send_correction(server: Server, i: Int[Array, ""]) -> Correction:
        return Correction(server.at.x if sampled else server.at.label, server.c, server.lam[i])

    def improve(message: Correction, mine: Client, data: Prepared, key: RandomKey) -> tuple[Client, Reply]:
        where, c, lam_i = message
        each = None
        if sampled:
            x, c_i = where, task.grad(where, data.data)
            each = LossAndGradient(task.loss(x, data.data), c_i)
        else:
            on_trial = mine.trial[0] == where
            _, x, c_i = choose(on_trial, mine.trial, mine.at)
            lam_i = jnp.where(
                on_trial | (mine.at[0] == where), lam_i, 0
            )  # one who missed the centre has nothing to say
        L = jnp.maximum(mine.L, data.L.astype(x.dtype))
        u = task.descend(x, data.data, key, steps=steps, lr=1 / L, shift=c - c_i)
        # Where losses are not quadratic L_i may have grown: the local steps just taken show it.
        bent, moved = jnp.linalg.norm(task.grad(u, data.data) - c_i), jnp.linalg.norm(u - x)
        told = bent > 1e4 * jnp.finfo(x.dtype).eps * jnp.linalg.norm(c_i)
        L = jnp.where(told, jnp.maximum(L, mean((moved, bent))), L)
        return mine._replace(L=L), Reply(total=weighted(lam_i, x - u), each=each)

    @in_double
    def update_trial(server: Server, replies: Replies, eps: float) -> Server:
        if sampled:
            here = replies.cohort.mark(n)
            loss, c_i = (replies.cohort.put(jnp.zeros((n, *a.shape[1:]), a.dtype), a) for a in replies.each)
            server = heard_at_centre(server, here, loss, c_i, eps)
        return next_trial(server, dual, interior, -mean(replies.total))

    def init(x: Vector) -> Server:
        d = x.size
        zero, nobody, each = jnp.zeros((), x.dtype), jnp.zeros(n, bool), jnp.zeros(n, x.dtype)
        lam, none, label = jnp.full(n, 1 / n, x.dtype), jnp.zeros(k, x.dtype), jnp.int32(0)
        table = jnp.zeros((n, d), x.dtype)
        return Server(
            at=Point(x, label, jnp.zeros((n, 2), x.dtype), table, nobody, nobody, table),
            trial=Trial(x, label, none, zero, jnp.zeros(2, x.dtype), lam),
            memory=directions.empty(n, k, d, x.dtype),
            shape=Shape(each + 1, zero, zero, jnp.int32(0), jnp.int32(0)),
            L=each + 1,
            points=label,
            age=each,
            same=each + 1,
            lam=lam,
            a=none,
            c=jnp.zeros_like(x),
        )

    def init_client(x: Vector) -> Client:
        nothing = (jnp.int32(-1), jnp.zeros_like(x), jnp.zeros_like(x))
        return Client(nothing, nothing, jnp.zeros((), x.dtype))

    @jax.jit
    def certifying(server: Server) -> Float[Array, " n"]:
        """argmax_lam lam.f - psi(lam) - |sum_i lam_i c_i|^2 / (2 mu): no weights certify more at the centre."""
        with jax.enable_x64(True):
            f, C = joined(server.at.f.astype(jnp.float64)), server.at.C.astype(jnp.float64)
            found = saddle.solve(interior, f, jnp.zeros((n, 0)), jnp.zeros((n, 0, 0)), C @ C.T / (mu or 1.0))
            lam = jnp.where(found.residual <= saddle.USELESS, found.lam, server.lam.astype(jnp.float64))
            return lam.astype(server.lam.dtype)

    return Algorithm(
        name="scaffpd_model",
        n=n,
        size=task.size,
        prepare=prepare,
        init=init,
        init_client=init_client,
        round=(
            Exchange("collect", choose_cohort, send_trial, collect, judge_and_update_dual, writes=True),
            Exchange("improve", heaviest, send_correction, improve, update_trial, writes=True),
        ),
        model=lambda server: server.at.x,
        weights=lambda server: server.lam if mu is None else certifying(server),
        dual=dual,
    )


# What the server does between the exchanges; all of it in double precision.


def heard_at_centre(
    server: Server, here: Bool[Array, " n"], loss: Float[Array, " n"], c_i: Float[Array, "n d"], eps: float
) -> Server:
    """Clients `here` have said what they have to say of the centre itself."""
    at = server.at
    back = here & ~at.known
    f = joined(at.f)
    surprise = jnp.where(back[:, None], c_i - at.C, 0)
    memory = directions.corrected(server.memory, surprise, back, since(at), noise(at, server.L, eps))
    heard = at.heard | here
    f, C = jnp.where(back, loss, f), jnp.where(back[:, None], c_i, at.C)
    # One never heard counts as the mean of the others.
    count = jnp.sum(heard, dtype=f.dtype)
    f = neutral(f, heard)
    C = jnp.where(heard[:, None], C, mean((count, heard.astype(f.dtype) @ C))[None, :])
    anchor = jnp.where(here[:, None], at.x[None, :], at.anchor)
    at = at._replace(f=pairs(f), C=C, known=at.known | here, heard=heard, anchor=anchor)
    first = server.shape.q == 0
    q = jnp.where(first, jnp.mean(1 / server.L), server.shape.q)
    return server._replace(at=at, memory=memory, shape=server.shape._replace(q=q), age=jnp.where(here, 0, server.age))


def retreat(server: Server) -> Server:
    """Nobody could say anything of the trial: the next one goes less far."""
    shape = server.shape
    return server._replace(
        shape=shape._replace(nu=jnp.minimum(jnp.maximum(4 * shape.nu, 1), 64), kappa=4 * shape.kappa)
    )


def judged(
    server: Server,
    dual: Dual,
    here: Bool[Array, " n"],
    loss: Float[Array, " n"],
    c_i: Float[Array, "n d"],
    eps: float,
) -> Server:
    """What the replies at the trial say of it, of the clients' curvature, and of the model."""
    at, trial, shape, L, lam = server.at, server.trial, server.shape, server.L, server.lam
    s = trial.x - at.x
    e = s - trial.coordinates @ server.memory.D
    clean = here & at.known
    A = directions.within(server.memory, 1e-10 * jnp.min(L))
    change = jnp.where(here[:, None], c_i - at.C, 0)
    weights = jnp.where(clean, lam + 1e-9, 0)
    found = directions.difference(
        server.memory,
        s,
        trial.coordinates,
        change,
        here,
        clean,
        since(at),
        noise(at, L, eps),
        weights,
        0.1 * (lam @ L),
    )
    y = found.y

    # Those not heard there, or not here, get the values that their images imply.
    back = here & ~at.known
    C = jnp.where(back[:, None], c_i - y, at.C)
    new_C = jnp.where(here[:, None], c_i, C + y)
    half = (C + new_C) @ s / 2
    f = jnp.where(back, loss - half, joined(at.f))
    new_f = jnp.where(here, loss, f + half)

    # A loss that agrees with the trapezoid rule up to rounding is taken from it; the rest is averaged.
    off = new_f - f - half
    agrees = here & (jnp.abs(off) <= 16 * eps * jnp.maximum(jnp.abs(new_f), jnp.abs(f)))
    same = jnp.where(agrees, jnp.minimum(server.same + 1, 20), 1)
    new_f, f = jnp.where(agrees, f + half + off / same, new_f), jnp.where(agrees, f + off / same, f)
    base, got, predicted = dual.value(f), dual.value(new_f), jnp.sum(trial.predicted)

    # How far from quadratic, and how far off the old images?
    size = jnp.max(jnp.abs(f))
    unlike = jnp.abs(new_f - f - half) / (jnp.abs(y @ s) / 2 + 64 * eps / NOT_QUADRATIC * size + TINY)
    unlike = jnp.max(jnp.where(clean, unlike, 0))
    curved = unlike > NOT_QUADRATIC
    memory = found.memory
    seen = y @ memory.D.T
    told = jnp.einsum("nij,j->ni", A, trial.coordinates) * memory.used.astype(A.dtype)[None, :] + memory.Y @ e
    length = jnp.maximum(jnp.sum(told**2, axis=1), TINY)
    weights = jnp.where(clean, lam, 0)
    off_images = jnp.sqrt(jnp.sum((seen - told) ** 2, axis=1) / length)
    off_images = jnp.where(jnp.sum(weights) > 1e-3, mean((jnp.sum(weights), weights @ off_images)), 0)
    scale = jnp.clip(jnp.sum(seen * told, axis=1) / length, 0.2, 5)
    typical = jnp.where(jnp.sum(weights) > 0, mean((jnp.sum(weights), weights @ scale)), 1)
    any_memory = jnp.any(memory.used)
    scale = jnp.where(curved & any_memory, jnp.where(clean, scale, typical), 1)
    memory = memory._replace(Y=memory.Y * scale[:, None, None])

    # The curvature along what was new in the move, per client and on the whole.
    h = (y - memory.image(trial.coordinates)) @ e
    n_d = trial.slope
    t = jnp.maximum(-(server.c @ e) / n_d, 1e-6)
    kappa = jnp.clip(h / (n_d * t**2), 1e-3, 1e3)
    c_perp = server.c - (memory.D @ server.c) @ memory.D
    q = (n_d * t) ** 2 / jnp.maximum(lam @ h, 1e-3 * n_d * t**2) / jnp.maximum(c_perp @ c_perp, TINY)

    ratio = (base - got) / jnp.maximum(base - predicted, TINY)
    worse = got > base
    poor = worse | (curved & (ratio < 0.25))
    good = ~poor & (ratio > 0.5)
    taken_back = jnp.where(poor, shape.taken_back + 1, jnp.where(good | (got < base), 0, shape.taken_back))
    more = jnp.minimum(jnp.maximum(2 * shape.nu, 0.25), 64)
    less = jnp.where(shape.nu > 0.05, shape.nu / 3, 0)
    nu = jnp.where(poor & (curved | (taken_back > 1)), more, jnp.where(good, less, shape.nu))
    in_a_row = jnp.where(worse, shape.in_a_row + 1, 0)

    renewed = directions.renewed(
        found._replace(memory=memory),
        s,
        trial.coordinates,
        off_images > FORGET,
        jnp.maximum(1e-6, jnp.minimum(unlike, 0.1)),
    )
    memory = choose(s @ s > 1e-28 * (at.x @ at.x), renewed, memory)

    heard = at.heard | here
    left = at.known & ~here
    anchor = jnp.where(here[:, None], trial.x[None, :], jnp.where(left[:, None], at.x[None, :], at.anchor))
    there = Point(trial.x, trial.label, pairs(new_f), new_C, here, heard, anchor)
    anchor = jnp.where(back[:, None], trial.x[None, :], at.anchor)
    stays = at._replace(f=pairs(f), C=C, heard=heard, anchor=anchor)
    return server._replace(
        at=choose(worse, stays, there),
        memory=memory,
        shape=Shape(kappa, q, nu, taken_back, in_a_row),
        same=same,
    )


def update_dual(server: Server, dual: Dual, interior: Any) -> Server:
    """The weights, and the gradient of their sum at the best point of span(D)."""
    at, memory = server.at, server.memory
    f, G, A = joined(at.f), at.C @ memory.D.T, inside(server)
    C_perp = at.C - G @ memory.D
    found = saddle.solve(interior, f, G, A, server.shape.q * (C_perp @ C_perp.T))
    useful = found.residual <= saddle.USELESS
    lam = jnp.where(useful, found.lam, dual.best_response(f))
    a = jnp.where(useful & memory.used, found.a, 0)
    c = lam @ at.C + a @ jnp.einsum("n,nkd->kd", lam, memory.Y)
    return server._replace(lam=lam, a=a, c=c)


def next_trial(server: Server, dual: Dual, interior: Any, d: Vector) -> Server:
    """Where the model over span(D, d, C) has its saddle point."""
    at, memory, shape, L, lam, a, c = (*server[:1], *server[2:5], server.lam, server.a, server.c)
    f, A, G = joined(at.f), inside(server), at.C @ memory.D.T
    here = f + G @ a + jnp.einsum("nij,i,j->n", A, a, a) / 2
    C_a, G_a = at.C + memory.image(a), G + A @ a

    slope = -(c @ d)
    no_descent = slope < 1e-3 * jnp.linalg.norm(c) * jnp.linalg.norm(d)  # noise, or nobody answered
    d = jnp.where(no_descent | jnp.all(d == 0), -c / (lam @ L), d)
    slope = jnp.maximum(-(c @ d), TINY)

    cross = memory.Y @ d
    explained = jnp.einsum("ni,ni->n", cross, jnp.linalg.solve(A, cross[:, :, None])[:, :, 0])
    along = jnp.maximum(shape.kappa * slope, explained + 0.1 * shape.kappa * slope) * (1 + shape.nu)
    E = jnp.concatenate(
        [jnp.concatenate([A, cross[:, :, None]], 2), jnp.concatenate([cross, along[:, None]], 1)[:, None, :]], 1
    )
    new = d - (memory.D @ d) @ memory.D
    new = new / jnp.maximum(jnp.linalg.norm(new), TINY)
    C_perp = C_a - G_a @ memory.D
    C_perp = C_perp - (C_perp @ new)[:, None] * new[None, :]
    inverse = 1 / ((lam @ L) * (1 + shape.nu))
    slopes = jnp.concatenate([G_a, (C_a @ d)[:, None]], axis=1)

    # After several failures the gradient mapping: no directions, and a curvature that no client exceeds.
    safe = shape.in_a_row >= IN_A_ROW
    surely = 1 / (jnp.max(L) * 2.0 ** (shape.in_a_row - IN_A_ROW).astype(f.dtype))
    inverse = jnp.where(safe, surely, inverse)
    values = jnp.where(safe, f, here)
    slopes = jnp.where(safe, 0, slopes)
    gradients = jnp.where(safe, at.C, C_perp)
    Q = inverse * (gradients @ gradients.T)
    found = saddle.solve(interior, values, slopes, E, Q)
    useful = found.residual <= saddle.USELESS
    size = memory.D.shape[0]
    b = jnp.where(useful, found.a, jnp.zeros(size + 1).at[-1].set(1))
    b = b.at[:-1].set(jnp.where(memory.used, b[:-1], 0))
    b = b.at[-1].set(jnp.where(jnp.abs(b[-1]) < 1e-2, 1e-2, b[-1]))
    b = jnp.where(safe, 0, b)
    lam_b = jnp.where(useful, found.lam, lam)
    coordinates = jnp.where(safe, 0, a + b[:-1])
    x = at.x + coordinates @ memory.D + b[-1] * d - inverse * (lam_b @ gradients)
    values = values + slopes @ b + jnp.einsum("nij,i,j->n", E, b, b) / 2 - Q @ lam_b + lam_b @ Q @ lam_b / 2
    base, predicted = dual.value(f), dual.value(values)

    rounding = 50 * ROUNDING * jnp.max(jnp.abs(f))
    done = (base - predicted <= rounding) & (slope <= 1e3 * rounding)
    trial = Trial(
        x=jnp.where(done, at.x, x),
        label=jnp.where(done, at.label, server.points + 1),
        coordinates=coordinates,
        slope=slope,
        predicted=pairs(predicted),
        lam=lam_b,
    )
    return server._replace(trial=trial, points=server.points + 1)


def inside(server: Server) -> Float[Array, "n k k"]:
    """A_i: the curvature on span(D), raised where it is uncertain and where the model promised too much."""
    A = directions.within(server.memory, 1e-10 * jnp.min(server.L))
    return directions.cautious(server.memory, A) * (1 + server.shape.nu)


def since(at: Point) -> Float[Array, "n d"]:
    """From where every client was last heard to the centre; infinite for one never heard."""
    return jnp.where(at.heard[:, None], at.x[None, :] - at.anchor, jnp.inf)


def noise(at: Point, L: Float[Array, " n"], eps: float) -> Float[Array, " n"]:
    """What rounding does to a difference of two gradients, squared, in units of L_i^2."""
    return (4 * eps * (jnp.linalg.norm(at.C, axis=1) / L + jnp.linalg.norm(at.x))) ** 2


def to_hear(server: Server, key: RandomKey, m: int) -> Bool[Array, " n"]:
    """The m clients of the next `collect`."""
    n = server.age.size
    again, by_chance = -(-m // 4), round(0.3 * m)
    old = server.age + 1
    picked = first(jnp.where(server.at.known, server.lam, -1), again) & server.at.known
    weight = (jnp.maximum(server.lam, server.trial.lam) + 1e-3 / n) * old
    count = jnp.sum(picked)
    picked = picked | first(jnp.where(picked, -1, weight), m - by_chance - count)
    luck = jax.random.gumbel(key, (n,), old.dtype) + 2 * jnp.log(old)
    return picked | first(jnp.where(picked, -jnp.inf, luck), m - jnp.sum(picked))


def first(score: Float[Array, " n"], count: Any) -> Bool[Array, " n"]:
    """Which `count` entries are the largest."""
    rank = (
        jnp.zeros(score.size, jnp.int32)
        .at[jnp.argsort(-jnp.round(score, 6))]
        .set(jnp.arange(score.size, dtype=jnp.int32))
    )
    return rank < jnp.asarray(count, jnp.int32)


def choose(condition: Bool[Array, ""], yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


# Double precision at the server.


def pairs(values: Array) -> Array:
    """Numbers as pairs that sum to them; what rounds them to another precision keeps the second for the remainder."""
    return jnp.stack([values, jnp.zeros_like(values)], axis=-1)


def joined(two: Array) -> Array:
    return jnp.sum(two, axis=-1)


def in_double(step: Any) -> Any:
    """`step(server, replies, eps)` in double precision, between states of the run's own, whose rounding is `eps`."""

    def wrapped(server: Server, replies: Replies) -> Server:
        dtype = server.at.x.dtype

        def wide(a: Any) -> Any:
            return a.astype(jnp.float64) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a

        def narrow(a: Array) -> Array:
            return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

        def split(two: Array) -> Array:
            value = joined(two)
            high = value.astype(dtype)
            return jnp.stack([high, (value - high.astype(jnp.float64)).astype(dtype)], axis=-1)

        with jax.enable_x64(True):
            new = step(jax.tree.map(wide, server), jax.tree.map(wide, replies), float(jnp.finfo(dtype).eps))
            at = jax.tree.map(narrow, new.at)._replace(f=split(new.at.f))
            trial = jax.tree.map(narrow, new.trial)._replace(predicted=split(new.trial.predicted))
            return jax.tree.map(narrow, new)._replace(at=at, trial=trial)

    return wrapped


SCAFFPD_MODEL = Record(
    "scaffpd_model",
    scaffpd_model,
    objective=SADDLE,
    paper="beyond Yu et al. 2023",
    example={"steps": 5, "memory": 3},
    defaults={"steps": 10},
    descent=None,
)
