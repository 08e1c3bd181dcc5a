"""A path of penalties: from the average to the worst client, each run from the model of the one before."""

from itertools import pairwise

import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.experiment import plan, records

SETTINGS = {
    "name": "path",
    "data": {"name": "synthetic", "options": {"dim": 6, "samples": 30, "shift": 1.0}},
    "partition": {"clients": 4},
    "model": {"l2": 0.1, "metric": "none"},
    "objective": {"name": "chi2"},
    "algorithm": {"name": "scaffpd_model", "steps": 5},
    "run": {"rounds": 30, "evaluate_every": 1, "precision": "float64", "until_gap": 1e-6},
}
RHOS = [0.1, 30.0, 1.0, 10.0]


@pytest.mark.thorough(
    witness="experiment/test_plan.py::test_a_sweep_chooses_on_its_tuning_seeds_and_reports_on_the_others"
)
def test_a_path_goes_from_the_average_to_the_worst_client(tmp_path):
    jobs = plan.path(SETTINGS, RHOS)
    assert [job.label for job in jobs] == ["rho 30", "rho 10", "rho 1", "rho 0.1"]
    done = plan.run_path(jobs, tmp_path)
    for run in done:
        assert run.rows[-1].gap <= 1e-6 * run.rows[-1].objective
    average, worst = ([function(run.rows[-1].loss) for run in done] for function in (np.mean, np.max))
    assert (np.diff(average) >= -1e-6).all()
    assert (np.diff(worst) <= 1e-6).all()
    for before, after in pairwise(done):  # the first row of a run is the last model of the other
        np.testing.assert_allclose(after.rows[0].loss, before.rows[-1].loss, rtol=1e-12)

    # The same command finds everything done; one run of it, made again, starts from the one before it.
    assert [run.rows for run in plan.run_path(jobs, tmp_path)] == [run.rows for run in done]
    (tmp_path / jobs[2].place / records.RESULT).unlink()
    (tmp_path / jobs[2].place / records.CONFIG).unlink()
    again = plan.run_path(jobs, tmp_path)[2]
    assert again.rows[0].loss == done[2].rows[0].loss


@pytest.mark.parametrize(
    ("settings", "values", "says"),
    [
        (SETTINGS, [1.0], "a path of 1 value of rho leads nowhere; give two or more"),
        (SETTINGS, [1.0, 1.0], r"rho \[1.0\] is given more than once"),
        (
            SETTINGS | {"objective": {"name": "agnostic"}},
            [1.0, 2.0],
            "'agnostic' has no rho to go along; give chi2 or kl or cvar",
        ),
    ],
)
def test_a_path_that_is_none_is_refused(settings, values, says):
    with pytest.raises(InputError, match=says):
        plan.path(settings, values)


def test_a_path_along_the_shares_of_cvar():
    jobs = plan.path(SETTINGS | {"objective": {"name": "cvar"}}, [0.25, 1.0])
    assert [(job.label, job.config.objective.alpha) for job in jobs] == [("alpha 1", 1.0), ("alpha 0.25", 0.25)]
    assert [job.config.objective.alpha for job in plan.path(SETTINGS | {"objective": {"name": "cvar"}})] == [
        1.0, 0.7, 0.5, 0.3, 0.2, 0.1
    ]  # fmt: skip


def test_a_path_ends_each_run_at_a_thousandth_unless_told():
    run = {key: value for key, value in SETTINGS["run"].items() if key != "until_gap"}
    assert {job.config.run.until_gap for job in plan.path(SETTINGS | {"run": run}, RHOS)} == {1e-3}
    assert {job.config.run.until_gap for job in plan.path(SETTINGS, RHOS)} == {1e-6}
