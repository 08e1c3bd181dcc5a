"""Flower's own nodes beside sites that stay, and messages that are too large to go with their content inside."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'equipoise[flower]')")

from equipoise.experiment import records
from tests.flower import silos
from tests.flower.federation import HURRIED, LONG, OBJECTS, Federation
from tests.flower.processes import kill, left


@pytest.mark.thorough(witness="deploy/test_transport.py::test_where_flower_has_changed_a_site_becomes_flowers_own_node")
def test_flowers_own_nodes_work_beside_sites_that_stay_and_very_large_messages_go_as_objects(tmp_path):
    federation = Federation(tmp_path)
    try:
        federation.start("north", env=OBJECTS)
        federation.start("south", "--stock", env=OBJECTS | HURRIED)
        settings = silos.settings(
            algorithm={"name": "fedavg", "steps": 2, "local_lr": 0.1},
            run={"rounds": 1},
            federation={"gather": 120.0, "sites": ["north", "south"]},
        )
        del settings["algorithm"]["rule"]
        federation.serve("mixed", settings, env=OBJECTS).wait(LONG)
        done = records.read(federation.folder / "mixed")
        assert done.rows[-1].answered == (2,)
        assert "Flower's SuperNode, a process for every message" in (federation.folder / "south.log").read_text()
        # Killed with -9, it leaves neither its SuperNode nor what that has started.
        tree = federation.sites["south"].kill()
        assert any("supernode" in " ".join(process.cmdline()) for process in tree)
        assert left(tree) == []
    finally:
        kill(federation.stop())
