"""What goes wrong, said in one sentence: what was given, what is allowed, what to do."""

import difflib
import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

DIRECTIONS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})  # change the order of letters


def printable(text: str, keep: str = "\t") -> str:
    """What somebody else may have written, with everything escaped that could move a cursor, hide or make a line."""

    def harmless(c: str) -> bool:
        return unicodedata.category(c) not in ("Cc", "Zl", "Zp") and unicodedata.bidirectional(c) not in DIRECTIONS

    return "".join(c if c in keep or harmless(c) else c.encode("unicode_escape").decode() for c in text)


class EquipoiseError(Exception):
    """Everything that Equipoise raises on purpose."""


class InputError(EquipoiseError, ValueError):
    """An argument, a file or a setting cannot be used as it is."""

    def __init__(self, sentence: str):
        """A line break in what was given is shown as one, and does not make one."""
        super().__init__(printable(sentence))


class FileError(EquipoiseError, OSError):
    """A file or a folder cannot be read or written."""


class Refusal(EquipoiseError):
    """What somebody else sent is not what was agreed, or more than is allowed; the sentence says how."""

    def __init__(self, sentence: str):
        super().__init__(printable(sentence))


class StopRun(Refusal):
    """A Refusal after which the site answers nothing of that configuration until its owner says so again."""


class LostReplies(UserWarning):
    """Some clients' replies were not finite; they were counted and left out."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a run; `result` holds everything computed until then."""

    def __init__(self, result: Any):
        rounds = "some" if isinstance(result, list) else result.rounds
        super().__init__(f"stopped after {rounds} rounds; nothing of them is lost")
        self.result = result


def is_concrete(*values: object) -> bool:
    """Whether the values are numbers by now: inside jit and vmap they may be tracers, which no check can see."""
    jax = sys.modules.get("jax")  # which is not loaded for the sake of a check
    return jax is None or not any(isinstance(value, jax.core.Tracer) for value in values)


def require(condition: object, sentence: str) -> None:
    """Raises InputError(sentence) unless `condition` holds, or is not known yet (see `is_concrete`)."""
    if is_concrete(condition) and not condition:
        raise InputError(sentence)


T = TypeVar("T")


def not_none(value: T | None, sentence: str | None = None) -> T:
    """`value`; where it is None an InputError(sentence), or, without a sentence, an error of whoever called."""
    if value is None:
        raise AssertionError("what has to be there is None") if sentence is None else InputError(sentence)
    return value


def refuse_unless(condition: object, sentence: str) -> None:
    """Raises Refusal(sentence) unless `condition` holds."""
    if not condition:
        raise Refusal(sentence)


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around the import of a package that only an extra of Equipoise installs: where it is missing, how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{what} need one more package ({error.name}): pip install 'equipoise[{extra}]'") from None


def positive(name: str, value: Any) -> None:
    """Step sizes and the like, checked where an algorithm is built."""
    require(
        isinstance(value, int | float) or getattr(value, "ndim", None) == 0,
        f"{name} is {value!r}; give a number",
    )
    require(value > 0, f"{name} is {value}; give a number above zero")


def all_positive(**values: Any) -> None:
    """Several of them, each by its name."""
    for name, value in values.items():
        positive(name, value)


def within(name: str, value: Any, low: float, high: float) -> None:
    """A number from `low` to `high`."""
    require((value >= low) & (value <= high), f"{name} is {value}; give a number from {low:g} to {high:g}")


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """A name that does not exist, with the nearest one that does."""
    names = sorted(allowed)
    return InputError(f"there is no {kind} '{given}'{nearest(given, names)} (known: {', '.join(names)})")


def one_of(kind: str, name: str, allowed: Collection[str]) -> None:
    """Raises `unknown` where the name is not among the allowed ones."""
    if name not in allowed:
        raise unknown(kind, name, allowed)


def nearest(given: object, allowed: Iterable[str]) -> str:
    """ "; did you mean '...'?", where one of the names is near."""
    near = difflib.get_close_matches(str(given), list(allowed), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
