"""Which way messages go, and when Flower's own takes over."""

import io
import logging
import os
import signal
import sys

import jax
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from equipoise.deploy import flower
from equipoise.deploy.operations import processes
from equipoise.deploy.operations.processes import GUARD, Site, line, node_config, read_line, work_of
from equipoise.deploy.server.rounds import SHORTEST, Demands, deadline
from equipoise.deploy.wire import transport
from equipoise.deploy.wire.messages import content_bytes, pack
from equipoise.errors import InputError
from tests.deploy.grid import InProcess
from tests.deploy.setting import HASTY, SITES, app, serve
from tests.problems import assert_same, build

KEY = jax.random.key(3)


def test_where_flower_has_changed_its_own_way_is_taken_and_said(monkeypatch, caplog, tmp_path):
    monkeypatch.setitem(sys.modules, "flwr.supernode.fleet_http_client", None)
    for module in ("internals", "serverapp"):
        monkeypatch.delitem(sys.modules, f"equipoise.deploy.wire.{module}", raising=False)
    why = transport.why_not_warm("serverapp")
    assert "fleet_http_client" in why
    assert transport.why_not_warm() == why
    caplog.set_level("INFO", "equipoise.flower")
    algorithm = build("fedavg")
    federation = flower.gather(InProcess(app(algorithm, tmp_path), SITES), sites=SITES, timeouts=HASTY)
    assert serve(algorithm, federation, KEY, rounds=1).rounds == 1
    assert f"messages as Flower's objects ({why})" in caplog.text


def test_with_the_version_that_is_installed_the_fast_way_is_there():
    assert transport.why_not_warm() == transport.why_not_warm("serverapp") == ""


@pytest.mark.parametrize(("stock", "why"), [(False, "changed"), (True, "asked for")])
def test_where_flower_has_changed_a_site_becomes_flowers_own_node(stock, why, monkeypatch, capsys, tmp_path):
    """The process that would stay becomes Flower's own program, which ends with whoever started it all the same."""
    key = tmp_path / "keys" / "sites" / "north"
    key.parent.mkdir(parents=True)
    key.touch()
    site = Site("north", tmp_path / "own", node_config("north", tmp_path / "own", {"data": "north.csv"}))
    told = work_of([site], "host:1", tmp_path / "keys", stock=stock)
    assert read_line(line(told).decode()) == told
    became = []
    monkeypatch.setattr("equipoise.deploy.wire.transport.why_not_warm", lambda: "" if stock else why)
    monkeypatch.setattr(os, "execve", lambda *of: became.append(of) or sys.exit())
    monkeypatch.setattr(sys, "stdin", io.StringIO(line(told).decode()))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name, value in {"handlers": [], "level": logging.INFO, "propagate": True}.items():  # set as they are after it
        monkeypatch.setattr(logging.getLogger("equipoise.flower"), name, value)
    assert processes.main() == 1  # of the stand-in for execve, which does not return
    assert f"north: Flower's SuperNode, a process for every message ({why})\n$ " in capsys.readouterr().out
    [(program, words, environment)] = became
    assert [program, *words[1:4]] == [*GUARD, "flower-supernode"]
    assert words[words.index("--superlink") + 1] == "host:1"
    assert words[words.index("--auth-supernode-private-key") + 1] == str(key)
    assert "data='north.csv'" in words[words.index("--node-config") + 1]
    assert environment["FLWR_HOME"] == str(tmp_path / "own" / "flower")
    two = told._replace(sites=told.sites * 2)
    with pytest.raises(InputError, match="run one site each"):
        processes.become_supernode(two, "changed")


def test_a_request_is_cut_where_it_would_become_too_large(monkeypatch):
    monkeypatch.setattr(transport, "REQUEST", 10)
    sizes = [4, 4, 4, 12, 1]
    assert list(transport.batches(range(5), sizes.__getitem__)) == [[0, 1], [2], [3], [4]]
    assert list(transport.batches([], sizes.__getitem__)) == []


def test_the_bytes_of_a_message_are_those_of_its_arrays(tmp_path):
    InProcess(app(build("fedavg"), tmp_path), SITES)  # tells Flower who makes messages
    content = RecordDict({"message": pack({"a": np.zeros(3), "b": np.float32(1)}), "at": ConfigRecord({"x": 1})})
    assert content_bytes(Message(content, 1, "train.exchange")) == 28


def test_the_order_of_answers_does_not_matter(tmp_path):
    """Replies are added as they come; who is numbered how is not a matter of time."""
    algorithm, found = build("scaffpd"), []
    for name, turn in (("one", 1), ("other", -1)):

        class Grid(InProcess):
            def pull_messages(self, message_ids):
                return super().pull_messages(list(message_ids))[:: self.turn]

        grid = Grid(app(algorithm, tmp_path / name), SITES)
        grid.turn = turn
        federation = flower.gather(grid, sites=SITES, timeouts=HASTY)
        found.append(serve(algorithm, federation, KEY, rounds=2).result.server)
    assert_same(*found)


@pytest.mark.parametrize(
    ("demands", "past", "answered", "expected"),
    [
        (Demands(), [1.0] * 20, 10, 60.0),  # no quantile: the time-out alone
        (Demands(quantile=0.9, slack=2.0), [3.0] * 20, 5, 6.0),  # half of ten have answered
        (Demands(quantile=0.9, slack=2.0), [3.0] * 20, 4, 60.0),  # no quorum yet
        (Demands(quantile=0.9, slack=2.0), [3.0] * 9, 10, 60.0),  # too little is known
        (Demands(quantile=0.9, slack=2.0), [0.01] * 20, 10, SHORTEST),
        (Demands(quantile=0.9, slack=2.0), [100.0] * 20, 10, 60.0),  # never beyond the time-out
        (Demands(quantile=0.5, slack=1.0, quorum=1.0), [1.0] * 11 + [9.0] * 9, 10, 1.0),
    ],
)
def test_deadlines_by_quantile_and_quorum(demands, past, answered, expected):
    assert deadline(demands, 60.0, past, asked=10)(answered) == pytest.approx(expected)


def test_a_slow_site_is_left_out_after_the_quantile_of_past_times(tmp_path, monkeypatch):
    """Once enough is known, nobody waits for the time-out."""
    monkeypatch.setattr("equipoise.deploy.server.rounds.SHORTEST", 0.05)
    algorithm = build("fedavg")

    def lose(message, reply):
        late = message.metadata.message_type == "train.exchange" and message.content["at"]["round"] >= 2
        return None if late and grid.site(message) == SITES[0] else reply

    grid = InProcess(app(algorithm, tmp_path), SITES, lose)
    federation = flower.gather(grid, sites=SITES, timeouts=HASTY._replace(exchange=30.0))
    demands = Demands(heavy=1.0, quantile=0.9, slack=2.0, quorum=0.5)
    outcome = serve(algorithm, federation, KEY, rounds=3, demands=demands)
    (late,) = [e for e in outcome.ledger.events if e.what == "late"]
    assert (late.site, late.round) == (SITES[0], 2)
    assert float(late.why.split()[-2]) < 30
