"""What a person at the terminal is told while a federation waits, agrees, compiles and trains."""

import os
import time

from equipoise.deploy.server import status


def test_a_run_is_followed_line_by_line(tmp_path):
    said, now = [], [0.0]
    follow = status.follower(tmp_path, said.append, clock=lambda: now[0])
    follow()
    assert said.pop() == "the server starts"  # nothing is there yet
    writer = status.StatusWriter(tmp_path, "three", ("north", "south"), rounds=10)

    def after(seconds, record=None):
        now[0] += seconds
        if record is not None:
            writer.observe(record)
        writer.write(force=True)
        follow()

    joined = {"kind": "event", "site": "north", "what": "joined", "why": "", "round": 0, "exchange": ""}
    after(1)
    after(1, joined)  # not said again so soon
    after(5)
    assert said == [
        "waiting for sites, 2 of 2 to come: north, south",
        "waiting for sites, 1 of 2 to come: south",
    ]
    after(1, {"kind": "state", "state": "compiling at every site"})
    assert said[2:] == ["compiling at every site"]
    exchange = {"kind": "exchange", "part": "train", "exchange": "improve", "bytes_down": 1, "bytes_up": 1}
    for k in range(200):  # a hundred seconds of training
        after(0.5, {**exchange, "round": k // 20, "seconds": 0.25, "sites": {"north": 0.2}})
    assert said[3] == "training: round 1 of 10, 0.25 s per exchange"
    assert 4 <= len(said[3:]) <= 7  # less and less often
    assert said[-1].startswith("training: round ")
    writer.close("finished")
    after_end = len(said)
    now[0] += 1000
    follow()
    assert len(said) == after_end


def test_what_an_earlier_run_left_is_not_said(tmp_path):
    said = []
    status.StatusWriter(tmp_path, "three", ("north",), rounds=10).close("training")
    os.utime(tmp_path / status.STATUS, (1, 1))
    status.follower(tmp_path, said.append)()
    assert said == ["the server starts"]


def test_a_file_whose_time_lies_a_tick_behind_the_clock_is_of_this_run(tmp_path):
    said = []
    follow = status.follower(tmp_path, said.append)
    writer = status.StatusWriter(tmp_path, "three", ("north",), rounds=10)
    writer.write(force=True)
    tick = time.time() - 0.01
    os.utime(tmp_path / status.STATUS, (tick, tick))
    follow()
    writer.close("stopped")
    assert said == ["waiting for sites, 1 of 1 to come: north"]
