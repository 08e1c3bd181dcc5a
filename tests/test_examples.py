"""The examples of the documentation run as a reader runs them, from an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "99"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.thorough(witness="test_readme.py::test_the_code_runs")
def test_objectives_side_by_side(tmp_path):
    said = run("compare_objectives.py", tmp_path)
    rows = [line.split() for line in said.splitlines() if re.match(r"\s+[0-9.]+ +[0-9.]+%", line)]
    assert [float(row[0]) for row in rows] == [100, 0.1, 0.001]
    effective = [float(row[3]) for row in rows]
    assert effective == sorted(effective, reverse=True)  # the smaller rho, the fewer clients decide
    assert 4.9 < effective[0] <= 5
    assert all(float(row[1].rstrip("%")) > 80 for row in rows)
    assert all(0 <= float(row[4]) < 1e-4 for row in rows)


@pytest.mark.thorough(witness="cli/test_experiments.py::test_from_silo_files_to_predictions")
def test_from_files_to_a_decision(tmp_path):
    said = run("csv_to_decision.py", tmp_path)
    assert {file.stem for file in (tmp_path / "clinics").iterdir()} == {"village", "town", "city"}
    for word in ("village", "town", "city", "take the", "chance"):
        assert word in said
    assert not (tmp_path / "runs").exists()
