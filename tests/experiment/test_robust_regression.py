import re
from pathlib import Path

import numpy as np

from equipoise.experiment import robust_regression
from equipoise.experiment.robust_regression import Curve


def test_the_figure_in_small(tmp_path):
    seen = []
    curves = list(
        robust_regression.run(rounds=200, rhos=(0.01,), progress=lambda label, done, of: seen.append((label, done)))
    )
    by_name = {c.method: c for c in curves}
    assert tuple(by_name) == robust_regression.METHODS
    ours, drfa = by_name["SCAFF-PD"], by_name["DRFA"]
    # The bar of the whole project: 1e-20 within 100 rounds, with step sizes from a rule.
    assert ours.distances[-1] < 1e-20
    assert ours.rounds_to(1e-20) <= 100
    assert drfa.rounds_to(1e-12) is None
    assert min(drfa.distances) > 1e-9
    for name in ("SCAFFOLD", "FedAvg"):
        assert by_name[name].losses.max() > ours.losses.max()
    assert ("SCAFF-PD, rho=0.01", 200) in seen
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for curve in curves:  # the README shows what the demo measures
        cells = re.search(rf"\| 0.01 \| {curve.method} +\|(.*)\|", readme).group(1).split("|")
        for cell, level in zip(cells, robust_regression.LEVELS, strict=False):
            rounds = curve.rounds_to(level)
            assert (rounds is None) == (cell.strip() == "—")
            assert rounds is None or abs(rounds - int(cell)) <= 2  # programs compiled otherwise round otherwise
        assert abs(float(cells[4]) - curve.losses.max()) < 2e-4
    robust_regression.plot(curves, tmp_path / "deep" / "figure.png")
    assert (tmp_path / "deep" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_rounds_to_counts_from_where_it_stays():
    curve = Curve("m", 0.1, "", np.array([1.0, 1e-4, 1.0, 1e-4, 1e-5]), np.zeros(1))
    assert curve.rounds_to(1e-3) == 4
    assert curve.rounds_to(1e-9) is None
    assert curve.rounds_to(10.0) == 1
