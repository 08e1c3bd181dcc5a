"""What is wrong with a configuration, in one sentence: the key, the value, what is allowed, the nearest name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from equipoise.errors import InputError, nearest, require


def mistake(
    source: str,
    error: ValidationError,
    settings: Mapping[str, Any],
    fields: Callable[[list[str], Mapping[str, Any]], list[str]],
    within: tuple[str, ...] = (),
) -> InputError:
    """The first problem: the key, the value, what is allowed. `fields` knows the keys of a section.

    `within` is the section that was validated, where it was not all of `settings`.
    """
    # A key that does not exist before one that is missing: the one may be a typo of the other.
    problems = sorted(error.errors(), key=lambda p: p["type"] != "extra_forbidden")
    first = problems[0]["loc"][:2]
    # Of a value that may be one thing or another, the reading that went furthest.
    problem = max((p for p in problems if p["loc"][:2] == first), key=lambda p: len(p["loc"]))
    kinds = [p for p in error.errors() if p["loc"][: len(problem["loc"]) - 1] == problem["loc"][:-1]]
    names = _every_name(settings)
    where = [*within, *(str(part) for part in problem["loc"] if str(part) in names or isinstance(part, int))]
    if problem["type"] == "extra_forbidden":
        *sections, key = where
        return no_key(source, ".".join(sections), key, fields(sections, settings))
    key, given = ".".join(where) or "it", problem["input"]
    if problem["type"] == "missing":
        return InputError(f"{source}: {key} has no {problem['loc'][-1]}; give it")
    allowed = " or ".join(dict.fromkeys(_allowed(p) for p in kinds))
    expected = problem.get("ctx", {}).get("expected", "").replace(" or ", ",").split(",")
    hint = nearest(given, [part.strip(" '") for part in expected]) if isinstance(given, str) else ""
    return InputError(f"{source}: {key} is {shown(given)}; give {allowed}{hint}")


def _allowed(problem: ErrorDetails) -> str:
    bounds = {"greater_than": "above", "greater_than_equal": "at least"}
    bounds |= {"less_than": "below", "less_than_equal": "up to"}
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in bounds:
        (bound,) = context.values()
        return f"a number {bounds[kind]} {bound if isinstance(bound, int) else f'{bound:g}'}"
    if kind in ("value_error", "literal_error"):
        return str(context["error" if kind == "value_error" else "expected"])
    if kind == "too_short":
        return f"at least {context['min_length']} values"
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text"}
    words |= {"tuple": "a list", "list": "a list", "model": "a table", "dict": "a table"}
    return next((word for key, word in words.items() if kind.startswith(key)), problem["msg"])


def shown(value: object) -> str:
    """A value as a file has it: true, 'a text', [1, 2], { name = 'kl' }."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {shown(below)}" for key, below in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)


def _every_name(settings: object) -> set[str]:
    if not isinstance(settings, Mapping):
        return set()
    return set(settings).union(*(_every_name(v) for v in settings.values()))


def no_key(source: str, section: str, key: str, allowed: Iterable[str]) -> InputError:
    where = f"[{section}]" if section else "the file"
    return InputError(f"{source}: {where} has no key '{key}'{nearest(key, allowed)} (known: {', '.join(allowed)})")


def no_value(source: str, key: str, value: object, allowed: Iterable[str]) -> InputError:
    return InputError(f"{source}: {key} is {shown(value)}{nearest(value, allowed)} (known: {', '.join(allowed)})")


def checked(source: str, settings: object, key: str = "") -> Any:
    """`settings`, whose values all are what a run folder can hold: texts, numbers, lists and tables."""
    where = f"{source}: {key or 'it'}"
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            below = f"{key}.{name}" if key else str(name)
            checked(source, str(name), below)
            checked(source, value, below)
    elif isinstance(settings, list | tuple):
        for value in settings:
            checked(source, value, key)
    elif isinstance(settings, str):
        surrogates = any("\ud800" <= letter <= "\udfff" for letter in settings)  # bytes that are not UTF-8
        require(not surrogates, f"{where} is {settings!r}, which is not a Unicode text; give one")
    elif isinstance(settings, int) and not isinstance(settings, bool):
        digits = int(abs(settings).bit_length() * 0.30103) + 1  # all of them could be too many to show
        require(abs(settings) < 2**63, f"{where} is a number of {digits} digits; give a number below 2^63")
    else:
        time = f"{where} is {settings}, a date or a time, which no setting is; give it as a text, in quotes"
        require(isinstance(settings, bool | float | None), time)
    return settings
