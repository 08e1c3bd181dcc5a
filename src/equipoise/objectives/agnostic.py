"""Agnostic federated learning: the worst client (Mohri et al. 2019; SCAFF-PD eq (3.3) with rho = 0)."""

import jax.numpy as jnp
from jax import Array

from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import clients, make_dual, no_penalty
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.projections import SearchStart, simplex
from equipoise.objectives.record import Record


@numbers_are_leaves
def agnostic(n: int) -> Dual:
    """psi = 0 on the simplex Delta: the maximum of the losses.

    prox(v, step) = argmin_{lam in Delta} |lam - v|^2, whatever the step. Equal worst clients share the best
    response equally.
    """
    n = clients(n)

    def prox(v: Array, step: Array | float, start: SearchStart | None = None) -> Array:
        return simplex(v, start=start)

    def best_response(losses: Array) -> Array:
        worst = (losses == jnp.max(losses)).astype(losses.dtype)
        return worst / jnp.sum(worst)

    operators = no_penalty, prox, best_response, lambda losses: jnp.max(losses)
    return make_dual(Dual("agnostic", n, *operators, modulus=0.0, interior=Interior.weights(n), prox_given=prox))


AGNOSTIC = Record("agnostic", agnostic)
