"""Damaged run folders: every command ends in a result that is right, or in one sentence, and nothing is lost."""

import copy
import json
import shutil

import pytest
import safetensors.numpy
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from equipoise import artifact
from equipoise.cli import app
from equipoise.experiment import config, records, run
from equipoise.experiment.problems import build_problem
from equipoise.report import html, tables
from tests.problems import first
from tests.searches import tiny

NEW = "x\n1\n2\n"
STATES = ("finished", "stopped")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A finished run, one that was stopped after two rounds, and one of other clients, all real but for the engine."""
    folder = tmp_path_factory.mktemp("damage")
    (folder / "new.csv").write_text(NEW)
    with pytest.MonkeyPatch.context() as patched:
        tiny.use(patched)
        told = config.parse(tiny.settings(tiny.silos(folder / "silos")))
        run.run(told, folder / "finished")
        with pytest.raises(KeyError):
            run.run(told, folder / "stopped", watch=stop)
        three = tiny.silos(folder / "three")
        (three / "west.csv").write_text("x,y\n1,maybe\n2,no\n3,yes\n")
        more = {"model": {"name": "linear"}, "run": {"rounds": 5}}
        with pytest.raises(KeyError):
            run.run(config.parse(tiny.settings(three, **more)), folder / "other stopped", watch=stop)
        run.run(config.parse(tiny.settings(three, **more)), folder / "other finished")
        yield folder


def stop(at, of, row):
    if at == 3:  # the row is written, the checkpoint is that of round 2
        raise KeyError("the machine is gone")


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def damages(place, state, name):
    """(what happened, what is in the file now; None: it is gone)"""
    here = place / state
    whole = (here / name).read_bytes()
    yield "gone", None
    yield "emptied", b""
    yield "torn", whole[: len(whole) // 2]
    if tiny.LONGER > 1:
        yield "cut by a byte", whole[:-1]
        yield "grown", whole + b"\0\xff"
        yield "zeros", bytes(len(whole))
    yield "noise", bytes((17 * i + 3) % 256 for i in range(len(whole)))
    other = place / f"other {state}" / name
    if other.is_file():
        yield "of another run", other.read_bytes()
    others = [file for file in files(here) if file != name]
    for swapped in others if tiny.LONGER > 1 else others[:1]:
        yield f"swapped with {swapped}", (here / swapped).read_bytes()
    if name.endswith(".json"):
        told = json.loads(whole)
        yield "of another version", json.dumps(told | {"format": 99, "since": "tomorrow"}).encode()
        yield "nested", json.dumps({key: [value] for key, value in told.items()}).encode()


ALWAYS = ("equipoise.json", "config.toml", "environment.json", "federation.json", "history.jsonl")
LATER = {"finished": ("result.json", "model.safetensors", "rows.safetensors"), "stopped": ("checkpoint.safetensors",)}
EVERY = [(state, name) for state in STATES for name in (*ALWAYS, *LATER[state])]
# A file that both have is read alike, and only of a run that was stopped does anything go on from it.
FIRST = [
    *(("stopped", name) for name in ("config.toml", "federation.json", "history.jsonl", "checkpoint.safetensors")),
    *(("finished", name) for name in ("result.json", "model.safetensors")),
]
CASES = sorted(EVERY, key=lambda case: case not in FIRST)


@pytest.mark.parametrize(
    ("state", "name"), first(len(FIRST), CASES, "::test_a_damaged_file_is_a_sentence_or_does_not_matter")
)
def test_a_damaged_file_is_a_sentence_or_does_not_matter(place, tmp_path, state, name, monkeypatch):
    assert {file for each, file in CASES if each == state} == set(files(place / state))
    monkeypatch.setattr(run, "build_problem", shared(place))
    for what, content in damages(place, state, name):
        folder = tmp_path / what.replace(" ", "-")
        shutil.copytree(place / state, folder)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        before = tiny.contents(folder)
        told = command("report", folder, "--out", tmp_path / "page.html")
        assert tiny.contents(folder) == before, what
        told = command("predict", folder, place / "new.csv") if "model" in name or what == "gone" else told
        assert tiny.contents(folder) == before, what
        if state == "stopped":
            told = command("resume", folder)
            if told.exit_code:
                assert tiny.contents(folder) == before, what
                assert told.stderr.startswith("error: ")
            else:
                assert same_run(folder, place / "finished"), what


problems = {}


def shared(place):
    """The data is read once for all folders."""
    real = build_problem

    def problem(told):
        key = told.toml()
        if key not in problems:
            problems[key] = real(told)
        return problems[key]

    return problem


def command(*words):
    """The command in this process; whatever it does, it does not end in a traceback."""
    told = CliRunner().invoke(app, [str(word) for word in words])
    if told.exit_code not in (0, 2) or not isinstance(told.exception, SystemExit | None):
        raise AssertionError(f"{words}: {told.exception!r}\n{told.output}") from told.exception
    errors = [line for line in told.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == bool(told.exit_code), told.stderr
    return told


def same_run(folder, whole):
    kept = (records.HISTORY, records.MODEL, records.RESULT)
    return all((folder / name).read_bytes() == (whole / name).read_bytes() for name in kept)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just(10**30), st.floats(), st.text(max_size=3), st.just([]),
    st.just({}), st.lists(st.integers(0, 2), max_size=3), st.just({"a": {"b": []}}), st.just("\ud800"),
)  # fmt: skip
many = settings(
    max_examples=40 * tiny.LONGER,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def mutated(draw, value):
    """`value` with one part, at any depth, put for something odd, left out or doubled."""
    value = copy.deepcopy(value)
    at = value
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return value
        key = draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and at[key] and draw(st.booleans()):
            at = at[key]
            continue
        match draw(st.sampled_from(("odd", "odd", "gone", "doubled"))):
            case "odd":
                at[key] = draw(ODD)
            case "gone":
                del at[key]
            case "doubled" if isinstance(at, list):
                at.append(copy.deepcopy(at[key]))
            case _:
                at[f"{key}{key}"] = copy.deepcopy(at[key])
        return value


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "federation.json", "result.json", "history.jsonl"])
@given(data=st.data())
@many
def test_a_file_with_something_odd_in_it_is_reported_or_refused(place, tmp_path_factory, name, data):
    folder = place / "odd"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / "finished", folder)
    path = folder / name
    if name == "history.jsonl":
        lines = path.read_text().splitlines()
        k = data.draw(st.integers(0, len(lines) - 1))
        lines[k] = json.dumps(mutated(data.draw, json.loads(lines[k])))
        path.write_text("\n".join(lines) + "\n")
    elif name == "config.toml":
        try:
            path.write_text(tomli_w.dumps(mutated(data.draw, records.read_toml(path))))
        except (TypeError, UnicodeEncodeError, ValueError):
            return  # nothing that a TOML file could hold
    else:
        path.write_text(json.dumps(mutated(data.draw, json.loads(path.read_text()))))
    read, said = tiny.tried(lambda: records.read(folder))
    if said is not None:
        assert str(folder) in said
        return
    assert "Equipoise report" in html.page([read])
    tables.per_client(read)


@given(data=st.data())
@many
def test_a_model_with_something_odd_in_its_header_is_loaded_or_refused(place, data):
    path = place / "odd.safetensors"
    with safetensors.safe_open(place / "finished" / records.MODEL, framework="numpy") as file:
        header = json.loads(file.metadata()["equipoise"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.pop("metadata")
    odd = mutated(data.draw, header)
    if data.draw(st.booleans()):
        odd["metadata"] = {}
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"equipoise": json.dumps(odd)}))
    read, said = tiny.tried(lambda: artifact.load(path))
    if said is not None:
        assert "odd.safetensors" in said
        return
    assert len(read.encoding.target.classes) == 2 if read.encoding else True
    if data.draw(st.integers(0, 9)) == 0:  # each is compiled anew
        rows, said = tiny.tried(lambda: artifact.predict(path, place / "new.csv"))
        assert said is not None or len(rows) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h, t: h["encoding"]["target"].update(classes=["no", "no"]), "its fields contradict each other"),
        (lambda h, t: h.update(loss={"nested": [1]}), "a field of another type"),
        (lambda h, t: h["model"].update(arguments=[1, 2]), "is not a model that equipoise saved"),
        (lambda h, t: h["model"].update(name=["linear"]), "is not a model that equipoise saved"),
        (lambda h, t: t["weight"].fill(float("nan")), "hold what is not a finite number"),
        (lambda h, t: t.update(weight=t["weight"].astype("int64")), "hold what is not a finite number"),
        (
            lambda h, t: h["encoding"]["features"].append(h["encoding"]["features"][0]),
            "its fields contradict each other",
        ),
    ],
)
def test_a_model_that_would_predict_nonsense_is_refused(place, tmp_path, change, sentence):
    path = tmp_path / "model.safetensors"
    with safetensors.safe_open(place / "finished" / records.MODEL, framework="numpy") as file:
        header = json.loads(file.metadata()["equipoise"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"equipoise": json.dumps(header)}))
    assert sentence in command("predict", path, place / "new.csv").stderr
