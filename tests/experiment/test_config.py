"""Settings: every one round-trips, and every mistake is a sentence that names key, value and what is allowed."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.algorithms import ALGORITHMS
from equipoise.errors import InputError
from equipoise.experiment import config


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_be_configured_and_read_again(name):
    told = config.parse({"algorithm": {"name": name}})
    assert told.algorithm.name == name
    assert config.parse(tomllib.loads(told.toml())) == told


@pytest.mark.parametrize("name", config.OBJECTIVES)
def test_every_objective_too(name):
    told = config.parse({"objective": {"name": name}})
    assert config.parse(tomllib.loads(told.toml())) == told


def test_the_rule_has_its_old_name_too():
    assert config.parse({"algorithm": {"rule": "auto"}}) == config.parse({"algorithm": {"rule": "tuned"}})


@pytest.mark.parametrize("settings", [{"data": {"silos": "x"}}, {"federation": {"sites": 2}}])
def test_files_of_owners_have_no_data_set_and_no_partition(settings):
    told = config.parse(settings)
    written = tomllib.loads(told.toml())
    assert "partition" not in written
    assert "name" not in written["data"]
    assert config.parse(written) == told
    before = written | {"partition": {"kind": "dirichlet", "clients": 10}}  # as files of before have it
    assert config.parse(before) == told


@pytest.mark.parametrize(
    ("settings", "own", "of"),
    [
        ({}, "none", "losses"),  # divided for an experiment
        ({"data": {"silos": "x"}}, "intercept", "gains"),
        ({"federation": {"sites": 2}}, "intercept", "gains"),
        ({"partition": {"kind": "natural"}}, "intercept", "gains"),
        ({"data": {"silos": "x"}, "algorithm": {"name": "fedavg"}}, "intercept", "losses"),
        ({"data": {"silos": "x"}, "objective": {"name": "average"}}, "intercept", "losses"),
        ({"data": {"silos": "x"}, "objective": {"of": "losses"}, "model": {"own": "none"}}, "none", "losses"),
        ({"federation": {"sites": 2}, "model": {"name": "torch"}}, "none", "losses"),
    ],
)
def test_owners_that_exist_keep_an_intercept_and_are_judged_by_gains(settings, own, of):
    told = config.parse(settings)
    assert (told.model.own, told.objective.of) == (own, of)
    assert config.parse(tomllib.loads(told.toml())) == told


MISTAKES = [
    ({"algoritm": {}}, "the file has no key 'algoritm'; did you mean 'algorithm'?"),
    ({"algorithm": {"name": "scafpd"}}, "algorithm.name is 'scafpd'; did you mean 'scaffpd'?"),
    ({"algorithm": {"loca_lr": 1}}, "[algorithm] has no key 'loca_lr'; did you mean 'local_lr'?"),
    ({"algorithm": {"name": "fedavg", "dual_lr": 1}}, "[algorithm] has no key 'dual_lr'"),
    ({"algorithm": {"local_lr": "fast"}}, "algorithm.local_lr is 'fast'; give a number or 'auto'"),
    ({"algorithm": {"local_lr": -1}}, "algorithm.local_lr is -1; give a number above 0 or 'auto'"),
    ({"algorithm": {"steps": 1.5}}, "algorithm.steps is 1.5; give a whole number"),
    ({"algorithm": {"rule": "tunde"}}, "algorithm.rule is 'tunde'; give 'tuned' or a table; did you mean 'tuned'?"),
    ({"algorithm": {"rule": {"tau": 1}}}, "algorithm.rule has no sigma"),
    ({"algorithm": {"rule": {"sigma": -1}}}, "algorithm.rule.sigma is -1; give a number above 0"),
    ({"algorithm": {"rule": {"sigma": 1, "thta": 1}}}, "[algorithm.rule] has no key 'thta'; did you mean 'theta'?"),
    ({"algorithm": {"cohort": 50}}, "algorithm.cohort is 50 of 10 clients; give at most 10"),
    ({"algorithm": {"cohort": 5, "coin": 0.5}}, "both say who takes part; give one of them"),
    ({"objective": {"name": "agnostic", "rho": 1}}, "[objective] has no key 'rho'"),
    ({"objective": {"rho": 0}}, "objective.rho is 0; give a number above 0"),
    ({"run": {"rounds": 0}}, "run.rounds is 0; give a number at least 1"),
    ({"run": {"precision": "float16"}}, "run.precision is 'float16'; give 'float32' or 'float64'"),
    ({"run": {"lost": 1.0}}, "run.lost is 1.0; give a number below 1"),
    ({"run": 3}, "run is 3; give a table, [run]"),
    ({"partition": {"kind": "dirichlt"}}, "did you mean 'dirichlet'?"),
    ({"model": {"hidden": []}}, "model.hidden is []; give at least 1 values"),
    ({"data": {"silos": "x"}, "partition": {"clients": 3}}, "silo files are divided already"),
    ({"data": {"name": "synthetic"}, "partition": {"kind": "natural"}}, "no natural owners"),
    ({"name": 3}, "name is 3; give a text"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "sentence"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_sentence(settings, sentence):
    with pytest.raises(InputError) as error:
        config.parse(settings, source="mine.toml")
    assert sentence in str(error.value)
    assert str(error.value).startswith("mine.toml")
    assert "\n" not in str(error.value)


KEYS = st.sampled_from(["algorithm", "run", "data", "partition", "model", "objective", "name", "x"])
VALUES = st.recursive(
    st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
NAMES = st.sampled_from(["name", "rule", "steps", "local_lr", "rounds", "clients", "alpha", "l2", "hidden", "y"])


@given(st.dictionaries(KEYS, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=3))
def test_anything_else_is_a_configuration_or_a_sentence(settings):
    try:
        told = config.parse(settings)
    except InputError:
        return
    assert config.parse(tomllib.loads(told.toml())) == told


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": {"name": True}}, "model.name is true"),
        ({"run": {"rounds": [1, "a"]}}, r"run.rounds is \[1, 'a'\]"),
        ({"run": {"rounds": {"a": False}}}, "run.rounds is { a = false }"),
        ({"run": False}, r"run is false; give a table, \[run\]"),
    ],
)
def test_values_are_shown_as_a_file_has_them(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        config.parse(settings)
