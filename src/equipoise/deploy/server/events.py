"""What happened during a run, for the report at its end."""

from typing import Any, Literal, NamedTuple

from equipoise.engines.simulator import Result
from equipoise.errors import EquipoiseError

What = Literal[
    "joined",  # a site was found, at the start or after it had been away
    "stranger",  # a node that is not one of the run's sites was turned away
    "double",  # a second node with a site's name was turned away
    "false name",  # a node whose key is registered under another name was turned away
    "outsider",  # requests were refused at the server's port
    "left out",  # the operator resumed the run without this site
    "absent",  # nobody could be asked for this site
    "late",  # no reply within the time-out
    "failed",  # the site raised, or its process died
    "refused",  # the site did not accept the message
    "broken",  # a reply arrived and was not what was agreed, or not finite: left out and counted
    "network",  # Flower's network failed
    "repeated",  # too few replies: the round started again
    "given up",
    "resumed",  # the server was started again
    "log went back",  # a site's own log has fewer lines than it had
    "heavy",  # one site has most of the weight
]


class Event(NamedTuple):
    """One thing that happened; `site` is empty where it concerns all.

    What happens to a site again and again, with nothing else in between, is one event: every checkpoint holds them all.
    """

    round: int
    exchange: str
    site: str
    what: What
    why: str
    times: int = 1
    last_round: int | None = None  # when it happened last, if more than once


class Traffic(NamedTuple):
    """What crossed in one exchange, over all rounds and repetitions.

    Framing is what Flower's own objects add to one message; HTTP and TLS come on top.
    """

    exchange: str
    sent: int = 0  # messages
    received: int = 0  # replies that were what was agreed
    down: int = 0  # bytes of arrays
    up: int = 0
    down_framing: int = 0  # bytes per message
    up_framing: int = 0  # bytes per reply


class Ledger(NamedTuple):
    """All of a run that is not arrays; `to_json` and `ledger` turn it into JSON and back."""

    run: str
    sites: tuple[str, ...]  # by client number
    counted: tuple[str, ...]  # for each site, the mark of the last reply that counted (envelope.Address)
    events: tuple[Event, ...]
    traffic: tuple[Traffic, ...]
    lengths: dict[str, dict[str, float]] = {}  # noqa: RUF012 - never changed: what replies are compared with (lengths.py)

    def to_json(self) -> dict[str, Any]:
        events = [e._asdict() for e in self.events]
        return {**self._asdict(), "events": events, "traffic": [t._asdict() for t in self.traffic]}


def ledger(saved: dict[str, Any]) -> Ledger:
    """A ledger from the JSON of one."""
    events, traffic = tuple(Event(**e) for e in saved["events"]), tuple(Traffic(**t) for t in saved["traffic"])
    lengths = saved.get("lengths", {})  # of an earlier version there are none
    return Ledger(saved["run"], tuple(saved["sites"]), tuple(saved["counted"]), events, traffic, lengths)


class Outcome(NamedTuple):
    """Where a run over Flower ended or was interrupted; what `serve` needs to resume it."""

    result: Result  # as a simulator's, but the clients' states stay with the clients
    ledger: Ledger

    @property
    def rounds(self) -> int:
        return self.result.rounds


class LinkLost(BaseException):
    """Flower's server has gone. Not an Exception: a run survives the failure of a message, and not this."""


class GivenUp(EquipoiseError):
    """Too few sites answered, again and again; `outcome` holds every finished round."""

    def __init__(self, sentence: str, outcome: Outcome):
        super().__init__(sentence)
        self.outcome = outcome
