"""Odd configurations, --set values and command lines: each ends in a result or in one sentence, and nothing is lost."""

import math
import shutil
import string

import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiment import config, folders, plan
from tests.searches import tiny

many = settings(
    max_examples=300 * tiny.LONGER,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
few = settings(many, max_examples=60 * tiny.LONGER)

KEYS = sorted({
    *(f"{name}.{key}" for name, section in config.SECTIONS.items() for key in section.model_fields),
    *(f"algorithm.{key}" for name in config.ALGORITHMS for key in config.algorithm_section(name).model_fields),
    *(f"objective.{key}" for name in config.OBJECTIVES for key in config.objective_section(name).model_fields),
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
        assert config.parse(config.tomllib.loads(job.config.toml())) == job.config or has_nan(job.config)


def has_nan(told):
    def nan(value):
        if isinstance(value, dict):
            return any(map(nan, value.values()))
        if isinstance(value, list | tuple):
            return any(map(nan, value))
        return isinstance(value, float) and math.isnan(value)

    return nan(told.model_dump())


@given(settings_of())
@many
def test_a_file_makes_runs_or_a_sentence(told):
    """Read as a file is, checked as `run`, `compare` and `sweep` do before anything begins."""
    for make in (lambda: [plan.Job("x", "x", config.parse(checked(told)), {}, {}, 0)],
                 lambda: plan.compare(checked(told)), lambda: plan.sweep(checked(told)).trials):  # fmt: skip
        jobs, said = tiny.tried(make)
        if said is None:
            assert jobs
            fits_together(jobs)


def checked(told):
    return config.checked("mine.toml", told)


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
        told = config.override(tiny.settings("silos"), assignments)
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


MINE = {"notes.txt": "mine", "data/rows.csv": "1,2\n", "config.toml": "rounds = 3\n", "report.html": "<p>mine</p>",
        "sub/config.toml": "x = 1\n", "sub/thesis.tex": "years of work", "table.md": "mine too"}  # fmt: skip
FILES = ["good.toml", "sweep.toml", "broken.toml", "date.toml", "silos", ".", "nothing", "", "notes.txt", "x[/b]"]
PLACES = [".", "..", "out", "x[/b]", "x[b]y", "sub", "data", "notes.txt", "/dev/null/x", "new/deep", "done",
          "report.html", "\udcff", "stopped", "old", "many", ""]  # fmt: skip
COMMANDS = {
    "run": ("--out", "--overwrite", "--set", "--silos", "--label"),
    "compare": ("--out", "--overwrite", "--set", "--silos", "--label"),
    "sweep": ("--out", "--overwrite", "--set", "--silos", "--label"),
    "resume": (),
    "report": ("--out",),
    "predict": ("--out", "--separator"),
    "config": ("--set",),
}
OPTIONS = {
    "--out": st.sampled_from(PLACES),
    "--set": st.builds("{}={}".format, st.sampled_from([*KEYS, "run.rounds"]), st.one_of(TEXTS, NUMBERS.map(str))),
    "--silos": st.sampled_from(["silos", "data", "nothing", "."]),
    "--label": st.sampled_from(["y", "x", "", "身長"]),
    "--separator": TEXTS,
}


@st.composite
def command_lines(draw):
    name = draw(st.sampled_from(list(COMMANDS)))
    words = [name]
    if name in ("resume", "report", "predict"):
        words += [draw(st.sampled_from(PLACES)), *([draw(st.sampled_from(FILES))] if name == "predict" else [])]
    else:
        words += [draw(st.sampled_from(FILES))] if draw(st.integers(0, 3)) else []
    for option in draw(st.lists(st.sampled_from(COMMANDS[name] or ("--out",)), max_size=3, unique=True)):
        words += [option] if option == "--overwrite" else [option, draw(OPTIONS[option])]
    return words


@pytest.fixture
def world(tmp_path_factory, monkeypatch):
    """A folder with a user's own things in it, and runs of every kind."""
    tiny.use(monkeypatch)
    root = tmp_path_factory.mktemp("world")
    for name, text in MINE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    tiny.silos(root / "silos")
    good = tiny.settings("silos", run={"rounds": 1})
    (root / "good.toml").write_text(tomli_w.dumps(good))
    (root / "sweep.toml").write_text(
        tomli_w.dumps(good | {"compare": {"A|B": {"name": "fedavg"}, "身長": {"name": "sgd"}}})
    )
    (root / "broken.toml").write_bytes(b"\xff\xfe[run\n")
    (root / "date.toml").write_text("[run]\nseed = 1979-05-27\n")
    monkeypatch.chdir(root)
    assert CliRunner().invoke(app, ["run", "good.toml", "--out", "done"]).exit_code == 0
    assert CliRunner().invoke(app, ["compare", "sweep.toml", "--out", "many"]).exit_code == 0
    shutil.copytree(root / "done", root / "stopped")
    (root / "stopped" / "result.json").unlink()
    shutil.copytree(root / "done", root / "old")
    (root / "old" / "equipoise.json").unlink()
    (root / "done" / "notes.txt").write_text("mine as well")
    return root


def test_whatever_is_typed_nothing_of_the_user_is_lost(world, tmp_path_factory):
    """Hundreds of commands, one after the other, in a folder that fills up with runs."""
    mine = {name: (world / name).read_bytes() for name in [*MINE, "done/notes.txt", "good.toml", "silos/north.csv"]}
    old = tiny.contents(world / "old")

    @given(command_lines())
    @example(["run", "config.toml", "--out", ".", "--overwrite"])
    @example(["run", "good.toml", "--out", "x[/b]"])
    @example(["run", "good.toml", "--out", "/dev/null/x"])
    @example(["predict", "done", "silos/north.csv", "--out", "sub"])
    @example(["predict", "done", "silos/north.csv", "--out", "silos/north.csv"])
    @example(["compare", "good.toml", "--out", ".", "--overwrite"])
    @example(["report", "done", "--out", "report.html"])
    @few
    def typed(words):
        told = CliRunner().invoke(app, words)
        assert isinstance(told.exception, SystemExit | None), (words, told.exception, told.exc_info)
        assert told.exit_code in (0, 2), (words, told.output)
        if told.exit_code == 2 and "Usage: " not in told.stderr:
            assert [line[:7] for line in told.stderr.splitlines() if not line.startswith("note: ")] == ["error: "], (
                words
            )
        assert {name: (world / name).read_bytes() for name in mine} == mine, words
        assert tiny.contents(world / "old") == old, words

    typed()
