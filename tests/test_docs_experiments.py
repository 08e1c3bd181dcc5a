"""What docs/experiments.md says is run, not believed."""

import re
import tomllib
from pathlib import Path

from equipoise.experiment import folders, plan, records
from tests.searches import tiny

DOC = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text()


def test_the_file_can_be_planned():
    text, *_ = re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)
    settings = tomllib.loads(text)
    assert [job.label for job in plan.compare(settings)] == ["DRFA", "SCAFF-PD"]
    assert len(plan.sweep(settings).trials) == 8


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    tiny.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    exec(compile(code, "experiments.md", "exec"), {})
    assert "runs/four run" in capsys.readouterr().out


def test_the_files_it_names_are_those_of_a_run_folder():
    cells = re.findall(r"^\| (`[\w.-]+`(?:, `[\w.-]+`)*) \|", DOC, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([\w.-]+)`", cell)}
    assert named == {*folders.MADE["run"], *folders.MADE["plan"], records.MARKER}
