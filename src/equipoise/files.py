"""Files that are whole or not there, and a lock that one process holds. What the disk refuses is said in a sentence."""

import errno
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from equipoise.errors import FileError, InputError, require

TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.part")  # what a process that was killed may leave behind
UNLOCKABLE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}  # file systems without locks


def cache_folder() -> Path:
    """The user's own, in the place that the system has for such folders."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("equipoise"))


class LockWarning(UserWarning):
    """The file system has no locks: a second writer would not be noticed."""


def write_whole(path: Path, content: bytes | str, *, secret: bool = False) -> None:
    """A reader sees the old file or the new one, never half of it, even if this process is killed.

    `secret`: nobody but its owner can read it, at no moment.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        odd = error.object[max(error.start - 20, 0) : error.end]
        raise InputError(f"{path} cannot hold {odd!r}, which is not a Unicode text; give another name") from None
    temporary = path.parent / f".{uuid4().hex}.part"
    with _in_sentences(path):
        try:
            if secret:
                temporary.touch(mode=0o600, exist_ok=False)
            with temporary.open("r+b" if secret else "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def append(path: Path, content: str) -> None:
    """The content reaches the disk with the next `sync` of the file; a part of it may, where this process is killed."""
    with _in_sentences(path), path.open("ab") as file:
        file.write(content.encode())


def sync(path: Path) -> None:
    with _in_sentences(path), path.open("rb+") as file:
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    with _in_sentences(path):
        path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    with _in_sentences(path):
        path.mkdir(parents=True, exist_ok=True)


def read_text(path: Path) -> str:
    """UTF-8, whatever the machine's own encoding is."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file ({error.reason} at byte {error.start}); it is damaged") from None


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({reason(error)})") from error


def check_place(path: Path) -> None:
    """The folder, or the nearest one above it, is there to be written."""
    try:
        near = next(above for above in (path, *path.absolute().parents) if os.path.lexists(above))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} is not a name for a folder ({error}); give another") from None
    require(near.is_dir(), f"{path} cannot be made: {near} is not a folder; give another place")
    require(os.access(near, os.W_OK | os.X_OK), f"{near} may not be written by you; give another place")


def check_own(path: Path, made: Callable[[bytes], bool], what: str) -> None:
    """`path` is free to be written, is empty, or is `what`, as `made` tells from its content: nobody's work is lost."""
    check_place(path.parent)
    if not os.path.lexists(path):
        return
    require(not path.is_dir(), f"{path} is a folder; give the name of a file")
    require(path.is_file(), f"{path} is not a file; give another place")
    content = read_bytes(path)
    require(not content or made(content), f"{path} is not {what}, and is left as it is; give another place")


@contextmanager
def locked(path: Path, holder: str, *, wait: float = 0.0) -> Iterator[None]:
    """Holds the lock file `path`; where another process does, for `wait` seconds, an error says who writes `holder`.

    The operating system releases the lock when the process ends, however it ends: what a killed process or a reboot
    leaves behind is a file, which the next one takes over. On NFS the lock holds between machines where its lock
    service runs; a file system without locks gives a warning. Windows locks the file's first byte.
    """
    descriptor = _claim(path, holder, time.monotonic() + wait)
    try:
        yield
    finally:
        with suppress(OSError):  # removed while it is still held: who waits for it looks whether it is still there
            path.unlink()
        os.close(descriptor)


def check_unlocked(path: Path, holder: str) -> None:
    """The sentence of `locked`, without taking the lock."""
    if path.is_file():
        os.close(_claim(path, holder, 0.0))


def _claim(path: Path, holder: str, until: float) -> int:
    named = time.monotonic() + 2.0
    while True:
        with _in_sentences(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
            current = os.fstat(descriptor).st_ino == os.stat(path).st_ino
        except FileNotFoundError:  # the one before has just finished
            os.close(descriptor)
            continue
        except (BlockingIOError, PermissionError):
            said = ""
            with suppress(OSError):  # Windows does not let it be read
                said = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            now = time.monotonic()
            if now < until or (not said and now < named):  # a holder without a name is about to write it
                time.sleep(0.1 if said else 0.01)
                continue
            who = said or "another process"
            raise InputError(f"{holder} is being written by {who}; wait until that has ended, or stop it") from None
        except OSError as error:
            if error.errno not in UNLOCKABLE:
                os.close(descriptor)
                raise FileError(f"{path} cannot be locked ({reason(error)})") from error
            unlocked = f"the file system of {path.parent} has no locks ({reason(error)})"
            warnings.warn(f"{unlocked}: do not start a second run there", LockWarning, stacklevel=4)
            current = True
        if current:
            break
        os.close(descriptor)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
    return descriptor


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _in_sentences(path: Path) -> Iterator[None]:
    """What the disk refuses, as errors that say what to do."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None))
        remedy = "make room on the disk" if full else "give another place, or the right to write there"
        raise FileError(f"{path} cannot be written ({reason(error)}); {remedy}") from error
    except ValueError as error:  # a null byte
        raise InputError(f"{str(path)!r} is not a name for a file ({error})") from error


def reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
