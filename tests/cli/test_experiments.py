"""Every command, as a user types it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiment import records
from tests.test_artifact import hospitals

run = CliRunner(env={"COLUMNS": "200"}).invoke
README = Path(__file__).parents[2] / "README.md"
QUICK = ("--set", "run.rounds=3")


def ok(*arguments):
    told = run(app, [str(a) for a in arguments])
    assert told.exit_code == 0, told.output
    return told.output


def wrong(*arguments):
    told = run(app, [str(a) for a in arguments])
    assert told.exit_code == 2, told.output
    assert len(told.stderr.splitlines()) == 1
    return told.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with silo files and everything that was run on them."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "hospitals").mkdir()
    hospitals(folder / "hospitals")
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def commands(group=None, before=()):
    """(words, command) of every command there is."""
    group = group or get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


EXAMPLES = {words: re.search(r"Example: (equipoise .*)", command.help or "") for words, command in commands()}


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_every_command_has_help_with_an_example(words):
    assert EXAMPLES[words], f"equipoise {' '.join(words)} --help has no example"
    assert ok(*words, "--help")
    assert EXAMPLES[words].group(1).split()[1 : 1 + len(words)] == list(words)


def example(name):
    words = EXAMPLES[(name,)].group(1).split()[1:]
    return words[: words.index(">")] if ">" in words else words


@pytest.mark.thorough(witness="::test_from_silo_files_to_predictions")
def test_the_examples_work_one_after_the_other(here):
    """Those that train, with fewer rounds where they do not say themselves."""
    said = ok(*example("compare"))
    for label in ("FedAvg", "SCAFFOLD", "DRFA", "SCAFF-PD of losses", "SCAFF-PD of gains"):
        assert label in said
    assert "page:  runs/schools/report.html" in said
    as_in_the_readme(records.find(here / "runs/schools"))
    page = (here / "runs/schools/report.html").read_text()
    assert "SCAFF-PD" in page
    assert ok(*example("compare")).splitlines()[-1] == "page:  runs/schools/report.html"  # shown again, not run again
    (here / "runs/schools").rename(here / "runs/exam-compare")
    assert "page:  page.html" in ok(*example("report"))
    assert "model: runs/run/model.safetensors" in ok(*example("run"))
    assert "is finished; there is nothing to resume" in wrong(*example("resume"))
    assert "scaffpd-figure2" in ok(*example("reproduce"))
    (here / "mine.toml").write_text(ok(*example("config")))
    assert ok("config", "mine.toml") == ok("config", "--set", "name=run")
    assert "2d + 2" in ok(*example("algorithms"))


def as_in_the_readme(folders):
    """The table of the README, but for the few test rows that another machine's rounding may turn."""
    rows = (
        re.search(r"<!-- equipoise compare -->\n\n(.*?)\n\n", README.read_text(), re.DOTALL).group(1).splitlines()[2:]
    )
    shown = {cells[0]: cells[1:] for cells in ([c.strip() for c in row.strip("|").split("|")] for row in rows)}
    for done in map(records.read, folders):
        mean, worst, best, lowest, std, *_ = shown.pop(done.outcome.label)
        told = done.outcome.summary
        for text, key, slack in ((mean, "mean", 1), (worst, "worst20", 3), (best, "best20", 2), (lowest, "min", 4)):
            assert abs(float(text.rstrip("%")) - 100 * told[key]) < slack, (done.outcome.label, key)
        assert abs(float(std) - 100 * told["std"]) < 1
    assert not shown


@pytest.mark.thorough(
    witness="experiment/test_plan.py::test_a_sweep_chooses_on_its_tuning_seeds_and_reports_on_the_others"
)
def test_a_sweep(here):
    said = ok(*example("sweep"), "--set", "run.rounds=2", "--set", "data.name=synthetic")
    assert "table: runs/digits-sweep/table.md" in said
    assert "local_lr" in (here / "runs/digits-sweep/table.md").read_text()


NEW = """ward,age,sex,dose,admitted,remark
C,90,F,1000000001,2024-05-05,
A,20,M,999999999,2024-05-05,
never seen,?,,1000000000,,all but nothing known
"""


def test_from_silo_files_to_predictions(here):
    plain = ("model.own=none", "model.metric=none", "objective.of=losses", "personal.kind=none", "run.rounds=30")
    plain += ("model.l2=0.01", "objective.rho=0.1")  # which are chosen otherwise
    said = ok("run", "--silos", "hospitals", "--label", "ill", *(word for value in plain for word in ("--set", value)))
    for word in ("north", "south", "west", "column 'country' dropped", "model: runs/hospitals/model.safetensors"):
        assert word in said
    (here / "new.csv").write_text(NEW)
    told = ok(*example("predict"))
    assert told == ""
    rows = (here / "predictions.csv").read_text().splitlines()
    assert rows[0] == "prediction,probability of no,probability of yes"
    assert [row.split(",")[0] for row in rows[1:3]] == ["yes", "no"]
    assert ok("predict", "runs/hospitals", "new.csv") == (here / "predictions.csv").read_text()
    assert records.read(here / "runs/hospitals").rows[-1].gap < 0.05


@pytest.mark.thorough(witness="experiment/test_batch.py::test_one_program_serves_all")
def test_several_methods_on_silo_files(here):
    said = ok("compare", "--silos", "hospitals", "--label", "ill", *QUICK, "--out", "runs/both")
    assert "SCAFF-PD" in said
    assert "holds 6 runs; choose one" in wrong("predict", "runs/both", "new.csv")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "nowhere.toml"), "there is no file nowhere.toml; `equipoise config > nowhere.toml` writes one"),
        (("run", "--silos", "nowhere"), "nowhere is not a folder"),
        (("run", "--label", "ill"), "--label is for silo files"),
        (("run", "--silos", "hospitals", "--label", "sick"), "has no column 'sick', the label"),
        (("run", "--set", "run.rounds"), "nothing to set"),
        (("run", "--set", "data.name=moons"), "no data set 'moons'"),
        (("compare", "--set", "run.rounds=many"), "run.rounds is 'many'; give a whole number"),
        (("resume", "nowhere"), "nowhere is not a run folder"),
        (("report", "nowhere"), "there is no folder nowhere"),
        (("predict", "nothing.safetensors", "new.csv"), "there is no file nothing.safetensors"),
        (("reproduce", "figure2"), "there is no experiment 'figure2'; did you mean"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_one_line(here, arguments, sentence):
    assert sentence in wrong(*arguments, *(("--out", "runs/wrong") if arguments[0] in ("run", "compare") else ()))
    assert not (here / "runs/wrong").exists()


def test_the_module_is_the_command():
    out = subprocess.run([sys.executable, "-m", "equipoise", "--help"], capture_output=True, text=True, check=True)
    assert "One model that works for every data owner" in out.stdout


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`equipoise ([a-z]+)[^`]*`", README.read_text()))))
def test_commands_in_the_readme_exist(command):
    ok(command, "--help")


@pytest.mark.parametrize("words", [words for words in EXAMPLES if words[0] == "data"], ids=" ".join)
def test_the_examples_about_data_work(words, here):
    assert re.search("digits|client", ok(*EXAMPLES[words].group(1).split()[1:]))


def test_ctrl_c_says_how_to_go_on(here, monkeypatch):
    from equipoise.experiment import run as runs

    def stopped_at_once(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run", stopped_at_once)
    told = run(app, ["run", "--out", "runs/never"])
    assert told.exit_code == 130
    assert told.stderr == "stopped; nothing was begun\n"
    (here / "runs/begun").mkdir(parents=True)

    def stopped_later(*args, **kwargs):
        (here / "runs/begun/config.toml").touch()  # what a run writes first
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run", stopped_later)
    told = run(app, ["run", "--out", "runs/begun"])
    assert told.stderr == "stopped; `equipoise resume runs/begun` goes on\n"
