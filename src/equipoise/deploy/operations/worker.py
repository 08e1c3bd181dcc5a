"""The process of one or more warm sites: `python -m equipoise.deploy.operations.worker`.

Its first line of standard input says which, as JSON (`Work`); it ends within a second when the input is closed, or on
SIGTERM. `equipoise flower site` and `local` start it, and start it again when it crashes.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from equipoise._jax import keep_programs
from equipoise.deploy.operations import site_process
from equipoise.deploy.operations.keys import CA
from equipoise.deploy.operations.processes import GUARD, REFUSED
from equipoise.deploy.operations.site_process import STOCK, Work
from equipoise.deploy.server.status import JsonLines
from equipoise.deploy.wire.transport import why_not_warm
from equipoise.errors import EquipoiseError, require


def main() -> int:
    """Runs until told to end; the exit code."""
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    work = site_process.read_line(sys.stdin.readline())

    def watch_parent() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch_parent, daemon=True).start()
    logger = logging.getLogger("equipoise.flower")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    console = logging.StreamHandler()
    console.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(console)
    try:
        if why := why_not_warm():
            become_supernode(work, why)
        keep_programs(Path(work.compiled))
        Path(work.sites[0].folder).mkdir(parents=True, exist_ok=True)
        logger.addHandler(JsonLines(Path(work.sites[0].folder) / "log.jsonl"))
        from equipoise.deploy.wire import warm

        sites = [
            warm.WarmSite(
                work.server,
                Path(site.folder),
                site.config,
                certificates=None if work.keys is None else Path(work.keys) / CA,
                key=None if site.key is None else Path(site.key),
                stop=stop,
            )
            for site in work.sites
        ]
        names = ", ".join(site.name for site in sites)
        logger.info("%s: one process that stays (warm), pid %d", names, os.getpid())
        from equipoise.deploy import entry_points  # noqa: F401 - JAX and all that a message needs, before it comes

        warm.run_sites(sites, stop)
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return REFUSED
    except BaseException:
        logger.exception("the process ends because of an error")
        return 1
    return 0


def become_supernode(work: Work, why: str) -> None:
    """Where Flower's internals have changed, this process becomes Flower's own node, and ends as it would."""
    names = ", ".join(site.name for site in work.sites)
    require(len(work.sites) == 1, f"{names}: Flower's own nodes run one site each ({why}); start them with --stock")
    print(f"{names}: {STOCK} ({why})", flush=True)
    command, more = site_process.supernode(work.sites[0], work)
    os.execve(GUARD[0], [*GUARD, *command], {**os.environ, **more})


def _ended(code: int) -> Any:
    logging.shutdown()
    os._exit(code)  # threads may be in the middle of work that nobody waits for


if __name__ == "__main__":
    _ended(main())
