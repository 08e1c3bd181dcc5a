"""Terminals of every encoding, names in every script: commands end as elsewhere, and their pages are written."""

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from tests.problems import few
from tests.searches import tiny

ENCODINGS = ("ascii", "latin-1", "cp437", "cp1252", "koi8-r", "shift_jis", "gb18030", "utf-16", "utf-8")
NAMES = ("Zürich", "Ærø", "身長", "Москва", "a\u0301", "🏥", "بيروت")


@pytest.fixture
def federation(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(NAMES):
        (tmp_path / "søer").mkdir(exist_ok=True)
        rows = "\n".join(f"{j},{'já' if (i + j) % 2 else 'нет'}" for j in range(8))
        (tmp_path / "søer" / f"{name}.csv").write_text(f"größe,y\n{rows}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("encoding", few(["ascii"], ENCODINGS, "::test_no_letter_stops_a_command[ascii]"))
def test_no_letter_stops_a_command(federation, encoding):
    quick = ["--set", "run.rounds=1", "--set", "algorithm.name=fedavg", "--set", "algorithm.local_lr=0.1"]
    silos = ["--silos", "søer", "--label", "y", *quick]
    one = ["--set", "sweep={seeds=[0]}", "--set", "compare={}"]
    commands = {
        "run": ["run", *silos, "--out", "run"],
        "sweep": ["sweep", *silos, *one, "--out", "sweep"],
        "report": ["report", "run", "--out", "of.html"],
        "info": ["data", "info", "søer", "--label", "y"],
        "algorithms": ["algorithms", "scaffpd"],
        "mistake": ["run", "--silos", "сёла"],
        "help": ["--help"],
    }
    for name, words in commands.items():
        done = CliRunner(charset=encoding).invoke(app, words)
        assert isinstance(done.exception, SystemExit | None), (words, done.exception)
        assert done.exit_code == (2 if name == "mistake" else 0), (words, done.output)
    for page in ("run/report.html", "sweep/report.html", "of.html"):
        assert "Zürich" in (federation / page).read_text(encoding="utf-8")
