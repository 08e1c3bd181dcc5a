"""What happened during a run over Flower, for people."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from equipoise.deploy.server.events import Event, Traffic
from equipoise.evaluation.rules import higher_is_better, main_score
from equipoise.experiment.records import Row

FEW = 4  # places that are named; of more, how many
WORDS = {
    "late": "did not answer in time",
    "failed": "failed",
    "refused": "refused",
    "broken": "sent a reply that was left out",
    "absent": "was not there",
}
WHOLE = (
    "stranger",
    "double",
    "false name",
    "outsider",
    "left out",
    "log went back",
    "heavy",
)  # their reason is a sentence, with the site in it


def of(events: Sequence[Event]) -> Iterator[str]:
    """A sentence for each thing that happened to a site, however often; that it came is none, unless it was away."""
    groups: dict[tuple[str, str, str], list[Event]] = {}
    away: set[str] = set()
    for event in events:
        if event.what in ("late", "absent"):
            away.add(event.site)
        if event.what == "joined" and event.site not in away:
            continue
        away -= {event.site} if event.what == "joined" else set()
        groups.setdefault((event.site, event.what, event.why), []).append(event)
    for (site, what, why), found in groups.items():
        yield f"{_said(site, what, why)} ({_places(found)})"


def _said(site: str, what: str, why: str) -> str:
    if what in WHOLE:
        return why
    if what == "joined":
        return f"'{site}' came back"
    if not site:
        opening = {"repeated": "the round was repeated: ", "given up": "the run stopped: ", "resumed": ""}
        return opening.get(what, f"{what}: ") + why
    return f"'{site}' {WORDS.get(what, what)}: {why}"


def _places(found: Iterable[Event]) -> str:
    places = list(dict.fromkeys(map(_place, found)))
    more = f" and {len(places) - FEW} more" if len(places) > FEW else ""
    return ", ".join(places[:FEW]) + more


def _place(event: Event) -> str:
    first = _first_place(event)
    if event.times == 1:
        return first
    if event.last_round == event.round:
        return f"{first}, {event.times} times"
    last = event.last_round if event.exchange == "evaluate" else (event.last_round or 0) + 1
    return f"{event.times} times from {first} to round {last}"


def _first_place(event: Event) -> str:
    if event.exchange == "evaluate":
        return f"evaluation after round {event.round}"
    if event.exchange in ("", "statistics", "agreement", "prepare", "start"):
        return "before the first round" if event.round == 0 else f"round {event.round + 1}"
    return f"round {event.round + 1}, {event.exchange}"


def framing(traffic: Sequence[Traffic]) -> str:
    """What the network added to the bytes of the history."""
    down = sum(t.sent * t.down_framing for t in traffic)
    up = sum(t.received * t.up_framing for t in traffic)
    messages = sum(t.sent + t.received for t in traffic)
    return (
        f"Flower's framing added {down:,} bytes down and {up:,} up, {(down + up) // max(messages, 1):,} per message, "
        "to the bytes of the history; HTTP, TLS and evaluations come on top"
    )


def say(at: int, of: int, row: Row) -> None:
    """A line for the log of the server."""
    score = main_score(row.scores) or "loss"
    values = np.array([np.nan if v is None else v for v in row.scores[score]])
    known = values[np.isfinite(values)]
    if known.size:
        worst = known.min() if higher_is_better(score) else known.max()
        print(f"round {at} of {of}: {score} {known.mean():.4g}, of the worst site {worst:.4g}", flush=True)
    else:
        print(f"round {at} of {of}: no site was heard", flush=True)
