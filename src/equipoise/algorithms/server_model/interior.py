"""What the saddle problems of `scaffpd_model` need of a dual, found from its penalty where it does not say so."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from equipoise._jax import cached_program
from equipoise.algorithms.server_model import saddle
from equipoise.errors import require
from equipoise.objectives.dual import Dual, Interior

TRIED, EXACT = 8, 1e-6  # clients whose loss is tried alone; how near the values have to be, relative to the losses


def interior_of(dual: Dual) -> Interior:
    """The dual's own, or that of a smooth penalty on all of the simplex.

    Whether it is one is tried: the weights that are found have to be worth what `dual.value` says.
    """
    return _of_smooth_penalty(dual) if dual.interior is None else dual.interior


@cached_program  # numbers of a dual may be traced, which have no hash
def _of_smooth_penalty(dual: Dual) -> Interior:
    require(
        dual.simplex,
        f"the weights of '{dual.name}' are not shares, which SCAFF-PD with a model needs; "
        "give an objective on the simplex, such as chi2, or use scaffpd",
    )
    weights = Interior.weights(dual.n, smooth=dual.penalty)
    require(
        _fits(dual, weights),
        f"'{dual.name}' is not a smooth penalty on all of the simplex, from which SCAFF-PD with a model could find its "
        "weights by itself; say what it is (equipoise.objectives.dual.Interior, as Dual(interior=..)), or use scaffpd",
    )
    return weights


def _fits(dual: Dual, interior: Interior) -> Array:
    n = dual.n
    with jax.enable_x64(True):
        alone = np.eye(n)[np.unique(np.linspace(0, n - 1, min(n, TRIED)).astype(int))]
        # Losses that the penalty hardly resists: if weights may not go to a corner, it shows.
        most = 1 + 10 * np.max(np.nan_to_num([dual.penalty(jnp.asarray(corner)) for corner in alone], posinf=0.0))
        tried = np.concatenate([alone, most * alone, np.linspace(0, 1, n)[None]])

        def off(losses: Array) -> Array:
            solution = saddle.solve(interior, losses, jnp.zeros((n, 0)), jnp.zeros((n, 0, 0)), jnp.zeros((n, n)))
            value = losses @ solution.lam - dual.penalty(solution.lam)
            return jnp.abs(value - dual.value(losses)) / (1 + jnp.max(jnp.abs(losses)))

        return jnp.all(jax.jit(jax.vmap(off))(jnp.asarray(tried)) <= EXACT)
