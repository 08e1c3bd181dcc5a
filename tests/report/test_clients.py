from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import equipoise as eq
from equipoise.report.clients import report
from tests.evaluation.test_standing import made


def shown(renderable) -> str:
    out = StringIO()
    Console(width=120, file=out).print(renderable)
    return out.getvalue()


def test_the_report():
    table = made([0.5, 1.0, 0.9, np.nan], [10, 20, 30, 0])
    text = shown(report(table, ["north", "south", "we[red]st", "east"], title="hospitals"))
    for word in (
        "hospitals",
        "north",
        "we[red]st",
        "no answer",
        "worst20",
        "corrected for chance",
        "gini",
        "jain",
        "left out",
        "0.5000",
    ):
        assert word in text
    with pytest.raises(eq.errors.InputError, match="2 names for 4 clients"):
        report(table, ["a", "b"])


def test_the_report_of_many_clients_shows_the_worst():
    text = shown(report(made(np.linspace(1, 0, 100), [10] * 100), rows=3))
    assert "the 3 worst of 100 clients" in text
    assert "│ 99 " in text
    assert "│ 0 " not in text
    losses = shown(report(made(np.linspace(1, 0, 100), [10] * 100, score="loss"), rows=3))
    assert "│ 0 " in losses
