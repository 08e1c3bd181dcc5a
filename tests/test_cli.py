import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiment import robust_regression
from equipoise.experiment.robust_regression import Curve

run = CliRunner(env={"COLUMNS": "200"}).invoke
README = Path(__file__).parent.parent / "README.md"


def test_help_lists_every_command():
    out = run(app, ["--help"])
    assert out.exit_code == 0
    for command in ("demo", "algorithms", "data", "fit", "predict"):
        assert command in out.output
        assert run(app, [command, "--help"]).exit_code == 0


def test_algorithms_prints_the_table():
    out = run(app, ["algorithms"])
    assert out.exit_code == 0
    row = next(line for line in out.output.splitlines() if "scaffpd_secure" in line)
    assert "2d + 2" in row
    assert "collect → weigh → improve" in row


CURVES = [
    Curve("SCAFF-PD", 0.1, "steps.tuned", np.array([1.0, 1e-7, 1e-13]), np.array([0.1, 0.2])),
    Curve("DRFA", 0.1, "best of 6", np.array([1.0, 1e-4, 1e-4]), np.array([0.1, 0.3])),
]


def test_demo_prints_a_table_and_writes_a_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(robust_regression, "run", lambda **how: iter(CURVES))
    out = run(app, ["demo", "--out", str(tmp_path)])
    assert out.exit_code == 0
    assert re.search(r"0\.1 │ SCAFF-PD │\s+2 │\s+2 │\s+3 │\s+1\.0e-13 │\s+0\.2000", out.output)
    assert re.search(r"DRFA\s+│\s+2 │\s+— │\s+— │", out.output)
    assert (tmp_path / "robust_regression.png").exists()


def test_demo_shows_what_is_finished_when_it_is_stopped(tmp_path, monkeypatch):
    def stopped(**how):
        yield CURVES[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(robust_regression, "run", stopped)
    out = run(app, ["demo", "--out", str(tmp_path)])
    assert out.exit_code == 130
    assert "SCAFF-PD" in out.output
    assert (tmp_path / "robust_regression.png").exists()


def test_the_module_is_the_command():
    out = subprocess.run([sys.executable, "-m", "equipoise", "--help"], capture_output=True, text=True, check=True)
    assert "One model that works for every data owner" in out.stdout


@pytest.mark.parametrize("command", re.findall(r"`equipoise ([a-z]+)[^`]*`", README.read_text()))
def test_commands_in_the_readme_exist(command):
    assert run(app, [command, "--help"]).exit_code == 0
