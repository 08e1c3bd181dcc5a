"""What a run over Flower is doing: a log of JSON lines, and a file that says how things stand now.

log.jsonl     every event and every exchange, a line each, with its time
status.json   who is connected, round, seconds per exchange by site, bytes, last error; replaced as a whole
"""

import json
import logging
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from equipoise import files
from equipoise.deploy.server.events import Record
from equipoise.errors import InputError, require
from equipoise.experiment.records import LOG, STATUS, JsonRecord

FRESH = 0.25  # seconds between two writes of the status, unless something happened
RECENT = 50  # exchanges of which means are taken
GONE = ("late", "absent", "failed", "refused")


class SiteStatus(JsonRecord):
    """One site."""

    state: str = "awaited"  # or connected, or what happened last
    replies: int = 0
    seconds: float | None = None  # of its last reply
    mean_seconds: float | None = None
    last_error: str = ""


class Status(JsonRecord):
    """How a run stands."""

    name: str
    state: str = "waiting for sites"  # or agreeing, compiling, training, finished, stopped
    process: int  # the server's
    updated: str  # UTC
    round: int = 0
    rounds: int
    exchange: str = ""
    seconds_per_exchange: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    transport: str = ""
    sites: dict[str, SiteStatus]
    refused: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it: what was refused at the server's port, how often
    last_error: str = ""

    @property
    def pace(self) -> str:
        return "" if self.seconds_per_exchange is None else f", {self.seconds_per_exchange:.3g} s per exchange"


class StatusWriter:
    """Keeps both files; `observe` is what a Federation calls."""

    def __init__(self, folder: Path, name: str, sites: tuple[str, ...], rounds: int):
        self.folder, self.written, self.lock = folder, 0.0, threading.RLock()
        self.log = (folder / LOG).open("a", buffering=1)
        self.sites: dict[str, dict[str, Any]] = {site: {} for site in sites}  # fields of `SiteStatus`
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.by_site: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.now: dict[str, Any] = {"name": name, "process": os.getpid(), "rounds": rounds}
        self.bytes: Counter[str] = Counter()

    def observe(self, record: Record) -> None:
        with self.lock, suppress(OSError):  # training and evaluation both report; a full disk does not end them here
            self.log.write(json.dumps({"time": _now(), **record}) + "\n")
            if record["kind"] == "event":
                self._event(record)
            elif record["kind"] == "exchange":
                self._exchange(record)
            else:
                self.now |= {key: value for key, value in record.items() if key in Status.model_fields}
            self.write(force=record["kind"] != "exchange")

    def _event(self, record: Record) -> None:
        site, what, why = record["site"], record["what"], record["why"]
        if what == "joined":
            self.sites.setdefault(site, {})["state"] = "connected"
        elif site in self.sites:
            self.sites[site] |= {"last_error": f"{what}: {why}"} | ({"state": what} if what in GONE else {})
        if what not in ("joined", "resumed"):
            self.now["last_error"] = f"{site + ': ' if site else ''}{why}"

    def _exchange(self, record: Record) -> None:
        self.now |= {"exchange": record["exchange"]}
        self.bytes.update({way: record[way] for way in ("bytes_down", "bytes_up")})
        if record["part"] == "train":
            self.now |= {"state": "training", "round": record["round"] + 1}
            self.recent.append(record["seconds"])
            self.now["seconds_per_exchange"] = sum(self.recent) / len(self.recent)
        for site, seconds in record["sites"].items():
            times, before = self.by_site[site], self.sites.get(site, {})
            times.append(seconds)
            now = {"state": "connected", "seconds": seconds, "mean_seconds": sum(times) / len(times)}
            self.sites[site] = {**before, **now, "replies": before.get("replies", 0) + 1}

    def write(self, force: bool = False) -> None:
        if not force and time.monotonic() - self.written < FRESH:
            return
        sites = {site: SiteStatus(**fields) for site, fields in sorted(self.sites.items())}
        status = Status(**self.now, **self.bytes, updated=_now(), sites=sites)
        part = self.folder / f".{STATUS}.part"
        part.write_text(status.model_dump_json(indent=1) + "\n")  # not written through: only the newest matters
        os.replace(part, self.folder / STATUS)
        self.written = time.monotonic()

    def close(self, state: str) -> None:
        with self.lock, suppress(OSError):
            self.now["state"] = state
            self.write(force=True)
            self.log.close()


def read(folder: Path) -> Status:
    """The status of the run in a folder."""
    path = folder / STATUS
    require(path.is_file(), f"{folder} has no {STATUS}; give the folder of a run that `equipoise flower server` made")
    try:
        return Status.model_validate_json(files.read_text(path))
    except (ValidationError, InputError):
        raise InputError(f"{path} cannot be read; it is damaged or of another version") from None


def newest(folder: Path) -> Path:
    """The folder itself if it has a status, or else the one below it whose status is the newest."""
    folders = [path.parent for path in folder.rglob(STATUS)] if folder.is_dir() else []
    require(folders, f"there is no run over Flower in {folder}; give the folder of one (--out of the server)")
    return folder if folder in folders else max(folders, key=lambda f: (f / STATUS).stat().st_mtime)


def describe(status: Status, folder: Path) -> str:
    """How a run stands, in one line."""
    connected = sum(site.state == "connected" for site in status.sites.values())
    refused = "".join(f"; refused at the server's port: {times:,} {why}" for why, times in status.refused.items())
    return (
        f"{folder}: {status.state}, round {status.round} of {status.rounds}, {connected} of {len(status.sites)} sites "
        f"connected{status.pace}, {status.bytes_down:,} bytes down, {status.bytes_up:,} up; as of {status.updated}; "
        f"{status.transport}{refused}" + (f"; last error: {status.last_error}" if status.last_error else "")
    )


LOOK = 0.5  # seconds between two looks at the status
FIRST_SILENCE, LONGEST_SILENCE = 5.0, 60.0  # seconds between two lines about a run that does the same as before
TICK = 0.05  # seconds by which the time of a file may lie behind the clock


def follower(folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Callable:
    """Says what the run of a folder is doing, when that changes and now and then; to be called all the while."""
    before, next_look, next_line, silence, since = "", 0.0, 0.0, FIRST_SILENCE, time.time() - TICK

    def follow() -> None:
        nonlocal before, next_look, next_line, silence
        now = clock()
        if now < next_look:
            return
        next_look = now + LOOK
        state, text = "starting", "the server starts"
        with suppress(OSError, InputError):
            if (folder / STATUS).stat().st_mtime >= since:  # not of an earlier run
                status = read(folder)
                state, text = status.state, _doing(status)
        if state in ("finished", "stopped") or (state == before and now < next_line):
            return
        silence = FIRST_SILENCE if state != before else min(2 * silence, LONGEST_SILENCE)
        before, next_line = state, now + silence
        say(text)

    return follow


def _doing(status: Status) -> str:
    if status.state == "training":
        return f"training: round {status.round:,} of {status.rounds:,}{status.pace}"
    if status.state == "waiting for sites":
        away = [name for name, site in status.sites.items() if site.state != "connected"]
        who = f", {len(away)} of {len(status.sites)} to come: {', '.join(away[:5])}" if away else ""
        return f"{status.state}{who}"
    return status.state


def table(status: Status) -> Table:
    """How the sites stand, a row each."""
    rows = Table("site", "state", "replies", "last reply", "mean", "last error")
    for name, site in status.sites.items():
        times = ("" if s is None else f"{s:.3g} s" for s in (site.seconds, site.mean_seconds))
        rows.add_row(*map(escape, (name, site.state, str(site.replies), *times, site.last_error)))
    return rows


class JsonLines(logging.Formatter):
    """A log for programs: one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _now(), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
