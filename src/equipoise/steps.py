"""Step sizes of primal-dual methods, round by round, and the constants they are made of.

    tau, sigma, theta    state.now               primal step, dual step, extrapolation of round r
    L_xx                 constants.L_xx          smoothness of the f_i
    mu_x                 constants.mu_x          their strong convexity
    L_lx                 constants.L_lx          Lipschitz constant of x -> (f_1(x) .. f_n(x)), without its mean
    mu_lam               dual.modulus            strong convexity of psi

SCAFF-PD asks its rule for the step sizes of a round when the round opens:

    state = rule.init(x.dtype)
    state = rule.next(state)          # once per round, the first one included
    tau, sigma, theta = state.now

Conditions and equations are those of SCAFF-PD (Yu, Karimireddy, Ma, Jordan): Conditions 5.1 and 5.2 are 3.1 and 3.2
in its workshop version, whose appendix E holds the constants.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from equipoise.errors import positive, require


class Now(NamedTuple):
    """The step sizes of one round."""

    tau: Float[Array, ""]
    sigma: Float[Array, ""]
    theta: Float[Array, ""]


class Steps(NamedTuple):
    """A rule's state."""

    now: Now  # of the open round
    ahead: Now  # of the round after it


class Rule(NamedTuple):
    """Step sizes as two pure functions."""

    init: Callable[[DTypeLike], Steps]  # before the first round
    next: Callable[[Steps], Steps]  # when a round opens


class Constants(NamedTuple):
    """What the step sizes of Conditions 5.1 and 5.2 depend on."""

    L_xx: float  # max_i of the largest eigenvalue of the Hessian of f_i
    mu_x: float  # min_i of the smallest
    L_lx: float  # |P C|_2, rows of C the gradients of the f_i, P removes their mean


def constant(*, tau: float, sigma: float, theta: float) -> Rule:
    """The same step sizes in every round (Condition 5.2)."""
    positive("tau", tau)
    positive("sigma", sigma)
    require(0 <= theta <= 1, f"theta is {theta}; give a number from 0 to 1")
    return _rule(tau, sigma, theta, lambda now: now)


def accelerated(*, tau: float, sigma: float, mu: float) -> Rule:
    """Condition 5.1, for psi that is merely convex: tau_r falls and sigma_r grows, their product stays.

        theta_{r+1} = 1/sqrt(1 + mu tau_r),    tau_{r+1} = theta_{r+1} tau_r,    sigma_{r+1} = sigma_r / theta_{r+1}

    That is the condition with gamma_r = sigma_r / tau_r and with the recursion of tau_r that it leaves out and
    Eq. (E.33) has; theta_0 = 1.

    Args:
        tau: tau_0.
        sigma: sigma_0.
        mu: strong convexity to count on; 0 keeps the steps constant.
    """
    positive("tau", tau)
    positive("sigma", sigma)
    require(mu >= 0, f"mu is {mu}; give a number from zero up")

    def after(now: Now) -> Now:
        theta = 1 / jnp.sqrt(1 + mu * now.tau)
        return Now(theta * now.tau, now.sigma / theta, theta)

    return _rule(tau, sigma, 1.0, after)


def _rule(tau: float, sigma: float, theta: float, after: Callable[[Now], Now]) -> Rule:
    def init(dtype: DTypeLike) -> Steps:
        first = Now(*(jnp.asarray(value, dtype) for value in (tau, sigma, theta)))
        return Steps(first, first)

    def advance(steps: Steps) -> Steps:
        return Steps(steps.ahead, after(steps.ahead))

    return Rule(init, advance)
