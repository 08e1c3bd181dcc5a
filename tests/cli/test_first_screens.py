"""What a newcomer sees first, and that every table fits a terminal of eighty columns without broken words."""

import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

import equipoise
from equipoise.cli import app
from equipoise.cli.doctor import EXTRAS, LIBRARIES
from equipoise.deploy.server import status
from equipoise.experiment import plan, records
from equipoise.report import numbers, sweeps, tables, wording
from tests.report import folders
from tests.searches import tiny

run = CliRunner(env={"COLUMNS": "80"}).invoke


def printed(renderable, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def fits(renderable):
    """Every word of a wide rendering stands whole in the narrow one."""
    narrow = printed(renderable, 80)
    assert max(map(len, narrow.splitlines())) <= 80
    there = set(re.findall(r"[^\s│┃|]+", narrow))
    broken = {word for word in re.findall(r"[^\s│┃|]+", printed(renderable, 500)) if word not in there}
    assert not {word for word in broken if word[0].isalnum()}
    return narrow


def test_alone_it_says_what_to_do_first():
    said = run(app, []).output
    assert "equipoise compare --silos FOLDER --label COLUMN" in said
    assert max(map(len, said.splitlines())) <= 80
    for command in re.findall(r"^  equipoise ([a-z]+)", said, re.MULTILINE):
        assert run(app, [command, "--help"]).exit_code == 0


def test_doctor_says_what_a_bug_report_needs():
    said = run(app, ["doctor"])
    assert said.exit_code == 0
    assert re.search(rf"^  equipoise +{re.escape(equipoise.__version__)} in ", said.output, re.MULTILINE)
    for name in (*LIBRARIES, *EXTRAS, "cores", "memory", "compiled programs", "JAX_PLATFORMS"):
        assert re.search(rf"^  {re.escape(name)}\b", said.output, re.MULTILINE), name
    assert re.search(r"jax +\d+ x cpu", said.output)
    assert "compiles and computes" in said.output


def test_extras_are_those_of_the_package(request):
    import tomllib

    project = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    assert set(known) - {"dev"} == set(EXTRAS)
    for extra, (_, packages) in EXTRAS.items():
        named = {re.split(r"[\[<>=]", requirement)[0] for requirement in known[extra]}
        assert set(packages) <= named, extra


@pytest.mark.parametrize("words", [["data", "list"], ["data", "info", "digits"], ["reproduce"], ["algorithms"]])
def test_tables_of_commands_fit_a_terminal(words):
    narrow, wide = (CliRunner(env={"COLUMNS": str(width)}).invoke(app, words).output for width in (80, 500))
    boxed = [line for line in narrow.splitlines() if line[:1] in "│┃"]
    assert boxed
    assert max(map(len, boxed)) <= 80
    assert "…" not in narrow
    assert set(re.findall(r"[\w$/.-]+", wide)) <= set(re.findall(r"[\w$/.-]+", narrow))


def test_the_comparison_fits_and_names_whom_each_method_serves_worst(five):
    text = fits(tables.comparison(five))
    for shown in numbers.reported(five):
        i = shown.worst_first()[0]
        line = next(line for line in text.splitlines() if line.startswith(shown.label.split()[0]))
        assert shown.members[i].name.split()[0] in line
    assert fits(tables.per_client(*five[:2]))


def test_a_wide_terminal_has_all_numbers(five):
    narrow = printed(tables.comparison(five), 80)
    assert "more numbers on the page, or from 104 columns on" in " ".join(narrow.split())
    wide = printed(tables.comparison(five, tables.WIDE), tables.WIDE)
    assert max(map(len, wide.splitlines())) <= tables.WIDE
    heads, *rows = [line.split() for line in wide.splitlines() if line.strip()]
    assert {"std", "rounds", "time"} <= {word for line in (heads, *rows[:2]) for word in line}
    assert "2.0" in wide  # seconds of a run


def test_names_of_one_long_word_are_cut_not_broken(tmp_path):
    runs = [
        folders.write(tmp_path, label, n=3, names=["Klinikum-rechts-der-Isar-Neurologie", "b", "c"], seed=k)
        for k, label in enumerate(("Averaging", "Equilibrium"))
    ]
    text = printed(tables.comparison(runs), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "Equilibrium" in text


def test_the_table_of_a_sweep_fits(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    settings = tiny.settings(tiny.silos(tmp_path / "silos"))
    settings["sweep"] = {"seeds": [0, 1], "grid": {"algorithm.local_lr": [0.1, 0.2]}}
    cells = plan.run_study(plan.sweep(settings), tmp_path / "out")
    assert "local_lr" in fits(sweeps.table(cells, ("mean", "worst20", "best20", "min", "std")))


def test_the_table_of_a_federation_fits():
    error = "it did not answer within 600 seconds and is not waited for until it has said its name again"
    site = status.SiteStatus(state="connected", replies=1234, seconds=12.3, mean_seconds=1.25, last_error=error)
    found = status.Status.model_construct(sites={"north-hospital": site, "south": site})
    assert "north-hospital" in fits(status.table(found))


def test_a_comparison_concludes_in_one_sentence(five, alone):
    for runs in (five, alone, [five[0]], [five[1]]):
        said = wording.conclusion(numbers.reported(runs))
        assert said.endswith(".")
        assert not re.search(r"[.!?] [A-Z]", said)
    said = wording.conclusion(numbers.reported(five))
    assert said.startswith("Take SCAFF-PD instead of SCAFFOLD: the worst-served fifth gains 3.9 points (corrected for")
    assert "19 times in 20" in said


def test_what_cannot_be_told_apart_is_said_first(tmp_path):
    plain = folders.write(tmp_path, "FedAvg", algorithm="fedavg", end=(0.8, 0.05), weighted=False, exchanges=1)
    same = folders.write(tmp_path, "SCAFF-PD", end=(0.801, 0.049))
    worse = folders.write(tmp_path, "Worse", end=(0.6, 0.05), seed=3)
    assert "cannot be told apart on these rows" in wording.conclusion(numbers.reported([plain, same]))
    assert "Fairness did not help here" in wording.conclusion(numbers.reported([plain, worse]))
    uneven = folders.write(tmp_path, "Uneven", algorithm="fedavg", end=(0.8, 0.12), weighted=False, exchanges=1, seed=5)
    trade = folders.write(tmp_path, "Fair", end=(0.77, 0.001), seed=4)
    assert "Fair instead of Uneven is a trade" in wording.conclusion(numbers.reported([uneven, trade]))


def test_the_last_row_is_what_clients_get_alone(tmp_path, five):
    run = folders.write(tmp_path, n=3)
    values = (0.9, 0.5, 0.7)
    record = records.AloneRecord(measure="accuracy", scores={"accuracy": values}, low=values, high=values)
    records.write_record(run.path / records.ALONE, record)
    other = folders.write(tmp_path, "other", n=3, seed=2)
    text = fits(tables.comparison([run, other]))
    (line,) = (line for line in text.splitlines() if line.startswith("each"))
    assert "70.0%" in line
    assert "50.0%" in line
    assert "hospital 2" in line
    assert "each alone" not in printed(tables.comparison(five), 80)
