"""What is made of a model when a run ends."""

import numpy as np

from equipoise.experiment import config
from equipoise.experiment.problems import build_problem, precision
from equipoise.experiment.results import calibration_of
from tests.flower import silos


def test_a_model_whose_outputs_are_no_numbers_has_no_curve_of_calibration(tmp_path):
    told = {**silos.settings(personal={"kind": "none"}), "data": {"silos": str(silos.write(tmp_path / "silos"))}}
    told.pop("federation")
    with precision(config.parse(told)):
        problem = build_problem(config.parse(told))
        x = np.asarray(problem.x)
        curve = calibration_of(problem, x, problem.test)
        assert sum(rows for _, _, rows in curve) == np.sum(problem.test.sizes)
        assert calibration_of(problem, np.full_like(x, np.inf), problem.test) == ()
