"""`equipoise flower` as processes, which tests start, watch and end by their ids."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "EQUIPOISE_TEST_OF"  # in the environment of all that a test starts, and of what that starts in turn
ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])


class Command:
    """One `equipoise flower ...`, its output in a file."""

    def __init__(self, *words, folder, log, env=None):
        self.log = folder / log
        self.start([sys.executable, "-m", "equipoise", "flower", *map(str, words)], folder, env)

    def start(self, command, folder, env, **options):
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": PATH, "COLUMNS": "200", MARK: str(folder), **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )

    def wait(self, seconds, code=0):
        try:
            found = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done within {seconds} s:\n{self.tail()}") from None
        assert found == code, self.tail()

    def tail(self, lines=60):
        return "\n".join(self.log.read_text().splitlines()[-lines:])

    def tree(self):
        """All that it started, and those that they started."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def find(self, part, seconds=60):
        """The process among them whose command has `part` in it, the lowest in the tree."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for process in reversed(self.tree()):
                with suppress(psutil.Error):
                    if any(part in word for word in process.cmdline()):
                        return process
            time.sleep(0.1)
        raise AssertionError(f"there is no {part}:\n{self.tail()}")

    def terminate(self):
        if self.process.poll() is None:
            self.process.terminate()

    def stop(self, patience=20):
        """As Ctrl-C would; whatever is left after that is killed."""
        left = self.tree()
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        kill([*left, *self.tree()])
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def kill(self):
        """With -9, this process alone: gives what it had started."""
        tree = self.tree()
        self.process.kill()
        self.process.wait()
        return tree


def kill(processes):
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def running(pid):
    """Whether there is such a process, other than one that only waits to be counted."""
    try:
        return alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def left(processes, seconds=60):
    """Which of the processes are still there after a while; it is long where the machine is busy."""
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    return [process for process in processes if alive(process)]


def started_in(folder):
    """All processes that commands of this folder started, whatever became of their parents, in whatever session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder) and alive(process):
                found.append(process)
    return found


def until(condition, seconds, command):
    """Waits for a condition while a command runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still waiting after {seconds} s:\n{command.tail()}"
        assert command.process.poll() is None, command.tail()
        time.sleep(0.05)
