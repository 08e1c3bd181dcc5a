"""Own parts and gains over Flower's messages: the numbers of one machine, and parts that no message holds."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from equipoise import artifact
from equipoise.deploy.server.reach_agreement import BASELINES
from equipoise.deploy.site.oversight import would_reveal
from equipoise.deploy.site.run import OWN_MODEL
from equipoise.errors import EquipoiseError
from equipoise.experiment import config, records
from equipoise.experiment.personal import own_parts
from equipoise.privacy import policy
from tests.deploy.test_federated_run import assert_the_same, both, close, settings
from tests.deploy.test_secure import flat
from tests.deploy.test_secure_run import node, told
from tests.flower.silos import SITES
from tests.problems import few

OWN = {"model": {"l2": 0.1, "own": "intercept"}, "objective": {"name": "chi2", "of": "gains"}}


@pytest.mark.parametrize(
    "metric", few(["full"], ["full", "none"], "::test_as_on_one_machine_and_no_message_holds_a_part[full]")
)
def test_as_on_one_machine_and_no_message_holds_a_part(tmp_path, metric):
    crossed, own = [], {**OWN, "model": {**OWN["model"], "metric": metric}}

    def fault(message, reply):
        crossed.extend(part.deflate() for record in reply.content.values() for part in flat(record))
        return reply

    over, local = both(tmp_path, settings(**own), fault=fault)
    assert_the_same(over, local)
    parts, sent = own_parts.read(local.path), b"".join(crossed)
    assert not (over.path / records.OWN_PARTS).exists()
    kept = [path.read_bytes() for path in over.path.rglob("*") if path.is_file()]
    for site in SITES:
        mine = artifact.load(tmp_path / "homes" / site / OWN_MODEL)
        close(mine.own.part, parts[site])
        for number in mine.own.part.ravel():
            for kind in (np.float64, np.float32):
                assert kind(number).tobytes() not in sent
                assert not any(kind(number).tobytes() in content for content in kept)
            assert not any(repr(float(number))[:10].encode() in content for content in [sent, *kept])
    assert np.all(artifact.load(over.path / records.MODEL).own.part == 0)  # which nobody has told
    base = json.loads((over.path / BASELINES).read_text())
    close([base[site] for site in SITES], [member.baseline for member in local.federation.members])
    said = "\n".join(over.federation.notes)
    assert ("trained in the metric" in said) == (metric == "full")
    assert "how well a model of its own rows alone does" in said
    assert "sites keep for themselves no message tells; but from the gradients and updates of a site the server" in said


def test_sites_are_told_who_can_work_their_part_out():
    for secure, name, seen in [(False, "scaffpd_sums", True), (True, "scaffpd_sums", False), (True, "scaffpd", True)]:
        here = told(
            **{"model": {"l2": 0.1, "own": "intercept"}, "objective": {"name": "kl"}, "personal": {"kind": "none"}}
        )
        here["algorithm"], here["federation"]["secure"] = {"name": name}, secure
        said = next(s for s in would_reveal(config.parse(here)) if "the parts of the model" in s)
        assert ("the server can work that site's out" in said) == seen
        assert ("the sum over the sites that answered" in said) == secure


@pytest.mark.thorough(witness="::test_as_on_one_machine_and_no_message_holds_a_part")
def test_masked_and_by_sums_alone(tmp_path):
    """scaffpd_sums: neither a baseline nor a part is told; the mean of the parts is."""
    sections = {"model": {"l2": 0.1, "own": "intercept"}, "objective": {"name": "kl", "rho": 0.3, "of": "gains"}}
    over, local = both(tmp_path, told(**sections), node=node(tmp_path))
    for row, here in zip(over.rows, local.rows, strict=True):
        assert row.objective == pytest.approx(here.objective, rel=1e-8)
        assert row.gap == pytest.approx(here.gap, rel=1e-6)
    mine, other = (artifact.load(r.path / records.MODEL) for r in (over, local))
    np.testing.assert_allclose(mine.own.part, other.own.part, atol=1e-7)
    np.testing.assert_allclose(mine.params.weight, other.params.weight, atol=1e-8)
    assert not (over.path / BASELINES).exists()
    assert {member.baseline for member in over.federation.members} == {None}
    assert "how well a model of its own rows alone does" not in "\n".join(over.federation.notes)


def test_a_site_may_keep_its_baseline_for_itself(tmp_path):
    here = settings(**OWN)
    assert any("how well a model of its own" in sentence for sentence in would_reveal(config.parse(here)))
    home = tmp_path / "homes" / SITES[0]
    home.mkdir(parents=True)
    (home / policy.FILE).write_text(policy.TRIAL + "baseline = false\n")
    with pytest.raises(EquipoiseError, match="tells nobody how well a model of its own would do"):
        both(tmp_path, here)
