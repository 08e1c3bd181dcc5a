"""Every command of the documentation is one; what needs no more than a page gives is run, from an empty folder."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from equipoise.cli import app
from tests.problems import few
from tests.searches import tiny

ROOT = Path(__file__).parents[1]
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "examples" / "three-silos" / "README.md")
TRAIN = ("run", "compare", "sweep", "path")


def commands(page):
    """The command lines of a page, in blocks and indented, as lists of words; `> file` is left away."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    lines = re.findall(r"^(?:    )?(equipoise(?: .*)?)$", text, re.MULTILINE)
    return [shlex.split(line.partition(" > ")[0], comments=True)[1:] for line in lines]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: page.parent.name + page.stem
)
def test_every_command_is_understood(page):
    top = typer.main.get_command(app)
    for words in commands(page):
        context, group, rest = typer.Context(top, info_name="equipoise"), top, list(words)
        while rest and hasattr(group, "resolve_command"):
            name, group, rest = group.resolve_command(context, rest)
            context = typer.Context(group, info_name=name, parent=context)
        if not hasattr(group, "resolve_command"):
            group.parse_args(context, rest)  # ends in a UsageError where an option is none, or an argument is missing


@pytest.mark.parametrize(
    "name",
    few(
        ["README.md"],
        ["README.md", "docs/experiments.md"],
        "::test_the_commands_of_a_page_run_one_after_the_other[README.md]",
    ),
)
def test_the_commands_of_a_page_run_one_after_the_other(name, tmp_path, monkeypatch):
    """With the stand-in for the engine of `tests/searches`, and the files that the page speaks of."""
    tiny.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    silos = tiny.silos(tmp_path / "hospitals")
    for file in silos.iterdir():
        file.write_text(file.read_text().replace("x,y", "x,readmitted"))
    (tmp_path / "new.csv").write_text("x\n1\n7\n")
    np.savez(tmp_path / "new.npz", inputs=np.ones((2, 64), np.uint8))  # digits
    done = set()
    for words in commands(ROOT / name):
        words = [*(sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob(w)) if "*" in w else [w] for w in words)]
        words = [word for several in words for word in several]
        said = call(words)
        if words[0] == "resume":  # of a run that was not stopped
            assert "there is nothing to resume" in said.output
            continue
        assert said.exit_code == 0, (words, said.output)
        if words == ["config"]:
            (tmp_path / "mine.toml").write_text(said.output)
        done.add(words[0])
    assert done >= {"run", "compare", "predict"}
    assert list(tmp_path.rglob("*.html"))


def call(words):
    more = ["--set", "run.rounds=2"] if words[0] in TRAIN else []
    return CliRunner().invoke(app, [*words, *more])
