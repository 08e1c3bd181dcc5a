"""Odd configurations and --set values: each makes runs or ends in one sentence that names what is wrong."""

import copy
import datetime
import math
import string
import tomllib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from equipoise.experiment import config, folders, mistakes, plan, reading
from tests.problems import few
from tests.searches import tiny

many = settings(
    max_examples=100 * tiny.LONGER,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

KEYS = sorted({
    *(f"{name}.{key}" for name, section in config.SECTIONS.items() for key in section.model_fields),
    *(f"algorithm.{key}" for name in config.ALGORITHMS for key in config.section_of("algorithm", name).model_fields),
    *(f"objective.{key}" for name in config.OBJECTIVES for key in config.section_of("objective", name).model_fields),
    "name", "sweep", "compare", "sweep.seeds", "sweep.tune", "sweep.measure", "sweep.show", "sweep.over", "sweep.grid",
    "compare.A", "compare.A.name", "compare.A.objective", "compare.A.grid", "about", "algorithm.rule.sigma", "run..x",
})  # fmt: skip
NAMES = [*config.ALGORITHMS, *config.OBJECTIVES, "linear", "mlp", "auto", "iid", "natural", "float64", "synthetic",
         "quadratics", "worst20", "rounds:mean:0.5", "last:0:min"]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from([*NAMES, "", " ", "..", "/", "a/b", "身長", "[b]", "[/b]", "x\n= 1", '"', "'", "\\", "nan", "-0"]),
    st.text(max_size=4),
    st.text(string.ascii_letters + ".-_/[]|", max_size=6),
)
NUMBERS = st.one_of(
    st.integers(-2, 3), st.sampled_from([10**23, 2**31, 2**32, 2**63, -(2**63), 10**400, 0.5, 1e300, 1e-300]),
    st.floats(), st.booleans(),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(TEXTS, NUMBERS, st.dates(), st.times(), st.datetimes()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)
GRIDS = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.lists(VALUES, max_size=3), VALUES), max_size=2)
METHODS = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"name": st.one_of(st.sampled_from(list(config.ALGORITHMS)), VALUES)},
        optional={"objective": VALUES, "grid": st.one_of(GRIDS, VALUES), "steps": VALUES, "local_lr": VALUES},
    ),
)
SWEEPS = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {},
        optional={
            "seeds": st.one_of(st.lists(NUMBERS, max_size=3), VALUES),
            "tune": st.one_of(st.lists(NUMBERS, max_size=3), VALUES),
            "measure": TEXTS,
            "show": st.one_of(st.lists(TEXTS, max_size=2), VALUES),
            "over": st.one_of(GRIDS, VALUES),
            "grid": st.one_of(GRIDS, VALUES),
        },
    ),
)
COMPARISONS = st.one_of(VALUES, st.dictionaries(TEXTS, METHODS, max_size=3))


@st.composite
def settings_of(draw):
    """A file that begins as a good one, with some keys put for something odd."""
    told = {"algorithm": {"name": draw(st.sampled_from(list(config.ALGORITHMS)))}}
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=3)):
        head, _, rest = key.partition(".")
        value = draw(VALUES)
        if not rest:
            told[head] = value
        elif isinstance(told.setdefault(head, {}), dict):
            told[head][rest] = value
    if draw(st.booleans()):
        told["compare"] = draw(COMPARISONS)
    if draw(st.booleans()):
        told["sweep"] = draw(SWEEPS)
    return told


def fits_together(jobs):
    """Every run has a folder of its own, below the plan's, and its file says what it is."""
    places = [job.place for job in jobs]
    assert len({place.casefold() for place in places}) == len(places)
    for job in jobs[:3]:
        for part in job.place.split("/"):
            assert part
            assert part.isascii()
            assert part not in (".", "..")
            assert len(part) < 100
        assert config.parse(tomllib.loads(job.config.toml())) == job.config or has_nan(job.config)


def has_nan(told):
    def nan(value):
        if isinstance(value, dict):
            return any(map(nan, value.values()))
        if isinstance(value, list | tuple):
            return any(map(nan, value))
        return isinstance(value, float) and math.isnan(value)

    return nan(told.model_dump())


ANYTHING = [
    [], [1], ["chi2"], [[]], {}, {"a": 1}, {"name": "kl"}, {"name": ["kl"]}, [{}], datetime.date(1979, 5, 27),
    datetime.time(7, 32), datetime.datetime(1979, 5, 27), math.nan, math.inf, -math.inf, 10**30, 2**63 - 1, -1, 0, 0.5,
    1e308, True, "", " ", "nan", "auto", "\0", "a:b", "os:nothing", "[b]", "../..", "x" * 300,
]  # fmt: skip
BASES = {
    **{f"algorithm.{key}": {"algorithm": {"name": name}} for name in config.ALGORITHMS
       for key in config.section_of("algorithm", name).model_fields if key != "name"},
    **{f"objective.{key}": {"objective": {"name": name}} for name in config.OBJECTIVES
       for key in config.section_of("objective", name).model_fields if key != "name"},
    **{f"federation.{key}": {"federation": {"sites": 2}} for key in config.SECTIONS["federation"].model_fields},
    **{f"compare.A.{key}": {"compare": {"A": {"name": "drfa"}}} for key in ("objective", "grid", "steps", "cohort")},
    "algorithm.rule.sigma": {"algorithm": {"name": "scaffpd", "rule": {}}},
}  # fmt: skip


@pytest.mark.parametrize(
    "named",
    few([True], [True, False], "::test_every_key_takes_or_refuses_every_kind_of_value"),
    ids=["an algorithm", "the algorithm of choice"],
)
def test_every_key_takes_or_refuses_every_kind_of_value(named):
    """Not at random: each key of each section, with a value of each type that a file can hold.

    With `make test` a key has every sixth of them, and the next key those that follow.
    """
    apart = 6 if tiny.LONGER == 1 else 1
    for at, key in enumerate((*KEYS, *BASES)):
        for value in ANYTHING[at % apart :: apart]:
            given = tiny.settings("silos") | copy.deepcopy(BASES.get(key, {}))
            if not named:
                del given["algorithm"]
            *sections, last = key.split(".")
            table = given
            for section in sections:
                table = table.setdefault(section, {})
            table[last] = value
            for make in (
                lambda given=given: config.parse(checked(given)),
                lambda given=given: plan.sweep(checked(given)),
            ):
                said = tiny.tried(make)[1]
                assert said is None or any(part and part in said for part in (last, *sections)), (key, value, said)


@given(settings_of())
@many
def test_a_file_makes_runs_or_a_sentence(told):
    """Read as a file is, checked as `run`, `compare` and `sweep` do before anything begins."""
    for make in (lambda: [plan.PlannedRun("x", "x", config.parse(checked(told)), {}, {}, 0)],
                 lambda: plan.compare(checked(told)), lambda: plan.sweep(checked(told)).trials):  # fmt: skip
        jobs, said = tiny.tried(make)
        if said is None:
            assert jobs
            fits_together(jobs)


def checked(told):
    return mistakes.checked("mine.toml", told)


@given(st.lists(st.one_of(
    st.builds("{}={}".format, st.sampled_from(KEYS), st.one_of(
        TEXTS, VALUES.map(str), NUMBERS.map(str), st.just("\udcff"), st.just("1979-05-27"), st.just("[1]"),
        st.just("{a=1}"), st.just("1\n[run]\nrounds=0"), st.just("[" * 3000),
    )),
    TEXTS,
), max_size=4))  # fmt: skip
@example(["algorithm.name=[1]"])
@example(["objective.name={a=1}"])
@example(["run.seed=100000000000000000000000"])
@example(["run.seed=1979-05-27"])
@example(["data.separator=::"])
@many
def test_values_of_the_command_line_make_runs_or_a_sentence(assignments):
    def make():
        told = reading.override(tiny.settings("silos"), assignments)
        return [*plan.compare(told), *plan.sweep(told).trials, config.parse(told)]

    made, said = tiny.tried(make)
    assert said is not None or made


@given(st.one_of(st.text(), TEXTS), st.one_of(st.text(), TEXTS))
@example("身長", "体重")
@example("FedAvg", "Fed Avg")
@example("a b", "a-b-" + folders.name("a b")[-10:])
@many
def test_names_of_folders_are_different_for_different_texts(one, other):
    a, b = folders.name(one), folders.name(other)
    assert (a == b) == (one == other)
    for name in (a, b):
        assert name.isascii()
        assert name not in ("", ".", "..")
        assert not set(name) & set('/\\:*?"<>|\0')
        assert len(name) < 100


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=2, unique=True))
@example([0.1234567, 0.1234568])
@many
def test_numbers_however_near_have_folders_of_their_own(pair):
    one, other = (plan._place({"algorithm.local_lr": value}) for value in pair)
    assert one != other
