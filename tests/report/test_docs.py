"""The code of docs/report.md runs as it stands there."""

import re
from pathlib import Path

from tests.report import folders

DOCS = Path(__file__).parents[2] / "docs" / "report.md"


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    folders.several(tmp_path / "runs" / "exam-compare", n=5)
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL):
        exec(code, {})
    assert "<!DOCTYPE html>" in (tmp_path / "page.html").read_text("utf-8")
    assert "| SCAFF-PD |" in capsys.readouterr().out


def test_the_sentence_is_that_of_the_page(five):
    from equipoise.report import numbers, wording

    text = " ".join(DOCS.read_text("utf-8").split())
    assert wording.cost_of_fairness(numbers.reported(five)).sentence in text
