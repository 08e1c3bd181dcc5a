"""What a site agrees to, and its own log."""

import json
import os
import threading

import pytest

from equipoise.errors import InputError, Refusal
from equipoise.privacy import audit, policy
from equipoise.privacy.policy import Plan, Policy

PLAN = Plan("a" * 64, "fedavg", 5, secure=True, tells_losses=False, label="y", batch=32, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("rules", "change", "sentence"),
    [
        ({}, {}, "has not been approved here: `equipoise flower approve aaaaaaaaaaaaaaaa`"),
        ({"ask": True}, {}, "has not been approved here: `equipoise flower approve aaaaaaaaaaaaaaaa`"),
        ({"approved": ["b" * 64]}, {}, "has not been approved here"),
        ({"algorithms": ["scaffpd_sums"]}, {}, "takes part in scaffpd_sums, not in fedavg"),
        ({"secure": True}, {"secure": False}, "sends totals masked only"),
        ({"least_cohort": 6}, {}, "runs over 6 sites or more, not 5"),
        ({"losses": False}, {"tells_losses": True}, "tells its own loss and scores to nobody"),
        ({"moments": False}, {"tells_moments": True}, "nobody the second moments of its inputs; set model.metric"),
        ({"folds": False}, {"tells_folds": True}, "nobody what folds of its rows lose; give numbers, such as model.l2"),
        ({"label": "z"}, {}, "the label of this site is 'z'"),
        ({"min_rows": 33}, {}, "a local step would be on 32 rows, and this site tells nothing of fewer than 33"),
        ({}, {"batch": 1}, "set model.batch = 20 or more"),
        ({"secure": True}, {"tells_losses": True}, "tells its own loss and scores to nobody"),
        ({"epsilon": 1.0}, {"epsilon": None, "delta": None}, "only with differential privacy"),
        ({"epsilon": 0.9}, {}, "gives away epsilon 0.9 at delta 1e-05 at most, not 1 at 1e-06"),
        ({"epsilon": 1.0, "delta": 1e-7}, {}, "gives away epsilon 1 at delta 1e-07 at most"),
    ],
)
def test_a_plan_that_goes_further_is_refused(rules, change, sentence):
    with pytest.raises(Refusal, match=sentence):
        policy.check(Policy(**{"ask": "has not been" in sentence} | rules), PLAN._replace(**change), set())


def test_what_is_within_is_not():
    whole = Policy(
        approved=("a" * 64,),
        algorithms=("fedavg",),
        secure=True,
        least_cohort=5,
        losses=False,
        label="y",
        epsilon=1.0,
    )
    policy.check(whole, PLAN, set())
    policy.check(Policy(ask=True), PLAN, {"a" * 64})
    plain = PLAN._replace(secure=False, tells_losses=True, epsilon=None, delta=None, batch=None)
    policy.check(Policy(ask=False), plain, set())
    policy.check(Policy(), plain, {plain.digest})


def test_a_file_with_a_mistake_agrees_to_nothing(tmp_path):
    path = tmp_path / policy.FILE
    assert policy.load(path) == Policy()
    for text, sentence in (("least_cohort = 0", "least_cohort"), ("lossess = true", "lossess"), ("a =", "is not TOML")):
        path.write_text(text)
        with pytest.raises(InputError, match=sentence):
            policy.load(path)


def log(folder, count=5):
    for k in range(count):
        audit.record(folder, {"kind": "exchange", "round": k, "answer": "replied"})
    return folder / audit.FILE


def test_the_log_is_a_chain(tmp_path):
    path = log(tmp_path)
    chain = audit.verify(tmp_path)
    assert [entry["round"] for entry in chain.entries] == [0, 1, 2, 3, 4]
    assert chain.head == json.loads((tmp_path / audit.HEAD).read_text())["digest"]
    assert audit.verify(path.parent / "nobody").entries == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: [*lines[:2], lines[2].replace('"round":2', '"round":9'), *lines[3:]], "line 4 is not what"),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3 is not what"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 is not what"),
        (lambda lines: [*lines, lines[-1]], "line 6 is not what"),
        (lambda lines: lines[:-1], "ends after 4 lines, and audit.head says 5"),
        (lambda lines: [*lines[:-1], lines[-1].replace("replied", "refused")], "cut off, or changed"),
        (lambda lines: [*lines[:3], "{", *lines[3:]], "line 4 is not what"),
        (lambda lines: [*lines[:3], "[" * 100_000, *lines[3:]], "line 4 is not what"),
    ],
)
def test_whatever_is_changed_in_the_log_is_noticed(change, sentence, tmp_path):
    path = log(tmp_path)
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(InputError, match=sentence):
        audit.verify(tmp_path)


def test_a_site_that_was_killed_while_it_wrote_goes_on(tmp_path):
    path = log(tmp_path, 2)
    head = (tmp_path / audit.HEAD).read_text()
    log(tmp_path, 1)
    (tmp_path / audit.HEAD).write_text(head)  # the line was written, its digest not any more
    log(tmp_path, 1)
    assert len(audit.verify(tmp_path).entries) == 4
    (tmp_path / audit.HEAD).write_text(
        json.dumps({"number": 3, "digest": audit.verify(tmp_path).entries[-1]["previous"]})
    )
    assert len(audit.verify(tmp_path).entries) == 4  # nobody is accused before it has gone on
    path.write_text(path.read_text() + '{"number": 5, "ti')
    log(tmp_path, 1)
    assert len(audit.verify(tmp_path).entries) == 5


def test_a_log_is_sound_while_its_site_goes_on_answering(tmp_path):
    log(tmp_path, 1)
    writer = threading.Thread(target=log, args=(tmp_path, 60))
    writer.start()
    lengths = [len(audit.verify(tmp_path).entries)]
    while writer.is_alive():
        lengths.append(len(audit.verify(tmp_path).entries))
    writer.join()
    assert lengths == sorted(lengths)
    assert len(audit.verify(tmp_path).entries) == 61


def test_a_copy_that_cannot_be_written_is_verified(tmp_path, monkeypatch):
    log(tmp_path)
    monkeypatch.setattr(audit, "locked", lambda *_, **__: pytest.fail("a file was to be written there"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write everywhere
    assert len(audit.verify(tmp_path).entries) == 5
