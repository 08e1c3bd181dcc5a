import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli.data import data_app, preview
from equipoise.data import catalogue
from equipoise.data.datasets.catalogue import Dataset
from equipoise.errors import InputError
from equipoise.experiment import config
from equipoise.experiment.problems import build_problem
from tests.data.datasets.test_text import PLAY


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "180")
    return lambda *arguments: CliRunner().invoke(data_app, [str(a) for a in arguments])


def test_list_names_every_set(run, tmp_path):
    shown = run("list", "--data-dir", tmp_path)
    assert shown.exit_code == 0
    assert all(name in shown.output for name in catalogue.CATALOGUE)
    assert "inside Equipoise" in shown.output


def test_info(run):
    shown = run("info", "digits").output
    assert "1,797 examples" in shown
    assert "CC BY 4.0" in shown
    assert "8 x 8 x 1, uint8" in shown


def test_what_is_missing_is_one_line(run, tmp_path):
    shown = run("info", "mnist", "--data-dir", tmp_path)
    assert shown.exit_code == 2
    assert shown.stderr.startswith("error: mnist was not found: put ")
    assert len(shown.stderr.splitlines()) == 1


@pytest.mark.parametrize("how", ["iid", "dirichlet", "similarity", "k-classes", "one-class", "quantity"])
def test_partition(run, how, tmp_path):
    shown = run("partition", "digits", "-n", 12, "--how", how, "--out", tmp_path / "map.svg")
    assert shown.exit_code == 0, shown.output
    assert "12 clients" in shown.output
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")


def test_partition_thins(run):
    whole, thinned = (run("partition", "digits", *more).output for more in ((), ("--thin",)))
    assert whole != thinned


def test_partition_says_what_is_wrong(run, tmp_path):
    assert "cannot share" in run("partition", "digits", "-n", 2000).stderr
    assert "names no owners" in run("partition", "digits", "--how", "natural").stderr
    assert "write it as name=value" in run("info", "digits", "-o", "by").stderr
    assert "no option of digits 'by'" in run("info", "digits", "-o", "by=sex").stderr
    assert (
        "heat-maps are SVG; give a name that ends in .svg"
        in run("partition", "digits", "--out", tmp_path / "map.png").stderr
    )


def test_natural_owners_and_options(run, tmp_path):
    row = "39, Private, 7, HS-grad, 13, Divorced, Sales, Wife, White, {}, 1, 0, 40, Cuba, <=50K\n"
    (tmp_path / "adult.data").write_text(row.format("Male") * 30 + row.format("Female") * 12)
    (tmp_path / "adult.test").write_text(row.format("Male") + row.format("Female"))
    shown = run(
        "partition", "adult", "--how", "natural", "--min-size", 10, "-o", "by=sex", "--data-dir", tmp_path
    ).output
    assert "2 clients" in shown
    assert "Female" in shown
    told = run("info", "adult", "-o", "by=sex", "--data-dir", tmp_path).output
    assert "'Female', 'Male'" in told


def test_a_folder_of_silos(run, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        rows = [f"{a:.3f},{'yes' if a > 0 else 'no'}" for a in rng.normal(size=30)]
        (tmp_path / f"{name}.csv").write_text("age,sick\n" + "\n".join(rows) + "\n")
    told = run("info", tmp_path, "--label", "sick")
    assert told.exit_code == 0, told.output
    assert "2: north, south" in told.output
    assert "classification" in told.output
    shown = run("partition", tmp_path, "--label", "sick").output
    assert "2 clients" in shown
    assert "south" in shown


def test_numbers_to_predict_are_not_sorted_into_classes():
    data = Dataset("houses", np.zeros((40, 2)), np.linspace(0, 1, 40), ())
    with pytest.raises(InputError, match="which dirichlet cannot sort"):
        preview(config.parse({"partition": {"clients": 4}}), data)
    assert preview(config.parse({"partition": {"clients": 4, "kind": "iid"}}), data).histogram.shape == (4, 10)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ((), {}),
        (("--how", "similarity", "--similarity", 0.4), {"kind": "similarity", "similarity": 0.4}),
        (("--alpha", 0.5, "--thin"), {"alpha": 0.5, "thin": [0.3, 0.7]}),
        (("--how", "k-classes", "-n", 6, "--seed", 3), {"kind": "k_classes", "clients": 6, "seed": 3}),
    ],
)  # fmt: skip
def test_the_preview_is_what_a_run_trains_on(run, words, settings):
    train = build_problem(config.parse({"partition": settings})).train
    lines = run("partition", "digits", *words).output.splitlines()
    shown = [line.split("│")[2].strip() for line in lines if "│" in line]
    assert shown == [f"{size:,}" for size in np.asarray(train.sizes)]


def test_options_have_the_types_of_the_loader(run, tmp_path):
    row = "39, {}, 7, HS-grad, 13, Divorced, Sales, Wife, White, Male, 1, 0, 40, Cuba, <=50K\n"
    (tmp_path / "adult.data").write_text(row.format("Private") * 30 + row.format("?") * 12)
    (tmp_path / "adult.test").write_text(row.format("Private") * 2)
    for said, rows in (("true", 42), ("false", 30)):
        assert f"{rows} examples" in run("info", "adult", "-o", f"missing={said}", "--data-dir", tmp_path).output
    wrong = run("info", "adult", "-o", "missing=perhaps", "--data-dir", tmp_path)
    assert wrong.stderr.startswith("error: the option missing of adult is 'perhaps'; give a valid boolean")
    assert len(wrong.stderr.splitlines()) == 1
    (tmp_path / "play.txt").write_text(PLAY)
    small = ("-o", "window=5", "-o", "stride=1", "-o", "min_characters=40", "--data-dir", tmp_path)
    more, fewer = (run("info", "shakespeare", "-o", f"test={share}", *small).output for share in (0.2, 0.5))
    assert "examples" in more
    assert more != fewer
    np.savez(tmp_path / "f.npz", inputs=np.zeros((4, 2)), labels=np.zeros(4, int))
    assert "has no options; leave out by" in run("info", tmp_path / "f.npz", "-o", "by=x").stderr
