"""The papers' experiments: every file can be planned, the small ones show what they are for."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from equipoise import tasks
from equipoise.errors import InputError
from equipoise.experiment import config, library, measures, plan, records
from equipoise.experiment.methods import known_saddle
from equipoise.experiment.problems import build_problem

RESULTS = (Path(__file__).parents[2] / "docs" / "results.md").read_text()


@pytest.mark.parametrize("name", library.files())
def test_every_experiment_can_be_planned(name):
    told = library.about(name)
    assert set(told) == {"paper", "shows", "needs"}
    assert all(told.values())
    study = plan.sweep(library.settings(name), source=name)
    places = [job.place for job in study.trials]
    assert places
    assert len(set(places)) == len(places)
    assert all(job.config.data.data_dir is None for job in study.trials)  # nobody else has that folder


def test_the_results_page_names_what_there_is():
    assert set(re.findall(r"equipoise reproduce ([\w-]+)", RESULTS)) == set(library.files())


def reduced(name: str, labels: list[str], *assignments: str) -> plan.Study:
    """An experiment with fewer methods and other settings."""
    settings = library.settings(name, assignments)
    settings["compare"] = {label: settings["compare"][label] for label in labels}
    return plan.sweep(settings, source=name)


@pytest.mark.thorough(witness="algorithms/test_scaffpd.py::test_follows_the_pseudo_code")
def test_figure_2_of_scaffpd_in_small(tmp_path):
    study = reduced(
        "scaffpd-figure2",
        ["SCAFF-PD", "DRFA"],
        "run.rounds=100",
        'sweep.over={"objective.rho" = [0.01]}',
        "compare.DRFA.grid={local_lr = [4e-4], dual_lr = [0.01]}",
    )
    ours, drfa = plan.run_study(study, tmp_path)
    # The bar of the whole project: 1e-20 within 100 rounds, with step sizes from a rule.
    assert of(ours, "rounds:distance:1e-20") <= 100
    assert of(drfa, "rounds:distance:1e-9") == math.inf
    shown = RESULTS[RESULTS.index("**rho = 0.01**") :]
    for cell in (ours, drfa):  # the page shows what is measured
        row = re.search(rf"\| {cell.label} \|(.*)", shown)[1].replace("*", "").split("|")
        for text, level in zip(row, ("1e-3", "1e-6", "1e-12"), strict=False):
            rounds = of(cell, f"rounds:distance:{level}")
            assert (rounds == math.inf) == (text.strip() == "never")
            # programs compiled otherwise round otherwise
            assert rounds == math.inf or abs(rounds - int(text)) <= 2


def test_in_figure_2_the_average_is_another_problem():
    """Where SCAFFOLD ends: further from the saddle point than a thousandth, and worse for the worst client."""
    ours, average = (
        config.parse(library.settings("scaffpd-figure2", [f"objective={{{how}}}"]) | {"compare": {}, "sweep": {}})
        for how in ('name = "chi2", rho = 0.01', 'name = "average"')
    )
    this = build_problem(ours)
    x, y = known_saddle(ours, this), known_saddle(average, this)
    assert np.sum((x - y) ** 2) > 1e-3
    assert tasks.losses(this.task, y, this.train).max() > tasks.losses(this.task, x, this.train).max()


@pytest.mark.thorough(
    witness="algorithms/test_scaffold.py::test_reaches_the_optimum_of_the_average_where_fedavg_drifts"
)
def test_figure_3_of_scaffold_in_small(tmp_path):
    study = reduced(
        "scaffold-figure3",
        ["FedAvg, 10 steps", "SCAFFOLD, 10 steps"],
        "run.rounds=40",
        'sweep.over={"data.options.gradient" = [10.0]}',
    )
    fedavg, scaffold = plan.run_study(study, tmp_path)
    assert of(fedavg, "distance") > 1
    assert of(scaffold, "rounds:distance:1e-12") <= 40


def of(cell: plan.Cell, measure: str) -> float:
    return cell.over_seeds(measures.measure(measure))[0]


def a_run(accuracies: list[tuple[float, ...]]) -> records.Run:
    """One with such accuracies of its clients, row by row, one every tenth round."""
    blank = {"seconds": 0.0, "asked": (), "answered": (), "broken": 0, "bytes_down": 0, "bytes_up": 0, "loss": ()}
    rows = [records.Row(round=10 * i, scores={"accuracy": a}, **blank) for i, a in enumerate(accuracies)]
    outcome = records.RunResult.model_construct(measure="accuracy", higher_is_better=True, summary={})
    return records.Run(Path(), {}, None, None, rows, outcome)


def test_measures_along_the_way():
    run = a_run([(0.1, 0.2), (0.5, 0.7), (0.6, 0.4), (0.8, 0.8)])
    assert measures.measure("rounds:min:0.5").value(run) == 10
    assert measures.measure("rounds:mean:0.9").value(run) == math.inf
    assert measures.measure("rounds:std:0.06").value(run) == 0
    late = measures.measure("last:20:min")
    assert late.value(run) == pytest.approx((0.4 + 0.8) / 2)  # rounds 20 and 30
    assert late.heading == "worst client, last 20 rounds"
    assert late.more_is_better(run)
    assert not measures.measure("last:20:std").more_is_better(run)


@pytest.mark.parametrize("text", ["last:0:min", "last:many:min", "last:5", "last:5:gini", "rounds:mean:x", "best"])
def test_measures_that_are_none(text):
    with pytest.raises(InputError, match=re.escape(text)):
        measures.measure(text)
