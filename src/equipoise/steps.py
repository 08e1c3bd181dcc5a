"""Step sizes of primal-dual methods, round by round, and the constants they are made of.

    tau, sigma, theta    state.now            primal step, dual step, extrapolation of round r
    L_xx, mu_x           constants            smoothness and strong convexity of the f_i
    L_lx                 constants            Lipschitz constant of x -> (f_1(x) .. f_n(x)) less its mean
    mu_lam               dual.modulus         strong convexity of psi
    eta_l, J             local_lr, steps      local step size and number of local steps

SCAFF-PD asks its rule for the step sizes of a round when the round opens:

    state = rule.init(x.dtype)
    state = rule.next(state)          # once per round, the first one included
    tau, sigma, theta = state.now

`tuned` measures what it needs and chooses everything; `auto` is its rule, for constants that are known.
Conditions and equations are those of SCAFF-PD (Yu, Karimireddy, Ma and Jordan): its Conditions 5.1 and 5.2 are
3.1 and 3.2 in the workshop version, whose appendix E has the constants.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from equipoise import local
from equipoise.errors import positive, require
from equipoise.objectives.dual import Dual
from equipoise.protocol import Vector

Scalar = Float[Array, ""]


class Now(NamedTuple):
    """The step sizes of one round."""

    tau: Scalar
    sigma: Scalar
    theta: Scalar


class Steps(NamedTuple):
    """A rule's state."""

    now: Now  # of the open round
    ahead: Now  # of the round after it


class Rule(NamedTuple):
    """Step sizes as two pure functions."""

    init: Callable[[DTypeLike], Steps]  # before the first round
    next: Callable[[Steps], Steps]  # when a round opens


class Constants(NamedTuple):
    """What the step sizes depend on. C has the gradients of the f_i as rows, P removes their mean."""

    L_xx: float  # largest eigenvalue of any client's Hessian
    mu_x: float  # smallest eigenvalue of any client's Hessian
    L_lx: float  # largest singular value of P C
    mu_lx: float = 0.0  # smallest one, over the directions that the simplex has; 0 if there are more than d


class Tuned(NamedTuple):
    """A rule, the local step size that it was made for, and what both were made of."""

    rule: Rule
    local_lr: float
    constants: Constants


# Step sizes as given.


def constant(*, tau: float, sigma: float, theta: float) -> Rule:
    """The same step sizes in every round (Condition 5.2)."""
    positive("tau", tau)
    positive("sigma", sigma)
    require(0 <= theta <= 1, f"theta is {theta}; give a number from 0 to 1")
    return _rule(tau, sigma, theta, lambda now: now)


def accelerated(*, tau: float, sigma: float, mu: float) -> Rule:
    """Condition 5.1, for psi that is merely convex: tau_r falls and sigma_r grows, their product stays.

        theta_{r+1} = 1/sqrt(1 + mu tau_r),  tau_{r+1} = theta_{r+1} tau_r,  sigma_{r+1} = sigma_r/theta_{r+1}

    That is the condition with gamma_r = sigma_r / tau_r, and with the recursion of tau_r that it leaves out
    and Eq. (E.33) has; theta_0 = 1.

    Args:
        tau: tau_0.
        sigma: sigma_0.
        mu: strong convexity to count on; 0 keeps the step sizes constant.
    """
    positive("tau", tau)
    positive("sigma", sigma)
    require(mu >= 0, f"mu is {mu}; give a number from zero up")

    def after(now: Now) -> Now:
        theta = 1 / jnp.sqrt(1 + mu * now.tau)
        return Now(theta * now.tau, now.sigma / theta, theta)

    return _rule(tau, sigma, 1.0, after)


# The paper's step sizes, with the constants of its appendix E: they allow for client drift, and are small.


def linear(constants: Constants, dual: Dual) -> Rule:
    """Condition 5.2 with the constants of Eqs. (E.49)-(E.54), for strongly convex psi.

    omega solves the quadratic in Eq. (E.54), whose printed solution has 16 for the 8 used here; tau follows
    Eq. (E.50), not the half of it that Eq. (E.60) assumes. The proof also wants J eta_l L_xx <= 1/2.
    """
    L_xx, mu_x, L_lx, mu_lam = _checked(constants, dual)
    half = 1 / 2 + 24 * L_xx / mu_x
    omega = half + math.sqrt(half**2 + 8 * L_lx**2 / (mu_x * mu_lam))
    return constant(tau=4 / (mu_x * (omega - 1)), sigma=1 / (mu_lam * (omega - 1)), theta=1 - 1 / omega)


def sublinear(constants: Constants, *, a: float | None = None) -> Rule:
    """Condition 5.1 with the constants of Eq. (E.35), for psi that is merely convex; c_alpha = .9, delta = .1.

    `a` weighs the players, sigma_0 = c_alpha/a: a ~ L_lx |x_0 - x*| is balanced; without it, L_lx is taken.
    The recursion has mu_x / 4: that much strong convexity is left in Z of Lemma E.1.
    """
    L_xx, mu_x, L_lx, _ = _checked(constants)
    a = a or L_lx or 1.0
    return accelerated(tau=0.9 / (12 * L_xx + 2 * L_lx**2 / a), sigma=0.9 / a, mu=mu_x / 4)


# Beyond the paper: the same conditions without the constants for client drift. The proofs are for J = 1; for
# J > 1 the constants are to be measured in the metric of the local steps, as `estimate_constants` does.


def sharp_linear(constants: Constants, dual: Dual) -> Rule:
    """Condition 5.2 with sharp constants, for strongly convex psi: a round takes theta off |x - x*|^2."""
    L_xx, mu_x, L_lx, mu_lam = _checked(constants, dual)
    half = L_xx / mu_x / 2
    omega = max(half + math.sqrt(half**2 + L_lx**2 / (mu_x * mu_lam)), 1.001)
    return constant(tau=1 / (mu_x * omega), sigma=1 / (mu_lam * (omega - 1)), theta=1 - 1 / omega)


def sharp_accelerated(constants: Constants, *, a: float | None = None) -> Rule:
    """Condition 5.1 with sharp constants, for psi that is merely convex; `a` as in `sublinear`."""
    L_xx, mu_x, L_lx, _ = _checked(constants)
    a = a or L_lx or 1.0
    return accelerated(tau=1 / (L_xx + L_lx**2 / a), sigma=1 / a, mu=mu_x)


def auto(constants: Constants, dual: Dual) -> Rule:
    """From Condition 5.1 to Condition 5.2, for every psi: linear convergence wherever there is any to be had.

    gamma_r = sigma_r / tau_r grows as in Condition 5.1 until it is that of Condition 5.2, and then stays. The
    step sizes are the largest ones allowed at that ratio, and the start is tau_0 = 0.9/L_xx:

        gamma_{r+1} = min(gamma_r (1 + mu_x tau_r), gamma*),    1/tau_r = L_xx + sigma_r L_lx^2
        theta_{r+1} = max(sigma_r/sigma_{r+1} / (1 + mu sigma_r), tau_r/tau_{r+1} (1 - mu_x tau_{r+1}))
        gamma* = mu_x omega / (mu (omega - 1))
        omega = (k+1)/2 + sqrt((k-1)^2/4 + L_lx^2/(mu_x mu)),    k = L_xx/mu_x

    Why: weigh round r of Lemma E.1 by t_r, with t_{r+1} = t_r / theta_{r+1}. The extrapolation costs at most

        theta_r <q_r, lam_{r+1} - lam_r>
            <= theta_r^2 sigma_r L_lx^2/2 |x_r - x_{r-1}|^2 + 1/(2 sigma_r) |lam_{r+1} - lam_r|^2.

    The second term cancels against the prox. The first is paid by (1/tau_{r-1} - L_xx)/2 |x_r - x_{r-1}|^2,
    left over from the round before, if theta_r sigma_r <= sigma_{r-1}: so it is, as gamma grows no faster than
    above. The distances to the saddle point telescope iff theta is at least the maximum above, whose two terms
    both are 1 - 1/omega at gamma*.

    mu is all that bends the problem in lam: mu_lam of psi, and mu_lx^2/L_xx of min_x Phi(x, lam), whose Hessian
    is -C (sum_i lam_i H_i)^-1 C'. The proof does not see the second part, but every mode of a quadratic
    (curvature in [mu_x, L_xx], coupling in [mu_lx, L_lx]) contracts by theta a round, even with twice as much
    of it. It is what makes agnostic and CVaR objectives over few clients converge linearly.
    """
    L_xx, mu_x, L_lx, _ = _checked(constants)
    L_lx = max(L_lx, 1e-6 * L_xx)  # clients alike: lam does not matter, but sigma must be some number
    mu, limit = dual.modulus + constants.mu_lx**2 / L_xx, math.inf
    if mu > 0:
        k = L_xx / mu_x
        omega = max((k + 1) / 2 + math.sqrt((k - 1) ** 2 / 4 + L_lx**2 / (mu_x * mu)), 1.001)
        limit = mu_x * omega / (mu * (omega - 1))

    def at(gamma: Any) -> tuple[Any, Any]:
        tau = 2 / (L_xx + (L_xx**2 + 4 * L_lx**2 * gamma) ** 0.5)
        return tau, gamma * tau

    def after(now: Now) -> Now:
        tau, sigma = at(jnp.minimum(now.sigma / now.tau * (1 + mu_x * now.tau), limit))
        dual_side = now.sigma / sigma / (1 + mu * now.sigma)
        return Now(tau, sigma, jnp.maximum(dual_side, now.tau / tau * (1 - mu_x * tau)))

    return _rule(*at(min(L_xx**2 / (8.1 * L_lx**2), limit)), 1.0, after)


def _checked(constants: Constants, dual: Dual | None = None) -> tuple[float, float, float, float]:
    L_xx, mu_x, L_lx, _ = constants
    require(
        mu_x > 0,
        f"mu_x is {mu_x}: the losses are not strongly convex there, or too little for the estimate to tell; add "
        "an l2 penalty to the task, give its coefficient as mu, or choose step sizes with steps.constant",
    )
    require(
        mu_x <= L_xx and L_lx >= 0,
        f"mu_x is {mu_x}, L_xx is {L_xx} and L_lx is {L_lx}; give 0 < mu_x <= L_xx and L_lx from zero up",
    )
    if dual is None:
        return L_xx, mu_x, L_lx, 0.0
    require(dual.modulus > 0, f"the penalty of '{dual.name}' is not strongly convex; use steps.auto")
    return L_xx, mu_x, L_lx, dual.modulus


def _rule(tau: float, sigma: float, theta: float, after: Callable[[Now], Now]) -> Rule:
    def init(dtype: DTypeLike) -> Steps:
        first = Now(*(jnp.asarray(value, dtype) for value in (tau, sigma, theta)))
        return Steps(first, first)

    def advance(steps: Steps) -> Steps:
        return Steps(steps.ahead, after(steps.ahead))

    return Rule(init, advance)


# Measuring.


def tuned(task: Any, shards: Any, x: Vector, dual: Dual, *, steps: int, mu: float = 0.0) -> Tuned:
    """A rule and a local step size for SCAFF-PD with J = `steps` exact local steps from x: nothing to choose.

    J local steps with eta_l = 1/L_xx are one step of a preconditioned gradient method, close to Newton's where
    the clients' Hessians are alike. The constants are measured in that metric, see `estimate_constants`, and
    given to `auto`. They are measured near the solution, which five rounds with equal weights find, because at
    x itself L_lx may be several times larger. That is safe: as tau <= 1/L_xx, the primal step contracts towards
    argmin_x Phi(x, lam) whatever lam does, so x stays bounded, and L_lx near the saddle point decides.

    For one machine: it sees all shards and computes about as much as 20 + n rounds do. `mu` is a strong
    convexity known beforehand, such as the task's l2 coefficient.
    """
    positive("steps", steps)
    data = _prepared(task, shards)
    n = jax.tree.leaves(data)[0].shape[0]
    require(dual.n == n, f"the dual is for {dual.n} clients but there are {n}; build it for {n}")
    require(
        dual.simplex,
        f"the weights of '{dual.name}' do not sum to one, which the constants assume; use steps.constant",
    )
    high = float(_curvature(task, data, x)[1])
    x = _settle(task, steps, data, x, 1 / high)
    low, high_here = map(float, _curvature(task, data, x))
    high = max(high, high_here)  # of quadratics they are the same
    constants = _constants(task, data, x, max(low, mu), high, steps, 1 / high)
    return Tuned(auto(constants, dual), 1 / high, constants)


def estimate_constants(
    task: Any, shards: Any, x: Vector, *, steps: int = 1, local_lr: float | None = None, mu: float = 0.0
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
    low, high = map(float, _curvature(task, data, x))
    eta = 1 / high if local_lr is None else local_lr
    positive("local_lr", eta)
    require(
        steps == 1 or eta * high < 2,
        f"local_lr is {eta}, but local steps diverge from {2 / high:.3g} on; give {1 / high:.3g}",
    )
    return _constants(task, data, x, max(low, mu), high, steps, eta)


def _constants(task: Any, data: Any, x: Vector, low: float, high: float, steps: int, eta: float) -> Constants:
    squares = [max(float(s), 0.0) for s in _coupling(task, steps, data, x, eta)]  # [0]: of the direction 1
    strong, weak = math.sqrt(squares[-1]), math.sqrt(squares[min(1, len(squares) - 1)])
    if steps == 1:
        return Constants(high, low, strong, weak)

    def damped(h: float) -> float:  # the eigenvalue of M_i H_i where that of H_i is h
        return (1 - (1 - eta * h) ** steps) / (steps * eta)

    # Equal weights may hide the steepest client.
    top = max(float(_smoothness(task, steps, data, x, eta)), damped(high))
    return Constants(top, damped(low), strong, weak)


def _prepared(task: Any, shards: Any) -> Any:
    return jax.vmap(task.prepare)(shards) if hasattr(task, "prepare") else shards


def _measurement(function: Callable) -> Callable:
    """Compiled per task, and in full precision: rounded products, as on some accelerators, drown mu_x."""

    @functools.wraps(function)
    def in_full_precision(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    fixed = [name for name in ("task", "steps") if name in inspect.signature(function).parameters]
    return jax.jit(in_full_precision, static_argnames=fixed)


def _hvp(task: Any, x: Vector, shard: Any, v: Vector) -> Vector:
    return jax.jvp(lambda u: task.grad(u, shard), (x,), (v,))[1]


@_measurement
def _curvature(task: Any, data: Any, x: Vector) -> tuple[Scalar, Scalar]:
    """The smallest and the largest eigenvalue of the clients' Hessians at x."""

    def on_client(shard: Any) -> tuple[Scalar, Scalar]:
        return _extremes(lambda v: _hvp(task, x, shard, v), x, min(64, x.size))

    low, high = jax.lax.map(on_client, data)  # one client at a time, as each needs a basis of 64 vectors
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
    ritz, vectors = jnp.linalg.eigh(jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1))
    residual = beta[-1] * jnp.abs(vectors[-1])
    return ritz[0] - residual[0], ritz[-1] + residual[-1]


def _precondition(task: Any, steps: int, data: Any, x: Vector, eta: Scalar, v: Vector) -> Vector:
    """M v, for equal weights."""

    def on_client(shard: Any) -> Vector:
        def step(_: Any, state: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            z, total = state
            z = z - eta * _hvp(task, x, shard, z)
            return z, total + z

        return jax.lax.fori_loop(1, steps, step, (v, v))[1] / steps

    return jnp.mean(jax.vmap(on_client)(data), axis=0)


@_measurement
def _coupling(task: Any, steps: int, data: Any, x: Vector, eta: Scalar) -> Float[Array, " n"]:
    """The squared singular values of P C M^1/2, ascending."""
    c = jax.vmap(lambda shard: task.grad(x, shard))(data)
    c = c - jnp.mean(c, axis=0, keepdims=True)
    gram = c @ jax.lax.map(lambda v: _precondition(task, steps, data, x, eta, v), c).T
    return jnp.linalg.eigvalsh((gram + gram.T) / 2)


@_measurement
def _smoothness(task: Any, steps: int, data: Any, x: Vector, eta: Scalar) -> Scalar:
    """The largest eigenvalue of M H for equal weights."""

    def hessian(v: Vector) -> Vector:
        return jnp.mean(jax.vmap(lambda shard: _hvp(task, x, shard, v))(data), axis=0)

    return _extremes(lambda v: _precondition(task, steps, data, x, eta, v), x, min(12, x.size), hessian)[1]


@_measurement
def _settle(task: Any, steps: int, data: Any, x: Vector, eta: Scalar) -> Vector:
    """x after five rounds of SCAFF-PD with equal weights and tau = 1/L_xx: near the best model on average."""
    tau = eta if steps == 1 else jnp.minimum(1 / _smoothness(task, steps, data, x, eta), steps * eta)

    def round(_: Any, x: Vector) -> Vector:
        c_i = jax.vmap(lambda shard: task.grad(x, shard))(data)
        c = jnp.mean(c_i, axis=0)

        def improve(shard: Any, c_i: Vector) -> Vector:
            return local.descend(lambda u, _: task.grad(u, shard), x, None, steps=steps, lr=eta, shift=c - c_i)

        u = jnp.mean(jax.vmap(improve)(data, c_i), axis=0)
        return x - tau / (steps * eta) * (x - u)

    return jax.lax.fori_loop(0, 5, round, x)
