"""What folds choose over Flower's messages: the penalty, the price of fairness and the model of one machine."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict

from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site import oversight
from equipoise.deploy.site.oversight import plans_of, would_reveal
from equipoise.deploy.wire.messages import Address, address, read_text
from equipoise.errors import EquipoiseError, InputError, Refusal
from equipoise.experiment import choice, config, folders, records
from equipoise.experiment.chosen import settle
from equipoise.privacy import policy
from tests.deploy.test_federated_run import assert_the_same, both, grid, settings
from tests.flower import silos
from tests.flower.silos import SITES

OPEN = {
    "model": {"l2": "auto", "metric": "auto"},
    "objective": {"price": 0.05},
    "algorithm": {"name": "fedavg", "steps": 3, "local_lr": 0.2, "rule": None},
    "run": {"rounds": 2, "evaluate_every": 1},
}


def opened(**sections):
    told = settings(**{key: {**OPEN.get(key, {}), **sections.get(key, {})} for key in OPEN.keys() | sections.keys()})
    told["algorithm"] = {key: value for key, value in told["algorithm"].items() if value is not None}
    return told


def test_as_on_one_machine(tmp_path):
    over, local = both(tmp_path, opened())
    mine, other = (settle.read(run.path) for run in (over, local))
    assert [choice.key for choice in mine] == ["model.l2", "objective.rho"]
    for a, b in zip(mine, other, strict=True):
        assert (a.value, a.runner_up, a.rounds) == (b.value, b.runner_up, b.rounds)
        assert (a.bytes_down, a.bytes_up) == (b.bytes_down, b.bytes_up)
        for row, same in zip(a.tried, b.tried, strict=True):
            assert row.keys() == same.keys()
            np.testing.assert_allclose(list(row.values()), list(same.values()), rtol=1e-9, atol=1e-11)
    assert_the_same(over, local, gap=False)
    assert over.rows[0].bytes_up >= sum(choice.bytes_up for choice in mine)
    notes = "\n".join(over.federation.notes)
    assert "what the rows of its five folds lose" in notes
    assert all(choice.sentence in notes for choice in mine)
    assert config.parse(records.read_toml(over.path / records.CONFIG)) == config.parse(opened())  # what was asked for


def asked(network, part):
    return [m.content["at"]["exchange"] for m in network.asked if m.content.get("at", {}).get("part") == part]


@pytest.mark.thorough(witness="::test_as_on_one_machine")
def test_a_server_that_was_killed_along_the_path_goes_on(tmp_path):
    data, here = silos.write(tmp_path / "silos"), config.parse(opened())
    network = grid(here, data, tmp_path / "homes")

    def fault(message, reply):
        if asked(network, "path").count("judge") == 3 * len(SITES) + 2 * len(SITES) + 1:  # in the third point after
            raise SystemExit
        return reply

    network.fault = fault
    with pytest.raises(SystemExit):
        run_federation(here, tmp_path / "flower", network)
    before = json.loads((tmp_path / "flower" / folders.PATH).read_text())
    assert len(before) == 3
    again = grid(here, data, tmp_path / "homes")
    over = run_federation(here, tmp_path / "flower", again)
    path = json.loads((tmp_path / "flower" / folders.PATH).read_text())
    assert path[:3] == before
    assert asked(again, "path").count("judge") == len(SITES) * (len(path) - 3)
    whole = run_federation(here, tmp_path / "whole", grid(here, data, tmp_path / "others"))
    assert settle.read(over.path) == settle.read(whole.path)
    assert_the_same(over, whole, gap=False)


@pytest.mark.thorough(witness="experiment/chosen/test_folds.py::test_replies_that_are_lost_leave_the_others")
def test_a_site_whose_judgements_are_lost_is_not_in_the_mean(tmp_path):
    """And a model that training does not lead to is refused along the path as well."""
    data, here = silos.write(tmp_path / "silos"), config.parse(opened(federation={"exchange": 0.5}))
    network, refused = grid(here, data, tmp_path / "homes"), []

    def fault(message, reply):
        at = message.content.get("at", {"part": "", "exchange": ""})
        where = network.site(message), at["part"], at["exchange"]
        if where == ("north", "path", "collect") and not refused:
            refused.append(answer_to_a_model_far_away(network, message))
        return None if where == ("south", "path", "judge") else reply

    network.fault = fault
    over = run_federation(here, tmp_path / "flower", network)
    assert "away from where it began" in refused[0]
    for point in json.loads((tmp_path / "flower" / folders.PATH).read_text()):
        assert [a is None for a in point["losses"]] == [False, False, True]
    assert len(settle.read(over.path)) == 2
    assert over.outcome.rounds == 2


def answer_to_a_model_far_away(network, message):
    sent = message.content["message"]
    (name,) = (name for name in sent if name.endswith(".x"))
    far = np.frombuffer(sent[name].data) + 1e6
    array = Array(dtype="float64", shape=far.shape, stype="equipoise.raw", data=far.tobytes())
    content = RecordDict({"at": message.content["at"], "message": ArrayRecord({**sent, name: array})})
    odd = Message(content, message.metadata.dst_node_id, message.metadata.message_type)
    odd.metadata.__dict__["_message_id"] = "1"
    return read_text(network.app(odd, network.contexts[message.metadata.dst_node_id]).content, "refused")


def test_sites_approve_it_and_may_refuse(tmp_path):
    here = config.parse(opened())
    assert any("what the rows of its five folds lose" in sentence for sentence in would_reveal(here))
    (plan,) = plans_of(here)
    assert (plan.tells_folds, plan.tells_baseline, plan.tells_moments) == (True, True, True)
    (plan,) = plans_of(config.parse(settings()))
    assert not plan.tells_folds
    home = tmp_path / "homes" / SITES[0]
    home.mkdir(parents=True)
    (home / policy.FILE).write_text(policy.TRIAL + "folds = false\n")
    with pytest.raises(EquipoiseError, match="tells nobody what folds of its rows lose; give numbers"):
        run_federation(here, tmp_path / "flower", grid(here, silos.write(tmp_path / "silos"), tmp_path / "homes"))


def test_a_site_answers_along_the_path_as_often_as_it_has_points(tmp_path):
    here, most = config.parse(opened()), 3 * 16 + oversight.RESTARTS  # tries, rounds of the path

    def allow(part, round, told=here):
        at = Address(part, "run", 1, round, "judge", 0, [0, 0], "", [], "plan")
        oversight.allow(tmp_path, "digest", 1, told, policy.Policy(), "exchange", RecordDict({"at": address(at)}))

    for _ in range(most):
        allow("path", 2)
    with pytest.raises(Refusal, match=f"has answered 'path judge' {most} times in this run"):
        allow("path", 0)
    for part, round, last in (("path", 3, 3), ("train", 2, 2)):
        with pytest.raises(Refusal, match=f"round {round + 1} was asked for, of {last}"):
            allow(part, round)
    with pytest.raises(Refusal, match="round 1 was asked for, of 0"):
        allow("path", 0, config.parse(settings()))


def test_masked_sums_and_noise_keep_the_numbers_that_are_fixed():
    apart = {"federation": {"sites": 3}}
    left = choice.left_open(apart)
    assert (left["model"]["l2"], left["objective"]["price"]) == ("auto", choice.PRICE)
    assert settle.by_folds(config.parse(left))
    given = choice.left_open({**apart, "model": {"l2": 0.001}, "objective": {"rho": 0.1}})
    assert not settle.by_folds(config.parse(given))
    for told in ({"federation": {"sites": 3, "secure": True}}, {**apart, "privacy": {"epsilon": 1.0}}):
        assert choice.left_open(told) == told
    with pytest.raises(InputError, match=r"federation\.secure hides them; give numbers, such as"):
        config.parse(opened(federation={"secure": True}))
