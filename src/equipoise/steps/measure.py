"""The constants that step sizes are made of, measured; and step sizes with nothing left to choose."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PyTree

from equipoise import local
from equipoise._jax import cached_program, compiled
from equipoise.data import ClientData
from equipoise.data.shards import Shards
from equipoise.errors import all_positive, positive, require
from equipoise.linear_algebra import eigh, eigvalsh
from equipoise.objectives.dual import Dual
from equipoise.protocol import Data, Vector
from equipoise.steps.rules import Constants, Rule, auto, sampled
from equipoise.tasks.task import Task

Scalar = Float[Array, ""]
Given = ParamSpec("Given")
Made = TypeVar("Made")
EXACT = 64  # parameters up to which all eigenvalues are found, and clients up to which all of L_lx's kin are
LANCZOS = 16  # iterations beyond
FEW = 16  # clients whose local steps stand for those of all


class Tuned(NamedTuple):
    """A rule, the local step size that it was made for, and what both were made of."""

    rule: Rule
    local_lr: float
    constants: Constants


def tuned(
    task: Task, shards: ClientData, x: Vector, dual: Dual, *, steps: int, mu: float = 0.0, share: float = 1.0
) -> Tuned:
    """A rule and a local step size for SCAFF-PD with J = `steps` exact local steps from x: nothing to choose.

    J local steps with eta_l = 1/L_xx are one step of a preconditioned gradient method, close to Newton's where
    the clients' Hessians are alike. The constants are measured in that metric, see `estimate_constants`, and
    given to `auto`. They are measured near the solution, which five rounds with equal weights find, because at
    x itself L_lx may be several times larger. That is safe: as tau <= 1/L_xx, the primal step contracts towards
    argmin_x Phi(x, lam) whatever lam does, so x stays bounded, and L_lx near the saddle point decides.

    For one machine: it sees all shards. The metric is that of at most sixteen clients, the smoothness that of all,
    so with many clients it costs a few rounds. `mu` is a strong convexity known beforehand, such as the task's l2
    coefficient. With `share` = m/n below 1 the rule is for `scaffpd_partial` and its cohorts of m.
    """
    require(dual.n == shards.n, f"the dual is for {dual.n} clients but there are {shards.n}; build it for {shards.n}")
    constants, local_lr = near_solution(task, shards, x, steps=steps, mu=mu)
    return Tuned(rule_for(constants, dual, share=share), local_lr, constants)


def rule_for(constants: Constants, dual: Dual, *, share: float = 1.0) -> Rule:
    """`auto`, or `sampled` where a share of the clients takes part in a round."""
    require(
        dual.simplex, f"the weights of '{dual.name}' do not sum to one, which the constants assume; use steps.constant"
    )
    return auto(constants, dual) if share == 1 else sampled(constants, dual, share=share)


def near_solution(task: Task, shards: ClientData, x: Vector, *, steps: int, mu: float = 0.0) -> tuple[Constants, float]:
    """The constants that `tuned` makes a rule of, whatever the dual, and the local step size they are for."""
    positive("steps", steps)
    data = _prepared(task, shards)
    few = _some(data)
    k = min(LANCZOS, x.size) if x.size > EXACT else x.size
    low, high = map(float, _curvature(task, k, data, x))
    x = _settle(task, steps, few, x, 1 / high)
    low_here, high_here = map(float, _curvature(task, k, few, x))
    low, high = min(low, low_here), max(high, high_here)  # of quadratics they are the same
    return _constants(task, data, few, x, max(low, mu), high, steps, 1 / high), 1 / high


def bounded(L_xx: float, L_lx: float, *, steps: int, mu: float = 0.0) -> tuple[Constants, float]:
    """As `near_solution`, from bounds that clients can tell of themselves: safe without their rows, and slower.

    `L_xx` is the largest `client_smoothness`. `L_lx` may be the root of the sum of the clients' squared gradients at
    the start: no singular value of P C is larger. Local steps only shorten the steps in x and what they change in the
    losses (M <= I in `estimate_constants`), so the constants of J = 1 bound those of J steps; mu_x is the damped one.
    """
    all_positive(steps=steps, L_xx=L_xx)
    eta = 1 / L_xx
    damped = (1 - (1 - eta * min(mu, L_xx)) ** steps) / (steps * eta)
    return Constants(L_xx, damped, L_lx), eta


def estimate_constants(
    task: Task, shards: ClientData, x: Vector, *, steps: int = 1, local_lr: float | None = None, mu: float = 0.0
) -> Constants:
    """The constants of Conditions 5.1 and 5.2 at x, over all of the clients' examples.

    The eigenvalues come from Lanczos iterations on Hessian-vector products: exact up to 64 parameters, beyond
    that with the residual as a margin. For losses that are not quadratic they hold near x only. L_lx is that at
    x; far from the solution it is larger.

    With J = `steps` > 1 they are what the rules need for J local steps of size `local_lr`. A round moves x by
    -tau M c with c = sum_i lam_i grad f_i(x) and, for quadratics,

        M = sum_i lam_i M_i,    M_i = 1/J sum_{j<J} (I - eta_l H_i)^j = (I - (I - eta_l H_i)^J) / (J eta_l H_i),

    which is a gradient step in the norm |v|^2 = v' M^-1 v. In it the largest and smallest eigenvalue of M H take
    the place of L_xx and mu_x, the latter becoming (1 - (1 - eta_l mu_x)^J) / (J eta_l), and P C M^1/2 that of
    P C. They are measured for equal lam_i. J = 1 has M = I.

    Args:
        task: with `grad(x, shard)` and, if it likes, `prepare(shard)`, as in `equipoise.tasks`.
        shards: the clients' examples.
        x: where to measure.
        steps: J, local steps.
        local_lr: eta_l; 1/L_xx if not given.
        mu: a strong convexity known beforehand, such as an l2 coefficient, in case Lanczos finds less.
    """
    positive("steps", steps)
    data = _prepared(task, shards)
    low, high = map(float, _curvature(task, min(EXACT, x.size), data, x))
    eta = 1 / high if local_lr is None else local_lr
    positive("local_lr", eta)
    require(
        steps == 1 or eta * high < 2,
        f"local_lr is {eta}, but local steps diverge from {2 / high:.3g} on; give {1 / high:.3g}",
    )
    return _constants(task, data, data, x, max(low, mu), high, steps, eta)


def smoothness(task: Task, shards: ClientData, x: Vector) -> float:
    """L_xx at x alone: the largest curvature of any client's loss, for the price of a round or two."""
    largest = _largest(task, _prepared(task, shards), x)
    return float(jnp.max(largest))


def client_smoothness(task: Task, x: Vector, shard: Data, iterations: int = 16) -> Scalar:
    """L_i: an upper bound on the curvature of one client's loss at x, exact for quadratics up to the residual.

    What a client can do on its own; one number to tell.
    """
    ritz, residual = _ritz(*_lanczos(task, x, shard, iterations))
    return ritz[-1] + residual[-1]


def rough_smoothness(task: Task, x: Vector, shard: Data, iterations: int = 4) -> Scalar:
    """L_i at the price of a few gradients, and without a routine of linear algebra: by Gershgorin's circles."""
    alpha, beta = _lanczos(task, x, shard, iterations)
    return jnp.max(alpha + beta + jnp.concatenate([jnp.zeros_like(beta[:1]), beta[:-1]]))


def _ritz(alpha: Vector, beta: Vector) -> tuple[Vector, Vector]:
    """Eigenvalues of a tridiagonal matrix, each within its residual of one of the Hessian."""
    ritz, vectors = eigh(jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1))
    return ritz, beta[-1] * jnp.abs(vectors[-1])


def _lanczos(task: Task, x: Vector, shard: Data, iterations: int) -> tuple[Vector, Vector]:
    """Diagonal and off-diagonal of the Hessian at x on a Krylov space, and last how far that is from invariant.

    Hessian-vector products with three vectors in memory: lost orthogonality repeats large Ritz values and makes none
    that is not there.
    """
    apply = _hessian(task, x, shard)
    k, eps = min(iterations, x.size), jnp.finfo(x.dtype).eps
    start = jax.random.normal(jax.random.key(0), x.shape, x.dtype)

    def step(state: tuple[Vector, Vector, Scalar], _: None) -> tuple[tuple[Vector, Vector, Scalar], tuple]:
        before, v, beta = state
        u = apply(v) - beta * before
        alpha = v @ u
        u = u - alpha * v
        rest = jnp.linalg.norm(u)
        rest = jnp.where(rest > 100 * eps * jnp.abs(alpha), rest, 0)  # an invariant subspace: all that follows is zero
        return (v, u * jnp.where(rest > 0, 1 / rest, 0), rest), (alpha, rest)

    first = (jnp.zeros_like(x), start / jnp.linalg.norm(start), jnp.zeros((), x.dtype))
    return jax.lax.scan(step, first, length=k)[1]


def _constants(
    task: Task, data: PyTree, few: PyTree, x: Vector, low: float, high: float, steps: int, eta: float
) -> Constants:
    """`few` are the clients whose local steps stand for the metric."""
    squares = [max(float(s), 0.0) for s in _coupling(task, steps, data, few, x, eta)]  # [0]: of the direction 1
    strong, weak = math.sqrt(squares[-1]), math.sqrt(squares[min(1, len(squares) - 1)])
    if steps == 1:
        return Constants(high, low, strong, weak)

    def damped(h: float) -> float:  # the eigenvalue of M_i H_i where that of H_i is h
        return (1 - (1 - eta * h) ** steps) / (steps * eta)

    # Equal weights may hide the steepest client.
    top = max(float(_smoothness_alone(task, steps, few, x, eta)), damped(high))
    return Constants(top, damped(low), strong, weak)


def _prepared(task: Task, shards: ClientData) -> PyTree:
    prepare = getattr(task, "prepare", _unprepared)
    return jax.vmap(prepare)(shards) if isinstance(shards, Shards) else _one_by_one(prepare)(shards)


def _unprepared(shard: Data) -> Data:
    return shard


@cached_program
def _one_by_one(prepare: Callable) -> Callable:
    return compiled(lambda shards: jax.lax.map(lambda i: prepare(shards.client(i)), jnp.arange(shards.n)))


def _measurement(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Compiled per task, and in full precision: rounded products, as on some accelerators, drown mu_x."""

    @functools.wraps(function)
    def in_full_precision(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    fixed = [name for name in ("task", "steps", "k") if name in inspect.signature(function).parameters]
    program = functools.cache(lambda: compiled(in_full_precision, static_argnames=fixed))
    return functools.wraps(function)(lambda *args, **kwargs: program()(*args, **kwargs))


def _some(data: PyTree) -> PyTree:
    """At most `FEW` of the clients, evenly spaced."""
    n = jax.tree.leaves(data)[0].shape[0]
    ids = np.unique(np.linspace(0, n - 1, min(n, FEW)).astype(int))
    return data if len(ids) == n else jax.tree.map(lambda a: a[ids], data)


def _hessian(task: Task, x: Vector, shard: Data) -> Callable[[Vector], Vector]:
    return jax.linearize(lambda u: task.grad(u, shard), x)[1]


@_measurement
def _largest(task: Task, data: PyTree, x: Vector) -> Float[Array, " n"]:
    return jax.lax.map(lambda shard: client_smoothness(task, x, shard), data)


@_measurement
def _curvature(task: Task, k: int, data: PyTree, x: Vector) -> tuple[Scalar, Scalar]:
    """The smallest and the largest eigenvalue of the clients' Hessians at x."""

    def on_client(shard: Data) -> tuple[Scalar, Scalar]:
        return _extremes(_hessian(task, x, shard), x, k)

    low, high = jax.lax.map(on_client, data)  # one client at a time, as each needs a basis of k vectors
    return jnp.min(low), jnp.max(high)


def _extremes(
    apply: Callable[[Vector], Vector], like: Vector, k: int, metric: Callable[[Vector], Vector] = lambda v: v
) -> tuple[Scalar, Scalar]:
    """Outer bounds on the spectrum of v -> apply(metric(v)), which is symmetric in the inner product <u, metric(v)>.

    k Lanczos steps with full reorthogonalisation: within the residual of each Ritz value there is an eigenvalue, and
    a random start finds the outermost first.
    """
    eps = jnp.finfo(like.dtype).eps
    zeros = jnp.zeros((k + 1, like.size), like.dtype)

    def unit(v: Vector, size: Scalar) -> tuple[Vector, Vector, Scalar]:
        m_v = metric(v)
        norm = jnp.sqrt(jnp.maximum(v @ m_v, 0))
        # Nothing but rounding is left once the subspace is invariant: then all that follows is zero.
        norm = jnp.where(norm > 100 * eps * size, norm, 0)
        scale = jnp.where(norm > 0, 1 / norm, 0)
        return scale * v, scale * m_v, norm

    def step(j: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        basis, m_basis, alpha, beta = state
        u = apply(m_basis[j])
        a = m_basis[j] @ u
        size = jnp.sqrt(jnp.maximum(u @ metric(u), 0))
        for _ in range(2):  # twice is enough
            u = u - (m_basis @ u) @ basis
        v, m_v, rest = unit(u, size)
        # A zero vector has no Rayleigh quotient; the first one in its place moves no end of the spectrum.
        alpha = alpha.at[j].set(jnp.where(jnp.any(basis[j] != 0), a, alpha[0]))
        return basis.at[j + 1].set(v), m_basis.at[j + 1].set(m_v), alpha, beta.at[j].set(rest)

    start = jax.random.normal(jax.random.key(0), like.shape, like.dtype)
    v, m_v, _ = unit(start, jnp.zeros((), like.dtype))
    state = (zeros.at[0].set(v), zeros.at[0].set(m_v), zeros[:k, 0], zeros[:k, 0])
    _, _, alpha, beta = jax.lax.fori_loop(0, k, step, state)
    ritz, residual = _ritz(alpha, beta)
    return ritz[0] - residual[0], ritz[-1] + residual[-1]


def _precondition(task: Task, steps: int, data: PyTree, x: Vector, eta: Scalar | float, v: Vector) -> Vector:
    """M v, for equal weights."""

    def on_client(shard: Data) -> Vector:
        hessian = _hessian(task, x, shard)

        def step(_: object, state: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            z, total = state
            z = z - eta * hessian(z)
            return z, total + z

        return jax.lax.fori_loop(1, steps, step, (v, v))[1] / steps

    return jnp.mean(jax.vmap(on_client)(data), axis=0)


@_measurement
def _coupling(task: Task, steps: int, data: PyTree, few: PyTree, x: Vector, eta: Scalar | float) -> Float[Array, " s"]:
    """The squared singular values of P C M^1/2, ascending; of many clients zero and the largest."""
    c = jax.vmap(lambda shard: task.grad(x, shard))(data)
    c = c - jnp.mean(c, axis=0, keepdims=True)

    def metric(v: Vector) -> Vector:
        return _precondition(task, steps, few, x, eta, v)

    n = c.shape[0]
    if n > EXACT:
        largest = _extremes(lambda w: c @ metric(w @ c), c[:, 0], LANCZOS)[1]
        return jnp.array([0, 0, largest], x.dtype)
    gram = c @ jax.lax.map(metric, c).T
    return eigvalsh((gram + gram.T) / 2)


def _smoothness(task: Task, steps: int, data: PyTree, x: Vector, eta: Scalar | float) -> Scalar:
    """The largest eigenvalue of M H for equal weights."""

    def hessian(v: Vector) -> Vector:
        return jnp.mean(jax.vmap(lambda shard: _hessian(task, x, shard)(v))(data), axis=0)

    return _extremes(lambda v: _precondition(task, steps, data, x, eta, v), x, min(12, x.size), hessian)[1]


# `_settle` has it inside its own program, where one with settings of the compiler must not be called.
_smoothness_alone = _measurement(_smoothness)


@_measurement
def _settle(task: Task, steps: int, data: PyTree, x: Vector, eta: Scalar | float) -> Vector:
    """x after five rounds of SCAFF-PD with equal weights and tau = 1/L_xx: near the best model on average."""
    tau = eta if steps == 1 else jnp.minimum(1 / _smoothness(task, steps, data, x, eta), steps * eta)

    def round(_: object, x: Vector) -> Vector:
        c_i = jax.vmap(lambda shard: task.grad(x, shard))(data)
        c = jnp.mean(c_i, axis=0)

        def improve(shard: Data, c_i: Vector) -> Vector:
            return local.descend(lambda u, _: task.grad(u, shard), x, None, steps=steps, lr=eta, shift=c - c_i)

        u = jnp.mean(jax.vmap(improve)(data, c_i), axis=0)
        return x - tau / (steps * eta) * (x - u)

    return jax.lax.fori_loop(0, 5, round, x)
