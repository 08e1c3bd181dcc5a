"""Many runs of one file: who inherits what, what is chosen, and that nothing is run twice or mixed up."""

from types import SimpleNamespace

import pytest

from equipoise.errors import InputError
from equipoise.experiment import plan, records
from equipoise.experiment import run as runs
from equipoise.experiment.measures import measure
from equipoise.report import sweeps
from tests.problems import few

BASE = {
    "name": "study",
    "data": {"name": "synthetic", "options": {"dim": 3, "samples": 15, "shift": 0.5}},
    "partition": {"clients": 3},
    "model": {"l2": 0.1, "metric": "none"},
    "algorithm": {"steps": 2, "local_lr": 0.05},
    "run": {"rounds": 4, "precision": "float64"},
    "compare": {
        "FedAvg": {"name": "fedavg"},
        "DRFA, small": {"name": "drfa", "dual_lr": 0.001, "objective": {"name": "agnostic"}},
        "PD": {"name": "scaffpd", "rule": {"sigma": 0.5}, "steps": 3},
    },
}
STUDY = BASE | {
    "compare": {
        "FedAvg": {"name": "fedavg"},
        "own": {"name": "scaffold", "local_lr": 0.1},
        "DRFA": {"name": "drfa", "grid": {"dual_lr": [0.001, 0.1]}},
    },
    "sweep": {
        "seeds": [0, 1],
        "tune": [7],
        "measure": "objective",
        "show": ["mean", "objective", "rounds:distance:1e9"],
        "over": {"partition.clients": [2, 3]},
        "grid": {"algorithm.local_lr": [1e-6, 0.05]},
    },
}


def test_methods_inherit_what_they_know():
    jobs = {job.label: job for job in plan.compare(BASE)}
    assert list(jobs) == ["FedAvg", "DRFA, small", "PD"]
    assert jobs["FedAvg"].config.algorithm.steps == 2
    assert jobs["FedAvg"].config.objective.name == "chi2"
    assert jobs["DRFA, small"].config.algorithm.dual_lr == 0.001
    assert jobs["DRFA, small"].config.objective.name == "agnostic"
    assert jobs["PD"].config.algorithm.steps == 3
    assert jobs["PD"].config.algorithm.local_lr == 0.05
    assert jobs["FedAvg"].place == "FedAvg"
    assert jobs["DRFA, small"].place.startswith("drfa-small-")
    assert all(job.config.data == jobs["PD"].config.data for job in jobs.values())


def test_without_methods_it_is_the_algorithm_of_the_file():
    (job,) = plan.compare({"algorithm": {"name": "afl"}})
    assert job.label == "afl"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"compare": {"a": {"steps": 1}}}, r"\[compare.a\] has no name"),
        ({"compare": {"a": 3}}, r"\[compare.a\] is 3"),
        ({"compare": {"a": {"name": "fedavg", "dual_lr": 1}}}, r"\[compare.a\]: \[algorithm\] has no key 'dual_lr'"),
        ({"compare": {"a-b": {"name": "fedavg"}, "A-b": {"name": "sgd"}}}, "'a-b' and 'A-b' would share the folder"),
        ({"compare": {"a": {"name": "fedavg", "objective": "kl"}}}, r"\[compare.a\].objective is 'kl'; give a table"),
        ({"compare": {"a": {"name": ["fedavg"]}}}, r"\[compare.a\]: algorithm.name is \['fedavg'\]"),
        ({"compare": {"a": {"name": "fedavg", "grid": {"steps": []}}}}, r"grid: steps is \[\]; give a list of values"),
        ({"compare": {"a": {"name": "fedavg", "grid": {"steps": 3}}}}, r"\[compare.a\].grid: steps is 3; give a list"),
    ],
)
def test_mistakes_name_the_method(change, sentence):
    with pytest.raises(InputError, match=sentence):
        plan.compare(BASE | change)


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"seeds": []}, "sweep.seeds"),
        ({"sedes": [1]}, r"\[sweep\] has no key 'sedes'; did you mean 'seeds'"),
        ({"seeds": [3, 3]}, r"sweep.seeds has \[3\] more than once"),
        ({"seeds": [2**32]}, "sweep.seeds.0 is 4294967296; give a number below 4294967296"),
        ({"tune": []}, "sweep.tune is"),
        ({"grid": {"algorithm.local_lr": []}}, r"algorithm.local_lr is \[\]; give a list of values"),
        ({"grid": {"algorithm.local_lr": [0.1, 0.1]}}, "0.1 more than once"),
        ({"over": {"partition.alpha": []}}, r"partition.alpha is \[\]; give a list of values"),
        ({"over": {"run.seed": [1, 2]}}, "give the seeds as sweep.seeds"),
        ({"over": {"compare.A.steps": [1, 2]}}, "which is not a setting of a run"),
        ({"over": {"algorithm.steps": [1]}, "grid": {"algorithm.steps": [2]}}, "is in sweep.over and in a grid"),
        ({"measure": "worst"}, "there is no measure 'worst'"),
        ({"show": ["rounds:mean"]}, "there is no measure"),
        ({"grid": {"algorithm.name": ["fedavg", "nothing"]}}, "algorithm.name is 'nothing'"),
        ({"grid": {"run.rouns": [3]}}, "no key 'rouns'"),
    ],
)
def test_mistakes_of_a_sweep_come_before_its_first_run(sweep, sentence):
    with pytest.raises(InputError, match=sentence):
        plan.sweep({"run": {"rounds": 1}, "sweep": sweep})


def test_the_grid_is_for_those_who_know_the_key_and_do_not_say_it_themselves():
    study = plan.sweep(STUDY)
    first = [job for job in study.trials if job.over == {"partition.clients": 2}]
    count = {label: sum(job.label == label for job in first) for label in ("FedAvg", "own", "DRFA")}
    assert count == {"FedAvg": 2, "own": 1, "DRFA": 4}
    assert {job.seed for job in study.trials} == {7}
    assert len({job.place for job in study.trials}) == len(study.trials) == 14


def test_of_equal_settings_the_better_average_is_chosen():
    def done(**summary):
        return [SimpleNamespace(outcome=SimpleNamespace(summary=summary, higher_is_better=True))]

    found = [({"lr": 1}, done(worst20=0.0, mean=0.1)), ({"lr": 2}, done(worst20=0.0, mean=0.3)), ({"lr": 3}, done())]
    assert plan._best(found, "worst20") == {"lr": 2}
    assert plan._best([*found, ({"lr": 4}, done(worst20=0.1, mean=0.2))], "worst20") == {"lr": 4}
    assert plan._best(found[2:], "worst20") == {"lr": 3}


@pytest.mark.parametrize(
    "over", few([[2]], [[2], [2, 3]], "::test_a_sweep_chooses_on_its_tuning_seeds_and_reports_on_the_others"), ids=str
)
def test_a_sweep_chooses_on_its_tuning_seeds_and_reports_on_the_others(tmp_path, monkeypatch, over):
    study = plan.sweep(STUDY | {"sweep": STUDY["sweep"] | {"over": {"partition.clients": over}}})
    cells = plan.run_study(study, tmp_path)
    assert [(cell.label, cell.over["partition.clients"]) for cell in cells] == [
        (label, n) for n in over for label in ("FedAvg", "own", "DRFA")
    ]
    for cell in cells:
        assert [run.config["run"]["seed"] for run in cell.runs] == [0, 1]
        if cell.label != "own":
            assert cell.chosen["algorithm.local_lr"] == 0.05  # the other one hardly moves
    drfa = cells[2]
    assert drfa.tried == 4
    mean, deviation = drfa.over_seeds(measure("objective"))
    values = [run.rows[-1].objective for run in drfa.runs]
    assert mean == pytest.approx(sum(values) / 2)
    assert deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)

    text = sweeps.markdown(cells, study.sweep.show)
    assert "**clients = 2**" in text
    assert text.count("| FedAvg |") == len(over)
    assert "rounds to distance 1e+09" in text
    assert f"{mean:.4g} ± {deviation:.2g}" in text

    def never(*args, **kwargs):
        raise AssertionError("run twice")

    monkeypatch.setattr(runs, "run", never)
    monkeypatch.setattr(runs, "resume", never)
    again = plan.run_study(study, tmp_path)
    assert [cell.runs for cell in again] == [cell.runs for cell in cells]


def test_what_was_stopped_goes_on_and_what_is_of_other_settings_is_refused(tmp_path):
    jobs = plan.compare(BASE)
    seen = []

    def watch(job, at, of, row):
        seen.append((job.label, at))
        if job.label == "DRFA, small" and at == 2:
            raise KeyError("the machine is gone")

    with pytest.raises(KeyError):
        plan.run_all(jobs, tmp_path, watch=watch)
    assert records.finished(tmp_path / "FedAvg")
    assert not records.finished(tmp_path / jobs[1].place)
    seen.clear()
    done = plan.run_all(jobs, tmp_path, watch=lambda job, at, of, row: seen.append((job.label, at)))
    assert {label for label, _ in seen} == {"DRFA, small", "PD"}
    assert [run.outcome.label for run in done] == ["FedAvg", "DRFA, small", "PD"]

    other = plan.compare(BASE | {"run": {"rounds": 5, "precision": "float64"}})
    with pytest.raises(InputError, match=r"other settings \(run.rounds was 4 and is 5\); give another --out"):
        plan.run_all(other, tmp_path)
    assert plan.run_all(other, tmp_path, overwrite=True)[0].rows[-1].round == 5


def test_a_method_without_noise_beside_one_with_it():
    """So that a comparison shows what privacy costs."""
    settings = {
        "privacy": {"epsilon": 3.0, "clip": 1.0},
        "compare": {
            "private": {"name": "fedavg", "steps": 1, "local_lr": 0.5},
            "open": {"name": "fedavg", "steps": 1, "local_lr": 0.5, "privacy": False},
        },
    }
    private, plain = plan.compare(settings)
    assert private.config.privacy.epsilon == 3.0
    assert plain.config.privacy is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sweep": {"grid": {"algorithm.local_lrr": [0.1]}}}, "local_lrr'; did you mean 'local_lr'"),
        (STUDY | {"sweep": {"grid": {"algorithm.local_lrr": [0.1]}}}, "no method of the file has; did you mean"),
        (
            {"compare": {"A": {"name": "fedavg", "steps": 2}}, "sweep": {"grid": {"algorithm.steps": [1, 2]}}},
            "which every method that has it sets itself",
        ),
        ({"sweep": {"grid": {"algorithm.memory": [3], "algorithm.local_lr": [0.1]}}}, "no key 'memory'"),
    ],
)
def test_no_key_of_a_grid_is_dropped(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        plan.sweep(settings)


def test_a_grid_of_the_algorithm_that_is_not_named_is_of_the_one_that_runs():
    """Plans once took scaffpd for it, which has no memory."""
    study = plan.sweep({"sweep": {"grid": {"algorithm.memory": [3, 4]}}})
    assert [(job.label, job.config.algorithm.name, job.config.algorithm.memory) for job in study.trials] == [
        ("scaffpd_model", "scaffpd_model", 3),
        ("scaffpd_model", "scaffpd_model", 4),
    ]
    study = plan.sweep({"sweep": {"grid": {"algorithm.rule.sigma": [0.1, 0.2]}}})
    assert [(job.label, job.config.algorithm.rule.sigma) for job in study.trials] == [
        ("scaffpd", 0.1),
        ("scaffpd", 0.2),
    ]


def test_a_file_s_other_sections_are_read_by_every_command():
    plan.check_beside({"run": {"rounds": 1}}, "mine.toml")
    with pytest.raises(InputError, match=r"\[sweep\] has no key 'sedes'; did you mean 'seeds'"):
        plan.check_beside({"sweep": {"sedes": [1]}}, "mine.toml")


def test_where_one_method_certifies_no_other_sets_rows_aside():
    settings = {key: value for key, value in BASE.items() if key not in ("run", "compare", "algorithm")}
    both = {"A": {"name": "fedavg", "local_lr": 0.1}, "B": {"name": "scaffpd_model"}}
    ends = {job.label: job.config.run for job in plan.compare(settings | {"compare": both})}
    assert (ends["A"].rounds, ends["A"].keep_best, ends["A"].patience) == (100, False, None)
    assert ends["B"].until_gap == 1e-3
    (alone,) = plan.compare(settings | {"compare": {"A": both["A"]}})
    assert alone.config.run.keep_best
    told = settings | {"run": {"keep_best": True}, "compare": both}
    assert all(job.config.run.keep_best for job in plan.compare(told))
