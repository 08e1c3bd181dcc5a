"""A site's own record of every message that it answered or refused: a line each, with the digest of the line before.

A line that was changed, taken out or put in breaks the chain, and `verify` says where. Every line is signed with the
site's key, where it has one, so that nobody else adds to it. Lines that were cut off at the end are noticed by a second
file, the head, with the number and the digest of the last one, signed, and by the server's receipts: every reply has
the same of the line that was written about it, and the run folder keeps the last of each site.

Whoever may write in the folder can put an earlier log and its head back, or delete all of it; whoever has the site's
key can make up a log from its beginning. Only the receipts, which somebody else keeps, tell these from the true one,
and nothing tells of lines after the last receipt.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import InputError, require
from equipoise.files import append, locked, make_folder, read_text, sync, write_whole

FILE, HEAD, PUBLIC = "audit.jsonl", "audit.head", "audit.pub"
FIRST = "0" * 64
SHORT, LONGEST = 1 << 14, 1 << 20  # bytes of two usual lines, and of one line at most
_writing = threading.RLock()


class Signer(NamedTuple):
    """The site's key, as far as a log needs it."""

    sign: Callable[[bytes], bytes]
    check: Callable[[bytes, bytes], bool]  # what was signed, and the signature
    public: bytes  # as it is written to a file


class Receipt(NamedTuple):
    """Where a log stands, as its head says and as the server is told with every reply."""

    number: int
    digest: str
    signature: str  # of both, in hexadecimal; empty where the site has no key

    @property
    def said(self) -> bytes:
        return f"{self.number} {self.digest}".encode()


class Chain(NamedTuple):
    """What a verified log says of itself."""

    entries: tuple[dict[str, Any], ...]
    head: str  # digest of the last line

    @property
    def anew(self) -> bool:
        """Whether there had been another log when this one was begun."""
        return bool(self.entries) and self.entries[0].get("anew") is True


def record(folder: Path, entry: Mapping[str, object], signer: Signer | None = None) -> Receipt:
    """Adds a line; it is on the disk when this returns. A full disk leaves the log as it was."""
    make_folder(folder)

    def keep(number: int, digest: str) -> Receipt:
        """As the head of the log."""
        head = Receipt(number, digest, "")
        head = head if signer is None else head._replace(signature=signer.sign(head.said).hex())
        write_whole(folder / HEAD, json.dumps(head._asdict()))
        return head

    with _undisturbed(folder):
        if not (folder / FILE).is_file() and not (folder / HEAD).is_file():
            if (folder / PUBLIC).is_file():  # of a log that was here before
                entry = {**entry, "anew": True}
            keep(0, FIRST)  # first of all: on a disk that is full from now on there is no log without a head
        tail = _tail(folder / FILE)
        if tail and not tail.endswith(b"\n"):  # the site was killed while it wrote, so that reply was never sent
            size = (folder / FILE).stat().st_size
            os.truncate(folder / FILE, size - len(tail) + tail.rfind(b"\n") + 1)  # which takes no room on a full disk
        number, previous = _end(folder, signer)
        whole = {"number": number + 1, "time": datetime.now(UTC).isoformat(), **entry, "previous": previous}
        line = _line(whole)
        if signer is not None:
            line = _line({**whole, "signature": signer.sign(line.encode()).hex()})
        append(folder / FILE, line + "\n")
        sync(folder / FILE)
        if signer is not None and not (folder / PUBLIC).is_file():
            write_whole(folder / PUBLIC, signer.public)
        return keep(number + 1, _digest(line))


def verify(folder: Path, check: Callable[[bytes, bytes], bool] | None = None, receipt: Receipt | None = None) -> Chain:
    """The log, if every line stands where it was written; a sentence that says which does not.

    `check` is of the site's public key, without which signatures are not looked at; `receipt` is the server's last. The
    site may go on answering meanwhile. A copy in a folder that cannot be written is verified as it lies there.
    """
    path = folder / FILE
    with _undisturbed(folder) if os.access(folder, os.W_OK) else nullcontext():
        text, head = read_text(path) if path.is_file() else None, _head(folder)
        headless = not (folder / HEAD).is_file()
    if text is None:
        if receipt is not None:
            raise InputError(f"{path} is gone, though the server has a receipt of line {receipt.number}")
        left = [HEAD] * (head.number != 0) + [PUBLIC] * (folder / PUBLIC).is_file()
        require(not left, f"{path} is gone, though {' and '.join(left)} beside it says that there was one")
        return Chain((), FIRST)
    entries, digests, lines = [], [FIRST], text.split("\n")
    require(lines[-1] == "", f"{path}: line {len(lines)} has no end: it was changed, or the site was killed meanwhile")
    for k, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        sound = isinstance(entry, dict) and entry.get("number") == k and entry.get("previous") == digests[-1]
        require(sound, f"{path}: line {k} is not what was written there: it, or a line before it, was changed")
        require(check is None or _signed(entry, check), f"{path}: line {k} is not signed by the site's key")
        entries.append(entry)
        digests.append(_digest(line))
    require(not headless, f"{folder / HEAD} is gone, and lines at the end of {FILE} may be gone with it")
    require(
        0 <= head.number <= len(entries) and digests[head.number] == head.digest,
        f"{path} ends after {len(entries)} lines, and {HEAD} says {head.number}: lines were cut off, or changed",
    )
    signed = check is None or _checked(check, head.said, head.signature)
    require(signed, f"{folder / HEAD} is not signed by the site's key: lines at the end of {FILE} may be gone")
    if receipt is not None:
        signed = check is None or _checked(check, receipt.said, receipt.signature)
        require(signed, "the server's receipt is not signed by the site's key: it is of another site, or made up")
        require(
            receipt.number < len(digests) and digests[receipt.number] == receipt.digest,
            f"{path} has {len(entries)} lines, and not the line {receipt.number} that the server has a receipt of: "
            "lines were deleted, or written anew",
        )
    return Chain(tuple(entries), digests[-1])


@contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """The log and its head are two files: nobody reads them between the writing of one and of the other."""
    with _writing, locked(folder / "audit.lock", f"the log of {folder.name}", wait=30.0):
        yield


def _line(entry: Mapping[str, object]) -> str:
    return json.dumps(entry, separators=(",", ":"), default=str)


def _signed(entry: Mapping[str, Any], check: Callable[[bytes, bytes], bool]) -> bool:
    """Whether a line was signed as it stands."""
    return _checked(check, _line({k: v for k, v in entry.items() if k != "signature"}).encode(), entry.get("signature"))


def _checked(check: Callable[[bytes, bytes], bool], said: bytes, signature: Any) -> bool:
    try:
        return check(said, bytes.fromhex(signature))
    except (TypeError, ValueError):
        return False


def _end(folder: Path, signer: Signer | None) -> tuple[int, str]:
    """The number and digest of the last line.

    The head may be behind, by as many lines as a full disk or a kill kept it from being written; a line that the site
    has not signed, or a log that is shorter than the head says, is not gone on from.
    """
    number, digest, _ = _head(folder)
    lines = _tail(folder / FILE).decode("utf-8", "replace").split("\n")
    line = lines[-2] if len(lines) > 1 else ""
    try:
        last = json.loads(line)
        genuine = type(last["number"]) is int and (signer is None or _signed(last, signer.check))
        if genuine and last["number"] >= number:
            return last["number"], _digest(line)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return max(number, 0), digest


def _tail(path: Path) -> bytes:
    """Of a log that may be long, enough to hold its last whole line and what may have been begun after it."""
    if not path.is_file():
        return b""
    size, block = path.stat().st_size, SHORT
    with path.open("rb") as file:
        while True:
            file.seek(max(0, size - block))
            tail = file.read()
            if block >= min(size, LONGEST) or tail.count(b"\n") > 2:
                return tail
            block *= 4


def _head(folder: Path) -> Receipt:
    path = folder / HEAD
    if not path.is_file():
        return Receipt(0, FIRST, "")
    try:
        saved = json.loads(read_text(path))
        return Receipt(int(saved["number"]), str(saved["digest"]), str(saved.get("signature", "")))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Receipt(-1, "", "")


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
