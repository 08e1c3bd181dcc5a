"""docs/flower.md says what is so."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from equipoise.algorithms import ALGORITHMS
from equipoise.algorithms.overview import overview
from tests.deploy.grid import InProcess

IN_ONE_PROCESS = (
    "an old message reaches a site late",
    "Flower's network fails",
    "it has lost its whole folder",
    "a reply out of all proportion to what its site and the others ever sent",
    "so many of them that the run cannot go on",
    "masked: a sum out of all proportion to earlier ones",
    "a node joins under a name that is not its key's",
)
DOC = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()


def test_the_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL) if "open_site" in block)
    block = block.replace(', compiled=Path("compiled")', "")  # a setting for the whole process
    names: dict = {}
    exec(block, names)
    grid = InProcess(names["client"], ["north", "east", "south"])
    outcome = names["main"](grid, SimpleNamespace())
    assert capsys.readouterr().out.splitlines()[0].startswith("east 0.")
    assert outcome.rounds == 10
    assert np.isfinite(outcome.result.server.x).all()
    assert (tmp_path / "memory" / "north").is_dir()


def test_who_sees_what():
    """Every algorithm stands in the table, and the middle column says 'nothing' where it is."""
    rows = re.findall(r"^\| (`\w+`.*?) \| (.*?) \| (.*?) \|$", DOC, re.MULTILINE)
    said = {name: each for names, each, _ in rows for name in re.findall(r"`(\w+)`", names.split("(")[0])}
    assert said.keys() == ALGORITHMS.keys()
    for entry in overview():
        assert (said[entry.name] == "nothing") == (entry.seen == "0"), entry.name
        parts = said[entry.name].split(", ")
        assert ("gradient" in parts or "update" in parts) == ("d" in entry.seen), entry.name


def test_every_fault_of_the_table_is_seen_in_a_test():
    """By its name, which is in the tests of federations or, where those cannot do it, in the tests of faults."""
    (table,) = re.findall(r"^\| what happens \|.*?\n\n", DOC, re.MULTILINE | re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line]
    assert len(rows) >= 18
    tests = Path(__file__).parents[1]
    there = {}
    in_one = [tests / "deploy" / name for name in ("test_faults.py", "test_lengths.py", "test_names.py")]
    for file in (*(tests / "flower").glob("test_*.py"), *in_one):
        there |= dict.fromkeys(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE), file.parent.name)
    for what, *_, names in rows:
        found = re.findall(r"`(test_\w+)`", names)
        assert found, what
        assert [name for name in found if name not in there] == [], what
        real = "flower" in {there[name] for name in found}
        assert real or what in IN_ONE_PROCESS, what
