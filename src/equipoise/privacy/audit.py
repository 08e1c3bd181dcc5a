"""A site's own record of every message that it answered: a line each, which holds the digest of the line before.

A line that was changed, taken out or put in breaks the chain, and `verify` says where. Lines that were cut off at the
end are noticed by a second file, which holds the digest of the last one. Whoever can write both files can make up both,
so note the digest that `equipoise flower audit` prints somewhere else.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import require
from equipoise.files import append, locked, make_folder, read_text, sync, write_whole

FILE, HEAD = "audit.jsonl", "audit.head"
FIRST = "0" * 64
LONGEST = 1 << 20  # bytes of a line
_writing = threading.RLock()


class Chain(NamedTuple):
    """What a verified log says of itself."""

    entries: tuple[dict[str, Any], ...]
    head: str  # digest of the last line


def record(folder: Path, entry: dict[str, Any]) -> None:
    """Adds a line; it is on the disk when this returns."""
    make_folder(folder)
    with _undisturbed(folder):
        _mend(folder / FILE)
        number, previous = _end(folder)
        whole = {"number": number + 1, "time": datetime.now(UTC).isoformat(), **entry, "previous": previous}
        line = json.dumps(whole, separators=(",", ":"), default=str)
        append(folder / FILE, line + "\n")
        sync(folder / FILE)
        write_whole(folder / HEAD, json.dumps({"number": number + 1, "digest": _digest(line)}))


def verify(folder: Path) -> Chain:
    """The log, if every line stands where it was written; a sentence that says which does not.

    The site may go on answering meanwhile. A copy in a folder that cannot be written is verified as it lies there.
    """
    if not os.access(folder, os.W_OK):
        return _verified(folder)
    with _undisturbed(folder):
        return _verified(folder)


@contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """The log and its head are two files: nobody reads them between the writing of one and of the other."""
    with _writing, locked(folder / "audit.lock", f"the log of {folder.name}", wait=30.0):
        yield


def _verified(folder: Path) -> Chain:
    path = folder / FILE
    if not path.is_file():
        require(not (folder / HEAD).is_file(), f"{path} is gone, though {HEAD} says that there was one")
        return Chain((), FIRST)
    entries, previous = [], FIRST
    lines = read_text(path).split("\n")
    require(lines[-1] == "", f"{path}: line {len(lines)} has no end: it was changed, or the site was killed meanwhile")
    for k, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        sound = isinstance(entry, dict) and entry.get("number") == k and entry.get("previous") == previous
        require(sound, f"{path}: line {k} is not what was written there: it, or a line before it, was changed")
        entries.append(entry)
        previous = _digest(line)
    number, head = _end(folder)
    require(
        (number, head) == (len(entries), previous),
        f"{path} ends after {len(entries)} lines, and {HEAD} says {number}: lines were cut off, or changed",
    )
    return Chain(tuple(entries), previous)


def _mend(path: Path) -> None:
    """Takes off a line without an end: the site was killed while it wrote, so that reply was never sent."""
    if not _tail(path).endswith(b"\n"):
        content = read_text(path) if path.is_file() else ""
        write_whole(path, content[: content.rfind("\n") + 1])


def _end(folder: Path) -> tuple[int, str]:
    """The number and digest of the last line; where the head was not written any more, those of the log itself."""
    number, digest = _head(folder)
    lines = _tail(folder / FILE).decode("utf-8", "replace").split("\n")
    line = lines[-2] if len(lines) > 1 else ""
    try:
        last = json.loads(line)
        killed_between = last["number"] == number + 1 and last["previous"] == digest
    except (ValueError, TypeError, KeyError, RecursionError):
        killed_between = False
    return (number + 1, _digest(line)) if killed_between else (number, digest)


def _tail(path: Path) -> bytes:
    """Of a log that may be long, enough to hold the last line."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST))
        return file.read()


def _head(folder: Path) -> tuple[int, str]:
    path = folder / HEAD
    if not path.is_file():
        return 0, FIRST
    try:
        found = json.loads(read_text(path))
        return int(found["number"]), str(found["digest"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return -1, ""


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
