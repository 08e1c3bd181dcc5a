"""From a folder of files to a fair model that predicts in another process, in three lines and in one command."""

import numpy as np
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import equipoise as eq
from equipoise import artifact, cli_fit, training
from equipoise.data.silos import SiloWarning
from equipoise.errors import InputError
from equipoise.evaluation import standing
from tests.test_artifact import hospitals, in_a_fresh_process

NEW = """ward,age,sex,dose,admitted,remark
C,90,F,1000000001,2024-05-05,
A,20,M,999999999,2024-05-05,
never seen,?,,1000000000,,all but nothing known
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    hospitals(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    with pytest.warns(SiloWarning, match="column 'country' dropped"):
        silos = eq.data.silos.read(folder, label="ill")
    return training.fit(silos, rounds=40)


def test_a_folder_becomes_a_model_that_predicts_elsewhere(fitted, tmp_path):
    file, new = tmp_path / "ill.safetensors", tmp_path / "new.csv"
    fitted.save(file)
    new.write_text(NEW)
    predictions = in_a_fresh_process(file, new)
    assert predictions.columns == ["prediction", "probability of no", "probability of yes"]
    assert predictions["prediction"].to_list()[:2] == ["yes", "no"]
    saved = artifact.load(file)
    assert saved.metadata["algorithm"] == "scaffpd"
    assert saved.metadata["rho"] == 0.1
    assert saved.metadata["silos"]["names"] == ["north", "south", "west"]
    assert saved.metadata["silos"]["scores"]["accuracy"] == fitted.table.scores["accuracy"].tolist()


def test_every_silo_is_scored_on_its_own_held_out_rows(fitted):
    table = fitted.table
    assert table.sizes.tolist() == np.asarray(fitted.silos.test.sizes).tolist() == [16, 16, 16]
    for i in range(3):
        shard = fitted.silos.test.client(i)
        outputs = np.asarray(shard.inputs) @ np.asarray(fitted.x[:-2]).reshape(2, -1).T + np.asarray(fitted.x[-2:])
        assert np.isclose(table.scores["accuracy"][i], (outputs.argmax(1) == np.asarray(shard.labels)).mean())
    assert standing(table).summary["mean"] > 0.85
    assert fitted.weights.sum() == pytest.approx(1)
    assert 0 <= fitted.gap < 1e-2


def prices(folder, n=60):
    """The second site prices otherwise and has fewer rows: an average hardly hears it."""
    rng = np.random.default_rng(0)
    for name, m, slope in (("a", n, 1.0), ("b", n // 3, -0.5), ("c", n, 1.2)):
        x = rng.normal(size=m)
        y = 2e5 + 1e4 * (slope * x + rng.normal(0, 0.1, m))
        pl.DataFrame({"size": x, "kind": rng.choice(["flat", name], m), "price": y}).write_csv(folder / f"{name}.csv")


def test_a_regression_that_is_fair_costs_something_on_average(tmp_path):
    prices(tmp_path)
    silos = eq.data.silos.read(tmp_path, label="price", test=0)
    how = {"rounds": 40, "l2": 0.05}
    plain = training.fit(silos, objective="average", algorithm="scaffold", **how)
    fair = training.fit(silos, objective=lambda n: eq.objectives.agnostic(n), **how)
    assert fair.settings["objective"] == "agnostic"
    assert fair.settings["rho"] is None
    losses, robust = (f.table.scores["loss"] for f in (plain, fair))
    assert robust.max() < 0.9 * losses.max()
    assert robust.mean() > losses.mean()
    assert fair.gap < 1e-3
    assert np.isnan(plain.gap)
    assert fair.weights[1] > plain.weights[1] == pytest.approx(1 / 3)
    fair.save(tmp_path / "m.safetensors")
    own = pl.read_csv(tmp_path / "b.csv")
    error = artifact.predict(tmp_path / "m.safetensors", tmp_path / "b.csv")["prediction"] - own["price"]
    assert fair.table.scores["rmse"][1] == pytest.approx(np.sqrt((error**2).mean()))  # in the label's own units
    found = standing(fair.table)
    assert found.low[1] < fair.table.scores["rmse"][1] < found.high[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"objective": "chi"}, "no objective to fit 'chi'; did you mean 'chi2'"),
        ({"objective": "agnostic", "rho": 1.0}, "has no parameter"),
        ({"algorithm": "drfa"}, "no algorithm to fit with 'drfa'"),
        ({"algorithm": "fedavg"}, "fedavg minimises the average; say objective='average'"),
        ({"l2": 0.0}, "l2 is 0.0"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_what_cannot_be_fitted(fitted, change, sentence):
    with pytest.raises(InputError, match=sentence):
        training.fit(fitted.silos, **change)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    app = typer.Typer()
    app.command()(cli_fit.fit)
    app.command()(cli_fit.predict)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_commands(run, folder, tmp_path):
    file, new = tmp_path / "m.safetensors", tmp_path / "new.csv"
    new.write_text(NEW)
    told = run("fit", folder, "--label", "ill", "--out", file, "--rounds", 3, "--compare")
    assert told.exit_code == 0, told.output
    for word in ("column 'country' dropped", "north", "west", "held-out rows", "worst20", "average", "model written"):
        assert word in told.output
    assert "more --rounds would tell" in told.output
    told = run("predict", file, new)
    assert told.exit_code == 0, told.output
    assert len(told.stdout.splitlines()) == 4
    assert run("predict", file, new, "--out", tmp_path / "p.csv").exit_code == 0
    assert (tmp_path / "p.csv").read_text() == told.stdout


def test_what_is_wrong_is_one_line(run, folder, tmp_path):
    for arguments, sentence in (
        (("fit", tmp_path / "nowhere"), "is no directory"),
        (("fit", folder, "--label", "sick"), "has no column 'sick', the label"),
        (("fit", folder, "--label", "ill", "--objective", "average", "--rho", 1), "has no parameter"),
        (("fit", folder, "--label", "ill", "--out", tmp_path / "no" / "m"), "there is no folder"),
        (("predict", tmp_path / "nothing", tmp_path / "new.csv"), "there is no file"),
    ):
        told = run(*arguments)
        assert told.exit_code == 2
        assert sentence in told.stderr
        assert len(told.stderr.splitlines()) == 1
