"""Models of the sites' own over Flower's messages: the numbers of one machine, and models that stay where they are."""

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

pytest.importorskip("flwr")

from equipoise import artifact
from equipoise.deploy.site.run import OWN_MODEL
from equipoise.experiment import records
from tests.deploy.test_federated_run import both, close, settings
from tests.deploy.test_secure import flat
from tests.experiment.personal.test_models import read_own
from tests.flower.silos import SITES
from tests.problems import few

KINDS = {
    "best": {"personal": {"kind": "best"}, "run": {"rounds": 2}},
    "fine_tuning": {"personal": {"kind": "fine_tuning", "steps": 40, "lr": 0.05, "pulls": [0.1]}},
    "moreau": {"personal": {"kind": "moreau", "mu": 0.4, "steps": 40}, "run": {"rounds": 2}},
}


@pytest.mark.parametrize(
    "kind", few(["fine_tuning"], KINDS, "::test_own_models_as_on_one_machine_and_nobody_else_sees_them[fine_tuning]")
)
def test_own_models_as_on_one_machine_and_nobody_else_sees_them(kind, tmp_path):
    crossed = []

    def fault(message, reply):
        crossed.extend(part.deflate() for record in reply.content.values() for part in flat(record))
        return reply

    over, local = both(tmp_path, settings(model={"l2": 0.1}, **KINDS[kind]), fault=fault)
    assert (over.personal.kind, over.personal.measure) == (kind, "skill")
    for name in ("shared", "own", "pull"):
        if getattr(local.personal, name) is not None:
            close(getattr(over.personal, name), getattr(local.personal, name))
    assert any("which stays at the site" in note for note in over.federation.notes)
    assert not (over.path / records.OWN_MODELS).exists()  # the server has none of them

    models, _ = read_own(local.path)
    sent = b"".join(crossed)
    for site, v in zip(SITES, models, strict=True):
        mine = artifact.load(tmp_path / "homes" / site / OWN_MODEL)
        found = np.asarray(ravel_pytree(mine.params)[0])
        np.testing.assert_allclose(found, v, rtol=1e-9, atol=1e-11)
        assert mine.encoding is not None  # so that `equipoise predict` takes the site's own tables
        if not (over.personal.pull and over.personal.pull[SITES.index(site)] == 0):
            assert not any(number.tobytes() in sent for number in found[np.abs(found) > 1e-6])
    if kind == "fine_tuning":
        assert any(over.personal.pull)
