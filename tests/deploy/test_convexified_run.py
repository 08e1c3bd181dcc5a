"""Train-Convexify-Train over the Grid in this process: as on one machine, with the features at the sites."""

import base64
import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from equipoise import artifact, tensors
from equipoise.deploy import agreement
from equipoise.deploy.flower import GivenUp
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.oversight import plans_of, would_reveal
from equipoise.deploy.site.run import FEATURES
from equipoise.experiment import config, records, run
from tests.deploy.test_federated_run import assert_the_same, both, close, grid, settings
from tests.deploy.test_secure_run import node as with_keys
from tests.deploy.test_secure_run import told as secure_settings
from tests.flower import silos
from tests.flower.silos import SITES

NETWORK = {"name": "mlp", "hidden": [4], "l2": 0.0, "batch": 8}
CONVEXIFY = {"features": 20, "rounds": 2, "l2": 1e-3, "algorithm": {"steps": 2}}


def convex(**sections):
    sections.setdefault("algorithm", {"local_lr": 0.5})
    sections["convexify"] = {**CONVEXIFY, **sections.get("convexify", {})}
    return settings(model=NETWORK, **sections)


class Pair(NamedTuple):
    """One run over Flower and one on one machine."""

    over: records.Run
    local: records.Run
    folder: Path
    sums: list  # what each site has told of its features


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder, sums = tmp_path_factory.mktemp("pair"), []

    def seen(message, reply):
        if message.content.get("at", {}).get("part") == "moments":
            sums.append((message.metadata.dst_node_id, reply.content["reply"]))
        return reply

    over, local = both(folder, convex(), fault=seen)
    return Pair(over, local, folder, [reply for _, reply in sorted(sums, key=lambda pair: pair[0])])


def test_both_stages_are_as_on_one_machine(pair):
    over, local, *_ = pair
    assert_the_same(over, local)
    networks = [records.read(done.path / records.STAGE_1) for done in (over, local)]
    assert_the_same(*networks, gap=False)
    assert over.rows[-1].objective < 0.9 * over.rows[0].objective
    note = "linear in 20 features of a mlp trained by 2 rounds of fedavg: a sketch of its"
    assert [sum(note in said for said in done.federation.notes) for done in (over, local)] == [1, 1]


def test_the_artifact_predicts_from_raw_rows(pair):
    over, _, folder, _ = pair
    saved = artifact.load(over.path / records.MODEL)
    assert saved.model.name == "convexified"
    for k, site in enumerate(SITES):
        file = folder / "silos" / f"{site}.csv"
        predicted = artifact.predict(saved, file)["prediction"].to_numpy()
        labels = np.loadtxt(file, delimiter=",", skiprows=1, usecols=3, dtype=str)
        features, _ = tensors.read(folder / "homes" / site / FEATURES)
        test = features[".test.inputs"]
        x = (test - np.asarray(saved.params["mean"])) * np.asarray(saved.params["scale"])
        own = (x @ np.asarray(saved.params["head"]).T).argmax(axis=1)
        right = np.mean(own == features[".test.labels"])
        np.testing.assert_allclose(over.rows[-1].scores["accuracy"][k], right)
        assert len(predicted) == len(labels)
        assert np.mean(predicted == labels) > 0.5


def test_the_features_stay_at_the_site(pair):
    """What crosses of them is one exchange of sums, which no test row enters."""
    assert len(pair.sums) == len(SITES)
    for told, member, site in zip(pair.sums, pair.over.federation.members, SITES, strict=True):
        assert [(a.dtype, tuple(a.shape)) for a in told.values()] == [
            ("float64", ()), ("float64", (20,)), ("float64", (20,))
        ]  # fmt: skip
        features, _ = tensors.read(pair.folder / "homes" / site / FEATURES)
        train = features[".train.inputs"]
        assert len(train) == member.train
        sums = [np.frombuffer(a.data).reshape(a.shape) for a in told.values()]
        for mine, want in zip(sums, (len(train), train.sum(axis=0), (train**2).sum(axis=0)), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-12)


def test_what_the_server_learns_is_said(pair):
    here, sentence = config.parse(convex()), "for every feature the sum and the sum of squares"
    assert any(sentence in note for note in pair.over.federation.notes)
    assert sentence in "\n".join(would_reveal(here))
    assert [plan.algorithm for plan in plans_of(here)] == ["fedavg", "scaffpd"]
    assert len({plan.digest for plan in plans_of(here)}) == 1


@pytest.mark.thorough(witness="experiment/convexify/test_stages.py::test_it_resumes_in_either_stage_bit_for_bit")
@pytest.mark.parametrize("when", [("train", 1, "fedavg"), ("train", 2, "improve")])
def test_it_resumes_in_either_stage(when, pair, tmp_path):
    """Killed in stage 1 and in stage 3; sites are opened anew."""
    data, here = silos.write(tmp_path / "silos"), config.parse(convex())
    network, killed, stage_1 = grid(here, data, tmp_path / "homes"), [], records.STAGE_1

    def fault(message, reply):
        at = message.content.get("at", {"part": "", "round": -1, "exchange": ""})
        in_network = not (tmp_path / "flower" / agreement.FILE).is_file()
        now = at["part"], at["round"]
        if now == when[:2] and in_network == (when[2] != "improve") and not killed:
            killed.append(at["exchange"])
            raise SystemExit
        return reply

    network.fault = fault
    with pytest.raises(SystemExit):
        run_federation(here, tmp_path / "flower", network)
    assert records.finished(tmp_path / "flower" / stage_1) == (when[2] == "improve")
    again = grid(here, data, tmp_path / "homes")
    over = run_federation(here, tmp_path / "flower", again)
    assert_the_same(over, pair.local)
    parts = [m.content["at"]["part"] for m in again.asked if "at" in m.content]
    assert parts.count("moments") == (0 if when[2] == "improve" else 3)


@pytest.mark.thorough(witness="deploy/test_faults.py::test_given_up_in_the_end_with_everything_in_hand_and_resumed")
def test_a_site_that_is_not_there_for_the_sums_is_waited_for(tmp_path, pair):
    """All have to tell theirs; the run goes on when it is back."""
    data, here = silos.write(tmp_path / "silos"), config.parse(convex(federation={"tries": 1, "exchange": 0.5}))
    network = grid(here, data, tmp_path / "homes")

    def fault(message, reply):
        lost = network.site(message) == "north" and message.content.get("at", {}).get("part") == "moments"
        return None if lost else reply

    network.fault = fault
    with pytest.raises(GivenUp, match="2 of 3 sites answered and 3 are needed"):
        run_federation(here, tmp_path / "flower", network)
    over = run_federation(here, tmp_path / "flower", grid(here, data, tmp_path / "homes"))
    close(over.outcome.summary, pair.local.outcome.summary)


OTHERS = {
    "coordinates, a method of another kind, a measured step size": {
        "convexify": {"kind": "coordinates", "features": 9, "rounds": 0},
        "algorithm": {"name": "scaffold", "steps": 3, "local_lr": "auto"},
    },
    "inputs of the last layer, the method of choice": {
        "convexify": {"kind": "last", "seed": 7, "algorithm": {"name": "scaffold", "steps": 2}},
        "algorithm": {"name": "scaffpd_model"},
    },
    "no features": {"convexify": {"kind": "linearised"}, "algorithm": {"name": "fedavg", "steps": 3, "local_lr": 0.1}},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.thorough(witness="::test_both_stages_are_as_on_one_machine")
def test_other_kinds_as_on_one_machine(name, tmp_path):
    told = convex(**OTHERS[name])
    if told["algorithm"]["name"] == "scaffpd_model":
        told["algorithm"] = OTHERS[name]["algorithm"]
    told["algorithm"].pop("rule", None)
    over, local = both(tmp_path, told, task="regression" if "coordinates" in name else "classification")
    assert_the_same(over, local, gap=over.rows[-1].lam is not None)
    assert (over.path / records.STAGE_1).is_dir() == (told["convexify"].get("rounds") != 0)


@pytest.mark.thorough(witness="experiment/convexify/test_stages.py::test_a_given_network_is_taken")
def test_a_network_that_is_given_is_sent_to_the_sites_in_single_precision(pair, tmp_path):
    there = str(pair.local.path / records.STAGE_1)
    over, local = both(tmp_path, convex(convexify={"network": there}, run={"rounds": 1, "precision": "float32"}))
    np.testing.assert_allclose(over.rows[-1].loss, local.rows[-1].loss, rtol=1e-4)
    network = json.loads((over.path / agreement.FILE).read_text())["network"]
    assert network["how"] == f"from {records.STAGE_1}"
    theta = np.frombuffer(base64.b64decode(network["theta"]), np.float32)
    saved = artifact.load(pair.local.path / records.STAGE_1 / records.MODEL)
    want = np.concatenate([np.ravel(a) for a in jax.tree.leaves(saved.params)])
    np.testing.assert_array_equal(theta, want.astype(np.float32))


@pytest.mark.thorough(
    witness="deploy/test_secure_run.py::test_masked_as_on_one_machine_with_a_certificate_and_no_site_s_own_number"
)
def test_masked_sums(tmp_path):
    """Of the features too the server learns sums over the sites, and no site's own."""
    told = secure_settings(model=NETWORK, convexify=CONVEXIFY, run={"rounds": 1})
    over, local = both(tmp_path, told, node=with_keys(tmp_path))
    mine, other = (artifact.load(r.path / records.MODEL) for r in (over, local))
    for a, b in zip(*(jax.tree.leaves(m.params) for m in (mine, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-7)
    said = "\n".join(over.federation.notes)
    assert "of the features that each site makes of its rows, and keeps, the server learns the sums over all" in said
    assert "sees each site's" not in said


def test_a_policy_is_about_both_trainings(tmp_path):
    data, here = silos.write(tmp_path / "silos"), config.parse(convex())
    home = tmp_path / "homes" / "north"
    home.mkdir(parents=True)
    (home / "site.toml").write_text('ask = false\nalgorithms = ["scaffpd"]')
    with pytest.raises(Exception, match="takes part in scaffpd, not in fedavg"):
        run_federation(here, tmp_path / "run", grid(here, data, tmp_path / "homes"))


def test_the_run_on_one_machine_is_not_the_one_over_flower(tmp_path):
    with pytest.raises(Exception, match="the data of \\[federation\\] is at its sites"):
        run.run(config.parse(convex()), tmp_path / "run")
