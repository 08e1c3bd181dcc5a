"""`equipoise algorithms`: a table that fits a terminal, and all about one of them."""

import pytest
from typer.testing import CliRunner

from equipoise.algorithms import ALGORITHMS
from equipoise.cli import app

run = CliRunner(env={"COLUMNS": "80"}).invoke


def test_the_table_fits_80_columns_with_a_line_for_each():
    lines = run(app, ["algorithms"]).output.splitlines()
    assert max(map(len, lines)) <= 80
    named = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert named == list(ALGORITHMS)


@pytest.mark.parametrize("name", ["scaffpd_ls", "qfedavg"])
def test_one_of_them_has_its_paper_its_traffic_and_its_settings(name):
    shown = run(app, ["algorithms", name]).output
    assert max(map(len, shown.splitlines())) <= 80
    assert ALGORITHMS[name].paper in shown
    assert "in the clear" in shown
    assert {"scaffpd_ls": "mu = auto, tau = 1.0", "qfedavg": "q = 1.0, steps = 10, local_lr = auto"}[name] in shown
    assert "p = None" not in shown  # a file cannot give it


def test_a_name_that_does_not_exist_is_one_sentence():
    said = run(app, ["algorithms", "scafpd"])
    assert said.exit_code == 2
    assert said.stderr.startswith("error: there is no algorithm 'scafpd'; did you mean 'scaffpd'?")
    assert len(said.stderr.splitlines()) == 1
