"""What the README says is run, not believed."""

import re
from pathlib import Path

import equipoise as eq

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_code_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "worst20" in capsys.readouterr().out


def test_the_files_it_names_exist():
    for path in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / path).exists(), path


def test_the_objectives_it_names_are_all():
    named = re.search(r"Objectives: (.*?);", README, re.DOTALL).group(1)
    assert set(re.findall(r"`(\w+)`", named)) == set(eq.objectives.DUALS)
