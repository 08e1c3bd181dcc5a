"""What server and sites know before the first round is told once: what comes later is told alone."""

import json
from types import SimpleNamespace

from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, NetworkRecord
from equipoise.deploy.server.reach_agreement import tell
from equipoise.deploy.site.run import keep_agreement, read_agreement, whole_agreement
from equipoise.deploy.wire.messages import of_run

FIRST = Agreement(run="r-1", sites=("a", "b"), train=(3, 4), test=(1, 1), encoding="x" * 1000)
LONG = "y" * 5000
LATER = (
    FIRST,
    FIRST.model_copy(update={"metric": {"factor": "1"}}),
    FIRST.model_copy(update={"metric": {"factor": "1"}, "curvature": 0.1 + 0.2, "slope": 1 / 3}),
    FIRST.model_copy(update={"run": "r-1-features", "network": NetworkRecord(theta=LONG, how="", down=1, up=2)}),
    FIRST.model_copy(
        update={
            "run": "r-1-features",
            "network": NetworkRecord(theta=LONG, how="", down=1, up=2, mean="m", scale="s"),
            "curvature": 2.0,
        }
    ),
)


def test_every_site_has_all_of_it_and_is_told_nothing_twice(tmp_path):
    said = []

    def ask(question, text):
        said.append(text)
        keep_agreement(tmp_path, "a", whole_agreement(tmp_path, "a", text))
        return {"a": ""}

    federation = SimpleNamespace(ask=ask, agreement="", told_all="")
    for agreed in LATER:
        tell(federation, agreed)
        of_run.set(agreed.run)
        there = read_agreement(tmp_path, "a")
        assert there == agreed
        assert there.model_dump_json() == agreed.model_dump_json() == federation.agreement  # the digest is of this
    assert sum(FIRST.encoding in text for text in said) == 1
    assert sum(LONG in text for text in said) == 1


def test_only_what_is_new_is_an_addition():
    added = json.loads(agreement.addition(LATER[3].model_dump_json(), LATER[4]))
    assert added == {
        "extends": "r-1-features",
        "changes": {"network": {"mean": "m", "scale": "s"}, "curvature": 2.0},
    }
