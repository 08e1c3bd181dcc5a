"""Processes that write one folder at the same time, started at random moments; each is killed or goes on to the end.

    python -m tests.searches.writers FOLDER WHOLE WRITERS SEED

WHOLE is the same run by one process. Prints a line for each process: what became of it. They are forked, so that the
libraries are loaded once; JAX may not be forked once it has started, so this process never starts it.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from equipoise.errors import InputError
from equipoise.experiment import config, records, run
from tests.searches import tiny


def child(told, folder, delay, doomed):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        time.sleep(delay)
        if doomed:
            signal.setitimer(signal.ITIMER_REAL, doomed)  # nobody handles it: as sudden as a kill
        if (folder / records.CONFIG).is_file():
            run.resume(folder)
        else:
            run.run(told, folder)
        code = 0
    except InputError as error:
        print("refused:", error, flush=True)
        code = 2
    finally:
        os._exit(code)


def main():
    folder, whole, writers, rng = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        random.Random(int(sys.argv[4])),
    )
    tiny.use(pytest.MonkeyPatch())
    told = config.parse(tiny.settings(folder.parent / "silos", run={"rounds": 20}))
    started = time.monotonic()
    os.waitpid(child(told, whole, 0, 0), 0)
    length = time.monotonic() - started
    while not records.finished(folder):
        pids = [
            child(told, folder, rng.uniform(0, length), rng.uniform(0, length) if rng.random() < 0.4 else 0)
            for _ in range(writers)
        ]
        for pid in pids:
            print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
