"""Ctrl-C at every k-th import of a command, each in a process of its own, forked there.

    python -m tests.searches.interrupts EVERY WORDS...

Prints a line for each moment that ended otherwise than it should, and how many there were.
"""

import os
import runpy
import signal
import sys
import tempfile


class Moments:
    """The first of Python's finders: it is asked for every module that is not loaded yet, and finds none."""

    def __init__(self, every):
        self.every, self.asked, self.tried = every, 0, 0

    def find_spec(self, name, path=None, target=None):
        self.asked += 1
        if self.asked % self.every == 0:
            self.interrupt(name)

    def interrupt(self, name):
        self.tried += 1
        with tempfile.TemporaryFile() as said:
            pid = os.fork()
            if pid == 0:
                sys.meta_path.remove(self)
                os.dup2(said.fileno(), 2)
                signal.raise_signal(signal.SIGINT)  # here, not whenever it arrives
                return
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said.seek(0)
            text = said.read().decode(errors="replace")
        if code != 130 or "Traceback" in text or "stopped" not in text:
            print("at", name, "exit", code, text[-300:].replace("\n", " | "), flush=True)


def main():
    moments, parent = Moments(int(sys.argv[1])), os.getpid()
    sys.argv = ["equipoise", *sys.argv[2:]]
    import equipoise.__main__  # what comes before is Python's own  # noqa: F401

    sys.meta_path.insert(0, moments)
    try:
        runpy.run_module("equipoise", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if os.getpid() != parent:  # interrupted inside the command, which says how it ended
            raise
        print("ended", end.code, "moments", moments.tried, flush=True)


if __name__ == "__main__":
    main()
