"""Configured runs with masked sums: the numbers of one machine, and nothing of a single site in the folder."""

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from equipoise import artifact
from equipoise.cli import app
from equipoise.deploy.operations import keys
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site.oversight import plan_of, would_reveal
from equipoise.errors import EquipoiseError, InputError, Refusal
from equipoise.experiment import config, records
from equipoise.privacy import accounting, audit, policy
from equipoise.report.html import write as write_report
from tests.deploy.test_federated_run import both, grid, settings
from tests.flower import silos
from tests.flower.silos import SITES


def node(tmp_path):
    keys.make(tmp_path / "keys", SITES)

    def own(site):
        known = tmp_path / "keys" / keys.SITES
        return {"data": str(tmp_path / "silos" / f"{site}.csv"), "key": str(known / site), "roster": str(known)}

    return own


def told(federation=None, **sections):
    method = {"name": "scaffpd_sums", "steps": 3, "local_lr": 0.2, "rule": {"sigma": 0.5, "theta": 0.5}}
    base = {"algorithm": method, "objective": {"name": "kl", "rho": 0.3}, "model": {"l2": 0.1}}
    return settings(federation=federation or {"secure": True}, **{**base, **sections})


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
    page = write_report([over], tmp_path / "report.html").read_text()
    assert "No site told its own scores: federation.secure masks evaluations too" in page
    assert "The scores of single clients are not shown, because nobody but they themselves knows them" in page
    assert "clients have no accuracy at the end" not in page  # which would read as if something had gone wrong
    assert over.outcome.events == ()


@pytest.mark.thorough(witness="::test_whoever_approves_is_told_what_the_server_would_see")
def test_what_the_server_sees_is_said_of_a_plain_run_too(tmp_path):
    data, here = silos.write(tmp_path / "silos"), config.parse(settings(run={"rounds": 1}))
    over = run_federation(here, tmp_path / "flower", grid(here, data, tmp_path / "homes"))
    said = "\n".join(over.federation.notes)
    assert "collect: the server sees each site's loss, gradient" in said
    assert "improve: the server is sent each site's weight, weight times update" in said
    assert "when the model is evaluated: the server sees each site's scores and its training loss" in said


REVEALED = {
    "plain": ({}, "improve: the server is sent each site's weight, weight times update; the server is trusted"),
    "projected": (
        {"federation": {"project": True}},
        "improve: the server sees each site's weight, weight times update",
    ),
    "perhaps projected": (
        {"algorithm": {"local_lr": "auto"}, "data": {"task": "regression"}},
        "improve: the server sees each site's weight, weight times update",
    ),
    "compressed": ({"federation": {"compress": "bfloat16"}}, "collect: the server sees each site's loss, gradient"),
    "compressed sums": (
        {"federation": {"compress": "bfloat16", "compress_sums": True}},
        "improve: the server sees each site's part of every sum, of which it keeps the whole",
    ),
    "masked losses": (
        {"federation": {"secure": True}, "algorithm": {"name": "scaffpd_secure"}},
        "masks hide sums only, and not what the server sees of each site",
    ),
    "own models": ({"personal": {"lr": 0.1}}, "scores with the shared model and with its own, which stays at the site"),
}


@pytest.mark.parametrize("case", REVEALED)
def test_whoever_approves_is_told_what_the_server_would_see(case):
    """Projection and compression change it, and the site's policy goes by the same."""
    sections, sentence = REVEALED[case]
    here = config.parse(settings(**{"data": {"task": "classification"}, **sections}))
    assert sentence in "\n".join(would_reveal(here))
    plan = plan_of(here)
    assert plan.tells_losses
    with pytest.raises(Refusal, match="tells its own loss and scores to nobody"):
        policy.check(policy.Policy(ask=False, losses=False), plan, set())


def test_whoever_approves_is_told_that_limits_do_not_keep_a_server_from_single_rows():
    """First of all; with noise, how much it bounds."""
    private = settings(
        algorithm={"name": "fedavg", "steps": 1, "local_lr": 0.2, "rule": None},
        privacy={"epsilon": 2.0, "delta": 1e-5},
    )
    private["algorithm"].pop("rule")
    plain, masked, noisy = (would_reveal(config.parse(plan)) for plan in (settings(), told(), private))
    assert "can work out single rows from a site's answers" in plain[0]
    assert "can work out single rows from sums of the sites' answers" in masked[0]
    assert "epsilon" in noisy[0]
    assert "single rows" not in "".join(noisy)


@pytest.mark.thorough(
    witness="deploy/test_faults.py::test_a_huge_loss_is_bounded_by_the_defences_where_every_length_is_believed"
)
def test_gradients_are_clipped_from_a_file(tmp_path):
    """At the median itself the run is another one; where no gradient is shown it is refused."""
    plain = settings(run={"rounds": 2, "evaluate_every": 2}, model={"l2": 0.1})
    ends = []
    for name, of in (("off", {}), ("far", {"clip_gradients": 1e6}), ("on", {"clip_gradients": 1.0})):
        told = {**plain, "federation": {**plain["federation"], **of}}
        ends.append(np.array(both(tmp_path / name, told)[0].rows[-1].loss))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)
    assert not np.allclose(ends[2], ends[0], rtol=1e-6)
    with pytest.raises(InputError, match="looks at every site's gradient, which scaffpd_sums does not show"):
        both(tmp_path / "sums", told_plain({"clip_gradients": 2.0}))


def told_plain(federation):
    return told(federation={"secure": False, **federation})


def test_masked_sums_need_keys_and_company(tmp_path):
    with pytest.raises(InputError, match="takes 3 sites at least, not 2"):
        config.parse(settings(federation={"secure": True, "sites": ["a", "b"]}))
    with pytest.raises(Exception, match="did not answer 'statistics'"):
        both(tmp_path, told())


@pytest.mark.thorough(
    witness="deploy/test_owners.py::test_without_a_file_a_site_asks_and_its_owner_is_told_how_many_rows_stand_behind"
)
def test_a_site_decides_for_itself_and_keeps_its_own_log(tmp_path):
    """Whatever the server asks, a site that has not approved the run touches no row; then it is approved."""
    plain, homes, own = settings(run={"rounds": 1}), tmp_path / "homes", node(tmp_path)
    (homes / "north").mkdir(parents=True)
    (homes / "north" / policy.FILE).write_text(policy.TRIAL.replace("ask = false", "ask = true"))
    with pytest.raises(EquipoiseError, match="'north' did not answer 'statistics': this configuration has not been"):
        both(tmp_path, plain, node=own)
    entry = audit.verify(homes / "north").entries[-1]
    assert (entry["kind"], entry["answer"]) == ("statistics", "refused")
    assert audit.verify(homes / "south").entries[-1]["answer"] == "replied"

    (pending,) = (homes / "north" / policy.PENDING).glob("*.toml")
    told = CliRunner().invoke(app, ["flower", "approve", pending.stem[:8], "--site", str(homes / "north")], input="y\n")
    assert "the server sees each site's loss, gradient" in " ".join(told.output.split())
    assert told.exit_code == 0, told.output
    here = config.parse(plain)
    over = run_federation(here, tmp_path / "flower", grid(here, tmp_path / "silos", homes, node=own))
    assert over.outcome is not None
    chain = audit.verify(homes / "north")
    kinds = {(e["kind"], e["answer"]) for e in chain.entries}
    assert {("statistics", "refused"), ("agreement", "replied"), ("exchange", "replied")} <= kinds
    sent = [e["sent"] for e in chain.entries if e.get("exchange") == "collect"]
    assert any("gradient" in name for name in sent[0])
    shown = CliRunner().invoke(app, ["flower", "audit", str(homes / "north")])
    assert f"{len(chain.entries)} messages, each as it was written" in " ".join(shown.output.split())


@pytest.mark.thorough(witness="deploy/test_liars.py::test_a_lying_site_slows_the_run_and_does_not_steer_it")
def test_projections_are_on_where_they_cost_nothing_and_exclude_masks(tmp_path):
    """A regression with measured steps: the same model as without, and the report says what is bounded."""
    method = {"name": "scaffpd", "steps": 3, "local_lr": "auto", "rule": {"sigma": 0.5, "theta": 0.5}}
    plain = settings(algorithm=method, run={"rounds": 3})
    models = []
    for name, more in (("on", {}), ("off", {"project": False})):
        of = {**plain, "federation": {**plain["federation"], **more}}
        over, _ = both(tmp_path / name, of, task="regression")
        models.append(jax.tree.leaves(artifact.load(over.path / records.MODEL).params))
        assert any("cannot move where it ends" in note for note in over.federation.notes) == (name == "on")
    for a, b in zip(*models, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="looks at every site's update, which"):
        config.parse(told(federation={"secure": True, "project": True}))


@pytest.mark.thorough(
    witness="searches/test_privacy.py::test_a_site_with_a_budget_of_its_own_is_never_talked_out_of_it"
)
def test_a_private_run_spends_its_budget_and_a_site_refuses_what_goes_beyond(tmp_path):
    method = {"name": "scaffpd", "steps": 1, "local_lr": 0.2, "rule": {"sigma": 0.5, "theta": 0.0}}
    plan = settings(algorithm=method, run={"rounds": 3}, privacy={"epsilon": 2.0, "delta": 1e-5})
    homes, own = tmp_path / "homes", node(tmp_path)
    (homes / "north").mkdir(parents=True)
    (homes / "north" / policy.FILE).write_text(f'{policy.TRIAL}epsilon = 2.5\noutside_budget = ["statistics"]\n')
    over, local = both(tmp_path, plan, node=own)
    assert accounting.epsilon_of(accounting.spent(homes / "north")["mu2"] ** 0.5, 1e-5) == pytest.approx(2.0, rel=1e-6)
    assert any("epsilon 2 at delta 1e-05 over all 3 rounds" in note for note in over.federation.notes)
    assert any("does not cover evaluation" in event for event in over.outcome.events)  # north's scores stay there
    assert over.rows[-1].scores["accuracy"][1] is None
    mine, other = (jax.tree.leaves(artifact.load(r.path / records.MODEL).params) for r in (over, local))
    assert not np.allclose(mine[0], other[0])  # noise of the sites' own, not of the run's key

    # Another run of the same: north has 0.5 left, and says no; the others go on.
    here = config.parse(plan)
    over = run_federation(here, tmp_path / "second", grid(here, tmp_path / "silos", homes, node=own))
    refused = [event for event in over.outcome.events if "this site, over all runs" in event]
    assert refused
    assert all("'north' refused" in event for event in refused)
    assert accounting.epsilon_of(accounting.spent(homes / "north")["mu2"] ** 0.5, 1e-5) <= 2.5
    assert any("over all runs" in entry.get("why", "") for entry in audit.verify(homes / "north").entries)
