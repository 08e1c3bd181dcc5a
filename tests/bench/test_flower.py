"""A Flower app has a row: that of docs/extending.md, and what it says is what its averages say."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.bench import entries
from equipoise.bench.federations import Federation
from equipoise.cli import app
from tests.bench import owners

pytest.importorskip("flwr")
from equipoise.bench import flower

TEXT = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
(APP,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)


def federation():
    data = owners.coins()
    rows = [slice(0, 60), slice(60, 90), slice(90, 240)]  # of other sizes: Flower weighs by them
    inputs, labels = (tuple(array[part] for part in rows) for array in (data.inputs, data.labels))
    return Federation("f", data.classes, ("a", "b", "c"), inputs, labels)


def test_it_trains_as_a_loop_does():
    names, of = {}, federation()
    exec(compile(APP, "extending.md", "exec"), names)
    w = np.zeros(3)
    for _ in range(20):
        models = []
        for x, y in zip(of.inputs, of.labels, strict=True):
            v = w
            for _ in range(5):
                v = v - 0.5 * (1 / (1 + np.exp(-x @ v)) - y) @ x / len(y)
            models.append(v)
        w = np.average(models, axis=0, weights=[60, 30, 150])
    chance = 1 / (1 + np.exp(-of.inputs[2] @ w))
    np.testing.assert_allclose(names["averaged"](of)(2, of.inputs[2])[:, 1], chance, rtol=1e-6)


def test_it_enters_by_one_file(tmp_path, monkeypatch):
    (tmp_path / "flower_file.py").write_text(APP)
    (tmp_path / "broken_file.py").write_text(APP.replace("return Message(", "raise KeyError('no rows')  # ("))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["bench", "-f", "tests.bench.owners:coins", "--splits", "1", "-o", "b"]
    said = CliRunner().invoke(app, [*words, "-m", "flower_file:averaged"])
    assert said.exit_code == 0, said.output
    (row,) = (e for e in entries.read(tmp_path / "b") if e.method == "flower_file:averaged")
    assert row.mean[1] > 0.1
    said = CliRunner().invoke(app, [*words, "-m", "broken_file:averaged"])
    assert said.exit_code == 2
    assert "'broken_file:averaged' fails on tests.bench.owners:coins: KeyError: 'no rows'" in said.output


def test_a_node_keeps_its_state_and_its_number():
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    seen, client = [], ClientApp()

    @client.train()
    def train(message, context):
        before = context.state["count"]["n"] if "count" in context.state else 0
        context.state["count"] = MetricRecord({"n": before + 1})
        seen.append((context.node_config["partition-id"], before))
        numbers = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": numbers}), reply_to=message)

    flower.trained(
        federation(), client, FedAvg(fraction_evaluate=0.0), ArrayRecord([np.zeros(1)]), rounds=2, timeout=1.0
    )
    assert sorted(seen) == [(i, k) for i in range(3) for k in range(2)]
