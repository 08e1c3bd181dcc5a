"""Starts a run, kills it (kill -9) at random moments, starts it again, until it is finished.

    python nursery.py CONFIG FOLDER KILLS SEED

JAX may not be forked once it has started, so this process never starts it: each child does. Prints how often a child
was killed and after which round each time.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from equipoise.experiment import config, reading, records, run

LONGEST = 120  # seconds for one child


def child(told, folder):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if (folder / records.CONFIG).is_file():
            run.resume(folder)
        else:
            run.run(told, folder)
        code = 0
    finally:
        os._exit(code)


def rounds(folder):
    try:
        return folder.joinpath(records.HISTORY).read_bytes().count(b"\n")
    except OSError:
        return 0


def main():
    told, folder = config.parse(reading.read(sys.argv[1])), Path(sys.argv[2])
    kills, rng = int(sys.argv[3]), random.Random(int(sys.argv[4]))
    seen, startup = [], 0.0
    while not records.finished(folder):
        pid, before, started = child(told, folder), max(rounds(folder), 1), time.monotonic()
        if len(seen) < kills:
            # The first line is of the model before any round. Half of the kills come while it starts, or just after;
            # the others a moment after the run has moved on.
            anywhere = startup > 0 and rng.random() < 0.5
            wait = rng.uniform(0, 1.1 * startup) if anywhere else rng.uniform(0, 0.06)
            while time.monotonic() - started < LONGEST and (
                time.monotonic() - started < wait if anywhere else rounds(folder) <= before
            ):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    pid = 0
                    break
                time.sleep(0.01)
            if not anywhere:
                startup = time.monotonic() - started
                time.sleep(wait)
            if pid:
                os.kill(pid, signal.SIGKILL)
                seen.append(rounds(folder))
        if pid:
            os.waitpid(pid, 0)
        if time.monotonic() - started > LONGEST:
            sys.exit("a child took too long")
    print(len(seen), *seen)


if __name__ == "__main__":
    main()
