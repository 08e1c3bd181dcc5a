"""Runs over Flower in the metric: the exchange before the first round, and the numbers of one machine."""

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from equipoise import artifact
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.oversight import plans_of, would_reveal
from equipoise.experiment import config, records
from tests.deploy.test_federated_run import assert_the_same, both, grid, settings
from tests.deploy.test_secure_run import node, told
from tests.flower import silos


@pytest.mark.thorough(witness="deploy/test_own_and_gains.py::test_as_on_one_machine_and_no_message_holds_a_part[full]")
@pytest.mark.parametrize(
    ("metric", "algorithm", "task"),
    [("full", {}, "classification"), (2, {"name": "fedavg", "rule": None, "local_lr": "auto"}, "regression")],
)
def test_as_on_one_machine(tmp_path, metric, algorithm, task):
    method = {key: value for key, value in ({"name": "scaffpd"} | algorithm).items() if value is not None}
    sections = settings(model={"metric": metric}, run={"rounds": 2, "evaluate_every": 1})
    sections["algorithm"] = method if algorithm else sections["algorithm"]
    over, local = both(tmp_path, sections, task=task)
    assert_the_same(over, local, gap=not algorithm)
    notes = "\n".join(over.federation.notes)
    assert "trained in the metric" in notes
    assert "for the metric: of the second moments of each site's inputs the server is sent each site's own" in notes


@pytest.mark.thorough(
    witness="deploy/test_secure_run.py::test_masked_as_on_one_machine_with_a_certificate_and_no_site_s_own_number"
)
def test_masked(tmp_path):
    over, local = both(tmp_path, told(model={"metric": "full"}, run={"rounds": 2}), node=node(tmp_path))
    mine, other = (artifact.load(r.path / records.MODEL) for r in (over, local))
    for a, b in zip(*(jax.tree.leaves(m.params) for m in (mine, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-7)
    assert "the server learns the mean over the sites, at least three" in "\n".join(over.federation.notes)


@pytest.mark.thorough(witness="experiment/test_conditioning.py::test_a_stopped_run_resumes")
def test_a_resumed_run_keeps_its_metric(tmp_path):
    sections = settings(model={"metric": "full"}, run={"rounds": 2, "evaluate_every": 1})
    data, whole = silos.write(tmp_path / "silos"), config.parse(sections)

    def stop(at, of, row):
        if at == 1:
            raise KeyboardInterrupt

    here = grid(whole, data, tmp_path / "homes")
    with pytest.raises(KeyboardInterrupt):
        run_federation(whole, tmp_path / "run", here, watch=stop)
    first = (tmp_path / "run" / "agreement.json").read_text()
    done = run_federation(whole, tmp_path / "run", grid(whole, data, tmp_path / "homes"))
    assert done.outcome.rounds == 2
    assert (tmp_path / "run" / "agreement.json").read_text() == first
    assert '"metric"' in first


def test_a_site_is_told_before_it_approves():
    said = would_reveal(config.parse(settings(model={"metric": "full"})))
    assert any("second moments" in sentence for sentence in said)
    assert not any("second moments" in sentence for sentence in would_reveal(config.parse(settings())))
    for metric, tells in (("auto", True), ("none", False)):
        (plan,) = plans_of(config.parse(settings(model={"metric": metric})))
        assert plan.tells_moments == tells
