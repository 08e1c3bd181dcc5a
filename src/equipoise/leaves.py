"""Numbers are leaves, structure is static: what a factory makes is a pytree of the numbers that it was given.

    algorithm = fedavg(task, everyone(5), steps=5, local_lr=0.1)
    jax.tree.leaves(algorithm)        [0.1, 1.0]: the step sizes
    jax.tree.structure(algorithm)     equal for all that differ in these numbers only: one compiled program

A number is a float or an array of them, as an argument of a factory marked with `numbers_are_leaves`, or inside of an
argument that is such a pytree. All else (a number of steps, a task, a cohort) is structure. With other leaves, traced
ones too, the factory is called again. What was made by anything else, or changed by `_replace`, has no leaves, and is
equal to itself only.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

Factory = TypeVar("Factory", bound=Callable[..., object])
Kind = TypeVar("Kind", bound=type)


class Recipe:
    """The arguments that something was made from. Of a copy changed by `_replace` it is none: see `is_of`."""

    def __init__(self, numbers: tuple, structure: "Structure", made: tuple):
        self.numbers, self.structure, self.made = numbers, structure, made[:-1]

    def is_of(self, value: tuple) -> bool:
        return all(a is b for a, b in zip(value, self.made, strict=False))


class Structure:
    """A factory and all of its arguments but the numbers.

    Something without numbers is kept as it is (`whole`) and never made again; without a factory, that is all there is.
    """

    def __init__(self, factory: Callable | None, tree: object, fixed: tuple, shapes: tuple = (), whole: object = None):
        self.factory, self.tree, self.fixed, self.shapes, self.whole = factory, tree, fixed, shapes, whole
        self.key = (factory, tree, tuple(map(_compared, fixed)), shapes)
        self.hash = hash(self.key)

    def arguments(self, numbers: Iterable) -> Any:
        """Of the factory, with these numbers."""
        left = iter(numbers)
        leaves = [next(left) if value is _NUMBER else value for value in self.fixed]
        return jax.tree.unflatten(self.tree, leaves)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self.hash == other.hash and self.key == other.key)

    def __hash__(self) -> int:
        return self.hash


@dataclass(frozen=True)
class _Compared:
    """Something that is compared by a key."""

    key: tuple
    value: object = field(compare=False)


def _compared(value: object) -> object:
    """What has no hash is equal to itself only."""
    try:
        hash(value)
    except TypeError:
        return _Compared(("itself", id(value)), value)
    return type(value), value


_NUMBER = object()  # stands where a number was, among what is fixed


def _is_number(value: object) -> bool:
    if isinstance(value, jax.Array | np.ndarray | np.floating):
        return jnp.issubdtype(value.dtype, jnp.inexact)
    return isinstance(value, float)


def _is_whole(value: object) -> bool:
    """A record of functions that is not known as a pytree of numbers, such as a task or an optimizer."""
    return isinstance(value, tuple) and type(value) not in _KINDS and any(map(callable, value))


_KINDS: set[type] = set()


def tree_of_numbers(kind: Kind) -> Kind:
    """A NamedTuple of functions, whose last field is its `recipe`, as a pytree of the numbers it was made from."""

    def flatten(value: Any) -> tuple[Iterable, Structure]:
        if value.recipe is None or not value.recipe.is_of(value):
            return (), Structure(None, None, (value,), whole=value)
        return value.recipe.numbers, value.recipe.structure

    def unflatten(structure: Structure, numbers: Iterable) -> Any:
        numbers = tuple(numbers)
        if structure.whole is not None:
            return structure.whole
        if (
            structure.factory is not None
            and all(map(_is_number, numbers))
            and tuple(map(np.shape, numbers)) == structure.shapes
        ):
            return structure.factory(**structure.arguments(numbers))
        # A tree of other things, such as axes or rows of numbers: no object, but a tree.
        nothing = kind(*[None] * (len(kind._fields)))  # type: ignore[attr-defined]
        return nothing._replace(recipe=Recipe(numbers, structure, nothing))

    _KINDS.add(kind)
    jax.tree_util.register_pytree_node(kind, flatten, unflatten)
    return kind


@overload
def numbers_are_leaves(factory: Factory) -> Factory: ...
@overload
def numbers_are_leaves(*, static: tuple[str, ...]) -> Callable[[Factory], Factory]: ...


def numbers_are_leaves(factory: Any = None, *, static: tuple[str, ...] = ()) -> Any:
    """`factory`, of which what it makes is a pytree of the numbers in its arguments, except those that are `static`.

    It then has to do with traced numbers what it does with known ones: `errors.require` lets them pass.
    """
    if factory is None:
        return functools.partial(numbers_are_leaves, static=static)
    signature = inspect.signature(factory)
    parameters = signature.parameters

    def bound(args: tuple, settings: dict[str, object]) -> Iterable[tuple[str, object]]:
        arguments = signature.bind(*args, **settings)
        arguments.apply_defaults()
        return arguments.arguments.items()

    @functools.wraps(factory)
    def make(*args: object, **settings: object) -> Any:
        made = factory(*args, **settings)
        if not hasattr(made, "recipe") or any(made is value for value in (*args, *settings.values())):
            return made
        given = {name: _argument(value, parameters[name], name in static) for name, value in bound(args, settings)}
        leaves, tree = jax.tree.flatten(given, is_leaf=_is_whole)
        numbers = tuple(filter(_is_number, leaves))
        fixed = tuple(_NUMBER if _is_number(value) else value for value in leaves)
        structure = Structure(call, tree, fixed, tuple(map(np.shape, numbers)))
        made = made._replace(recipe=Recipe(numbers, structure, made))
        structure.whole = None if numbers else made
        return made

    def call(**arguments: object) -> object:
        values = ((name, arguments[name]) for name in parameters)  # JAX sorts a dictionary
        given = inspect.BoundArguments(
            signature, OrderedDict((name, v.value if isinstance(v, _Compared) else v) for name, v in values)
        )
        return make(*given.args, **given.kwargs)

    return make


def _argument(value: object, parameter: inspect.Parameter, static: bool) -> object:
    if static:
        return _fixed(value)
    return float(value) if type(value) is int and parameter.annotation is float else value


def _fixed(value: object) -> _Compared:
    """A number, or a vector of them, that is part of the structure."""
    if isinstance(value, jax.Array | np.ndarray | list):
        array = np.asarray(value)
        return _Compared((type(value), array.shape, array.dtype.str, array.tobytes()), value)
    return _Compared((type(value), value), value)


def scaled(made: Any, names: tuple[str, ...], factor: ArrayLike) -> Any:
    """What is made where all numbers that are arguments of these names, of its factory and of those of its arguments,
    are `factor` times what they were."""
    structure = made.recipe.structure
    given = structure.arguments(made.recipe.numbers)
    for name, value in given.items():
        if name in names and _is_number(value):
            given[name] = value * factor
        elif type(value) in _KINDS and jax.tree.leaves(value):
            given[name] = scaled(value, names, factor)
    return structure.factory(**given)


def numbers_of(value: object, dtype: DTypeLike) -> list[jax.Array | np.ndarray]:
    """Its leaves, as operands of a program."""
    return [(jnp if isinstance(leaf, jax.Array) else np).asarray(leaf, dtype) for leaf in jax.tree.leaves(value)]
