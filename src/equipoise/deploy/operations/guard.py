"""Runs a command that ends with whoever started it: `python -P guard.py COMMAND ...`, its standard input a pipe.

The pipe is closed when the starting process ends, however it ends, kill -9 included; then the command is asked to end,
and what it started and left behind is killed. Started as a file, so that it loads nothing of Equipoise.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType

import psutil

PATIENCE = 3.0  # seconds for the command to end by itself


def end(pid: int, patience: float) -> None:
    """Asks a process to end; whatever is left of it and of all that it started, in whatever session, is killed."""
    try:
        top = psutil.Process(pid)
        tree = [top, *top.children(recursive=True)]  # while it still hangs together
    except psutil.NoSuchProcess:
        return
    with suppress(psutil.Error):
        top.terminate()
    gone, _ = psutil.wait_procs([top], timeout=patience)
    with suppress(psutil.Error):
        tree += [] if gone else top.children(recursive=True)
    kill(tree)


def kill(tree: list[psutil.Process]) -> None:
    for process in tree:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(tree, timeout=PATIENCE)


def with_parent() -> None:
    """In the new process, on Linux: it is asked to end if the guard is killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def main() -> int:
    over = threading.Event()

    def stop(signum: int = 0, frame: FrameType | None = None) -> None:
        over.set()

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, stop)
    preexec = with_parent if sys.platform == "linux" else None
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=preexec)

    def watch_parent() -> None:
        while os.read(0, 4096):
            pass
        over.set()

    def watch_child() -> None:
        child.wait()
        over.set()

    for watch in (watch_parent, watch_child):
        threading.Thread(target=watch, daemon=True).start()
    left: list[psutil.Process] = []
    while not over.wait(3.0):
        with suppress(psutil.Error):
            left = psutil.Process(child.pid).children(recursive=True)  # in case it dies and leaves them
    if child.poll() is None:
        end(child.pid, PATIENCE)
    kill([process for process in left if process.is_running()])
    return child.wait()


if __name__ == "__main__":
    code = main()
    os._exit(code if code >= 0 else 128 - code)  # a thread still reads
