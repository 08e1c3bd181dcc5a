"""`model.convexified = "auto"` and `convexify.rounds = "auto"`: nobody has to ask for a convex model."""

import pytest

from equipoise import artifact
from equipoise.errors import InputError
from equipoise.experiment import choice, config, records, run
from equipoise.experiment.chosen import settle
from equipoise.experiment.convexify.stages import network_config
from equipoise.report import html
from tests.searches import tiny

SETTINGS = {
    "data": {"name": "digits", "test": 0.5},
    "partition": {"kind": "iid", "clients": 3, "max_size": 40},
    "model": {"name": "mlp", "hidden": [4], "batch": 8},
    "algorithm": {"name": "fedavg", "local_lr": 0.3},
}


def test_a_network_has_its_convex_model_beside_it_where_that_is_better(tmp_path, monkeypatch):
    told = config.parse(choice.left_open(SETTINGS))
    assert told.model.convexified == "auto"
    short = {"rounds": 2, "keep_best": True, "keep_by": "loss", "patience": 2}
    told = config.parse(choice.left_open({**SETTINGS, "run": short}))
    done = run.run(told, tmp_path / "run")
    (found,) = settle.read(done.path)
    inside = records.read(tmp_path / "run" / records.CONVEXIFIED)
    assert found.key == "model.convexified"
    network, convex = found.tried
    assert found.value == (convex if convex["accuracy, average"] > network["accuracy, average"] else network)["value"]
    assert found.sentence in done.federation.notes
    assert records.find(tmp_path) == [tmp_path / "run"]
    assert [row.path for row in (done, inside)] == [tmp_path / "run", tmp_path / "run" / records.CONVEXIFIED]
    assert artifact.load(inside.path / records.MODEL).model.name == "convexified"
    page = tmp_path / "page.html"
    html.write([done], page)
    assert f"{found.value} (chosen)" in page.read_text()
    tiny.use(monkeypatch)  # what was there goes, whatever takes its place
    run.run(config.parse({**SETTINGS, "run": {"rounds": 1}}), tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / records.CONVEXIFIED).exists()


def test_the_rounds_of_the_first_stage_end_by_themselves():
    stage = network_config(config.parse({**SETTINGS, "convexify": {}})).run
    assert (stage.rounds, stage.keep_best, stage.patience) == (choice.ROUNDS, True, choice.WAITED)
    assert network_config(config.parse({**SETTINGS, "convexify": {"rounds": 7}})).run.rounds == 7
    over_flower = {key: SETTINGS[key] for key in ("model", "algorithm")}
    stage = network_config(config.parse({**over_flower, "convexify": {}, "federation": {"sites": 2}})).run
    assert (stage.rounds, stage.keep_best) == (choice.BLIND_ROUNDS, False)


def test_only_networks_are_made_convex():
    assert choice.left_open({"model": {"name": "mlp", "convexified": "none"}})["model"]["convexified"] == "none"
    assert "convexified" not in choice.left_open({"model": {"name": "mlp"}, "convexify": {}})["model"]
    with pytest.raises(InputError, match=r"model.convexified is 'auto', which tries \[convexify\] on a network"):
        config.parse({"model": {"convexified": "auto"}})
