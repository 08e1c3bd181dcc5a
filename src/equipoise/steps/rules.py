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

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, PyTree

from equipoise.cohorts import Sample
from equipoise.errors import all_positive, positive, require, within
from equipoise.leaves import Recipe, numbers_are_leaves, tree_of_numbers
from equipoise.objectives.dual import Dual
from equipoise.protocol import Cohort, RandomKey

Scalar = Float[Array, ""]


class StepSizes(NamedTuple):
    """The step sizes of one round."""

    tau: Scalar
    sigma: Scalar
    theta: Scalar


class RuleState(Protocol):
    """A rule's state."""

    @property
    def now(self) -> StepSizes:
        """Those of the open round."""


@tree_of_numbers
class Rule(NamedTuple):
    """Step sizes as pure functions over a tree of its own, a `RuleState`."""

    init: Callable[[DTypeLike], PyTree]  # before the first round
    next: Callable[[PyTree], PyTree]  # when a round opens
    # When the losses of the open round are known: |P (f(x_r) - f(x_{r-1}))|^2 / |x_r - x_{r-1}|^2, in the norm of the
    # local steps; 0 where nothing moved.
    guard: Callable[[PyTree, Scalar], PyTree] = lambda state, coupling: state
    recipe: Recipe | None = None  # set by `numbers_are_leaves`

    def opening(self, sample: Sample) -> Callable[[Any, RandomKey], tuple[Any, Cohort]]:
        """`open` of a round's first exchange: who takes part, and the step sizes, which are the server's `steps`."""
        return lambda server, key: (server._replace(steps=self.next(server.steps)), sample(key))


class Planned(NamedTuple):
    """The state of rules that know the next round's step sizes beforehand."""

    now: StepSizes
    following: StepSizes


class Constants(NamedTuple):
    """What the step sizes depend on. C has the gradients of the f_i as rows, P removes their mean."""

    L_xx: float  # largest eigenvalue of any client's Hessian
    mu_x: float  # smallest eigenvalue of any client's Hessian
    L_lx: float  # largest singular value of P C
    mu_lx: float = 0.0  # smallest one, over the directions that the simplex has; 0 if there are more than d


# Step sizes as given.


@numbers_are_leaves
def constant(*, tau: float, sigma: float, theta: float) -> Rule:
    """The same step sizes in every round (Condition 5.2)."""
    all_positive(tau=tau, sigma=sigma)
    within("theta", theta, 0, 1)

    init = _starting_from(tau, sigma, theta)
    # Not those of the round before: a schedule builds the rule anew, with its numbers of the round.
    return Rule(init, lambda steps: init(steps.now.tau.dtype))


@numbers_are_leaves
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
    all_positive(tau=tau, sigma=sigma)
    require(mu >= 0, f"mu is {mu}; give a number from zero up")

    def advance(steps: Planned) -> Planned:
        now = steps.following
        theta = 1 / jnp.sqrt(1 + mu * now.tau)
        return Planned(now, StepSizes(theta * now.tau, now.sigma / theta, theta))

    return Rule(_starting_from(tau, sigma, 1.0), advance)


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
    _, mu_x, _, mu_lam = _checked(constants, dual)
    omega = _sharp_omega(constants, dual)
    return constant(tau=1 / (mu_x * omega), sigma=1 / (mu_lam * (omega - 1)), theta=1 - 1 / omega)


def sharp_accelerated(constants: Constants, *, a: float | None = None) -> Rule:
    """Condition 5.1 with sharp constants, for psi that is merely convex; `a` as in `sublinear`."""
    L_xx, mu_x, L_lx, _ = _checked(constants)
    a = a or L_lx or 1.0
    return accelerated(tau=1 / (L_xx + L_lx**2 / a), sigma=1 / a, mu=mu_x)


class Guarded(NamedTuple):
    """The state of `auto`."""

    now: StepSizes  # of the open round
    before: StepSizes  # of the round before it
    following: tuple[Scalar, Scalar]  # tau and sigma of the round after it, as planned


def auto(constants: Constants, dual: Dual) -> Rule:
    """From Condition 5.1 to Condition 5.2, for every psi: linear convergence wherever there is any to be had.

    gamma_r = sigma_r / tau_r starts at gamma_c, where tau_0 = 0.9/L_xx and sigma_0 = L_xx/(9 L_lx^2); it grows as in
    Condition 5.1 until it is that of Condition 5.2, if that is larger, and then stays. The step sizes are the largest
    ones allowed at that ratio:

        gamma_{r+1} = min(gamma_r (1 + mu_x tau_r), max(gamma*, gamma_c)),    1/tau_r = L_xx + sigma_r L_lx^2
        theta_{r+1} = max(sigma_r/sigma_{r+1} / (1 + mu sigma_r), tau_r/tau_{r+1} (1 - mu_x tau_{r+1}))
        gamma* = mu_x omega / (mu (omega - 1)),    gamma_c = L_xx^2 / (8.1 L_lx^2)
        omega = (k+1)/2 + sqrt((k-1)^2/4 + L_lx^2/(mu_x mu)),    k = L_xx/mu_x

    mu is all that bends the problem in lam: mu_lam of psi, and mu_lx^2/L_xx of min_x Phi(x, lam). Why this converges
    stands in docs/mathematics.md, "Step sizes of SCAFF-PD".

    L_lx is measured in one place. Up to gamma* that is safe (`tuned` says why). Above it, where the losses move faster
    than L_lx allows, the guard holds sigma_r at max(L_xx/(9 L_r^2), gamma* tau_r), L_r the coupling of the last step,
    and theta_r at sigma_{r-1}/sigma_r and at 1.
    """
    return guarded(coefficients(constants, dual))


class Coefficients(NamedTuple):
    """The numbers in the formulas of `auto`."""

    L_xx: float
    mu_x: float
    L_lx: float
    mu: float  # all that bends the problem in lam
    start: float  # gamma_c
    star: float  # gamma*; infinite where nothing bends it


def coefficients(constants: Constants, dual: Dual) -> Coefficients:
    """What `auto` makes of measured constants."""
    L_xx, mu_x, L_lx, _ = _checked(constants)
    L_lx = max(L_lx, 1e-6 * L_xx)  # clients alike: lam does not matter, but sigma must be some number
    mu, start = dual.modulus + constants.mu_lx**2 / L_xx, L_xx**2 / (8.1 * L_lx**2)
    star = math.inf
    if mu > 0:
        k = L_xx / mu_x
        omega = max((k + 1) / 2 + math.sqrt((k - 1) ** 2 / 4 + L_lx**2 / (mu_x * mu)), 1.001)
        star = mu_x * omega / (mu * (omega - 1))
    return Coefficients(L_xx, mu_x, L_lx, mu, start, star)


@numbers_are_leaves
def guarded(numbers: Coefficients) -> Rule:
    """The rule `auto`; its numbers may be traced."""
    L_xx, mu_x, L_lx, mu, start, star = numbers

    def step_sizes(gamma: Any) -> tuple[Any, Any]:
        tau = 2 / (L_xx + (L_xx**2 + 4 * L_lx**2 * gamma) ** 0.5)
        return tau, gamma * tau

    def after(tau: Scalar, sigma: Scalar) -> tuple[Scalar, Scalar]:
        return step_sizes(jnp.minimum(sigma / tau * (1 + mu_x * tau), jnp.maximum(star, start)))

    def extrapolated(tau: Scalar, sigma: Scalar, before: StepSizes) -> StepSizes:
        dual_side = before.sigma / sigma / (1 + mu * before.sigma)
        theta = jnp.maximum(dual_side, before.tau / tau * (1 - mu_x * tau))
        return StepSizes(tau, sigma, jnp.minimum(theta, jnp.minimum(before.sigma / sigma, 1)))

    def init(dtype: DTypeLike) -> Guarded:
        tau, sigma = (jnp.asarray(value, dtype) for value in step_sizes(start))
        first = StepSizes(tau, sigma, jnp.ones((), dtype))
        return Guarded(first, first._replace(sigma=jnp.zeros((), dtype)), (tau, sigma))

    def advance(state: Guarded) -> Guarded:
        started = state.before.sigma > 0  # before the first round there is nothing to extrapolate from
        now = extrapolated(*state.following, state.now)
        now = now._replace(theta=jnp.where(started, now.theta, 1))
        return Guarded(now, state.now, after(*state.following))

    def guard(state: Guarded, coupling: Scalar) -> Guarded:
        most = L_xx / (9 * jnp.maximum(coupling, jnp.finfo(coupling.dtype).tiny))
        sigma = jnp.minimum(state.now.sigma, jnp.maximum(most, star * state.now.tau))
        held = sigma < state.now.sigma
        now = extrapolated(state.now.tau, sigma, state.before)
        return state._replace(now=StepSizes(*(jnp.where(held, a, b) for a, b in zip(now, state.now, strict=True))))

    return Rule(init, advance, guard)


def sampled(constants: Constants, dual: Dual, *, share: float) -> Rule:
    """For `scaffpd_partial`, whose rounds hear `share` = m/n of the clients: where `auto` ends, without extrapolation.

    A row of the server's tables is 1/share rounds old on average, so the players answer each other that much later:
    as if L_lx were 1/share times as large. Extrapolating losses of different ages does not pay.
    """
    require(0 < share <= 1, f"the share of clients in a round is {share}; give a number above 0 and up to 1")
    rule = auto(constants._replace(L_lx=constants.L_lx / share), dual)
    state = rule.init(jnp.result_type(float))
    for _ in range(1000):  # to where the ratio sigma/tau has settled, or to a good one where it grows for ever
        state = rule.next(state)
    tau, sigma, _ = map(float, state.now)
    return constant(tau=tau, sigma=sigma, theta=0.0)


class Stage(NamedTuple):
    """The state of `restarted`."""

    now: StepSizes
    left: Float[Array, ""]  # rounds of this stage after the open one


def restarted(constants: Constants, dual: Dual, *, length: float = 4.0) -> Rule:
    """Condition 5.2 for stochastic gradients, in stages: each halves 1 - theta and lasts twice as long.

    With constant step sizes the error falls like theta^r down to a ball of O((1 - theta) variance) (SAPD; Zhang, Aybat
    and Gurbuzbalaban 2021). A stage of `length`/(1 - theta) rounds gets to the ball, the next one has half the ball: so
    after R rounds the error is O(1/R). The first stage is `sharp_linear`.
    """
    _, mu_x, _, mu_lam = _checked(constants, dual)
    positive("length", length)
    first = _sharp_omega(constants, dual)

    def stage(omega: Scalar) -> Stage:
        now = StepSizes(1 / (mu_x * omega), 1 / (mu_lam * (omega - 1)), 1 - 1 / omega)
        return Stage(now, jnp.ceil(length * omega))

    def init(dtype: DTypeLike) -> Stage:
        return stage(jnp.asarray(first, dtype))

    def advance(state: Stage) -> Stage:
        longer = stage(2 / (1 - state.now.theta))
        over = state.left <= 0
        now = StepSizes(*(jnp.where(over, new, old) for new, old in zip(longer.now, state.now, strict=True)))
        return Stage(now, jnp.where(over, longer.left, state.left) - 1)

    return Rule(init, advance)


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


def _sharp_omega(constants: Constants, dual: Dual) -> float:
    half = constants.L_xx / constants.mu_x / 2
    return max(half + math.sqrt(half**2 + constants.L_lx**2 / (constants.mu_x * dual.modulus)), 1.001)


def _starting_from(tau: float, sigma: float, theta: float) -> Callable[[DTypeLike], Planned]:
    def init(dtype: DTypeLike) -> Planned:
        first = StepSizes(*(jnp.asarray(value, dtype) for value in (tau, sigma, theta)))
        return Planned(first, first)

    return init
