"""Configured runs with masked sums: the numbers of one machine, and nothing of a single site in the folder."""

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from equipoise import artifact
from equipoise.cli import app
from equipoise.deploy.operations import keys
from equipoise.errors import EquipoiseError, InputError
from equipoise.experiment import config, records
from equipoise.privacy import audit, policy
from equipoise.report.html import write as write_report
from tests.deploy.test_federated_run import both, settings
from tests.flower.silos import SITES


def node(tmp_path):
    keys.make(tmp_path / "keys", SITES)

    def own(site):
        known = tmp_path / "keys" / keys.SITES
        return {"data": str(tmp_path / "silos" / f"{site}.csv"), "key": str(known / site), "roster": str(known)}

    return own


def told(**sections):
    method = {"name": "scaffpd_sums", "steps": 3, "local_lr": 0.2, "rule": {"sigma": 0.5, "theta": 0.5}}
    base = {"algorithm": method, "objective": {"name": "kl", "rho": 0.3}, "model": {"l2": 0.1}}
    return settings(federation={"secure": True}, **{**base, **sections})


def test_masked_as_on_one_machine_with_a_certificate_and_no_site_s_own_number(tmp_path):
    over, local = both(tmp_path, told(), node=node(tmp_path))
    mine, other = (artifact.load(r.path / records.MODEL) for r in (over, local))
    for a, b in zip(*(jax.tree.leaves(m.params) for m in (mine, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)
    for row, here in zip(over.rows, local.rows, strict=True):
        assert row.objective == pytest.approx(here.objective, rel=1e-9)
        assert row.gap == pytest.approx(here.gap, rel=1e-6)  # that of the best response, which a local run takes too
        assert set(row.loss) == {None}
        assert all(set(values) == {None} for values in row.scores.values())
    said = "\n".join(over.federation.notes)
    assert "collect: of weight, gradient, loss, log weight, tilted, beyond the server learns the sum" in said
    assert "improve: of weight, weight times update the server learns the sum over the sites that answered" in said
    assert "sees each site's" not in said
    mean = np.mean(local.rows[-1].scores["accuracy"])
    assert f"the mean over the sites that answered at the end: accuracy {mean:.4g}" in said
    page = write_report([over], tmp_path / "report.html")
    assert "No site told its own scores" in page.read_text()
    assert over.outcome.events == ()


def test_what_the_server_sees_is_said_of_a_plain_run_too(tmp_path):
    over, _ = both(tmp_path, settings(run={"rounds": 1}))
    said = "\n".join(over.federation.notes)
    assert "collect: the server sees each site's loss, gradient" in said
    assert "improve: the server is sent each site's weight, weight times update" in said
    assert "when the model is evaluated: the server sees each site's scores and its training loss" in said


def test_masked_sums_need_keys_and_company(tmp_path):
    with pytest.raises(InputError, match="takes 3 sites at least, not 2"):
        config.parse(settings(federation={"secure": True, "sites": ["a", "b"]}))
    with pytest.raises(Exception, match="did not answer 'statistics'"):
        both(tmp_path, told())


def test_a_site_decides_for_itself_and_keeps_its_own_log(tmp_path):
    """Whatever the server asks, a site that has not approved the run touches no row; then it is approved."""
    plain, homes, own = settings(run={"rounds": 1}), tmp_path / "homes", node(tmp_path)
    (homes / "north").mkdir(parents=True)
    (homes / "north" / policy.FILE).write_text("ask = true\nlosses = true\n")
    with pytest.raises(EquipoiseError, match="'north' did not answer 'statistics': this configuration has not been"):
        both(tmp_path, plain, node=own)
    entry = audit.verify(homes / "north").entries[-1]
    assert (entry["kind"], entry["answer"]) == ("statistics", "refused")
    assert audit.verify(homes / "south").entries[-1]["answer"] == "replied"

    (pending,) = (homes / "north" / policy.PENDING).glob("*.toml")
    told = CliRunner().invoke(app, ["flower", "approve", pending.stem[:8], "--site", str(homes / "north")], input="y\n")
    assert "the server sees each site's loss, gradient" in " ".join(told.output.split())
    assert told.exit_code == 0, told.output
    over, _ = both(tmp_path, plain, node=own)
    assert over.outcome is not None
    chain = audit.verify(homes / "north")
    kinds = {(e["kind"], e["answer"]) for e in chain.entries}
    assert {("statistics", "refused"), ("settle", "replied"), ("exchange", "replied")} <= kinds
    sent = [e["sent"] for e in chain.entries if e.get("exchange") == "collect"]
    assert any("gradient" in name for name in sent[0])
    shown = CliRunner().invoke(app, ["flower", "audit", str(homes / "north")])
    assert f"{len(chain.entries)} messages, each as it was written" in " ".join(shown.output.split())
