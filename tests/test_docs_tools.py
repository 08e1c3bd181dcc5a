"""The code of docs/tools.md runs as it stands there, each part where what it needs is installed."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.experiment import records
from tests.report import folders

DOC = (Path(__file__).parents[1] / "docs" / "tools.md").read_text()


def blocks(heading):
    part = re.search(rf"^## {heading}.*?(?=^## |\Z)", DOC, re.DOTALL | re.MULTILINE)[0]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


def test_run_folders_in_polars(tmp_path, monkeypatch, capsys):
    runs = folders.several(tmp_path / "runs", n=5)
    (tmp_path / "runs/run").mkdir()
    (tmp_path / "runs/run/history.jsonl").write_text((runs[0].path / records.HISTORY).read_text())
    monkeypatch.chdir(tmp_path)
    one_line, worst = blocks("Run folders")
    names: dict = {}
    exec("\n".join(line for line in one_line.splitlines() if "pd" not in line), names)
    assert names["history"]["round"].to_list() == [row.round for row in runs[0].rows]
    exec(worst, names)
    assert "FedAvg" in capsys.readouterr().out
    frame = names["clients"]
    assert frame.columns[:7] == ["run", "label", "round", "client", "train_rows", "weight", "loss"]
    assert len(frame) == sum(len(run.rows) for run in runs) * 5
    last = frame.filter(label="SCAFF-PD", client="hospital 3").sort("round")[-1]
    assert last["accuracy"][0] == runs[1].rows[-1].scores["accuracy"][2]
    assert last["weight"][0] == runs[1].rows[-1].lam[2]
    assert last["test_loss"][0] == runs[1].rows[-1].scores["loss"][2]


def test_run_folders_in_pandas(tmp_path):
    pd = pytest.importorskip("pandas")
    run = folders.write(tmp_path, n=3)
    history = pd.read_json(run.path / records.HISTORY, lines=True)
    assert history["round"].tolist() == [row.round for row in run.rows]


@pytest.fixture(scope="module")
def fitted():
    """The names that the part about scikit-learn leaves behind."""
    names: dict = {}
    (code,) = blocks("scikit-learn")
    exec(code, names)
    return names


def test_fit_and_predict(fitted):
    assert set(fitted["fitted"].report()["owner"]) == {"village", "town", "city"}
    said = fitted["fitted"].predict(fitted["rows"][500:].drop("ill")) == "true"
    assert (said == fitted["rows"][500:]["ill"].to_numpy()).mean() > 0.8


def test_fairlearn(fitted):
    pytest.importorskip("fairlearn", reason="fairlearn is not installed")
    (code,) = blocks("fairlearn")
    names = dict(fitted)
    exec(code, names)
    right = np.asarray(names["fitted"].predict(names["test"].drop("ill")) == "true") == names["test"]["ill"].to_numpy()
    for group in (False, True):
        expected = right[names["large"] == group].mean()
        assert names["frame"].by_group["accuracy"][group] == pytest.approx(expected)


def test_from_a_flower_app_to_scaffpd(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("flwr")
    from tests.deploy.grid import InProcess

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks("From a Flower app"):
        exec(code, names)
    outcome = names["main"](InProcess(names["client_app"], ["north", "east", "southwest"]), SimpleNamespace())
    net = names["make_net"]()

    def lost():
        with torch.no_grad():
            return sum(
                names["LOSS"](net(x), y).item() for site in ("north", "east") for x, y in names["load_data"](site)
            )

    before = lost()
    net.load_state_dict(torch.load("model.pt", weights_only=True))
    after = lost()
    assert outcome.rounds == 10
    assert after < 0.9 * before
    assert float(np.sum(outcome.result.server.lam)) == pytest.approx(1, abs=1e-5)
    ours = blocks("From a Flower app")[1].partition("LOSS = ")[2]
    lines = [line for line in ours.splitlines() if line.strip() and not line.startswith(("def", "N,"))]
    assert len(lines) <= 14
