"""What stands on a message besides its arrays: which exchange it belongs to, and what its receiver should remember."""

import json
import re
from contextvars import ContextVar
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict

from equipoise.deploy.wire.arrays import refuse_unless
from equipoise.privacy.audit import Receipt

NOT_TOLD = "has not been told the agreement"  # in the refusal of a site that has lost its folder
RECEIPT = "audit"  # in a reply: where the site's own log stands
START = ""  # the mark of a client that has not been counted yet
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)  # of a run or a part: it becomes part of a file's name


of_run: ContextVar[str] = ContextVar("of_run")  # the run whose message is being answered


class Address(NamedTuple):
    """Where in a run a message belongs.

    A client's state is marked by the message that made it. `since` is the mark of the last reply of this client that
    the server counted: the state to start from, whatever the client computed in vain meanwhile. `keep` are the marks
    that the server may still go back to, because a round is repeated or a checkpoint resumed.
    """

    part: str  # which of a site's jobs: training, evaluation
    run: str  # a resumed run keeps its name
    attempt: int  # grows with every round, every repetition of one and every restart of the server
    round: int
    exchange: str
    slot: int
    key: list[int]  # of this slot, in words
    since: str
    keep: list[str]
    plan: str  # the server's fingerprint


def mark(attempt: int, round: int, exchange: int) -> str:
    """What the state that a message made is known by."""
    return json.dumps([attempt, round, exchange])


def order(mark: str) -> tuple[int, int]:
    """Marks of later messages are larger."""
    attempt, _, exchange = json.loads(mark)
    return attempt, exchange


def address(at: Address) -> ConfigRecord:
    return ConfigRecord(at._asdict())


def read_address(content: RecordDict) -> Address:
    """The address on a message; a Refusal if it makes no sense."""
    record: Any = content.get("at")
    refuse_unless(isinstance(record, ConfigRecord), "the message has no address")
    refuse_unless(record.keys() == set(Address._fields), "the message's address has other fields than it should")
    at = Address(**record)
    for value in (at.part, at.run):
        refuse_unless(isinstance(value, str) and NAME.fullmatch(value), "the message names no run that could be kept")
    for number in (at.attempt, at.round, at.slot, *(at.key if isinstance(at.key, list) else [None])):
        refuse_unless(type(number) is int and number >= 0, "the message's address has numbers that are none")
    refuse_unless(all(word < 2**32 for word in at.key), "the message's random key is none")
    for text in (at.exchange, at.since, at.plan, *(at.keep if isinstance(at.keep, list) else [None])):
        refuse_unless(isinstance(text, str), "the message's address has texts that are none")
    return at


def plain(said: str) -> str:
    """What somebody else wrote, fit for a log: short, on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in said[:300])


def text(kind: str, value: str) -> RecordDict:
    return RecordDict({kind: ConfigRecord({"text": value})})


def read_text(content: RecordDict, kind: str) -> str | None:
    """The text of that kind in a message, if there is one."""
    record: Any = content.get(kind)
    value = record.get("text") if isinstance(record, ConfigRecord) else None
    return value if isinstance(value, str) else None


def greeting(name: str, abilities: list[str]) -> RecordDict:
    """A node's answer to `hello`: its name, and what it can beyond Flower's own nodes."""
    return RecordDict({"answer": ConfigRecord({"text": name}), "abilities": ConfigRecord({"names": abilities})})


def read_receipt(content: RecordDict) -> Receipt | None:
    """Where the site's log stands, as its reply says."""
    record: Any = content.get(RECEIPT)
    if not isinstance(record, ConfigRecord) or record.keys() != set(Receipt._fields):
        return None
    found = Receipt(**dict(record))  # type: ignore[arg-type]
    sound = type(found.number) is int and isinstance(found.digest, str) and isinstance(found.signature, str)
    return found if sound and len(found.digest) + len(found.signature) < 1000 else None


def read_abilities(content: RecordDict) -> list[str]:
    record: Any = content.get("abilities")
    names = record.get("names") if isinstance(record, ConfigRecord) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
