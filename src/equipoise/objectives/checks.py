"""The border of every dual: arguments are checked once, arrays when they arrive, each in a sentence."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise.errors import InputError, is_concrete, positive, require
from equipoise.objectives.dual import Dual


def clients(n: object) -> int:
    if isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1:
        return int(n)
    raise InputError(f"n is {n!r}; give the number of clients, an integer of at least 1")


def number(name: str, value: Any, traced: bool = True) -> float:
    """A finite number above zero, or one that jit or vmap will know (`traced`)."""
    positive(name, value)
    if not is_concrete(value):
        require(traced, f"{name} shapes the program and cannot be traced; build an objective for each {name}")
        return value
    require(math.isfinite(value), f"{name} is {value}; give a finite number above zero")
    return float(value)


def reference(p: ArrayLike | None, n: int, zeros: bool = False) -> np.ndarray:
    """The reference weights in float64, 1/n unless given, summing to 1 to the last digit."""
    if p is None:
        return np.full(n, 1 / n)
    p = np.asarray(p, np.float64)
    require(p.shape == (n,), f"p has shape {p.shape}; give one weight for each of the {n} clients")
    low = p.min()
    require(
        low >= 0 if zeros else low > 0,
        f"p has a weight of {low}; give weights that are {'not negative' if zeros else 'above zero'}",
    )
    require(abs(p.sum() - 1) < 1e-4, f"p sums to {p.sum()}; divide it by its sum")
    return p / p.sum()


def no_penalty(lam: Array) -> Array:
    """psi of a dual that is a set and nothing else."""
    return jnp.zeros((), lam.dtype)


def value_of(
    best_response: Callable[[Array], Array], penalty: Callable[[Array], Array] = no_penalty
) -> Callable[[Array], Array]:
    """What the best response is worth: the value of a dual where no formula says it better."""

    def value(losses: Array) -> Array:
        lam = best_response(losses)
        return jnp.sum(losses * lam) - penalty(lam)

    return value


def finite(x: Array) -> Array:
    """x, where it overflows the largest number there is."""
    return jnp.minimum(x, jnp.finfo(x.dtype).max)


def make_dual(dual: Dual) -> Dual:
    """The dual as users get it.

    Vectors of the wrong length or kind are an error (a prox that knows n would otherwise broadcast in
    silence), the operators are compiled once per dual, and the gradient of `value` is `best_response`
    (Danskin), so nothing is differentiated through a root search.
    """

    def vector(x: ArrayLike, what: str) -> Array:
        x = jnp.asarray(x)
        require(
            x.shape == (dual.n,),
            f"{dual.name} over {dual.n} clients was given {what} of shape {x.shape}; give one for each",
        )
        require(
            jnp.issubdtype(x.dtype, jnp.floating),
            f"{dual.name} was given {what} of type {x.dtype}; give floating point numbers",
        )
        return x

    def derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (losses,), (change,) = primals, tangents
        return value(losses), jnp.sum(dual.best_response(losses) * change)

    def checked(operator: Callable[..., Array], what: str) -> Callable[..., Array]:
        program = jax.jit(operator)

        def call(x: ArrayLike, *step_and_start: PyTree) -> Array:
            x = vector(x, what)
            step, start = step_and_start[:1], step_and_start[1:]
            return program(x, *(jnp.asarray(number, x.dtype) for number in step), *start)

        return call

    value = jax.custom_jvp(dual.value)
    value.defjvp(derivative)
    return dual._replace(
        penalty=checked(dual.penalty, "weights"),
        prox=checked(dual.prox, "a point"),
        best_response=checked(dual.best_response, "losses"),
        value=checked(value, "losses"),
        prox_given=None if dual.prox_given is None else checked(dual.prox_given, "a point"),
    )
