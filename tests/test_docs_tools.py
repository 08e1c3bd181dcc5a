"""The code of docs/tools.md runs as it stands there, each part where what it needs is installed."""

import importlib
import re
import sys
from importlib.util import find_spec
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


@pytest.mark.thorough(witness="test_estimator.py::test_it_predicts")
def test_fit_and_predict(fitted):
    assert set(fitted["fitted"].report()["owner"]) == {"village", "town", "city"}
    said = fitted["fitted"].predict(fitted["rows"][500:].drop("ill")) == "true"
    assert (said == fitted["rows"][500:]["ill"].to_numpy()).mean() > 0.8


@pytest.mark.skipif(find_spec("fairlearn") is None, reason="fairlearn is not installed")
def test_fairlearn(fitted):
    (code,) = blocks("fairlearn")
    names = dict(fitted)
    exec(code, names)
    right = np.asarray(names["fitted"].predict(names["test"].drop("ill")) == "true") == names["test"]["ill"].to_numpy()
    for group in (False, True):
        expected = right[names["large"] == group].mean()
        assert names["frame"].by_group["accuracy"][group] == pytest.approx(expected)


@pytest.fixture
def flower_app(tmp_path, monkeypatch):
    """The three files of the page in a folder of their own; `run()` trains, and gives the loss of every client."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("flwr")
    from tests.deploy.grid import InProcess

    class Whole(InProcess):
        """With the call that Flower's own strategies make."""

        def send_and_receive(self, messages, *, timeout=None):
            return self.pull_messages(self.push_messages(messages))

    part = re.search(r"^## From a Flower app.*", DOC, re.DOTALL | re.MULTILINE)[0]
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", part, re.DOTALL):
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run():
        for name in ("task", "client_app", "server_app"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        task, client, server = map(importlib.import_module, ("task", "client_app", "server_app"))
        grid = Whole(client.app, [None] * 3)
        for i, context in enumerate(grid.contexts.values()):
            context.node_config["partition-id"] = i
        server.main(grid, SimpleNamespace())
        net = task.make_net()
        net.load_state_dict(torch.load("model.pt", weights_only=True))
        with torch.no_grad():
            return [sum(task.LOSS(net(x), y).item() for x, y in task.load_data(i)) / 5 for i in range(3)]

    return part, run


def test_from_a_flower_app_to_scaffpd(flower_app, tmp_path):
    """The app as it was, then with the ten lines of the page in place."""
    part, run = flower_app
    before = run()
    (diff,) = re.findall(r"```diff\n(.*?)```", part, re.DOTALL)
    assert len([line for line in diff.splitlines() if line.startswith("+") and line != "+"]) <= 10
    for name, changes in re.findall(r"--- (\w+\.py)\n(.*?)(?=^---|\Z)", diff, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(changed((tmp_path / name).read_text(), changes))
    after = run()
    assert max(before) < 0.69  # of guessing
    assert max(after) < 0.69
    assert (tmp_path / "flower-sites" / "partition-2").is_dir()
    with pytest.raises(AssertionError):
        changed("nothing of the kind", "-app = ClientApp()\n")


def changed(code, changes):
    """What a reader does with the page's lines: replaces those with a minus, adds those with a plus."""
    added = ""
    for line in changes.splitlines():
        if line.startswith("+"):
            added += line[1:] + "\n"
        elif line == "-(the function train)":
            code = code.partition("@app.train()")[0]
        else:
            assert line[1:] + "\n" in code, line
            code = code.replace(line[1:] + "\n", "\0")
            continue
        if "\0" in code:
            code, added = code.replace("\0", added), ""
    return code + added
