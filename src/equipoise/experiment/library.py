"""The papers' experiments: files in `experiments/`, each a sweep with an [about] of its own."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

import equipoise
from equipoise.errors import not_none, one_of
from equipoise.experiment import reading

PACKAGE = Path(equipoise.__file__).parent


def files() -> dict[str, Path]:
    """Inside an installed package, or at the root of the source."""
    places = (PACKAGE / "experiments", PACKAGE.parents[1] / "experiments")
    folder = next((place for place in places if place.is_dir()), None)
    existing = not_none(folder, "the experiments are not installed; run this from the source")
    return {path.stem: path for path in sorted(existing.glob("*.toml"))}


def about(name: str) -> dict[str, str]:
    """paper, shows, needs."""
    return _read(name)["about"]


def settings(name: str, assignments: Iterable[str] = ()) -> dict[str, Any]:
    settings = _read(name)
    settings.pop("about")
    return reading.override({"name": name, **settings}, assignments)


def listing() -> Table:
    table = Table("name", "what it shows, and what it needs", title="equipoise reproduce NAME", show_lines=True)
    for name in files():
        described = about(name)
        table.add_row(name, f"{described['paper']}: {described['shows']}\nneeds: {described['needs']}")
    return table


def _read(name: str) -> dict[str, Any]:
    paths = files()
    one_of("experiment", name, paths)
    return tomllib.loads(paths[name].read_text())
