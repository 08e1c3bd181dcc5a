"""Settings as people write them, before they are a `Config`: one file with all of them, other files, and --set."""

import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from equipoise.errors import require
from equipoise.experiment import records
from equipoise.experiment.config import NAMES, SECTIONS, parse, section_of
from equipoise.experiment.mistakes import checked
from equipoise.extensions import is_reference


def read(path: str | Path) -> dict[str, Any]:
    """The settings of a file, not yet checked."""
    path = Path(path)
    require(path.is_file(), f"there is no file {path}; `equipoise config > {path.name}` writes one to begin with")
    return checked(str(path), records.read_toml(path))


def override(settings: Mapping[str, object], assignments: Iterable[str]) -> dict[str, Any]:
    """`settings` with "section.key=value" set; the value is TOML, or else a text."""
    out = deepcopy(dict(settings))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        require(equals and key.strip(), f"--set {assignment!r} says nothing to set; write section.key=value")
        try:
            parsed = tomllib.loads(f"v = {text}")
        except (tomllib.TOMLDecodeError, RecursionError, ValueError):
            parsed = {}
        value = parsed["v"] if parsed.keys() == {"v"} else text.strip()  # a new line would set more than one
        put(out, key.strip(), value)
    return checked("--set", out)


def put(settings: dict[str, Any], key: str, value: object) -> None:
    """Sets "section.key". Another algorithm or objective keeps of the settings before only those that it knows."""
    *sections, last = key.split(".")
    table = settings
    for section in sections:
        table = table.setdefault(section, {})
        require(isinstance(table, dict), f"{key} cannot be set: {section} is not a table")
    table[last] = value
    if key in ("algorithm.name", "objective.name"):
        kind = sections[0]
        if isinstance(value, str) and (value in NAMES[kind] or is_reference(value)):
            settings[kind] = {k: v for k, v in table.items() if k in section_of(kind, value).model_fields}


def template() -> str:
    start = parse({})
    parts = ["# Every setting and its default. Delete what you do not change."]
    parts.append(f'name = "{start.name}"  # of the run folder')
    for key in ("data", "partition", "model", "objective", "algorithm", "run"):
        section = getattr(start, key)
        parts.append(f"\n[{key}]" + (f"  # {inspect.getdoc(SECTIONS[key])}" if key in SECTIONS else ""))
        if key in NAMES:
            parts.append(f"# one of {', '.join(NAMES[key])}")
        for name, field in type(section).model_fields.items():
            value = "auto" if field.default == "auto" else getattr(section, name)
            line = f"# {name} = ..." if value is None else f"{name} = {json.dumps(value)}"  # of such values, TOML too
            parts.append(line + (f"  # {field.description}" if field.description else ""))
    for key in ("convexify", "federation", "privacy", "personal"):
        optional = SECTIONS[key]
        parts.append(f"\n# [{key}]  # {inspect.getdoc(optional)}")
        for name, field in optional.model_fields.items():
            start_value = "..." if field.is_required() or field.default is None else json.dumps(field.default)
            parts.append(f"# {name} = {start_value}  # {field.description}")
    parts.append(COMPARE_HELP)
    return "\n".join(parts)


COMPARE_HELP = """
# Several methods on one federation, for `equipoise compare`: each table holds settings of [algorithm], what
# [algorithm] says above and the method knows too is inherited; objective = {...} gives it another objective,
# model, convexify and run = {...} other settings of those sections.
# [compare.DRFA]
# name = "drfa"
# dual_lr = 0.01

# Many runs, for `equipoise sweep`: all combinations of the grid, the best by a measure, over several seeds.
# [sweep]
# seeds = [0, 1, 2]
# measure = "worst20"          # mean, worst20, best20, min, std, ...
# [sweep.grid]
# "algorithm.local_lr" = [0.01, 0.1]
"""
