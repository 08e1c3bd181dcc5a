"""The code of docs/silos.md runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from equipoise.data.silos.statistics import CLASSES, IDS, MISSING, Options

DOC = (Path(__file__).parents[1] / "docs" / "silos.md").read_text()


def test_the_numbers_in_the_text():
    assert f"`max_categories={Options().max_categories}`" in DOC
    assert f"at most {CLASSES} different ones" in DOC
    assert f"with {IDS} or more cells" in DOC
    assert all(f"`{m}`" in DOC for m in MISSING if m)


def test_the_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals").mkdir()
    rng = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        age = rng.normal(60, 10, 40)
        frame = pl.DataFrame({"age": age, "ward": rng.choice(list("AB"), 40), "readmitted": age > 60})
        frame.write_csv(tmp_path / "hospitals" / f"{name}.csv")
    frame.drop("readmitted").head(3).write_csv(tmp_path / "new-patients.csv")
    blocks = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["federation"].names == ("north", "south", "west")
    assert "probability of true" in capsys.readouterr().out
    assert names["inputs"].shape == (32, 3)
    saved = names["artifact"].load("readmission.safetensors")
    test = names["federation"].test
    right = saved.outputs(np.asarray(test.inputs[0])).argmax(1) == np.asarray(test.labels[0])
    assert right.mean() == pytest.approx(1, abs=0.3)
