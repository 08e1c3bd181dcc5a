"""Odd messages, files and settings of all that privacy rests on: each is answered as it should be or refused in words.

No site crashes, no number of a site leaves it, every message stands in the site's log, and no budget is exceeded.
"""

import copy
import functools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from equipoise.cli import app
from equipoise.deploy.server.run import run_federation
from equipoise.deploy.site import oversight
from equipoise.deploy.site.oversight import plan_of, would_reveal
from equipoise.deploy.wire.messages import RECEIPT
from equipoise.errors import Refusal
from equipoise.experiment import config, private, reading
from equipoise.privacy import accounting, audit, identity, policy
from equipoise.privacy.accounting import Budget
from equipoise.privacy.site_masks import read_state
from tests.deploy.test_federated_run import grid, settings
from tests.deploy.test_secure_run import node, told
from tests.flower import silos
from tests.searches import tiny

MANY = 50 if tiny.LONGER == 1 else 100 * tiny.LONGER  # ten thousand of each kind with EQUIPOISE_SEARCH=100
SITE = "north"
JUNK = [
    True, False, -1, 0, 1, 3, 2**31, 2**40, 0.5, float("nan"), float("inf"), -1e300, "", "r", "train", "evaluate",
    "../x",
    "[1, 0, 0]", "null", "x" * 5000, b"", b"x" * 32, b"\xff" * 66, [], [0], [1, 2], ["north"], ["north", "north"],
    [""], [b""], [b"x" * 33] * 3, [0.5], ["east", "north", "south"], "\x00\n\u202e",
]  # fmt: skip


def changed(rng, record):
    """The record with an entry or two put for something else, left out or added."""
    values = dict(record)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        key, what = rng.choice([*values, "more"] if values else ["more"]), rng.random()
        if what < 0.5:
            values[key] = rng.choice(JUNK)
        elif what < 0.65:
            values.pop(key, None)
        elif isinstance(values.get(key), list) and values[key]:
            items = list(values[key])
            same = [j for j in (*items, *JUNK) if type(j) is type(items[0])]
            items[rng.randrange(len(items))] = rng.choice(same)
            values[key] = items if rng.random() < 0.7 else items[1:]
        elif isinstance(values.get(key), bytes) and values[key]:
            at = rng.randrange(len(values[key]))
            values[key] = values[key][:at] + bytes([rng.randrange(256)]) + values[key][at + 1 :]
        elif isinstance(values.get(key), int):
            values[key] = values[key] + rng.choice((-1, 1, 2, 100))
    return values


def odd(rng, content):
    """A message's content with something wrong in one of its records, or without it."""
    out = RecordDict()
    which = rng.choice(list(content))
    for name, record in content.items():
        if name != which:
            out[name] = record
        elif isinstance(record, ConfigRecord):
            if rng.random() < 0.05:
                continue
            out[name] = ConfigRecord() if rng.random() < 0.03 else ConfigRecord(changed(rng, record))
        else:
            if rng.random() < 0.2:
                continue
            out[name] = ArrayRecord({key: other_array(rng, array) for key, array in record.items()})
    return out


def other_array(rng, array):
    """An array with another type, shape, way of writing or content."""
    dtype, shape, stype, data = array.dtype, list(array.shape), array.stype, array.data
    what = rng.random()
    if what < 0.2:
        dtype = rng.choice(["float32", "int64", "uint8", "object", "", "float64[2]"])
    elif what < 0.4:
        shape = rng.choice([[], [0], [1], [-1], [3, 3], [10**12], [*shape, 1]])
    elif what < 0.5:
        stype = rng.choice(["numpy.ndarray", "pickle", ""])
    elif what < 0.7:
        data = rng.choice([b"", data[:-1], data + b"x", bytes(len(data)), b"\xff" * len(data)])
    elif what < 0.9:
        data = np.full(len(data) // 8, rng.choice([np.nan, np.inf, 1e300, 1e-300])).tobytes()
    return Array(dtype=dtype, shape=tuple(shape), stype=stype, data=bytes(data))


class Recording:
    """A federation that has run, and what its server asked one site, by kind."""

    def __init__(self, folder, plan):
        folder.mkdir()
        self.homes, data = folder / "homes", silos.write(folder / "silos")
        self.config, self.asked, self.rows = config.parse(plan), {}, (data / f"{SITE}.csv").read_text()
        self.place = grid(self.config, data, self.homes, node=node(folder), fault=self.keep)
        run_federation(self.config, folder / "run", self.place)
        self.home = self.homes / SITE
        self.number = next(n for n, c in self.place.contexts.items() if c.node_config.get("site") == SITE)

    def keep(self, message, reply):
        if self.place.site(message) == SITE:
            content, kind = message.content, message.metadata.message_type
            step = content["question"].get("step") if "question" in content and kind == "query.secure" else None
            part = content["at"]["part"] if "at" in content else None
            self.asked.setdefault(step or part or kind.partition(".")[2], []).append(message)
        return reply

    def send(self, content, kind):
        message = Message(content, self.number, kind)
        message.metadata.__dict__["_message_id"] = "1"
        return self.place.app(message, self.place.contexts[self.number]).content


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    plan = told(run={"rounds": 1, "evaluate_every": 1})
    return Recording(tmp_path_factory.mktemp("fuzz") / "masked", plan)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    method = {"name": "fedavg", "steps": 1, "local_lr": 0.2}
    plan = settings(run={"rounds": 2, "evaluate_every": 2}, privacy={"epsilon": 2.0, "delta": 1e-5})
    return Recording(tmp_path_factory.mktemp("fuzz") / "noisy", {**plan, "algorithm": method})


def kept_masks(recording, path):
    """What a site keeps of a batch, opened with its own key."""
    known = Path(recording.place.contexts[recording.number].node_config["key"])
    return read_state(path, identity.load(recording.home.name, known, known.parent).at_rest)


def secrets_of(recording):
    """What must be in no answer: what the site keeps of its masks, and the cells of its table."""
    kept = []
    for path in recording.home.glob("masks-*.sealed"):
        state = kept_masks(recording, path)
        kept += [s for key in ("privates", "seeds", "shares") for s in state.get(key, ()) if s and set(s) != {"0"}]
    return [bytes.fromhex(s[:64]) for s in kept if len(s) >= 64]


def bombard(recording, kind, rng, allowed, first=lambda: None):
    """MANY odd messages of a kind; how often which answer came. Each stands in the log.

    `first` is called before each, and `allowed` with what was answered.
    """
    messages = recording.asked[kind]
    before = len(audit.verify(recording.home).entries)
    hidden, cells = secrets_of(recording), {c for c in recording.rows.replace("\n", ",").split(",") if len(c) > 5}
    counts = {"refused": 0, "failed": 0, "answer": 0, "reply": 0}
    for _ in range(MANY):
        message = rng.choice(messages)
        content = odd(rng, message.content)
        first()
        answer = recording.send(content, message.metadata.message_type)
        (what,) = set(answer) - {RECEIPT}
        counts[what] += 1
        said = b"".join(_bytes_of(record) for record in answer.values())
        assert not any(secret in said for secret in hidden)
        if what in ("refused", "failed"):
            sentence = answer[what]["text"]
            assert sentence.strip()
            assert not any(cell in sentence for cell in cells)
        else:
            allowed(content, answer)
    entries = audit.verify(recording.home).entries[before:]
    assert len(entries) == MANY
    logged = [e["answer"] for e in entries]
    assert logged.count("refused") == counts["refused"]
    assert logged.count("replied") == counts["answer"] + counts["reply"]
    assert max(len(json.dumps(e)) for e in entries) < audit.LONGEST
    print(f"{kind}: {MANY} odd messages: {counts}")
    return counts


def _bytes_of(record):
    if isinstance(record, ArrayRecord):
        return b"".join(array.data for array in record.values())
    values = [v for value in record.values() for v in (value if isinstance(value, list) else [value])]
    return b"".join(v if isinstance(v, bytes) else str(v).encode() for v in values)


def test_a_copy_of_the_folder_tells_no_mask(masked):
    """The secrets of masks at rest are sealed with the site's key, which is elsewhere."""
    kept = [secret for secret in secrets_of(masked) if set(secret) != {0}]  # what was opened is gone
    assert kept
    files = b"".join(path.read_bytes() for path in masked.home.rglob("*") if path.is_file())
    assert not [secret for secret in kept if secret in files or secret.hex().encode() in files]


@pytest.mark.parametrize("step", ["keys", "shares", "deliver", "open"])
def test_odd_steps_of_a_masked_sum(step, masked):
    """No share is told, and what the site remembers of the real batches stays as it is."""
    real = {path: path.read_bytes() for path in masked.home.glob("masks-*.sealed")}

    def allowed(content, answer):
        assert step == "keys"  # a batch of another name, which may be made
        assert set(answer["answer"]) == {"keys", "signature"}
        for path in masked.home.glob("masks-*.sealed"):
            if path not in real:
                path.unlink()

    counts = bombard(masked, step, random.Random(step), allowed)
    assert counts["failed"] == 0
    assert {path: path.read_bytes() for path in masked.home.glob("masks-*.sealed")} == real


@pytest.mark.parametrize("part", ["train", "evaluate"])
def test_odd_exchanges_of_a_masked_run(part, masked):
    """Nothing plain leaves, and no mask is used twice; one that was not used yet may be asked for."""
    used = {(path.name, k) for path in masked.home.glob("masks-*.sealed") for k in kept_masks(masked, path)["used"]}

    def allowed(content, answer):
        at, mask = content["at"], content["mask"]
        this = (f"masks-{at['run']}-{mask['batch']}.sealed", mask["exchange"])
        assert this not in used
        used.add(this)
        assert {array.dtype for array in answer["reply"].values()} == {"uint64"}

    assert bombard(masked, part, random.Random(part), allowed)["failed"] == 0


def test_odd_messages_to_a_private_site(noisy):
    """Every answer of training is counted, whatever was asked; without a budget that was spent before."""
    counted = []

    def first():
        (noisy.home / accounting.FILE).unlink(missing_ok=True)

    def allowed(content, answer):
        counted.append(accounting.spent(noisy.home)["replies"])

    bombard(noisy, "train", random.Random("private"), allowed, first)
    assert set(counted) == {1}


def test_a_site_with_a_budget_of_its_own_is_never_talked_out_of_it(noisy):
    """Other names of runs, other attempts: together they cost what the site allows, and not more."""
    (noisy.home / accounting.FILE).unlink(missing_ok=True)
    file = noisy.home / policy.FILE
    file.write_text(f"{policy.TRIAL}epsilon = 2.0\n")
    try:
        for kind in ("train", "evaluate", "statistics"):
            bombard(noisy, kind, random.Random(f"budget {kind}"), lambda content, answer: None)
        assert accounting.epsilon_of(accounting.spent(noisy.home)["mu2"] ** 0.5, 1e-5) <= 2.0 * (1 + 1e-6)
    finally:
        file.write_text(policy.TRIAL)


# Files of the site's own.

POLICY = {
    "approved": ["a" * 64], "ask": True, "algorithms": ["fedavg"], "secure": True, "least_cohort": 5, "losses": False,
    "min_count": 10, "min_rows": 30, "label": "z", "threshold": 3, "most_weight": 0.9,
    "epsilon": 3.0, "delta": 1e-5, "outside_budget": ["statistics"],
}  # fmt: skip


def garbled(rng, text):
    """Bytes put for others, left out, or doubled."""
    data = bytearray(text.encode())
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, what = rng.randrange(len(data) + 1), rng.random()
        if what < 0.4 and at < len(data):
            data[at] = rng.randrange(256)
        elif what < 0.7:
            del data[at : at + rng.choice((1, 1, 5, 40))]
        else:
            data[at:at] = rng.choice(
                [b"\n", b"=", b"[", b"[" * 3000, b'"', b"0", b"-", b"\x00", b"\xff", b"true", b"9" * 30]
            )
    return bytes(data)


def test_odd_policies(tmp_path):
    """A file that is not what a site meant agrees to nothing, or to no more than one that can be read says."""
    rng, path, read = random.Random("policy"), tmp_path / policy.FILE, 0
    plan = policy.Plan("b" * 64, "scaffpd", 3, False, True, "y", 1, None, None)  # what no rule of POLICY agrees to
    strict = {key: value for key, value in POLICY.items() if key != "approved"}
    for _ in range(MANY):
        if rng.random() < 0.5:
            path.write_bytes(garbled(rng, tomli_w.dumps(strict)))
        else:
            values = {
                **strict,
                rng.choice([*strict, "more"]): rng.choice([j for j in JUNK if not isinstance(j, bytes)]),
            }
            try:
                path.write_text(tomli_w.dumps(values))
            except (TypeError, ValueError):
                continue
        rules, said = tiny.tried(functools.partial(policy.load, path))
        if said is None:
            read += 1
            assert policy.load(path) == rules
            # One rule may have become another, and not all ten at once.
            with pytest.raises(Refusal):
                policy.check(rules, plan, set())
    assert 0 < read < MANY


def test_odd_approvals(tmp_path, monkeypatch):
    """What was approved stays approved, and nothing else is; a configuration that was changed cannot be."""
    monkeypatch.setattr(oversight, "crossing", lambda config: [])  # which is traced, and the same every time
    rng, runner = random.Random("approve"), CliRunner()
    here = config.parse(settings(run={"rounds": 1}))
    digest, real = policy.digest_of(here.toml()), here.toml()
    pending = tmp_path / policy.PENDING
    pending.mkdir()
    approved = 0
    for k in range(MANY):
        (pending / f"{digest}.toml").write_text(real)
        list_before = rng.choice(["", "\n", "a" * 64, "b" * 64 + "\n", "\n\nx y", digest[:10]])
        (tmp_path / policy.APPROVED).write_text(list_before)
        if k % 2:  # the file was changed: one byte may be enough to reveal something else
            (pending / f"{digest}.toml").write_bytes(garbled(rng, real))
        asked = rng.choice(
            [digest, digest[:8], digest[:8], digest[:5], "", "..", "*", digest.upper(), "/" + digest, "[x]"]
        )
        if k % 50 < 2:
            said = runner.invoke(app, ["flower", "approve", "--site", str(tmp_path), "--yes", "--", asked])
            assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
        else:
            waiting, _ = tiny.tried(functools.partial(oversight.pending, tmp_path, asked))
            if waiting is not None:
                policy.approve(tmp_path, waiting[0])
        found = policy.approved_here(tmp_path)
        assert {*list_before.split()} <= found
        if digest in found:
            approved += 1
            assert asked in (digest, digest[:8])
            text = (pending / f"{digest}.toml").read_text()
            assert policy.digest_of(config.parse(reading.read(pending / f"{digest}.toml")).toml()) == digest, text
    assert approved > MANY / 20


def test_odd_logs(tmp_path):
    """Whatever is done to the log, it verifies as it was written or not at all; and the next line can be written."""
    rng = random.Random("audit")
    for k in range(6):
        audit.record(tmp_path, {"kind": "exchange", "round": k, "answer": "replied", "why": "x" * k})
    log, head = (tmp_path / name for name in (audit.FILE, audit.HEAD))
    whole = {log: log.read_bytes(), head: head.read_bytes()}
    entries = audit.verify(tmp_path).entries
    sound = 0
    for k in range(MANY):
        for path, content in whole.items():
            path.write_bytes(content)
        path = log if rng.random() < 0.8 else head
        changed_to = garbled(rng, whole[path].decode())
        path.write_bytes(changed_to)
        found, said = tiny.tried(lambda: audit.verify(tmp_path))
        if said is None:
            sound += 1
            assert found.entries == entries
            assert log.read_bytes() == whole[log]
        if k % 20 == 0:  # a site that goes on writes behind it, and hides nothing of what was done
            _, wrong = tiny.tried(lambda: audit.record(tmp_path, {"kind": "exchange", "answer": "replied"}))
            after, still = tiny.tried(lambda: audit.verify(tmp_path))
            assert wrong is not None or still is not None or after.entries[: len(entries)] in (entries, entries[:-1])
    assert sound < MANY / 5


def test_odd_ledgers(tmp_path):
    """A damaged ledger refuses; it never counts less than nothing."""
    rng, path = random.Random("ledger"), tmp_path / accounting.FILE
    budget = Budget(1.0, 1e-5)
    for _ in range(3):
        accounting.spend(tmp_path, "r", budget.most / 10, budget, budget)
    whole = path.read_text()
    for _ in range(MANY):
        path.write_bytes(garbled(rng, whole))
        try:
            accounting.spend(tmp_path, "r", budget.most / 10, budget, budget)
        except Refusal:
            continue
        found = accounting.spent(tmp_path)
        assert 0 <= found["mu2"] <= budget.most


def test_odd_settings_of_privacy():
    """Each is a run whose noise costs what it promises, or a sentence."""
    rng, made = random.Random("settings"), 0
    base = {
        "algorithm": {"name": "scaffpd", "steps": 1, "local_lr": 0.1, "rule": {"sigma": 0.2, "theta": 0.0}},
        "privacy": {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "loss_bound": 4.0},
        "run": {"rounds": 7},
        "federation": {"sites": 3},
    }
    numbers = [1e-300, 1e-12, 1e-3, 0.5, 1, 3, 50, 709, 710, 1e4, 1e300, 10**18]
    for _ in range(MANY):
        plan = copy.deepcopy(base)
        for _ in range(rng.choice((1, 1, 2, 3))):
            section = rng.choice(["privacy", "privacy", "privacy", "run", "algorithm", "federation", "personal"])
            if section == "personal":
                plan["personal"] = {rng.choice(["kind", "mu", "lr", "pulls", "steps"]): rng.choice([*JUNK, *numbers])}
                continue
            key = rng.choice([*plan[section], "secure", "batch"])
            plan[section][key] = rng.choice([*numbers, *JUNK, "fedavg", "scaffpd"])
        parsed, said = tiny.tried(lambda plan=plan: config.parse(plan))
        if said is not None:
            continue
        made += 1
        if parsed.privacy is None:
            continue
        assert private.promise(parsed)
        noise, costs = private.noise_of(parsed), private.costs(parsed)
        assert all(np.isfinite(list(noise)))
        assert min(noise) > 0
        spent = parsed.run.rounds * sum(costs.values())
        assert spent <= Budget(parsed.privacy.epsilon, parsed.privacy.delta).most * (1 + 1e-9)
        if made % 50 == 0:  # what it sends is traced
            assert plan_of(parsed).epsilon == parsed.privacy.epsilon
            assert would_reveal(parsed)
    assert made > 0
