"""Terminals of every encoding, names in every script: commands end as elsewhere, and their pages are written."""

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
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


def test_no_letter_stops_a_command(federation):
    quick = ["--set", "run.rounds=1", "--set", "algorithm.name=fedavg", "--set", "algorithm.local_lr=0.1"]
    silos = ["--silos", "søer", "--label", "y", *quick]
    for encoding in ENCODINGS:
        commands = {
            "run": ["run", *silos, "--out", f"{encoding}-run"],
            "sweep": [
                "sweep",
                *silos,
                "--set",
                "sweep={seeds=[0]}",
                "--set",
                "compare={}",
                "--out",
                f"{encoding}-sweep",
            ],
            "report": ["report", f"{encoding}-run", "--out", f"{encoding}.html"],
            "info": ["data", "info", "søer", "--label", "y"],
            "algorithms": ["algorithms", "scaffpd"],
            "mistake": ["run", "--silos", "сёла"],
            "help": ["--help"],
        }
        for name, words in commands.items():
            done = CliRunner(charset=encoding).invoke(app, words)
            assert isinstance(done.exception, SystemExit | None), (encoding, words, done.exception)
            assert done.exit_code == (2 if name == "mistake" else 0), (encoding, words, done.output)
        for page in (f"{encoding}-run/report.html", f"{encoding}-sweep/report.html", f"{encoding}.html"):
            assert "Zürich" in (federation / page).read_text(encoding="utf-8")
