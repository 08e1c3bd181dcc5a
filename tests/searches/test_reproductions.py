"""What once went wrong, as it was found: each of these lost something, told something false or ended in a traceback."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tomli_w
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiment import config, plan, reading, run
from equipoise.report import sweeps
from tests.problems import few, first
from tests.searches import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Silo files and a configuration, in the folder where commands are given."""
    tiny.use(monkeypatch)
    tiny.silos(tmp_path / "silos")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(tomli_w.dumps(tiny.settings("silos", run={"rounds": 1})))
    return tmp_path


def said(*words):
    """The one line of an error."""
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])
    assert isinstance(told.exception, SystemExit | None), repr(told.exception)
    assert told.exit_code == 2, told.output
    (line,) = told.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def done(*words):
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])
    assert told.exit_code == 0, (told.output, told.exception)
    return told.stdout


# Data loss.


@pytest.mark.parametrize("flag", [(), ("--overwrite",)])
@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_a_project_of_the_user_with_a_config_toml_is_left_alone(here, command, flag):
    project = here / "project"
    project.mkdir()
    for name in ("config.toml", "notes.txt", "report.html", "table.md"):
        (project / name).write_text("mine")
    before = tiny.contents(project)
    line = said(command, "good.toml", "--out", "project", *flag)
    assert "project holds files that Equipoise did not make (config.toml, notes.txt, report.html, ...)" in line
    assert "--overwrite" not in line
    assert tiny.contents(project) == before


def test_the_current_folder_is_not_emptied(here):
    (here / "config.toml").write_text((here / "good.toml").read_text())
    (here / "thesis.tex").write_text("years of work")
    before = tiny.contents(here)
    said("run", "config.toml", "--out", ".", "--overwrite")
    assert tiny.contents(here) == before


def test_notes_in_a_run_folder_outlive_it(here):
    done("run", "good.toml", "--out", "out")
    for name in ("notes.txt", "tensorboard/plot.png", "sub/result.json"):
        (here / "out" / name).parent.mkdir(exist_ok=True)
        (here / "out" / name).write_text("mine")
    before = (here / "out" / "model.safetensors").read_bytes()
    done("run", "good.toml", "--out", "out", "--overwrite", "--set", "run.seed=5")
    assert (here / "out" / "model.safetensors").read_bytes() != before
    for name in ("notes.txt", "tensorboard/plot.png", "sub/result.json"):
        assert (here / "out" / name).read_text() == "mine"


def test_a_page_of_somebody_else_is_not_replaced(here):
    done("run", "good.toml", "--out", "out")
    (here / "report.html").write_text("<p>mine</p>")
    assert "report.html is not a page that Equipoise wrote" in said("report", "out")
    assert (here / "report.html").read_text() == "<p>mine</p>"
    done("report", "out", "--out", "page.html")
    done("report", "out", "--out", "page.html")  # its own may be


def test_predictions_do_not_replace_what_they_are_made_from(here):
    done("run", "good.toml", "--out", "out")
    for file in ("silos/north.csv", "out/model.safetensors"):
        before = (here / file).read_bytes()
        assert "is what is read; give another --out" in said("predict", "out", "silos/north.csv", "--out", file)
        assert (here / file).read_bytes() == before


def test_a_run_of_a_version_before_markers_is_shown_but_not_written_to(here):
    done("run", "good.toml", "--out", "out")
    (here / "out" / "equipoise.json").unlink()
    before = tiny.contents(here / "out")
    done("report", "out", "--out", "page.html")
    done("predict", "out", "silos/north.csv")
    (here / "out" / "result.json").unlink()
    assert "start over: `equipoise run out/config.toml" in said("resume", "out")
    assert "give another --out, or delete it yourself" in said("run", "good.toml", "--out", "out", "--overwrite")
    (here / "out" / "result.json").write_bytes(before["result.json"])
    assert tiny.contents(here / "out") == before


# False certificates.

evaluate_for_real = run.local_evaluator


def history(here, monkeypatch, **changes):
    """The rows of a run whose models are random and whose certificates are real."""
    monkeypatch.setattr(run, "local_evaluator", evaluate_for_real)
    return run.run(config.parse(tiny.settings("silos", **changes)), here / "out").rows


def test_a_network_has_no_certificate(here, monkeypatch):
    """It "certified" an optimum of at least 1.0698 where the same run later had 1.0109."""
    rows = history(here, monkeypatch, model={"name": "mlp", "hidden": [2]}, run={"rounds": 1})
    assert [row.gap for row in rows] == [None, None]
    assert all(row.objective is not None for row in rows)


def test_weights_of_a_method_without_a_dual_certify_nothing(here, monkeypatch):
    """AgnosticFedAvg with the average had gaps below zero, and claimed an optimum that SCAFFOLD went below."""
    method = {"name": "agnostic_fedavg", "dual_lr": 0.1}
    rows = history(here, monkeypatch, algorithm=method, objective={"name": "average"})
    least = min(row.objective for row in rows)
    for row in rows:
        assert row.gap >= 0
        assert row.objective - row.gap <= least + 1e-9


# One run reported as another.


def test_labels_that_are_not_ascii_are_runs_of_their_own(here):
    for file in (here / "silos").iterdir():
        file.write_text(file.read_text().replace("x,y", "身長,体重").replace("yes", "1").replace("no", "0"))
    told = {**tiny.settings("silos"), "data": {"silos": "silos"},
            "sweep": {"over": {"data.label": ["身長", "体重"]}, "show": ["mean"]}}  # fmt: skip
    study = plan.sweep(told)
    cells = plan.run_study(study, here / "out")
    assert [cell.runs[0].config["data"]["label"] for cell in cells] == ["身長", "体重"]
    text = sweeps.markdown(cells, study.sweep.show)
    assert "**label = 身長**" in text
    assert "**label = 体重**" in text


def test_numbers_that_agree_in_six_digits_are_runs_of_their_own(here):
    told = {**tiny.settings("silos"), "sweep": {"grid": {"algorithm.local_lr": [0.1234567, 0.1234568]}}}
    (cell,) = plan.run_study(plan.sweep(told), here / "out")
    assert cell.tried == 2
    files = (here / "out").rglob("config.toml")
    rates = sorted(reading.read(file)["algorithm"]["local_lr"] for file in files)
    assert rates == [0.1234567, 0.1234568]


def test_a_method_with_a_name_that_is_not_ascii_has_a_folder(here):
    told = {**tiny.settings("silos"), "compare": {"公平": {"name": "fedavg"}, "平均": {"name": "sgd"}}}
    runs = plan.run_all(plan.compare(told), here / "out")
    assert [run.outcome.label for run in runs] == ["公平", "平均"]
    assert len({run.path for run in runs}) == 2
    assert all(run.path.parent == here / "out" for run in runs)


def test_a_bar_in_a_label_does_not_break_the_table(here):
    told = {**tiny.settings("silos"), "compare": {"A|B *x*": {"name": "fedavg"}}, "sweep": {"show": ["mean"]}}
    study = plan.sweep(told)
    lines = sweeps.markdown(plan.run_study(study, here / "out"), study.sweep.show).splitlines()
    head, rule, row = (line for line in lines if line)
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, row)]
    assert bars == [bars[0]] * 3
    assert r"A\|B \*x\*" in row


# Resuming something else.


def stopped(folder, told):
    def watch(at, of, row):
        if at == 3:
            raise KeyError("the machine is gone")

    with pytest.raises(KeyError):
        run.run(config.parse(told), folder, watch=watch)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    first(
        2,
        [
            ("rho = 0.1", "rho = 0.3", "objective.rho was 0.1 and is 0.3"),
            ("test = 0.2", "test = 0.4", "data.test was 0.2 and is 0.4"),
            ("l2 = 0.1", "l2 = 0.2", "model.l2 was 0.1 and is 0.2"),
            ("seed = 0", "seed = 7", "run.seed was 0 and is 7"),
            ("rounds = 4", "rounds = 8", "run.rounds was 4 and is 8"),
        ],
        "::test_an_edited_configuration_is_not_gone_on_with",
    ),
)
def test_an_edited_configuration_is_not_gone_on_with(here, before, after, sentence):
    stopped(here / "out", tiny.settings("silos"))
    file = here / "out" / "config.toml"
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, after))
    left = tiny.contents(here / "out")
    line = said("resume", "out")
    assert sentence in line
    assert "Restore that, or start over with --overwrite" in line
    assert tiny.contents(here / "out") == left
    file.write_text(file.read_text().replace(after, before))
    done("resume", "out")


def test_another_seed_of_the_data_is_not_gone_on_with(here):
    """As found: the division of the data set was another, and the run went on."""
    data = {"data": {"name": "synthetic", "options": {"dim": 3, "samples": 8}}, "partition": {"clients": 3, "seed": 0}}
    stopped(here / "out", tiny.settings("silos", model={"loss": "squared_error"}) | data)
    file = here / "out" / "config.toml"
    text = file.read_text()
    assert text.count("\nclients = 3\n") == 1
    section = text.index("[partition]")
    file.write_text(text[:section] + text[section:].replace("seed = 0", "seed = 1", 1))
    assert "partition.seed was 0 and is 1" in said("resume", "out")
    file.write_text(text)
    done("resume", "out")


def test_data_files_that_changed_are_noticed(here):
    stopped(here / "out", tiny.settings("silos"))
    north = here / "silos" / "north.csv"
    text = north.read_text()
    north.write_text(text.replace("1,yes", "1.5,yes"))
    assert "since its checkpoint north.csv has changed" in said("resume", "out")
    north.write_text(text)
    (here / "silos" / "west.csv").write_text(text)
    assert "west.csv is new" in said("resume", "out")
    (here / "silos" / "west.csv").unlink()
    done("resume", "out")


def test_a_comparison_does_not_mix_runs_of_changed_files(here):
    told = {**tiny.settings("silos"), "compare": {"A": {"name": "fedavg"}, "B": {"name": "sgd"}}}
    (here / "both.toml").write_text(tomli_w.dumps(told))
    done("compare", "both.toml", "--out", "out")
    done("compare", "both.toml", "--out", "out")
    (here / "out" / "B" / "result.json").unlink()  # as if it had been stopped
    (here / "silos" / "north.csv").write_text("x,y\n9,yes\n8,no\n")
    assert "A was trained on other files (north.csv has changed)" in said("compare", "both.toml", "--out", "out")


def test_other_code_is_noticed(here, monkeypatch):
    from equipoise.experiment import origin

    stopped(here / "out", tiny.settings("silos"))
    monkeypatch.setattr(origin, "code", lambda config: "Equipoise 9.9")
    assert "the code was Equipoise 0.1.0 (" in said("resume", "out")


def test_a_run_over_silo_files_can_be_resumed(here):
    """Its own configuration was refused, because it said how silo files are divided."""
    stopped(here / "out", tiny.settings("silos"))
    done("resume", "out")
    done("run", "good.toml", "--out", "other")
    assert config.parse(reading.read(here / "other" / "config.toml")).data.silos == "silos"


@pytest.mark.parametrize(
    "end", few(["\r\r\n"], ["\n", "\r\r\n", "\r"], "::test_files_as_people_have_them_train_resume_and_predict_alike")
)
def test_files_as_people_have_them_train_resume_and_predict_alike(here, end):
    """Every second row was lost to the line ends, and numbers with commas were categories."""
    plain = run.run(config.parse(tiny.settings("silos")), here / "plain")
    for name, text in tiny.SILOS.items():
        rows = [line.split(",") for line in text.splitlines()]
        text = end.join(";".join([x if x == "x" else f"{x},00", y]) for x, y in rows) + end
        (here / "silos" / f"{name}.csv").write_bytes(text.encode())
    stopped(here / "out", tiny.settings("silos"))
    done("resume", "out")
    assert (here / "out" / "history.jsonl").read_bytes() == (plain.path / "history.jsonl").read_bytes()
    answers = done("predict", "out", "silos/north.csv")
    assert len(answers.splitlines()) == 5
    assert answers == done("predict", "plain", "silos/north.csv", "--separator", ";", "--decimal", ",")
    told = said("run", "good.toml", "--set", "data.decimal=.", "--out", "other")
    assert "with a decimal point; correct the cell, or leave out data.decimal = '.'" in told


# What a user typed is text.


@pytest.mark.parametrize(
    "name",
    few(["x[/b]", ":smile:"], ["x[/b]", "x[b]y", "[red]", "a b", ":smile:"], "::test_brackets_in_a_path_are_brackets"),
)
def test_brackets_in_a_path_are_brackets(here, name):
    out = done("run", "good.toml", "--out", name)
    assert f"page:  {name}/report.html\n" in out
    assert f"model: {name}/model.safetensors\n" in out
    assert (here / name / "report.html").is_file()
    assert f"page:  {name}.html" in done("report", name, "--out", f"{name}.html")
    assert f"heat-map written to {name}.svg" in done(
        "data", "partition", "silos", "--label", "y", "--out", f"{name}.svg"
    )


def test_help_has_no_backslashes():
    for words in (["report"], ["run"], ["flower", "keys"], ["data", "info"], ["predict"]):
        text = done(*words, "--help")
        assert "\\" not in text
    assert "[required]" in done("report", "--help")


# No tracebacks.


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ('[compare.X]\nname = "fedavg"\nobjective = "kl"\n', "[compare.X].objective is 'kl'; give a table"),
        ('[sweep.grid]\n"algorithm.local_lr" = []\n', "algorithm.local_lr is []; give a list of values"),
        ("[run]\nseed = 1979-05-27\n", "run.seed is 1979-05-27, a date or a time"),
        ("[run]\nseed = 100000000000000000000000\n", "run.seed is a number of 24 digits; give a number below 2^63"),
        ("[run]\nseed = 4294967296\n", "run.seed is 4294967296; give a number below 4294967296"),
        ("[partition]\nseed = 4294967296\n", "partition.seed is 4294967296; give a number below 4294967296"),
        ("[run]\nrounds = 3000000000\n", "run.rounds is 3000000000; give a number below 2147483648"),
        ('[data]\nsilos = "silos"\nlabel = "y"\nseparator = "::"\n', "data.separator is '::'; give one character"),
        ("sweep = 3\n", "sweep is 3; give a table"),
        ('[compare.X]\nname = "nothing"\n[sweep.grid]\n"algorithm.steps" = [1]\n', "algorithm.name is 'nothing'"),
        ('[algorithm]\nname = ["fedavg"]\n', "algorithm.name is ['fedavg']"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(here, file, sentence):
    (here / "mine.toml").write_text(file)
    assert sentence in said("sweep", "mine.toml", "--out", "out")
    assert not (here / "out").exists()


def test_a_list_for_a_name_is_one_sentence(here):
    assert "algorithm.name is [1]" in said("run", "--set", "algorithm.name=[1]")


def test_a_place_that_cannot_be_is_one_sentence(here):
    assert "/dev/null/x cannot be made: /dev/null is not a folder" in said("run", "good.toml", "--out", "/dev/null/x")
    assert "good.toml cannot be made: good.toml is not a folder" in said("run", "good.toml", "--out", "good.toml")


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(here, monkeypatch):
    real, asked = os.fsync, []

    def full(descriptor):
        asked.append(descriptor)
        if len(asked) == 12:
            raise OSError(28, "No space left on device")
        return real(descriptor)

    (here / "long.toml").write_text(tomli_w.dumps(tiny.settings("silos")))
    monkeypatch.setattr(os, "fsync", full)
    line = said("run", "long.toml", "--out", "out")
    assert (
        "cannot be written (No space left on device); make room on the disk; then `equipoise resume out` goes on"
        in line
    )
    done("resume", "out")


@pytest.mark.parametrize("content", [b"", b"[run\n", b"\xff\xfe\x00", b'name = "x"\n[nothing]\n'])
def test_a_damaged_config_is_one_sentence(here, content):
    done("run", "good.toml", "--out", "out")
    (here / "out" / "config.toml").write_bytes(content)
    (here / "out" / "result.json").unlink()
    assert "config.toml" in said("resume", "out")


@pytest.mark.parametrize(
    "content",
    few(
        [b"\xff\n", b"[]\n"],
        [b"\xff\n", b"[]\n", b"{}\n", b'{"round": {"a": 1}}\n', b"null\n"],
        "::test_a_damaged_history_is_one_sentence",
    ),
)
def test_a_damaged_history_is_one_sentence(here, content):
    done("run", "good.toml", "--out", "out")
    (here / "out" / "history.jsonl").write_bytes(content)
    assert "history.jsonl" in said("report", "out", "--out", "page.html")


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    """A model of a run, made once for all damages."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patched:
        tiny.use(patched)
        run.run(config.parse(tiny.settings(tiny.silos(folder / "silos"), run={"rounds": 1})), folder / "out")
    return folder / "out" / "model.safetensors"


@pytest.fixture
def damaged_model(whole_model, tmp_path):
    """Changes the header or the weights of a model; returns what is said when it is to predict."""
    return partial(_damaged, whole_model, tmp_path)


def _damaged(whole, here, change):
    path = here / "model.safetensors"
    (here / "new.csv").write_text(tiny.SILOS["north"])
    path.write_bytes(whole.read_bytes())
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["equipoise"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"equipoise": json.dumps(header)}))
    return said("predict", path, here / "new.csv")


def test_a_model_of_nan_predicts_nothing(damaged_model):
    line = damaged_model(lambda header, tensors: tensors["bias"].fill(np.nan))
    assert "the weights 'bias' of model.safetensors hold what is not a finite number" in line


def test_a_model_of_two_equal_classes_predicts_nothing(damaged_model):
    def change(header, tensors):
        header["encoding"]["target"]["classes"] = ["yes", "yes"]

    assert "model.safetensors cannot be used" in damaged_model(change)


@pytest.mark.parametrize("value", [[], {"a": {"b": 1}}, 3, None, "text"])
@pytest.mark.parametrize("key", ["model", "encoding", "loss", "metadata", "version"])
def test_a_model_with_a_field_of_another_type_predicts_nothing(damaged_model, key, value):
    if (key, value) in (("loss", "text"), ("encoding", None)):
        return
    if key == "metadata" and isinstance(value, dict):
        return
    assert "model.safetensors" in damaged_model(lambda header, tensors: header.update({key: value}))


def test_predicting_into_a_folder_is_one_sentence(here):
    done("run", "good.toml", "--out", "out")
    assert "silos is a folder; give the name of a file" in said("predict", "out", "silos/north.csv", "--out", "silos")


@pytest.mark.parametrize("separator", ["::", "", '"'])
def test_a_separator_that_is_none_is_one_sentence(here, separator):
    done("run", "good.toml", "--out", "out")
    assert "the separator is" in said("predict", "out", "silos/north.csv", "--separator", separator)


@pytest.mark.parametrize("days", [-5, 0, 10**9])
def test_keys_that_were_never_valid_are_one_sentence(here, days):
    pytest.importorskip("flwr")
    assert f"--days is {days}" in said("flower", "keys", "keys", "--sites", "a", "--days", days)
    assert not (here / "keys").exists()


def test_ctrl_c_while_the_libraries_are_loaded_ends_without_a_traceback():
    """At any import of the first second, from `main` on; what comes before is the interpreter's own."""
    every = str(max(100 // tiny.LONGER, 1))
    words = ["-m", "tests.searches.interrupts", every, "config", "--set", "run.rounds=3"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600, check=True, cwd=ROOT)
    *lines, last = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("at ")]
    assert re.fullmatch(r"ended 0 moments \d\d+", last), done.stdout[-300:]
