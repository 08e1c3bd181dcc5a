"""Runs of one method side by side: the numbers of each alone, nothing lost, and bit for bit when begun again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import steps
from equipoise.data.datasets import catalogue
from equipoise.data.pool import alike
from equipoise.errors import InputError
from equipoise.experiment import batch, origin, plan, records, run
from equipoise.experiment.config import parse
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem, precision
from tests.experiment.test_run import assert_same_run
from tests.problems import few

STUDY = {
    "name": "study",
    "data": {"name": "digits", "test": 0.3},
    "partition": {"kind": "dirichlet", "clients": 12, "alpha": 1.0},
    "model": {"metric": "none"},
    "algorithm": {"name": "scaffold", "steps": 2, "cohort": 9},
    "run": {"rounds": 4, "precision": "float32", "evaluate_every": 1, "checkpoint_seconds": 0, "lost": 0.2},
    "sweep": {"seeds": [0, 1], "grid": {"algorithm.local_lr": [0.05, 0.1, 1e6]}},
}


@pytest.fixture(scope="module")
def jobs():
    return plan.sweep(STUDY).trials


@pytest.fixture(scope="module")
def whole(jobs, tmp_path_factory):
    return plan.run_all(jobs, tmp_path_factory.mktemp("whole") / "study")


def test_one_program_serves_all(jobs, tmp_path, monkeypatch):
    together = []
    monkeypatch.setattr(run, "run_together", lambda sessions, width: together.append((len(sessions), width)))
    monkeypatch.setattr(records, "read", lambda folder: None)
    plan.run_all(jobs, tmp_path / "study")
    assert together == [(6, 3)]  # three settings of one division side by side, then those of the other


@pytest.mark.parametrize("k", few([3], [0, 3], "::test_the_same_numbers_as_alone[3]"))
def test_the_same_numbers_as_alone(jobs, whole, tmp_path, k):
    one = run.run(jobs[k].config, tmp_path / str(k))
    assert len(one.rows) == len(whole[k].rows) == 5
    for a, b in zip(one.rows, whole[k].rows, strict=True):
        np.testing.assert_allclose(a.loss, b.loss, rtol=1e-4)
        assert a.scores["accuracy"] == pytest.approx(b.scores["accuracy"])
        assert (a.asked, a.answered, a.bytes_up) == (b.asked, b.answered, b.bytes_up)
    scores = [records.read_row_scores(done.path / records.ROW_SCORES) for done in (one, whole[k])]
    assert scores[0].rows == scores[1].rows  # comparable row by row


def test_one_that_diverges_does_not_spoil_its_neighbours(jobs, whole):
    for job, done in zip(jobs, whole, strict=True):
        diverges = job.config.algorithm.local_lr == 1e6
        assert bool(done.outcome.events) == diverges, done.outcome.events
        assert diverges or done.outcome.summary["mean"] > 0.3


@pytest.mark.parametrize(
    "round", few([2], [0, 2, 4], "::test_begun_again_after_a_crash_it_is_bit_for_bit_as_if_never_stopped[2]")
)
def test_begun_again_after_a_crash_it_is_bit_for_bit_as_if_never_stopped(jobs, whole, tmp_path, round):
    """In the first division's slice or in the second's, when some are finished and others have not begun."""

    def watch(job, at, of, row):
        if (job.seed, at) == (1, round):
            raise KeyError("the machine is gone")

    with pytest.raises(KeyError):
        plan.run_all(jobs, tmp_path / "study", watch=watch)
    for a, b in zip(plan.run_all(jobs, tmp_path / "study"), whole, strict=True):
        assert_same_run(a, b)


@pytest.mark.thorough(witness="::test_the_same_numbers_as_alone")
def test_large_data_goes_division_by_division(jobs, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "SHARE", 0.0)
    together = []
    shared = run.run_together

    def watched(sessions, width):
        together.append(len({id(session.problem) for session in sessions}))
        shared(sessions, width)

    monkeypatch.setattr(run, "run_together", watched)
    for a, b in zip(plan.run_all(jobs, tmp_path / "study"), whole, strict=True):
        np.testing.assert_allclose(a.rows[-1].objective or 0, b.rows[-1].objective or 0, rtol=1e-4)
    assert together == [1, 1]


def test_what_ends_early_or_measures_first_runs_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "run_together", None)
    settings = STUDY | {"run": STUDY["run"] | {"rounds": 2, "until_gap": 0.5}}
    settings["sweep"] = {"seeds": [0], "grid": {"algorithm.local_lr": [0.05, 0.1]}}
    assert len(plan.run_all(plan.sweep(settings).trials, tmp_path / "study")) == 2


@pytest.mark.thorough(witness="::test_the_same_numbers_as_alone")
def test_federations_of_other_kinds_share_a_program_too_where_compiling_costs_most(tmp_path, monkeypatch):
    settings = STUDY | {"run": STUDY["run"] | {"rounds": 2}}
    settings["sweep"] = {
        "seeds": [0],
        "over": {"partition.alpha": [0.5, 2.0], "partition.clients": [12, 10]},
        "grid": {"algorithm.local_lr": [0.05, 0.1]},
    }
    jobs = plan.sweep(settings).trials
    apart = plan.run_all(jobs, tmp_path / "apart")
    together = []
    shared = run.run_together

    def watched(sessions, width):
        together.append({session.problem.n for session in sessions})
        shared(sessions, width)

    monkeypatch.setattr(run, "run_together", watched)
    monkeypatch.setattr(plan, "_apart_on_this_device", lambda job: "")
    for a, b in zip(plan.run_all(jobs, tmp_path / "shared"), apart, strict=True):
        np.testing.assert_allclose(a.rows[-1].loss, b.rows[-1].loss, rtol=1e-4)
    assert together == [{12}, {10}]


def test_in_turn_none_runs_beside_another(jobs, tmp_path, monkeypatch):
    alone = []
    monkeypatch.setattr(run, "run_together", pytest.fail)
    monkeypatch.setattr(run, "run_alone", alone.append)
    monkeypatch.setattr(records, "read", lambda folder: None)
    plan.run_all(jobs, tmp_path / "study", in_turn=True)
    assert len(alone) == len(jobs)


@pytest.mark.thorough(witness="::test_one_program_serves_all")
def test_methods_with_measured_steps_share_their_programs():
    """What was measured is an operand: the rounds are those of the rule itself, and compiled once."""
    settings = {**STUDY, "algorithm": {"name": "scaffpd", "steps": 2, "rule": "tuned", "local_lr": "auto"}}
    del settings["sweep"]
    problem, found = None, []
    for rho in (0.1, 1.0):
        config = parse({**settings, "objective": {"name": "chi2", "rho": rho}})
        problem = problem or build_problem(config)
        method = build_method(config, problem)
        found.append(jax.tree.structure(method.algorithm))
        dual = eq.objectives.chi2(problem.n, rho)
        constants, local_lr = problem.constants(2)
        rule = eq.steps.auto(constants, dual)
        direct = eq.algorithms.scaffpd(problem.task, dual, eq.cohorts.everyone(), rule, steps=2, local_lr=local_lr)
        ours, theirs = (eq.simulate(a, problem.x, problem.train, 0, rounds=4) for a in (method.algorithm, direct))
        np.testing.assert_allclose(ours.server.x, theirs.server.x, rtol=1e-4, atol=1e-6)
    assert len(set(found)) == 1


def test_a_plan_reads_its_data_once_and_measures_in_one_shape(tmp_path, monkeypatch):
    read, load, shapes = [], catalogue.load, set()

    def near_solution(task, shards, x, **options):
        shapes.add(str(jax.tree.map(jnp.shape, shards)))
        return steps.Constants(50.0, 0.01, 1.0), 0.02

    monkeypatch.setattr(catalogue, "load", lambda *args, **options: read.append(args) or load(*args, **options))
    monkeypatch.setattr("equipoise.experiment.problems.steps.near_solution", near_solution)
    measured = {"name": "scaffpd", "steps": 2, "rule": "tuned"}
    study = {"algorithm": measured, "objective": {"name": "chi2"}, "sweep": {"seeds": [0, 1, 2]}}
    study["run"] = {"rounds": 1, "evaluate_every": 1}
    whose, origin_of = set(), origin.origin_of
    monkeypatch.setattr(origin, "origin_of", lambda *given: whose.add(origin_of(*given).data) or origin_of(*given))
    jobs = plan.sweep(STUDY | study).trials
    plan.run_all(jobs, tmp_path / "study")
    assert len(read) == 1
    assert len(shapes) == 1
    # Each may be resumed alone: it is known by its own rows, not by what they were filled up with.
    with precision(jobs[0].config):
        assert whose == {origin_of(job.config, build_problem(job.config)).data for job in jobs}


def test_methods_that_are_compared_share_each_division(tmp_path, monkeypatch):
    """Divided, filled up and looked at once, for all methods on it; where they need others, those are let go."""
    built, filled, asked, build = [], [], [], run.build_problem
    monkeypatch.setattr(run, "build_problem", lambda config: built.append(config.run.seed) or build(config))
    monkeypatch.setattr(batch, "alike", lambda data: filled.append(len(data)) or alike(data))
    monkeypatch.setattr(batch, "git_commit", lambda: asked.append("") or "abc")
    monkeypatch.setattr(run, "run_alone", lambda session: None)
    monkeypatch.setattr(records, "read", lambda folder: None)
    methods = {"A": {"name": "fedavg"}, "B": {"name": "scaffold"}, "C": {"name": "fedprox", "mu": 0.1}}
    jobs = plan.sweep(STUDY | {"compare": methods, "sweep": {"seeds": [0, 1]}}).trials
    plan.run_all(jobs, tmp_path / "study", in_turn=True)
    assert built == [0, 1]
    assert filled == [1, 1, 2, 2]  # training and test rows: of the first, which tells how many fit; and of both
    assert len(asked) == 3
    written = [tmp_path / "study" / job.place / records.ENVIRONMENT for job in jobs]
    assert {records.read_record(path, records.Environment).git for path in written} == {"abc"}


def test_products_of_a_run():
    assert jax.config.jax_default_matmul_precision is None
    with precision(parse({"run": {"products": "tf32"}})):
        assert jax.config.jax_default_matmul_precision == "tensorfloat32"
    with precision(parse({})):
        assert jax.config.jax_default_matmul_precision is None  # a CPU has but one
    with pytest.raises(InputError, match="products"):
        parse({"run": {"products": "float8"}})
