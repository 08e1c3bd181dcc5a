"""What happened during a run, and how it is said to people."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from equipoise.engines.simulator import Result
from equipoise.errors import EquipoiseError
from equipoise.evaluation.rules import higher_is_better, main_score
from equipoise.experiment.records import Row

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


Record = dict[str, Any]  # as JSON: an event or an exchange for the log, or a ledger


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
    counted: tuple[str, ...]  # for each site, the mark of the last reply that counted (messages.Address)
    events: tuple[Event, ...]
    traffic: tuple[Traffic, ...]
    lengths: dict[str, dict[str, float]] = {}  # noqa: RUF012 - never changed: what replies are compared with (lengths.py)

    def to_json(self) -> Record:
        events = [e._asdict() for e in self.events]
        return {**self._asdict(), "events": events, "traffic": [t._asdict() for t in self.traffic]}


def ledger(saved: Record) -> Ledger:
    """A ledger from the JSON of one."""
    events, traffic = tuple(Event(**e) for e in saved["events"]), tuple(Traffic(**t) for t in saved["traffic"])
    lengths = saved.get("lengths", {})  # earlier versions did not save them
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
    """Too few sites answered, again and again; of a run that was served `outcome` holds every finished round."""

    def __init__(self, sentence: str, outcome: Outcome | None = None):
        super().__init__(sentence)
        self.outcome = outcome


FEW = 4  # places that are named; of more, how many
WORDS = {"late": "did not answer in time", "broken": "sent a reply that was left out", "absent": "was not there"}
# Their reason is a sentence, with the site in it.
WHOLE = ("stranger", "double", "false name", "outsider", "left out", "log went back", "heavy")


def sentences_of(events: Sequence[Event]) -> Iterator[str]:
    """A sentence for each thing that happened to a site, however often; an arrival counts only after an absence."""
    groups: dict[tuple[str, str, str], list[Event]] = {}
    away: set[str] = set()
    for event in events:
        if event.what in ("late", "absent"):
            away.add(event.site)
        if event.what == "joined" and event.site not in away:
            continue
        away -= {event.site} if event.what == "joined" else set()
        groups.setdefault((event.site, event.what, event.why), []).append(event)
    for (site, what, why), same in groups.items():
        places = list(dict.fromkeys(map(_place, same)))
        more = f" and {len(places) - FEW} more" if len(places) > FEW else ""
        yield f"{_said(site, what, why)} ({', '.join(places[:FEW])}{more})"


def _said(site: str, what: str, why: str) -> str:
    if what in WHOLE:
        return why
    if what == "joined":
        return f"'{site}' came back"
    if not site:
        opening = {"repeated": "the round was repeated: ", "given up": "the run stopped: ", "resumed": ""}
        return opening.get(what, f"{what}: ") + why
    return f"'{site}' {WORDS.get(what, what)}: {why}"


def _place(event: Event) -> str:
    evaluation = event.exchange == "evaluate"
    first = f"evaluation after round {event.round}" if evaluation else f"round {event.round + 1}"
    if event.exchange in ("", "statistics", "agreement", "prepare", "start"):
        first = "before the first round" if event.round == 0 else first
    elif not evaluation:
        first += f", {event.exchange}"
    if event.times == 1:
        return first
    if event.last_round == event.round:
        return f"{first}, {event.times} times"
    return f"{event.times} times from {first} to round {(event.last_round or 0) + (not evaluation)}"


def framing_sentence(traffic: Sequence[Traffic]) -> str:
    """What the network added to the bytes of the history."""
    down = sum(t.sent * t.down_framing for t in traffic)
    up = sum(t.received * t.up_framing for t in traffic)
    messages = sum(t.sent + t.received for t in traffic)
    return (
        f"Flower's framing added {down:,} bytes down and {up:,} up, {(down + up) // max(messages, 1):,} per message, "
        "to the bytes of the history; HTTP, TLS and evaluations come on top"
    )


def print_round(round: int, rounds: int, row: Row) -> None:
    """A line for the log of the server."""
    score = main_score(row.scores) or "loss"
    values = np.array([np.nan if v is None else v for v in row.scores[score]])
    heard = values[np.isfinite(values)]
    if heard.size:
        worst = heard.min() if higher_is_better(score) else heard.max()
        print(f"round {round} of {rounds}: {score} {heard.mean():.4g}, of the worst site {worst:.4g}", flush=True)
    else:
        print(f"round {round} of {rounds}: no site was heard", flush=True)
