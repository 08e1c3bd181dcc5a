"""Processes that end with the one that started them, and that are started again when they crash."""

import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from equipoise.deploy.operations import guard
from equipoise.errors import EquipoiseError, InputError

GUARD = [sys.executable, "-P", str(Path(guard.__file__))]
RESTART = (0.5, 30.0)  # seconds before a process that crashed is started again: at first, and at most
STEADY = 60.0  # seconds after which a process counts as running well
REFUSED = 2  # the exit code of a command whose arguments cannot work: it is not started again


@contextmanager
def process(
    command: Sequence[str], more: Mapping[str, str], *, patience: float = 8.0, **options: Any
) -> Iterator[subprocess.Popen]:
    """A program that ends, with all that it started, when the block is left or this process ends in any way."""
    with owned([*GUARD, *command], more, patience=patience, **options) as child:
        yield child


@contextmanager
def owned(
    command: Sequence[str], more: Mapping[str, str], *, patience: float = 8.0, **options: Any
) -> Iterator[subprocess.Popen]:
    """The same for a program that ends by itself when its standard input is closed."""
    child = subprocess.Popen(
        command, env={**os.environ, **more}, stdin=subprocess.PIPE, start_new_session=True, **options
    )
    try:
        yield child
    finally:
        with suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
        if child.poll() is None:
            guard.end(child.pid, 0.5)
        child.wait()


def keep_running(
    begin: Callable[[], AbstractContextManager[subprocess.Popen]],
    stop: threading.Event,
    say: Callable[[str], None],
    *,
    name: str = "the site",
    tries: float = math.inf,
) -> None:
    """Starts the process, and again when it ends, until `stop` is set, it refuses its arguments, or `tries` are used.

    A try is one that did not run for long.
    """
    delay, used = RESTART[0], 0
    while not stop.is_set():
        began = time.monotonic()
        with begin() as child:
            while child.poll() is None and not stop.wait(0.1):
                pass
            code = child.poll()
        if stop.is_set():
            return
        if code == REFUSED:
            raise EquipoiseError(f"{name} could not start, see above")
        steady = time.monotonic() - began > STEADY
        delay, used = (RESTART[0], 0) if steady else (min(2 * delay, RESTART[1]), used + 1)
        if used >= tries:
            raise EquipoiseError(f"the process of {name} ended {used} times (exit {code}), see above")
        say(f"the process of {name} ended (exit {code}); it is started again in {delay:g} s")
        stop.wait(delay)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens there."""
    try:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((host, port)) != 0
    except (OSError, UnicodeError, TypeError) as error:  # the last of names that are not Unicode
        raise InputError(f"{host!r} is not an address of this machine ({error}); give one, such as 0.0.0.0") from error


def await_port(child: subprocess.Popen, host: str, port: int, patience: float = 120.0) -> None:
    """Returns when somebody listens there."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if child.poll() is not None:
            raise EquipoiseError(f"the server ended before it had begun (exit {child.returncode}); its log says why")
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise EquipoiseError(f"nobody listens on {host}:{port} after {patience:g} s")
