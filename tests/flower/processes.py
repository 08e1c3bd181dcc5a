"""`equipoise flower` as processes, which tests start, watch and end by their ids."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from equipoise.experiment.federated.launch import descendants

ROOT = Path(__file__).parents[2]


class Command:
    """One `equipoise flower ...`, its output in a file."""

    def __init__(self, *words, folder, log, env=None):
        self.log = folder / log
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "equipoise", "flower", *map(str, words)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done within {seconds} s:\n{self.tail()}") from None
        assert code == 0, self.tail()

    def tail(self, lines=60):
        return "\n".join(self.log.read_text().splitlines()[-lines:])

    def stop(self, patience=30):
        """As Ctrl-C would; whatever is left after that is killed."""
        left = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        kill(left)

    def kill(self):
        """As a power cut would."""
        kill([self.process.pid, *descendants(self.process.pid)])
        self.process.wait()


def children(pid):
    """The ids of the processes that a process started itself."""
    below = descendants(pid)
    deeper = {grandchild for child in below for grandchild in descendants(child)}
    return [child for child in below if child not in deeper]


def running(pid):
    """Whether there is such a process, other than one that only waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until(condition, seconds, command):
    """Waits for a condition while a command runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still waiting after {seconds} s:\n{command.tail()}"
        assert command.process.poll() is None, command.tail()
        time.sleep(0.2)
