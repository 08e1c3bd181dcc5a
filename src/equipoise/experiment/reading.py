"""Settings as people write them, before they are a `Config`: from a TOML file, and from --set section.key=value."""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from equipoise.errors import require
from equipoise.experiment import records
from equipoise.experiment.config import NAMES, section_of
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
