"""What an approval covers: so many rounds, questions, runs and bytes; counted before anything is worked out.

How many rounds a run has, and how often each may be asked for, follows from its configuration, which is what was
approved. How many runs there may be of it stands in site.toml (`runs`); every further approval is for as many again.

    allowance.json   configuration -> what was answered of it
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from equipoise.deploy.wire.envelope import NAME, read_address
from equipoise.errors import Refusal, not_none, refuse_unless
from equipoise.experiment.config import Config
from equipoise.files import locked, make_folder, read_text
from equipoise.privacy.policy import Policy

FILE = "allowance.json"
RESTARTS = 20  # times that a server may be started again, and ask for the same once more
STEPS = 4  # questions about the masks of one exchange
EXCHANGES = 16  # of a round, at most
KEPT = 200  # configurations that are remembered
_counting = threading.RLock()


def allow(
    folder: Path, digest: str, approvals: int, config: Config, rules: Policy, kind: str, content: RecordDict
) -> None:
    """Counts a message that is about to be answered; a Refusal, and nothing is counted, beyond what is covered."""
    with _counted(folder) as counts:
        of = counts.setdefault(digest, {"runs": {}, "questions": {}, "bytes": 0})
        run, what, most = _asked(config, rules, kind, content)
        if run is None:
            now = of["questions"].get(what, 0) + 1
            most *= rules.runs * max(approvals, 1)
            refuse_unless(now <= most, f"this site was asked for '{what}' {most} times, which is all that is approved")
            of["questions"][what] = now
            return
        known = of["runs"].setdefault(run, {})
        allowed = rules.runs * max(approvals, 1)
        refuse_unless(
            len(of["runs"]) <= allowed,
            f"this site has taken part in {allowed} runs of this configuration; its owner may allow more: `equipoise "
            f"flower approve {digest[:16]}`",
        )
        now = known.get(what, 0) + 1
        refuse_unless(
            now <= most and (what in known or len(known) < 2 * EXCHANGES),
            f"this site has answered '{what}' {most} times in this run, which is all that is approved",
        )
        known[what] = now


def spend_bytes(folder: Path, digest: str, size: int, most: int | None) -> None:
    """Counts what is about to leave."""
    with _counted(folder) as counts:
        of = counts.setdefault(digest, {"runs": {}, "questions": {}, "bytes": 0})
        refuse_unless(
            most is None or of["bytes"] + size <= most,
            f"with this reply this site would have sent more than {most} bytes for this configuration (its site.toml)",
        )
        of["bytes"] += size


def _asked(config: Config, rules: Policy, kind: str, content: RecordDict) -> tuple[str | None, str, int]:
    """The run that a message is of, if it says so; what it asks for; and how often it may in one run."""
    tries = not_none(config.federation).tries
    rounds = max(config.run.rounds, 0 if config.convexify is None else config.convexify.rounds)
    each = tries * rounds + RESTARTS
    if kind == "exchange":
        at = read_address(content)
        last = rounds if at.part == "train" else 1
        refuse_unless(at.round < last, f"round {at.round + 1} was asked for, of {last}")
        return at.run, f"{at.part} {at.exchange[:40]}", each
    question: Any = content.get("question")
    run = question.get("run") if isinstance(question, ConfigRecord) else None
    if kind == "secure" and isinstance(run, str) and NAME.fullmatch(run):
        return run, kind, STEPS * EXCHANGES * each
    return None, kind, RESTARTS


@contextmanager
def _counted(folder: Path) -> Iterator[dict[str, Any]]:
    """The counts, written back unless there was a Refusal; those of the oldest configurations are forgotten."""
    make_folder(folder)
    with _counting, locked(folder / "allowance.lock", f"the counts of {folder.name}", wait=30.0):
        path = folder / FILE
        try:
            counts = json.loads(read_text(path)) if path.is_file() else {}
            refuse_unless(isinstance(counts, dict), "")
        except (ValueError, RecursionError, Refusal):
            raise Refusal(
                "what this site has answered so far cannot be read (allowance.json); its owner may delete it"
            ) from None
        yield counts
        for old in [*counts][:-KEPT]:
            del counts[old]
        part = path.with_suffix(".part")
        part.write_text(json.dumps(counts))  # not written through: the log of the site is
        os.replace(part, path)
